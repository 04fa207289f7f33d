"""What a host offers for a release: its Pythons and its disk."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

_NEWEST_PYTHON = 15
_FACTS = """\
import json, platform, sys
print(json.dumps([sys.version_info[:3], f"{platform.system().lower()}-{platform.machine()}"]))"""


class ReleaseError(Exception):
    """A release cannot be built. The message names the step, the reason and the cure."""


@dataclass(frozen=True)
class Python:
    """A Python of this host: where it is, its version as three numbers, and its platform such as ``linux-x86_64``."""

    path: str
    version: tuple[int, int, int]
    platform: str

    @property
    def minor(self) -> str:
        """The version that binary packages are made for, such as ``3.11``."""
        return f"{self.version[0]}.{self.version[1]}"


def in_range(version: Sequence[int], specifier: str) -> bool:
    """Whether a Python version is in a range such as ``>=3.10,<3.13``. ValueError where that is not a range."""
    for part in filter(None, (piece.strip() for piece in specifier.split(","))):
        match = re.fullmatch(r"(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)", part)
        if not match:
            raise ValueError(f"{part!r} is not a Python version range; write for example >=3.10,<3.13")
        bound = tuple(int(number) for number in match[2].split("."))
        padded = max(len(bound), len(version))
        have = tuple(version) + (0,) * (padded - len(version))
        want = bound + (0,) * (padded - len(bound))
        if match[1] in ("==", "!="):  # 3.11 means every 3.11.x
            if (tuple(version[: len(bound)]) == bound) != (match[1] == "=="):
                return False
        elif not {">=": have >= want, "<=": have <= want, ">": have > want, "<": have < want}[match[1]]:
            return False
    return True


def probe_python(path: str, seconds: float = 30) -> Python | None:
    """What the interpreter at ``path`` is; None where it does not run, or takes longer."""
    try:
        done = subprocess.run([path, "-I", "-c", _FACTS], capture_output=True, text=True, check=True, timeout=seconds)
        version, platform = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    # The real path: /usr/bin/python3 may be another version after the distribution's next upgrade.
    return Python(os.path.realpath(path), (version[0], version[1], version[2]), platform)


def _is_venv(path: str) -> bool:
    return (Path(path).parent.parent / "pyvenv.cfg").is_file()


def python_paths() -> list[str]:
    """Where Pythons may be: the distribution's own ``python3`` first, then by version, newest first; each file once."""
    names = ("/usr/bin/python3", "python3", *(f"python3.{minor}" for minor in range(_NEWEST_PYTHON, 8, -1)))
    return list(dict.fromkeys(os.path.realpath(path) for name in names if (path := shutil.which(name))))


def host_pythons() -> Iterator[Python]:
    """The host's Pythons, in the order of ``python_paths``."""
    for path in python_paths():
        if python := probe_python(path):
            yield python


def choose_python(python_range: str, asked: str | None = None) -> Python:
    """The Python to build with: ``asked`` (a path or name), or the first of ``host_pythons`` in the stack's range.

    ReleaseError says what was found and what is needed.
    """
    candidates: Iterable[Python] = host_pythons()
    if asked:
        path = shutil.which(asked)
        python = probe_python(path) if path else None
        if python is None:
            raise ReleaseError(f"Python {asked} was asked for, but it is not on this host or does not run.")
        # A virtual environment's own path, not its base's, which lacks its packages.
        candidates = [replace(python, path=os.path.abspath(path))] if path and _is_venv(path) else [python]  # noqa: PTH100
    rejected = []
    for candidate in candidates:
        if in_range(candidate.version, python_range):
            return candidate
        rejected.append(f"{candidate.path} ({'.'.join(map(str, candidate.version))})")
    raise ReleaseError(
        f"The stack needs Python {python_range}; this host has {', '.join(rejected) or 'no Python at all'}. "
        "Install a fitting one beside it (Debian and Ubuntu: apt install python3.X python3.X-dev where the distribution "
        "has it), or set sglang_python to its path."
    )


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def check_disk(root: Path, cache: Path, need_mib: int) -> None:
    """ReleaseError where fewer than ``need_mib`` MiB are free for the release, or for uv's cache elsewhere."""
    places = {_existing(root).stat().st_dev: root}
    places.setdefault(_existing(cache).stat().st_dev, cache)
    for place in places.values():
        free = shutil.disk_usage(_existing(place)).free // 2**20
        if free < need_mib:
            raise ReleaseError(
                f"Too little disk for a release: {place} has {free} MiB free, the stack needs {need_mib} MiB. "
                "Free space there, prune old releases (sglang_keep_releases), or set another folder."
            )
