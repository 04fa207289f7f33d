"""The folder of releases on a host: what is in it, what runs, what may go.

``<root>/releases/<id>`` appears by one rename and is never edited. Names with a leading dot are work in progress or on
their way out; while ``<root>/.build.lock`` is held by this process, every one of them belongs to a dead process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECEIPT_SCHEMA = 1
_SAID_KEPT_S = 86400  # whoever waits for a build that is silent for so long is gone
RECEIPT_FIELDS = ("id", "stack", "source", "versions", "python", "lock_sha256", "built")


class StoreError(Exception):
    """The folder of releases is not as it must be."""


class Damaged(StoreError):
    """A release is not what its receipt says."""


@dataclass(frozen=True)
class Store:
    """The paths under a release root, usually ``/opt/sglang``."""

    root: Path

    @property
    def releases(self) -> Path:
        """Where complete releases stand."""
        return self.root / "releases"

    def path(self, release_id: str) -> Path:
        """The folder of one release."""
        return self.releases / release_id

    def building(self, release_id: str) -> Path:
        """Where this process builds it."""
        return self.releases / f".building-{release_id}-{os.getpid()}"

    def complete(self) -> list[str]:
        """Ids of the releases that have a receipt, oldest first by the time it was written."""
        if not self.releases.is_dir():
            return []
        found = []
        for entry in self.releases.iterdir():
            receipt = entry / "receipt.json"
            if not entry.name.startswith(".") and receipt.is_file():
                found.append((receipt.stat().st_mtime_ns, entry.name))
        return [name for _, name in sorted(found)]


def commits(root: Path) -> set[str]:
    """The commits that the complete releases under ``root`` were built from."""
    store = Store(root)
    found = set()
    for name in store.complete():
        with contextlib.suppress(Damaged):
            found.add(str(read_receipt(store.path(name))["source"].get("commit", "")))
    return found - {""}


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_receipt(release: Path) -> dict[str, Any]:
    """The receipt of a complete release, compared with what lies beside it. Damaged says what does not fit."""
    try:
        receipt = json.loads((release / "receipt.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise Damaged(f"{release} has no receipt.json: it was not built by this project or is not whole") from error
    except (OSError, ValueError) as error:
        raise Damaged(f"{release}/receipt.json cannot be read: {error}") from error
    if not isinstance(receipt, dict):
        raise Damaged(f"{release}/receipt.json does not hold a JSON object")
    if receipt.get("schema") != RECEIPT_SCHEMA:
        raise Damaged(f"{release}/receipt.json has schema {receipt.get('schema')!r}; this project reads {RECEIPT_SCHEMA}")
    missing = [field for field in RECEIPT_FIELDS if field not in receipt]
    if missing:
        raise Damaged(f"{release}/receipt.json lacks {', '.join(missing)}")
    if receipt["id"] != release.name:
        raise Damaged(f"{release}/receipt.json belongs to {receipt['id']}")
    for name in ("lock.txt", "options.json"):
        if not (release / name).is_file():
            raise Damaged(f"{release}/{name} is missing")
    if file_sha256(release / "lock.txt") != receipt["lock_sha256"]:
        raise Damaged(f"{release}/lock.txt was changed after the release was built")
    try:
        json.loads((release / "options.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Damaged(f"{release}/options.json cannot be read: {error}") from error
    python = release / "venv" / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise Damaged(f"{python} does not run: the host's Python that it was made from is gone")
    return receipt


@contextlib.contextmanager
def locked(root: Path, *, wait_s: float, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the one lock for building and pruning under ``root``; a dead holder's lock is free at once.

    ``wait_s``: seconds to wait for another holder before StoreError names it.
    """
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".build.lock").open("a+", encoding="utf-8") as handle:
        deadline = time.monotonic() + wait_s
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                handle.seek(0)
                holder = handle.read().strip() or "unknown"
                if time.monotonic() >= deadline:
                    raise StoreError(
                        f"Process {holder} has been building or pruning under {root} for over {wait_s:.0f} s. Wait "
                        f"for it, or end it; "
                        "its unfinished release is cleared by the next run."
                    ) from None
                if waiting and not told:
                    waiting(f"waiting for process {holder}, which builds under {root}")
                    told = True
                time.sleep(0.2)
        handle.seek(0)
        handle.truncate()
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        yield


def clear_leftovers(store: Store) -> list[str]:
    """Remove what dead builds and removals left. Only while the lock is held. Returns the names."""
    for said in store.root.glob(".progress-*"):
        if time.time() - said.stat().st_mtime > _SAID_KEPT_S:
            said.unlink(missing_ok=True)
    if not store.releases.is_dir():
        return []
    names = [entry.name for entry in store.releases.iterdir() if re.match(r"\.(building|removing)-", entry.name)]
    for name in sorted(names):
        shutil.rmtree(store.releases / name)
    return sorted(names)


def discard(store: Store, release_id: str) -> None:
    """Take a release away: renamed first, so that a half-removed one is never visible. Only while the lock is held."""
    going = store.releases / f".removing-{release_id}"
    store.path(release_id).rename(going)
    shutil.rmtree(going)


def _mentions(process: Path, prefix: str) -> Iterator[str]:
    """Paths under ``prefix`` that a process runs, stands in or has mapped."""
    for link in ("exe", "cwd"):
        with contextlib.suppress(OSError):
            target = str((process / link).readlink())
            if target.startswith(prefix):
                yield target
    # A venv's python is a link to the host's, so exe alone does not tell; its loaded extension modules do.
    with contextlib.suppress(OSError):
        maps = (process / "maps").read_text(encoding="utf-8", errors="replace")
        yield from (line[line.index(prefix) :] for line in maps.splitlines() if prefix in line)
    with contextlib.suppress(OSError):
        first = (process / "cmdline").read_bytes().split(b"\0", 1)[0].decode("utf-8", "replace")
        if first.startswith(prefix):
            yield first


def running_releases(root: Path, proc: Path = Path("/proc")) -> set[str]:
    """Ids of the releases under ``root`` that some process runs from, by its executable, folder or mapped files."""
    prefix = f"{Store(root.resolve()).releases}/"
    found = set()
    for process in proc.iterdir():
        if process.name.isdigit():
            found |= {path[len(prefix) :].split("/", 1)[0] for path in _mentions(process, prefix)}
    return found


def prunable(root: Path, keep: int, protected: Collection[str]) -> list[str]:
    """Ids that ``prune`` would remove now, oldest first."""
    if keep < 1:
        raise StoreError(f"keep must be at least 1, not {keep}: the newest release is never pruned")
    complete = Store(root).complete()
    old = complete[:-keep]
    if not old:
        return []
    in_use = running_releases(root) | set(protected)
    return [name for name in old if name not in in_use]


def prune(root: Path, keep: int = 3, protected: Collection[str] = frozenset(), *, wait_s: float = 1800) -> list[str]:
    """Remove all but the ``keep`` newest releases, oldest first, and the leftovers of dead builds.

    Never one that a process runs from, and never one in ``protected`` (what an instance is set to, what was last good);
    these may make more than ``keep`` stay. Returns the names removed.
    """
    store = Store(root)
    if not store.releases.is_dir():
        return []
    with locked(root, wait_s=wait_s):
        removed = clear_leftovers(store)
        for name in prunable(root, keep, protected):
            discard(store, name)
            removed.append(name)
    return removed
