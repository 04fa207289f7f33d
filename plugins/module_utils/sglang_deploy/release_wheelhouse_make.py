"""Make a wheelhouse: resolve a stack for a host's Python and platform, fetch every file, record them all.

Runs on a machine with a network, which need be neither the host nor like it. What was interrupted is gone on with: the
resolved lock, SGLang's own wheel and every whole file stay in the folder, and the manifest is written last.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import release_resolve, release_source, release_uv
from . import release_wheelhouse as wheelhouses
from .release_host import ReleaseError, choose_python
from .release_lock import LockError, canonical_name, lock_packages
from .release_request import Request, asked
from .release_tree import wheel_name
from .release_wheelhouse import MANIFEST, SCHEMA, WheelhouseError, file_digest

BATCH = 8
"""Packages that are fetched in one go, and so at most fetched again after an interruption."""
PLATFORM = re.compile(r"(x86_64|aarch64)-manylinux_2_(\d+)")
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_NO_WHEEL = r"No matching distribution found|Could not find a version"


@dataclass(frozen=True)
class Target:
    """What a wheelhouse is for: a Python such as ``3.12``, and a platform such as ``x86_64-manylinux_2_36`` (processor
    and the oldest glibc that it must run with)."""

    python: str
    platform: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"3\.\d+", self.python):
            raise ReleaseError(
                f"A wheelhouse is for one Python such as 3.12, not {self.python!r} (sglang_wheelhouse_python)."
            )
        if not PLATFORM.fullmatch(self.platform):
            raise ReleaseError(
                f"A wheelhouse is for a platform such as x86_64-manylinux_2_36, not {self.platform!r} "
                "(sglang_wheelhouse_platform; the number is the host's glibc, which `ldd --version` tells)."
            )

    def for_uv(self) -> list[str]:
        return ["--python-version", self.python, "--python-platform", self.platform]

    def for_pip(self) -> list[str]:
        """pip takes a platform by every name that a wheel for it may have."""
        machine, newest = PLATFORM.fullmatch(self.platform).groups()  # type: ignore[union-attr]  # checked when made
        names = [f"manylinux_2_{minor}_{machine}" for minor in range(int(newest), 4, -1)]
        names += [f"{old}_{machine}" for minor, old in _OLD_NAMES.items() if minor <= int(newest)]
        tag = self.python.replace(".", "")
        arguments = ["--python-version", self.python, "--implementation", "cp"]
        for abi in (f"cp{tag}", "abi3", "none"):
            arguments += ["--abi", abi]
        for name in (*names, f"linux_{machine}"):
            arguments += ["--platform", name]
        return arguments

    def takes(self, wheel: str) -> bool:
        """Whether a wheel that was built here runs there, by its name."""
        python, abi, platform = wheel.removesuffix(".whl").split("-")[-3:]
        machine = self.platform.split("-")[0]
        tag = "cp" + self.python.replace(".", "")
        return (platform == "any" or platform.endswith(machine)) and (abi in ("none", "abi3") or tag in python.split("."))


@dataclass(frozen=True)
class Made:
    """The wheelhouse's manifest, and whether it was made now."""

    manifest: Mapping[str, Any]
    changed: bool


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WheelhouseError(f"Another process makes the wheelhouse {folder}: wait for it, or end it.") from error
        yield


def whole(request: Request, target: Target, uv_version: str, path: Path) -> dict[str, Any] | None:
    """The manifest of the wheelhouse at ``path`` where it is what would be made of the pinned request; else None."""
    try:
        manifest = wheelhouses.read_manifest(path)
    except WheelhouseError:
        return None
    same = (
        manifest["asked"] == asked(request)
        and manifest["source"] == dict(request.source)
        and (manifest["python"], manifest["platform"]) == (target.python, target.platform)
        and manifest["uv"]["version"] == uv_version
    )
    if not same or (path.is_dir() and wheelhouses.lacking(manifest, path, content=False)):
        return None
    return manifest


def make(
    request: Request,
    target: Target,
    path: Path,
    *,
    uv_version: str,
    python: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Made:
    """Make the wheelhouse at ``path``: a folder, or with the suffix ``.tar`` an archive.

    ``uv_version`` is the uv that goes in and that resolves; ``python`` asks for this machine's interpreter. ReleaseError,
    UvError or WheelhouseError say what was wrong; what was fetched stays for the next try.
    """
    request = request.pinned()
    if manifest := whole(request, target, uv_version, path):
        return Made(manifest, changed=False)
    packed = path.suffix == ".tar"
    if not packed and path.is_file():
        raise WheelhouseError(f"{path} is a file: name a folder, or an archive that ends in .tar.")
    folder = path.with_suffix(".parts") if packed else path
    try:
        with _alone(folder):
            manifest = _make(request, target, folder, uv_version, python, progress)
        if packed:
            progress(f"packing {path}")
            wheelhouses.pack(folder, path)
            shutil.rmtree(folder)
    except LockError as error:
        raise ReleaseError(str(error)) from error
    except OSError as error:
        raise ReleaseError(f"The wheelhouse could not be written: {error.strerror or error} ({error.filename}).") from error
    return Made(manifest, changed=True)


def _make(
    request: Request, target: Target, folder: Path, uv_version: str, python: str | None, progress: Callable[[str], None]
) -> dict[str, Any]:
    work, wheels = folder / ".work", folder / "wheels"
    fingerprint = hashlib.sha256(
        json.dumps([asked(request), dict(request.source), target.for_uv(), uv_version, request.index.identity()]).encode()
    ).hexdigest()
    if not (work / fingerprint).is_file():  # what lies there was begun for something else
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        (work / fingerprint).touch()
    wheels.mkdir(exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    here = _python(target, python)
    uv = release_uv.provide(work / "uv", uv_version, here, request.index)
    env = request.index.environment(same_filesystem=False)
    plain = request
    own, request = _own_wheel(request, target, uv, env, Path(here), work, progress)
    links = [env.get("UV_FIND_LINKS"), str(work / "own") if own else None]
    if any(links):
        env["UV_FIND_LINKS"] = ",".join(filter(None, links))
    lock_file = work / "lock.txt"
    if not lock_file.is_file():
        progress(f"resolving the stack's packages for Python {target.python}, {target.platform}")
        text = release_resolve.resolve(request, uv, env, here, work, *target.for_uv(), said=progress)
        part = lock_file.with_suffix(".part")
        part.write_text(text, encoding="utf-8")
        part.replace(lock_file)
    lock = lock_file.read_text(encoding="utf-8")
    pip = _Pip(Path(uv).with_name("python"), request, target, work)
    files = _fetch(lock, own, wheels, pip, progress)
    uv_wheel = _uv_wheel(uv_version, wheels, pip)
    kept = {path.name: path for path in (*files.values(), uv_wheel)}
    for stray in wheels.iterdir():
        if stray.name not in kept:
            stray.unlink()
    text = _sealed(lock, files, plain, own)
    (folder / "lock.txt").write_text(text, encoding="utf-8")
    manifest = {
        "schema": SCHEMA,
        "stack": plain.stack,
        "source": dict(plain.source),
        "built": own,
        "asked": asked(plain),
        "python": target.python,
        "platform": target.platform,
        "uv": {"version": uv_version, "file": uv_wheel.name},
        "lock_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "files": {name: {"sha256": file_digest(path), "bytes": path.stat().st_size} for name, path in sorted(kept.items())},
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    part = folder / f"{MANIFEST}.part"
    part.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / MANIFEST)
    shutil.rmtree(work)
    return manifest


def _python(target: Target, asked_for: str | None) -> str:
    """This machine's interpreter to work with: of the host's own version where there is one, for a source's sake."""
    with contextlib.suppress(ReleaseError):
        return choose_python(f"=={target.python}", asked_for).path
    return choose_python(">=3.10", asked_for).path


def _own_wheel(
    request: Request,
    target: Target,
    uv: str,
    env: Mapping[str, str],
    python: Path,
    work: Path,
    progress: Callable[[str], None],
) -> tuple[dict[str, Any], Request]:
    """What was built of a git source (now, or before an interruption), and the request with it in its package's place."""
    if request.repository is None:
        return {}, request
    out, record = work / "own", work / "own.json"
    if not record.is_file():
        for left in (work / "src", out):
            shutil.rmtree(left, ignore_errors=True)
        progress(f"fetching {request.source['ref']} of {request.source['url']}")
        source = release_source.lay_out(request, work, env)
        if source is not None:
            progress(f"building SGLang {request.local_version()}")
            built = release_source.build(request, source, uv, env, python, work, out, progress)
            record.write_text(json.dumps(dict(built.made)), encoding="utf-8")
    own: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    (name,) = own["wheels"]
    if not target.takes(name):
        raise ReleaseError(
            f"SGLang's own wheel came out as {name}, which Python {target.python} on {target.platform} does not take: make "
            f"the wheelhouse on a machine with that Python (sglang_wheelhouse_python), or leave the compiled parts out."
        )
    package, version = wheel_name(Path(name))
    return own, request.with_wheel(package, version)


class _Pip:
    """pip with the request's index and nothing of this machine's own configuration."""

    def __init__(self, python: Path, request: Request, target: Target, work: Path) -> None:
        self._python, self._target = str(python), target
        self._env = {**request.index.environment(same_filesystem=False), **request.index.pip_environment()}
        self._env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_CACHE_DIR": str(work / "pip")}
        self._list = work / "batch.txt"

    def download(self, blocks: Sequence[str], to: Path, *, hashes: bool = True) -> None:
        """The wheels of some blocks of a lock file, for the target."""
        more = ["--only-binary", ":all:", *self._target.for_pip()]
        self._run("download", blocks, [*more, "--dest", str(to)], hashes=hashes)

    def build(self, block: str, to: Path) -> None:
        """The wheel of a package that has none, built from its locked source."""
        self._run("wheel", [block], ["--wheel-dir", str(to)], hashes=True)

    def _run(self, what: str, blocks: Sequence[str], more: Sequence[str], *, hashes: bool) -> None:
        self._list.write_text("".join(blocks), encoding="utf-8")
        arguments = ["-m", "pip", what, "--quiet", "--no-deps", *more, "--requirement", str(self._list)]
        if hashes:
            arguments.append("--require-hashes")
        release_uv.run(self._python, arguments, env=self._env, step="Fetching the stack's packages")


def _blocks(lock: str) -> dict[str, str]:
    """Package name to its lines of the lock file."""
    return {
        canonical_name(block): re.sub(r"(?m)^#.*\n", "", block)
        for block in re.split(r"(?m)^(?=[A-Za-z0-9])", lock)
        if re.match(r"[A-Za-z0-9]", block)
    }


def _present(wheels: Path) -> dict[tuple[str, str], Path]:
    """The wheels of a folder by canonical name and version."""
    return {wheel_name(path): path for path in wheels.glob("*.whl")}


def _fetch(lock: str, own: Mapping[str, Any], wheels: Path, pip: _Pip, progress: Callable[[str], None]) -> dict[str, Path]:
    """Every package of the lock as a file in ``wheels``, by package name; only what is not there yet is fetched."""
    blocks = _blocks(lock)
    built_here = wheels.parent / ".work" / "built.json"  # wheels made from sources: their hash is in no index
    made: dict[str, str] = json.loads(built_here.read_text(encoding="utf-8")) if built_here.is_file() else {}
    files: dict[str, Path] = {}
    here = {name: path for (name, _), path in _present(wheels).items()}
    for name, block in blocks.items():
        path = here.get(name)
        if path is not None and (file_digest(path) in block or made.get(path.name) == file_digest(path)):
            files[name] = path
    for name in own.get("wheels", {}):
        package = wheel_name(Path(name))[0]
        files[package] = Path(shutil.copy2(wheels.parent / ".work" / "own" / name, wheels / name))
    todo = [name for name in blocks if name not in files]
    for begin in range(0, len(todo), BATCH):
        batch = todo[begin : begin + BATCH]
        size = sum(path.stat().st_size for path in wheels.glob("*.whl")) / 1e9
        progress(f"fetching packages: {len(blocks) - len(todo) + begin} of {len(blocks)} ({size:.1f} GB), next {batch[0]}")
        before = set(wheels.iterdir())
        try:
            pip.download([blocks[name] for name in batch], wheels)
        except release_uv.UvError as error:
            if not re.search(_NO_WHEEL, str(error)):
                raise
            _one_by_one({name: blocks[name] for name in batch}, wheels, pip, made, progress)
            built_here.write_text(json.dumps(made), encoding="utf-8")
        arrived = {wheel_name(path)[0]: path for path in wheels.glob("*.whl") if path not in before}
        for name in batch:
            if name not in arrived and name not in here:
                raise WheelhouseError(f"pip fetched no file for {blocks[name].split()[0]}.")
            files[name] = arrived.get(name) or here[name]
    return files


def _one_by_one(
    blocks: Mapping[str, str], wheels: Path, pip: _Pip, made: dict[str, str], progress: Callable[[str], None]
) -> None:
    """As a batch, but with what the index has no wheel of built from its source."""
    for name, block in blocks.items():
        try:
            pip.download([block], wheels)
        except release_uv.UvError as error:
            if not re.search(_NO_WHEEL, str(error)):
                raise
            progress(f"building {name}, which has no wheel")
            before = set(wheels.glob("*.whl"))
            pip.build(block, wheels)
            (path,) = set(wheels.glob("*.whl")) - before
            if not pip._target.takes(path.name):
                path.unlink()
                raise ReleaseError(
                    f"{block.split()[0]} has no wheel for the host, and one that is built here ({path.name}) does not run "
                    "there: make the wheelhouse on a machine with the host's Python and platform."
                ) from error
            made[path.name] = file_digest(path)


def _uv_wheel(uv_version: str, wheels: Path, pip: _Pip) -> Path:
    if ("uv", uv_version) not in _present(wheels):
        pip.download([f"uv=={uv_version}\n"], wheels, hashes=False)
    return _present(wheels)["uv", uv_version]


def _sealed(lock: str, files: Mapping[str, Path], request: Request, own: Mapping[str, Any]) -> str:
    """lock.txt: each package bound to the one file that is here."""
    lines = []
    for name in sorted(lock_packages(lock)):
        package, version = wheel_name(files[name])
        if files[name].name in own.get("wheels", {}):
            lines.append(f"# {name} is built from {request.source['url']} at {request.source['commit']}\n")
        lines.append(f"{package}=={version} \\\n    --hash=sha256:{file_digest(files[name])}\n")
    return "".join(lines)
