"""Build an immutable release of a stack on this host.

A build goes through a hidden folder and one rename, so that a release either is whole or is not there::

    releases/<id>/venv           uv's relocatable virtual environment, byte-compiled
    releases/<id>/lock.txt       every package with its hashes; nothing else is installed
    releases/<id>/wheels/        what was built from a git source, so that lock.txt can be installed again
    releases/<id>/options.json   the option list of the installed server's own parser (the catalog's dialect format)
    releases/<id>/receipt.json   what it was built from, what is in it, how long each step took

A git source is installed from a wheel, never in place: the environment moves once, and what runs must not change with a
folder beside it. The tree itself is gone after the build; its commit stays in the cache. With a wheelhouse nothing is
resolved and nothing fetched: its lock and its files are the release.

Runs as root with nothing but the standard library and uv.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import release_proof, release_resolve, release_source, release_system, release_tree, release_uv, release_wheelhouse
from .release_host import Python, ReleaseError, check_disk, choose_python
from .release_lock import LockError, lock_packages, with_own_hash
from .release_request import Request, request_id
from .release_store import (
    RECEIPT_SCHEMA,
    Damaged,
    Store,
    clear_leftovers,
    discard,
    file_sha256,
    locked,
    read_receipt,
    running_releases,
)
from .release_uv import Index, UvError
from .release_verify import options_text, probe, verify_lock, verify_overrides, verify_versions, versions

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Built:
    """The outcome of ``build``: the release's id, folder and receipt, and whether it was made now."""

    release_id: str
    path: Path
    receipt: Mapping[str, Any]
    changed: bool


class _Steps:
    """Runs named steps: tells their names, keeps their seconds."""

    def __init__(self, progress: Progress) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress

    @contextlib.contextmanager
    def step(self, key: str, words: str) -> Iterator[None]:
        self._progress(words)
        began = time.monotonic()
        yield
        self.seconds[key] = round(time.monotonic() - began, 2)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)


def _settle(tree: Path) -> int:
    """Make a tree world-readable, writable by its owner only and owned by root (where we are), whatever the umask and
    uv's cache were.

    Returns its size in bytes on disk.
    """
    size = 0
    root = os.geteuid() == 0
    for folder, _, names in os.walk(tree):
        for path in (folder, *(f"{folder}/{name}" for name in names)):  # strings: Path is slow for 50,000 files
            status = os.lstat(path)
            size += status.st_blocks * 512
            if root and (status.st_uid or status.st_gid):
                os.chown(path, 0, 0, follow_symlinks=False)
            if not stat.S_ISLNK(status.st_mode):
                readable = 0o555 if stat.S_ISDIR(status.st_mode) or status.st_mode & 0o100 else 0o444
                mode = (stat.S_IMODE(status.st_mode) | readable) & ~0o7022
                if mode != stat.S_IMODE(status.st_mode):
                    os.chmod(path, mode)  # noqa: PTH101
    return size


def _take_wheelhouse(wheelhouse: release_wheelhouse.Wheelhouse, building: Path, env: dict[str, str]) -> str:
    """Its lock, with uv told to look nowhere else; wheels that were built from a git source stay beside the lock."""
    lock = wheelhouse.lock()
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY"):
        env.pop(name, None)
    env |= {"UV_NO_INDEX": "1", "UV_OFFLINE": "1", "UV_FIND_LINKS": str(wheelhouse.folder / "wheels")}
    for name in wheelhouse.own:
        (building / "wheels").mkdir(exist_ok=True)
        shutil.copyfile(wheelhouse.folder / "wheels" / name, building / "wheels" / name)
    return lock


def _make(request: Request, python: Python, release_id: str, store: Store, uv: str, progress: Progress) -> Path:
    """Build into the hidden folder and rename it. Returns the final path."""
    building = store.building(release_id)
    venv, work = building / "venv", building / "work"
    work.mkdir(parents=True)
    cache = Path(request.index.cache_dir)
    cache.mkdir(parents=True, exist_ok=True)
    env = request.index.environment(same_filesystem=cache.stat().st_dev == building.stat().st_dev)
    steps = _Steps(progress)
    made: Mapping[str, Any] = {}
    source = own = None
    if request.repository is not None:
        with steps.step("source", f"fetching {request.source['ref']} of {request.source['url']}"):
            source = release_source.lay_out(request, work, env)
    with steps.step("venv", f"making the environment with {python.path}"):
        release_uv.run(
            uv,
            ["venv", "--relocatable", "--quiet", "--python", python.path, str(venv)],
            env=env,
            step="Making the environment",
        )
        (packages,) = venv.glob("lib/python3*/site-packages")
        if request.system:
            release_system.show_to(python.path, packages)
    interpreter = venv / "bin" / "python"
    if source is not None:
        workers = release_tree.jobs()
        with steps.step(
            "wheel", f"building SGLang {request.local_version()} with {workers} {'job' if workers == 1 else 'jobs'}"
        ):
            wheels = building / "wheels"
            own = release_source.build(request, source, uv, env, interpreter, work, wheels, progress)
            request = request.with_wheel(own.package, own.version)
            env["UV_FIND_LINKS"] = ",".join(filter(None, (env.get("UV_FIND_LINKS"), str(wheels))))
            made = own.made
    if request.wheelhouse is not None:
        with steps.step("check", f"checking the wheelhouse {request.wheelhouse.folder}"):
            lock = _take_wheelhouse(request.wheelhouse, building, env)
            made = request.wheelhouse.manifest["built"]
    else:
        with steps.step("resolve", "resolving the stack's packages"):
            lock = release_resolve.resolve(request, uv, env, interpreter, work, said=progress)
        if own is not None:
            origin = f"built from {request.source['url']} at {request.source['commit']}"
            lock = with_own_hash(lock, own.package, own.made["wheels"][own.path.name], origin)
    _write(building / "lock.txt", lock)
    with steps.step("install", f"installing {len(lock_packages(lock))} packages"):
        arguments = ["pip", "install", "--python", str(interpreter), "--no-deps", "--require-hashes"]
        release_uv.run(
            uv,
            [*arguments, "--compile-bytecode", "-r", str(building / "lock.txt")],
            env=env,
            step="Installing the locked packages",
            said=progress,
        )
    with steps.step("verify", "asking the installed server for its versions and options"):
        proofs = release_proof.prove(request.proofs, packages / "sglang")
        report = probe(interpreter, request, work)
        verify_versions(request.expected, report)
        verify_overrides(request, report)
        verify_lock(lock, report, request.given)
        _write(building / "options.json", options_text(report))
        shutil.rmtree(work)
    with steps.step("settle", "settling owners and modes"):
        size = _settle(building)
    receipt = {
        "schema": RECEIPT_SCHEMA,
        "id": release_id,
        "stack": request.stack,
        "source": dict(request.source),
        **made,
        "proofs": {name: asdict(evidence) for name, evidence in proofs.items()},
        "index": request.index.identity() if request.wheelhouse is None else None,
        "wheelhouse": request.wheelhouse.summary() if request.wheelhouse else None,
        "system_site_packages": dict(request.given),
        "versions": versions(report),
        "python": {**asdict(python), "version": ".".join(map(str, python.version))},
        "uv": release_uv.version(uv),
        "lock_sha256": file_sha256(building / "lock.txt"),
        "packages": len(lock_packages(lock)),
        "hashes": lock.count("--hash="),
        "bytes": size,
        "seconds": {**steps.seconds, "total": round(sum(steps.seconds.values()), 2)},
        "built": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    _write(building / "receipt.json", json.dumps(receipt, indent=2) + "\n")
    progress("moving the release into place")
    os.sync()  # 50,000 files: one call for all of them is much faster than an fsync of each
    final = store.path(release_id)
    building.rename(final)
    handle = os.open(store.releases, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return final


def _present(store: Store, release_id: str) -> Built | None:
    path = store.path(release_id)
    return Built(release_id, path, read_receipt(path), changed=False) if path.exists() else None


def _named(request: Request, python: str | None) -> tuple[Request, Python, str]:
    """The request with all that only the host and the source's server know, the Python to build with, and the id."""
    wheelhouse = request.wheelhouse
    wanted = request.python_range if wheelhouse is None else f"{request.python_range},=={wheelhouse.python}"
    try:
        chosen = choose_python(wanted, python)
    except ReleaseError as error:
        if wheelhouse is None:
            raise
        raise ReleaseError(f"{error} The wheelhouse is for Python {wheelhouse.python}.") from error
    if wheelhouse is not None and chosen.platform != wheelhouse.machine:
        raise ReleaseError(
            f"The wheelhouse is for {wheelhouse.machine}, and this host is {chosen.platform}: make one for this platform "
            "(sglang_wheelhouse_platform)."
        )
    if request.system:
        request = replace(request, given=release_system.given(chosen.path, request.system))
    request = request.pinned()
    return request, chosen, request_id(request, chosen.minor, chosen.platform)


def plan(request: Request, root: Path = Path("/opt/sglang"), *, python: str | None = None) -> tuple[str, bool]:
    """What ``build`` would do, changing nothing: the release's id, and whether it would have to be built.

    Makes the same checks: Python in range, the commit that a git source's ref is now, disk space, an existing release
    that is not damaged while in use.
    """
    request, _, release_id = _named(request, python)
    store = Store(root)
    try:
        if _present(store, release_id):
            return release_id, False
    except Damaged as error:
        _refuse_if_running(root, release_id, error)
    check_disk(store.root, Path(request.index.cache_dir), request.disk_mib)
    return release_id, True


def _refuse_if_running(root: Path, release_id: str, error: Damaged) -> None:
    if release_id in running_releases(root):
        raise ReleaseError(
            f"{error}. It is in use, so it cannot be built anew: stop the services that run from it first."
        ) from error


def build(
    request: Request,
    root: Path = Path("/opt/sglang"),
    *,
    uv: str | None = None,
    uv_version: str = "",
    python: str | None = None,
    progress: Progress = lambda _: None,
    lock_wait_s: float = 3600,
) -> Built:
    """The release for ``request`` under ``root``: the one that is there, or a new one.

    ``uv`` is the uv to use; without it the one of ``uv_version`` under ``root``, installed there first if need be; a
    wheelhouse brings its own.
    ``python`` asks for a certain interpreter; ``progress`` is told each step in words; ``lock_wait_s`` is how many
    seconds to wait for another build on this host. A damaged release that nothing runs from is built anew.
    ReleaseError, UvError (a ReleaseError's sibling, from uv itself) or StoreError say what was wrong; nothing is then
    left behind but uv's cache.
    """
    request, chosen, release_id = _named(request, python)
    store = Store(root)
    with contextlib.suppress(Damaged):
        if present := _present(store, release_id):
            return present
    check_disk(store.root, Path(request.index.cache_dir), request.disk_mib)  # first: a refusal leaves no trace
    umask = os.umask(0o022)
    try:
        with locked(root, wait_s=lock_wait_s, waiting=progress):
            store.releases.mkdir(exist_ok=True)
            clear_leftovers(store)
            try:
                if present := _present(store, release_id):  # another process was faster
                    return present
            except Damaged as error:
                _refuse_if_running(root, release_id, error)
                progress(f"removing a damaged release: {error}")
                discard(store, release_id)
            if request.wheelhouse is not None:
                uv = uv or request.wheelhouse.provide_uv(root / "uv" / request.wheelhouse.uv_version)
            elif uv is None and not uv_version:
                raise ReleaseError("Neither a uv nor its version was given (sglang_uv_version).")
            elif uv is None:
                uv = release_uv.provide(root / "uv" / uv_version, uv_version, chosen.path, request.index)
            release_uv.version(uv)
            try:
                path = _make(request, chosen, release_id, store, uv, progress)
            except BaseException:
                shutil.rmtree(store.building(release_id), ignore_errors=True)
                raise
    except LockError as error:
        raise ReleaseError(str(error)) from error
    except OSError as error:
        raise ReleaseError(f"The release could not be written: {error.strerror or error} ({error.filename}).") from error
    finally:
        os.umask(umask)
    return Built(release_id, path, read_receipt(path), changed=True)


__all__ = [
    "Built",
    "Index",
    "Python",
    "ReleaseError",
    "Request",
    "UvError",
    "build",
    "choose_python",
    "plan",
    "request_id",
]
