"""Packages that the host gives: a release that sees the host's own site-packages verifies them instead of installing."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .release_host import ReleaseError
from .release_lock import canonical_name

_VERSIONS = """\
import importlib.metadata, json, re, sys
found = {}
for one in importlib.metadata.distributions():
    if one.metadata["Name"]:
        found.setdefault(re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(), one.version)
print(json.dumps({name: found.get(name) for name in sys.argv[1:]}))"""


_FOLDERS = "import json, site, sysconfig; print(json.dumps([*site.getsitepackages(), sysconfig.get_path('platlib')]))"
PTH = "_packages_of_the_host.pth"


def show_to(python: str, packages: Path) -> None:
    """Let an environment with the site-packages folder ``packages`` see those of the interpreter ``python``, behind its
    own.

    A line for Python's own ``site``, since ``--system-site-packages`` passes over a ``python`` that is a venv's itself.
    """
    done = subprocess.run([python, "-I", "-c", _FOLDERS], capture_output=True, text=True, check=True, timeout=60)
    folders = dict.fromkeys(json.loads(done.stdout))
    lines = "".join(f"import site; site.addsitedir({folder!r})\n" for folder in folders)
    (packages / PTH).write_text(lines, encoding="utf-8")


def same_version(wanted: str, found: str) -> bool:
    """Equal, or equal but for a local part (``2.13.0`` against ``2.13.0+cpu``) that was not asked for."""
    return found == wanted or ("+" not in wanted and found.split("+")[0] == wanted)


def exact(lines: Sequence[str]) -> dict[str, str]:
    """Canonical name to version for the lines that are ``name==version`` alone."""
    found = {}
    for line in lines:
        if match := re.fullmatch(r"\s*([A-Za-z0-9._-]+)(?:\[[\w,.-]*\])?\s*==\s*([A-Za-z0-9.+!_-]+)\s*", line):
            found[canonical_name(match[1])] = match[2]
    return found


def given(python: str, wanted: Sequence[str]) -> dict[str, str]:
    """The versions that the host's Python at path ``python`` has of the ``wanted`` packages (``name`` or
    ``name==version``).

    ReleaseError names every one that is missing or another than wanted.
    """
    names = [canonical_name(line) for line in wanted]
    try:
        done = subprocess.run(
            [python, "-I", "-c", _VERSIONS, *names], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ReleaseError(f"{python} could not be asked for its packages: {error}") from error
    found: Mapping[str, str | None] = json.loads(done.stdout)
    pinned = exact(wanted)
    wrong = []
    for name in names:
        version = found[name]
        if version is None:
            wrong.append(f"{name} is missing")
        elif name in pinned and not same_version(pinned[name], version):
            wrong.append(f"{name} is {version}, the stack says {pinned[name]}")
    if wrong:
        raise ReleaseError(
            f"The stack takes packages from the host (system_site_packages), and {python} does not have them so: "
            f"{'; '.join(wrong)}. Install them there, set sglang_python to the Python that has them, or let the release "
            "bring its own: take them out of system_site_packages."
        )
    return {name: version for name, version in found.items() if version is not None}
