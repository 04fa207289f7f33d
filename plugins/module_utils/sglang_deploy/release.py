"""Build an immutable release of a stack on this host.

A build goes through a hidden folder and one rename, so that a release either is whole or is not there::

    releases/<id>/venv           uv's relocatable virtual environment, byte-compiled
    releases/<id>/lock.txt       every package with its hashes; nothing else is installed
    releases/<id>/wheels/        what was built here from a git source, so that lock.txt can be installed again
    releases/<id>/options.json   the option list of the installed server's own parser (the catalog's dialect format)
    releases/<id>/receipt.json   what it was built from, what is in it, how long each step took

A git source is installed from a wheel, never in place: the environment moves once, and what runs must not change with a
folder beside it. The tree itself is gone after the build; its commit stays in the cache.

Runs as root with nothing but the standard library and uv.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import release_git, release_probe, release_proof, release_tree, release_uv
from .release_host import Python, ReleaseError, check_disk, choose_python
from .release_lock import LockError, lock_packages, merged, with_hashes, with_own_hash
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


def _compile(
    uv: str, env: Mapping[str, str], python: str | Path, target: Path, requirements: Sequence[str], *more: str
) -> str:
    """The requirements resolved by uv into ``target``, every package with its hashes."""
    source = target.with_suffix(".in")
    _write(source, "\n".join(requirements) + "\n")
    arguments = ["pip", "compile", str(source), "--python", str(python), "--generate-hashes", "--no-header"]
    arguments += ["--no-annotate", "--quiet", *more, "--output-file", str(target)]
    release_uv.run(uv, arguments, env=env, step="Resolving the stack's packages")
    lock = target.read_text(encoding="utf-8")
    # uv leaves out the hashes of local wheels that it need not open, as with --no-deps; its other format has them.
    if lock.count("--hash=") < len(lock_packages(lock)):
        pylock = target.with_name("pylock.toml")
        more_exact = [*arguments[:-2], "--output-file", str(pylock), "--format", "pylock.toml"]
        release_uv.run(uv, more_exact, env=env, step="Hashing the stack's packages")
        lock = with_hashes(lock, pylock.read_text(encoding="utf-8"))
    return lock


def _resolve(request: Request, uv: str, env: Mapping[str, str], venv: Path, work: Path) -> str:
    """The text of lock.txt."""
    python = venv / "bin" / "python"
    extra: list[str] = []
    for name, lines in (("constraints", request.constraints), ("overrides", request.overrides)):
        if lines:
            _write(work / f"{name}.txt", "\n".join(lines) + "\n")
            extra += [f"--{name}", str(work / f"{name}.txt")]
    lock = _compile(uv, env, python, work / "requirements.txt", request.requirements, *extra) if request.requirements else ""
    if request.requirements_no_deps:
        lock = merged(lock, _compile(uv, env, python, work / "no-deps.txt", request.requirements_no_deps, "--no-deps"))
    return lock.lstrip()


@dataclass(frozen=True)
class _Tree:
    """A source laid out: the folder with the Python project, its build requirements, and the id of git's tree."""

    project: Path
    requires: tuple[str, ...]
    tree: str


def _lay_out(request: Request, work: Path, env: Mapping[str, str]) -> _Tree | None:
    """The tree of a git source, after what would make its build pointless was looked at; None for an index."""
    if request.repository is None or request.resolved is None:
        return None
    tree = work / "src"
    tree_id = release_git.checkout(request.repository, request.resolved, tree, request.patches)
    project = tree / request.source.get("subdirectory", "")
    requires = release_tree.build_requirements(project)
    release_tree.check_tools(release_tree.needed(tree, requires, request.environment), env["PATH"])
    if (project / "sglang").is_dir():
        release_proof.prove(request.proofs, project / "sglang")
    return _Tree(project, requires, tree_id)


def _build_wheel(
    request: Request, source: _Tree, uv: str, env: Mapping[str, str], python: Path, work: Path, wheels: Path
) -> tuple[Path, dict[str, str]]:
    """The wheel of the laid-out source, and the build tools that made it."""
    lock = work / "build-lock.txt"
    if source.requires:
        _write(lock, _compile(uv, env, python, work / "build.txt", source.requires))
    wheel = release_tree.build_wheel(
        source.project,
        wheels,
        uv,
        {**env, **request.environment},
        python=python,
        version=request.local_version(),
        lock=lock if source.requires else None,
    )
    tools = lock_packages(lock.read_text(encoding="utf-8")) if source.requires else {}
    return wheel, tools


def _probe(python: Path, request: Request, work: Path) -> dict[str, Any]:
    """Run ``release_probe`` inside the release."""
    source = inspect.getsource(release_probe)
    target = work / "probe.json"
    home = work / "home"
    home.mkdir()
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(home), "LANG": "C.UTF-8", **request.environment}
    env["HF_HUB_OFFLINE"] = "1"
    done = subprocess.run(
        [str(python), "-I", "-B", "-c", source, str(target)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=env,
        cwd=home,
    )
    if done.returncode != 0 or not target.is_file():
        said = [line for line in done.stderr.splitlines() if line.strip()][-6:]
        raise ReleaseError(
            "The installed server cannot be imported, so this set of packages does not work together. Its last words:\n"
            + "\n".join(said)
            + "\nCompare the stack's versions with what SGLang pins, and see lock files of releases that work."
        )
    report: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return report


def _same_version(wanted: str, found: str) -> bool:
    """Equal, or equal but for a local part (``2.13.0`` against ``2.13.0+cpu``) that was not asked for."""
    return found == wanted or ("+" not in wanted and found.split("+")[0] == wanted)


def verify_versions(expected: Mapping[str, str], report: Mapping[str, Any]) -> None:
    """ReleaseError where the finished environment does not have a version that the stack promises."""
    wrong = []
    for name, wanted in expected.items():
        found = report[name] if name in ("sglang", "torch", "cuda") else report["packages"].get(name, "missing")
        if not _same_version(wanted, str(found)):
            wrong.append(f"{name} is {found}, the stack says {wanted}")
    if wrong:
        raise ReleaseError(
            f"The built environment is not the stack: {'; '.join(wrong)}. "
            "Pin the version in the stack's requirements or overrides, or correct what the stack says."
        )


def options_text(report: Mapping[str, Any]) -> str:
    """options.json: the catalog's dialect format, one option a line."""
    lines = ",\n".join(json.dumps(option) for option in report["options"])
    return f'{{"schema": 1, "sglang": {json.dumps(report["sglang"])}, "options": [\n{lines}\n]}}\n'


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


def _versions(report: Mapping[str, Any]) -> dict[str, str | None]:
    """The versions that decide behaviour: SGLang, torch, its CUDA, transformers, kernels, FlashInfer, DeepGEMM."""
    kept = re.compile(
        r"transformers|triton|torchvision|(sgl|sglang)-(kernel.*|deep-gemm.*)|flashinfer.*|nvidia-nccl.*|nvidia-cudnn.*"
    )
    packages = {name: version for name, version in report["packages"].items() if kept.fullmatch(name)}
    return {"sglang": report["sglang"], "torch": report["torch"], "cuda": report["cuda"], **packages}


def _make(request: Request, python: Python, release_id: str, store: Store, uv: str, progress: Progress) -> Path:
    """Build into the hidden folder and rename it. Returns the final path."""
    building = store.building(release_id)
    venv, work = building / "venv", building / "work"
    work.mkdir(parents=True)
    cache = Path(request.index.cache_dir)
    cache.mkdir(parents=True, exist_ok=True)
    env = request.index.environment(same_filesystem=cache.stat().st_dev == building.stat().st_dev)
    steps = _Steps(progress)
    made: dict[str, Any] = {}
    source = None
    if request.repository is not None:
        with steps.step("source", f"fetching {request.source['ref']} of {request.source['url']}"):
            source = _lay_out(request, work, env)
    with steps.step("venv", f"making the environment with {python.path}"):
        release_uv.run(
            uv,
            ["venv", "--relocatable", "--quiet", "--python", python.path, str(venv)],
            env=env,
            step="Making the environment",
        )
    if source is not None:
        with steps.step("wheel", f"building SGLang {request.local_version()} with {release_tree.jobs()} jobs"):
            wheels = building / "wheels"
            wheel, tools = _build_wheel(request, source, uv, env, venv / "bin" / "python", work, wheels)
            package, version = release_tree.wheel_name(wheel)
            request = request.with_wheel(package, version)
            env["UV_FIND_LINKS"] = ",".join(filter(None, (env.get("UV_FIND_LINKS"), str(wheels))))
        made = {
            "tree": source.tree,
            "patches": [{"name": patch.name, "sha256": patch.sha256} for patch in request.patches],
            "wheels": {wheel.name: file_sha256(wheel)},
            "build_tools": tools,
        }
    with steps.step("resolve", "resolving the stack's packages"):
        lock = _resolve(request, uv, env, venv, work)
        if source is not None:
            origin = f"built from {request.source['url']} at {request.source['commit']}"
            lock = with_own_hash(lock, package, made["wheels"][wheel.name], origin)
        _write(building / "lock.txt", lock)
    with steps.step("install", f"installing {len(lock_packages(lock))} packages"):
        arguments = ["pip", "install", "--python", str(venv / "bin" / "python"), "--no-deps", "--require-hashes"]
        release_uv.run(
            uv,
            [*arguments, "--compile-bytecode", "--quiet", "-r", str(building / "lock.txt")],
            env=env,
            step="Installing the locked packages",
        )
    with steps.step("verify", "asking the installed server for its versions and options"):
        (packages,) = venv.glob("lib/python3*/site-packages")
        proofs = release_proof.prove(request.proofs, packages / "sglang")
        report = _probe(venv / "bin" / "python", request, work)
        verify_versions(request.expected, report)
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
        "index": request.index.identity(),
        "versions": _versions(report),
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


def plan(request: Request, root: Path = Path("/opt/sglang"), *, python: str | None = None) -> tuple[str, bool]:
    """What ``build`` would do, changing nothing: the release's id, and whether it would have to be built.

    Makes the same checks: Python in range, the commit that a git source's ref is now, disk space, an existing release
    that is not damaged while in use.
    """
    chosen = choose_python(request.python_range, python)
    request = request.pinned()
    release_id = request_id(request, chosen.minor, chosen.platform)
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

    ``uv`` is the uv to use; without it the one of ``uv_version`` under ``root``, installed there first if need be.
    ``python`` asks for a certain interpreter; ``progress`` is told each step in words; ``lock_wait_s`` is how many
    seconds to wait for another build on this host. A damaged release that nothing runs from is built anew.
    ReleaseError, UvError (a ReleaseError's sibling, from uv itself) or StoreError say what was wrong; nothing is then
    left behind but uv's cache.
    """
    chosen = choose_python(request.python_range, python)
    request = request.pinned()
    release_id = request_id(request, chosen.minor, chosen.platform)
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
            if uv is None:
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
