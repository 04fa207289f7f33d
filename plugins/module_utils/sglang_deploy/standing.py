"""How far a host already is what a deployment wants, found out at once and without changing anything.

A deployment that finds nothing to do is the common one, and each task costs a connection and a Python: one look decides
which of them are needed. Standard library only.
"""

from __future__ import annotations

import grp
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import instance, ledger, local_http
from .jsonfile import dump

UNIT = Path("/etc/systemd/system/sglang@.service")


def unit_file(template: str) -> Path:
    """Where the role installs a template unit."""
    return UNIT.with_name(f"{template}@.service")


FOLDER_MODE = 0o755
UNIT_MODE = 0o644


@dataclass(frozen=True)
class Wanted:
    """What the role installs beside an instance's own files: the unit's text, its user and group, folders of root."""

    unit: str
    user: str
    group: str
    folders: Sequence[Path]


def installed(wanted: Wanted, unit: Path = UNIT) -> bool:
    """Whether unit, user, group and folders are what the role would make of them."""
    try:
        user, group = pwd.getpwnam(wanted.user), grp.getgrnam(wanted.group)
        if user.pw_gid != group.gr_gid or unit.read_text(encoding="utf-8") != wanted.unit:
            return False
        if unit.stat().st_mode & 0o7777 != UNIT_MODE:
            return False
        return all(folder.is_dir() and folder.stat().st_mode & 0o7777 == FOLDER_MODE for folder in wanted.folders)
    except (KeyError, OSError, UnicodeDecodeError):
        return False


def settled(
    deployment: Mapping[str, Any],
    directory: Path,
    group: str,
    running: instance.Running,
    good: ledger.LastGood,
    template: str = instance.TEMPLATE,
) -> bool:
    """Whether a deployment that runs is also accepted: its files, the start at boot and the ledger say so.

    directory: of the instance's own files. Keys need no look of their own: the id of other keys makes another launch spec.
    """
    name = str(deployment["spec"]["instance"])
    candidate = instance.live(name, directory, template=template) != directory or (directory / "candidate").exists()
    if not running.enabled or candidate or good.deployment is None:
        return False
    if good.deployment["spec"]["hash"] != deployment["spec"]["hash"]:
        return False
    return not instance.write(deployment, directory, grp.getgrnam(group).gr_gid, apply=False).changed


def edited(directory: Path, state: Path, good: ledger.LastGood) -> list[str]:
    """The instance's own files that are not what was accepted; empty where nothing was.

    directory: of the instance's own files; state: of its ledger. A deployment that was cut off between the files and the
    ledger looks the same as an edit by hand, and ends the same way: the next deployment decides.
    """
    accepted = ledger.deployments(state).get(str(instance.read(directory).get("spec", {}).get("hash"))) or good.deployment
    if not accepted:
        return []
    wanted = {"launch": accepted["launch"], "environment": accepted["environment"], "spec.json": dump(accepted["spec"])}
    return [str(directory / name) for name, text in wanted.items() if _text(directory / name) != text]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def answers(url: str, seconds: float = 2.0) -> bool:
    """Whether the server says that it is up. That says nothing of its answers: it saves waiting for a start that is over."""
    return local_http.get(f"{url}/health", seconds) is not None
