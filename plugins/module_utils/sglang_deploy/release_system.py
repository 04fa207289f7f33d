"""Packages that the host gives: a release that sees the host's own site-packages verifies them instead of installing."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
    own. ReleaseError where that one does not say which these are.

    A line for Python's own ``site``, since ``--system-site-packages`` passes over a ``python`` that is a venv's itself.
    """
    folders = dict.fromkeys(_asked(python, _FOLDERS))
    lines = "".join(f"import site; site.addsitedir({folder!r})\n" for folder in folders)
    (packages / PTH).write_text(lines, encoding="utf-8")


def _asked(python: str, code: str, *words: str) -> Any:
    """The JSON that the host's Python prints for a few lines of code. ReleaseError with its last words where it fails."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", code, *words], capture_output=True, text=True, errors="replace", check=False, timeout=60
        )
        if done.returncode == 0:
            return json.loads(done.stdout)
        said = done.stderr.strip().splitlines()
        problem = f"it ended with status {done.returncode}: {said[-1] if said else 'without a word'}"
    except subprocess.TimeoutExpired:
        problem = "it did not answer in 60 s"
    except (OSError, ValueError) as error:
        problem = str(error)
    raise ReleaseError(
        f"{python}, which the stack takes packages from (system_site_packages), could not be asked for them: {problem}. "
        "Mend that Python, set sglang_python to another, or take them out of system_site_packages."
    )


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
    found: Mapping[str, str | None] = _asked(python, _VERSIONS, *names)
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
