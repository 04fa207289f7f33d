"""A wheelhouse: all that a release of one stack is built from without a network, in a folder or a tar archive::

    wheelhouse.json   what it was made from and for, and the name, size and SHA-256 of every file
    lock.txt          every package with the hash of the one file that is here
    wheels/           the files: packages, what was built from a git source, and uv itself

``release_wheelhouse_make`` makes one; this reads, checks and unpacks it. Its lock is part of a release's id, so another
lock is another release.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .release_host import ReleaseError

SCHEMA = 1
MANIFEST = "wheelhouse.json"
FIELDS = ("stack", "source", "built", "asked", "python", "platform", "uv", "lock_sha256", "files")


class WheelhouseError(ReleaseError):
    """A wheelhouse is not one, is not whole, or is for something else."""


@dataclass(frozen=True)
class Wheelhouse:
    """What ``wheelhouse.json`` says, and the folder where the files are (or will be)."""

    manifest: Mapping[str, Any]
    folder: Path

    @property
    def lock_sha256(self) -> str:
        return str(self.manifest["lock_sha256"])

    @property
    def python(self) -> str:
        """The Python that it is for, such as ``3.12``."""
        return str(self.manifest["python"])

    @property
    def machine(self) -> str:
        """The platform as a host names it, such as ``linux-x86_64``."""
        return "linux-" + str(self.manifest["platform"]).split("-", 1)[0]

    @property
    def own(self) -> Mapping[str, str]:
        """Wheels that were built from a git source: file name to SHA-256."""
        return dict(self.manifest["built"].get("wheels") or {})

    @property
    def uv_version(self) -> str:
        return str(self.manifest["uv"]["version"])

    def summary(self) -> dict[str, object]:
        """What a receipt says of it."""
        return {key: self.manifest.get(key) for key in ("lock_sha256", "python", "platform", "made")}

    def lacks(self, *, content: bool = True) -> list[str]:
        """Files that are not in the folder as the manifest has them; ``content`` False compares sizes alone."""
        return lacking(self.manifest, self.folder, content=content)

    def lock(self) -> str:
        """The text of lock.txt after every file was checked. WheelhouseError names what is missing or damaged."""
        if wrong := self.lacks():
            shown = ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
            raise WheelhouseError(
                f"The wheelhouse {self.folder} is not whole: {shown} is missing or not the file that it was made with. "
                "Copy it again, or make it anew with playbooks/wheelhouse.yml."
            )
        return (self.folder / "lock.txt").read_text(encoding="utf-8")

    def provide_uv(self, folder: Path) -> str:
        """The wheelhouse's own uv, unpacked under ``folder``; its path. Needs neither pip nor a network."""
        target = folder / "bin" / "uv"
        if target.is_file():
            return str(target)
        name = str(self.manifest["uv"]["file"])
        wheel, entry = self.folder / "wheels" / name, self.manifest["files"].get(name)
        if entry is None or not _right(wheel, entry["sha256"], entry["bytes"], content=True):
            raise WheelhouseError(
                f"The wheelhouse {self.folder} is not whole: wheels/{name}, its uv, is missing or not the file that it was "
                "made with. Copy it again, or make it anew with playbooks/wheelhouse.yml."
            )
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if re.fullmatch(r"uv-[^/]+\.data/scripts/uv", name)]
            if not names:
                raise WheelhouseError(f"{wheel.name} holds no uv: make the wheelhouse anew.")
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(".part")
            part.write_bytes(archive.read(names[0]))
        part.chmod(part.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        part.replace(target)
        return str(target)


def file_digest(path: Path) -> str:
    """SHA-256 of a file of any size, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def names(manifest: Mapping[str, Any]) -> list[str]:
    """Every file of a wheelhouse but the manifest, by its path in it."""
    return ["lock.txt", *(f"wheels/{name}" for name in sorted(manifest["files"]))]


def _right(path: Path, digest: str, size: int | None, *, content: bool) -> bool:
    if not path.is_file() or (size is not None and path.stat().st_size != size):
        return False
    return not content or file_digest(path) == digest


def lacking(manifest: Mapping[str, Any], folder: Path, *, content: bool = True) -> list[str]:
    """Paths of the files that ``folder`` does not have as the manifest says."""
    wrong = [] if _right(folder / "lock.txt", manifest["lock_sha256"], None, content=True) else ["lock.txt"]
    for name, entry in sorted(manifest["files"].items()):
        if not _right(folder / "wheels" / name, entry["sha256"], entry["bytes"], content=content):
            wrong.append(f"wheels/{name}")
    return wrong


def parse(text: str, where: str) -> dict[str, Any]:
    """A manifest from its text. WheelhouseError says what is wrong with it."""
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise WheelhouseError(f"{where}: {MANIFEST} is not JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        found = manifest.get("schema") if isinstance(manifest, dict) else None
        raise WheelhouseError(f"{where}: {MANIFEST} has schema {found!r}, this project reads {SCHEMA}: make it anew.")
    if missing := [field for field in FIELDS if field not in manifest]:
        raise WheelhouseError(f"{where}: {MANIFEST} lacks {', '.join(missing)}: make the wheelhouse anew.")
    if strange := [name for name in manifest["files"] if not re.fullmatch(r"[A-Za-z0-9][\w.+!-]*\.whl", name)]:
        raise WheelhouseError(f"{where}: {strange[0]!r} is not the name of a wheel.")
    return manifest


@contextlib.contextmanager
def _opened(archive: Path) -> Any:
    try:
        with tarfile.open(archive) as opened:
            yield opened
    except (tarfile.TarError, EOFError) as error:
        raise WheelhouseError(f"{archive} is no wheelhouse: it is neither a folder nor a tar archive ({error}).") from error


def _member(opened: tarfile.TarFile, name: str) -> tarfile.TarInfo | None:
    for spelling in (name, f"./{name}"):
        with contextlib.suppress(KeyError):
            return opened.getmember(spelling)
    return None


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the wheelhouse at ``path``, a folder or a tar archive. WheelhouseError where it is none."""
    if path.is_dir():
        if not (path / MANIFEST).is_file():
            raise WheelhouseError(f"{path} has no {MANIFEST}: it is no wheelhouse, or its making was not finished.")
        return parse((path / MANIFEST).read_text(encoding="utf-8"), str(path))
    if not path.exists():
        raise WheelhouseError(f"There is no wheelhouse {path}: make one with playbooks/wheelhouse.yml, or correct the path.")
    with _opened(path) as opened:
        # The first member, so that a large archive need not be read; elsewhere only if somebody packed it by hand.
        first = opened.next()
        member = first if first is not None and first.name.removeprefix("./") == MANIFEST else _member(opened, MANIFEST)
        handle = opened.extractfile(member) if member else None
        if handle is None:
            raise WheelhouseError(f"{path} has no {MANIFEST}: it is no wheelhouse.")
        return parse(handle.read().decode("utf-8", "replace"), str(path))


def copy_out(path: Path, name: str, target: Path) -> None:
    """One file of a wheelhouse (a name of ``names``), from its folder or archive to ``target``."""
    if path.is_dir():
        shutil.copyfile(path / name, target)
        return
    with _opened(path) as opened:
        member = _member(opened, name)
        handle = opened.extractfile(member) if member else None
        if handle is None:
            raise WheelhouseError(f"The wheelhouse {path} is not whole: {name} is not in it.")
        with handle, target.open("wb") as out:
            shutil.copyfileobj(handle, out, 2**20)


def take_in(manifest: Mapping[str, Any], source: Path, folder: Path) -> list[str]:
    """Move the files of a wheelhouse that lie in ``source`` (by their last name) into ``folder``, each checked.

    Returns what ``folder`` lacks after that, by size. WheelhouseError names a file that did not arrive as it was.
    """
    (folder / "wheels").mkdir(parents=True, exist_ok=True)
    for name in names(manifest):
        arrived = source / Path(name).name
        if not arrived.is_file():
            continue
        digest = manifest["lock_sha256"] if name == "lock.txt" else manifest["files"][Path(name).name]["sha256"]
        if file_digest(arrived) != digest:
            raise WheelhouseError(f"{name} of the wheelhouse is damaged: it is not the file that it was made with.")
        part = folder / f"{name}.part"
        shutil.copyfile(arrived, part)
        part.replace(folder / name)
        arrived.unlink()
    return lacking(manifest, folder, content=False)


def located(path: Path, cache: Path, manifest: Mapping[str, Any] | None = None) -> Wheelhouse:
    """The wheelhouse at ``path`` on this host, used in place where it is a folder, else unpacked under ``cache`` later.

    With ``manifest`` its files arrive under ``cache`` from elsewhere, and ``path`` need not exist here.
    """
    known = manifest if manifest is not None else read_manifest(path)
    if manifest is None and path.is_dir():
        return Wheelhouse(known, path)
    return Wheelhouse(known, cache / str(known["lock_sha256"])[:12])


def unpack(archive: Path, wheelhouse: Wheelhouse, progress: Callable[[str], None] = lambda _: None) -> None:
    """Bring the files that the wheelhouse's folder lacks out of its archive; an interrupted unpacking is gone on with."""
    missing = wheelhouse.lacks()
    if missing:
        progress(f"unpacking {len(missing)} files of {archive}")
    (wheelhouse.folder / "wheels").mkdir(parents=True, exist_ok=True)
    for name in missing:
        part = wheelhouse.folder / f"{name}.part"
        copy_out(archive, name, part)
        part.replace(wheelhouse.folder / name)


def forget(wheelhouse: Wheelhouse) -> None:
    """Take away files that were brought to this host for one build: the release has what it needs of them."""
    shutil.rmtree(wheelhouse.folder, ignore_errors=True)


def pack(folder: Path, archive: Path) -> None:
    """The whole wheelhouse as one tar archive, the manifest first; not compressed, since wheels are."""
    manifest = read_manifest(folder)
    part = archive.with_name(archive.name + ".part")
    with tarfile.open(part, "w") as opened:
        for name in (MANIFEST, *names(manifest)):
            opened.add(folder / name, arcname=name, recursive=False)
    part.replace(archive)
