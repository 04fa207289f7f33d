"""Whether the service's user can read a model, and cannot write it, asked of the kernel instead of guessed from mode bits.

Standard library only; runs on the managed host.
"""

from __future__ import annotations

import json
import os
import pwd
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from .hardening import UNSEEN

_NOBODY = 65534
_SHOWN = 5


def unreadable(paths: Sequence[Path], user: str) -> list[Path]:
    """The first of `paths` that `user` cannot read; see _where for whom that is."""
    return _where(paths, user, lambda path: not os.access(path, os.R_OK))


def writable(folder: Path, user: str) -> list[Path]:
    """The first of a model's folder, the folders above it and its files that `user` could change, links followed."""
    files = [entry for entry in folder.iterdir() if entry.is_file()]
    real = {path.resolve() for path in (folder, *files)}
    return _where(sorted(real | {above for path in real for above in path.parents}), user, _changeable)


def _changeable(path: Path) -> bool:
    """In a folder with the sticky bit, others' files can be neither replaced nor renamed."""
    return os.access(path, os.W_OK) and not (path.is_dir() and path.stat().st_mode & stat.S_ISVTX)


def _where(paths: Sequence[Path], user: str, true: Callable[[Path], bool]) -> list[Path]:
    """The first of `paths` for which something is true as `user`, or as any other user where that one does not exist yet.

    Only root can ask for somebody else; for another caller the answer is empty. Raises OSError where it cannot be asked.
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
            found = [number for number, path in enumerate(paths) if true(path)]
            os.write(into, json.dumps(found[:_SHOWN]).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(into)
    with os.fdopen(out, "rb") as answer:
        told = answer.read()
    if os.waitpid(child, 0)[1]:
        raise OSError(f"What the user {user} may do with {paths[0]} could not be found out.")
    return [paths[number] for number in json.loads(told)]


def problems(folder: Path, user: str, unseen: Sequence[str] = UNSEEN) -> list[str]:
    """Why the service could not read the model in `folder`, each with its cure; empty where it can.

    unseen: the folders that are not there for it (hardening.unseen).
    """
    files = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    real = {folder.resolve(), *(entry.resolve() for entry in files)}
    hidden = sorted({home for path in real for home in unseen if path.is_relative_to(home)})
    if hidden:
        return [
            f"It lies under {', '.join(hidden)}, which the service does not see (ProtectHome, PrivateTmp). Move it, to "
            "/srv/models say, or loosen that in sglang_hardening."
        ]
    closed = unreadable(files, user)
    if not closed:
        return []
    names = ", ".join(path.name for path in closed[:3]) + (" and others" if len(closed) > 3 else "")
    return [
        f"The user {user}, as whom the server runs, cannot read {names}. Let others read it: chmod -R o+rX {folder}, and "
        "o+x on the folders above it."
    ]
