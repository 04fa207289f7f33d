"""Whether the service's user can read a model, asked of the kernel instead of guessed from mode bits.

Standard library only; runs on the managed host.
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from .hardening import UNSEEN

HIDDEN = UNSEEN
_NOBODY = 65534
_SHOWN = 5


def unreadable(paths: Sequence[Path], user: str) -> list[Path]:
    """The first of `paths` that `user` cannot read; the judgement is for any other user where that one does not exist yet.

    Only root can ask for somebody else; for another caller the answer is empty.
    """
    if os.geteuid() != 0 or not paths:
        return []
    try:
        entry = pwd.getpwnam(user)
        uid, gid, groups = entry.pw_uid, entry.pw_gid, os.getgrouplist(user, entry.pw_gid)
    except KeyError:
        uid, gid, groups = _NOBODY, _NOBODY, [_NOBODY]
    out, into = os.pipe()
    child = os.fork()  # not a program of its own: the user need not be able to run this Python
    if child == 0:
        status = 1
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            closed = [number for number, path in enumerate(paths) if not os.access(path, os.R_OK)]
            os.write(into, json.dumps(closed[:_SHOWN]).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(into)
    with os.fdopen(out, "rb") as answer:
        told = answer.read()
    return [paths[number] for number in json.loads(told)] if os.waitpid(child, 0)[1] == 0 else []


def problems(folder: Path, user: str) -> list[str]:
    """Why the service could not read the model in `folder`, each with its cure; empty where it can."""
    files = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    real = {folder.resolve(), *(entry.resolve() for entry in files)}
    hidden = sorted({home for path in real for home in HIDDEN if path.is_relative_to(home)})
    if hidden:
        return [
            f"It lies under {', '.join(hidden)}, which the service does not see (ProtectHome, PrivateTmp). Move it, to "
            "/srv/models say."
        ]
    closed = unreadable(files, user)
    if not closed:
        return []
    names = ", ".join(path.name for path in closed[:3]) + (" and others" if len(closed) > 3 else "")
    return [
        f"The user {user}, as whom the server runs, cannot read {names}. Let others read it: chmod -R o+rX {folder}, and "
        "o+x on the folders above it."
    ]
