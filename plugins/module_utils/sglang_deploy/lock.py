"""One deployment at a time on a host, by a lock that ends with its holder.

The holder is a controller's process, which the host cannot see. So the lock is a lease: a file under /run that names the
holder and says until when it counts. Every module of a deployment renews it, and holds the file's flock while it runs: a
step of half an hour needs no lease of that length. A controller that is killed, cut off or switched off lets go as soon as
its lease runs out; one on the same controller is seen to be dead at once (`alive`). A host that boots has no lock.

Two kinds of step: `taken` takes the lock or renews it, for steps that change something; `kept` only renews, for steps that
others may run without deploying. Times are seconds of CLOCK_BOOTTIME, which no change of the clock moves. Standard library
only.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

PATH = Path("/run/sglang/deploy.lock")
SILENCE = 180.0
"""Seconds without a module that a lease outlives: systemd's stop of a server, and a slow controller."""
OWN_WAIT = 30.0
"""Seconds that a step waits for an earlier one of the same holder, which a broken connection left running."""


@dataclass(frozen=True)
class Holder:
    """A controller's process. controller: host, boot and process namespace, in which pid means this process.

    start: when the process started, as /proc/PID/stat counts it; empty where there is no /proc. by: the user, for people.
    """

    controller: str
    pid: int
    start: str
    by: str

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Holder:
        """From the parameters of a module. Raises LockError for what no action has made."""
        try:
            return cls(str(given["controller"]), int(given["pid"]), str(given["start"]), str(given["by"]))
        except (KeyError, TypeError, ValueError) as error:
            raise LockError(f"holder: {dict(given)!r} does not name a controller's process") from error

    def same(self, other: Holder) -> bool:
        return (self.controller, self.pid, self.start) == (other.controller, other.pid, other.start)


@dataclass(frozen=True)
class Lease:
    """Who holds the lock, since when (UTC, for people), until when, and how long each renewal lasts."""

    holder: Holder
    since: str
    until: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class LockError(Exception):
    """The lock cannot be had; the message says why."""


class Held(LockError):
    """Somebody else has the lock. busy: a step of theirs runs on the host at this moment."""

    def __init__(self, lease: Lease, busy: bool) -> None:
        self.lease, self.busy = lease, busy
        self.left = 0.0 if busy else max(0.0, lease.until - now())
        super().__init__(refusal(lease, busy))


def refusal(lease: Lease, busy: bool) -> str:
    """For the one who has to wait."""
    ends = "when the step that runs on the host has ended" if busy else f"within {lease.seconds:.0f} seconds"
    return (
        f"{lease.holder.by} deploys to this host since {lease.since} (process {lease.holder.pid}), and one deployment would "
        f"judge the other's server. Run this again when that one has ended; if it was killed, it lets go {ends}."
    )


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def me(pid: int) -> Holder:
    """This controller, with one of its processes as the holder."""
    host = socket.gethostname()
    return Holder(
        f"{host} {_text('/proc/sys/kernel/random/boot_id')} {_link('/proc/self/ns/pid')}", pid, started(pid), _by(host)
    )


def alive(holder: Holder, controller: str) -> bool | None:
    """Whether the holder's process runs, asked on `controller`; None where it is a process of another one."""
    if holder.controller != controller:
        return None
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's process
    return started(holder.pid) == holder.start


@contextlib.contextmanager
def taken(
    holder: Holder, seconds: float = SILENCE, dead: Mapping[str, Any] | None = None, wait: float = 0.0, path: Path = PATH
) -> Iterator[None]:
    """Hold the lock for a step, and leave a lease of `seconds` when the step ends.

    dead: a holder of whom it is known that it ended, so that its lease does not count; a step of it that still runs does.
    wait: seconds to wait for a lease that runs out. One that is renewed meanwhile belongs to somebody who works, and ends
    the wait at once. Raises Held, and LockError where the file cannot be written.
    """
    gone = Holder.of(dead) if dead else None
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise LockError(f"the lock {path} cannot be opened: {error.strerror}") from error
    try:
        found = _acquire(handle, holder, gone, wait)
        since = found.since if found and found.holder.same(holder) else _moment()
        length = max(seconds, found.seconds) if found and found.holder.same(holder) else seconds
        _write(handle, Lease(holder, since, now() + length, length), path)
        try:
            yield
        finally:
            if _lease(handle):  # unless the step let go
                _write(handle, Lease(holder, since, now() + length, length), path)
    finally:
        os.close(handle)


@contextlib.contextmanager
def kept(holder: Mapping[str, Any] | None, path: Path = PATH) -> Iterator[None]:
    """Renew the lock for a step, if this holder has it: a check that nobody deploys with needs none."""
    found = read(path)
    if holder and found and found.holder.same(Holder.of(holder)):
        with taken(found.holder, found.seconds, path=path):
            yield
    else:
        yield


def release(holder: Mapping[str, Any] | None, path: Path = PATH) -> bool:
    """Let go of the lock. Returns whether this holder had it."""
    found = read(path)
    if not holder or not found or not found.holder.same(Holder.of(holder)):
        return False
    with path.open("r+b") as stream:
        stream.truncate(0)
    return True


def read(path: Path = PATH) -> Lease | None:
    """The lease, whether it still counts or not; None where there is none or it cannot be read."""
    try:
        return _parse(path.read_bytes())
    except OSError:
        return None


def _acquire(handle: int, holder: Holder, gone: Holder | None, wait: float) -> Lease | None:
    """The flock, where no lease of somebody else counts; returns the lease that was there."""
    first = _lease(handle)
    end = now() + (max(wait, OWN_WAIT) if first and first.holder.same(holder) else wait)
    while True:
        free = _flock(handle)
        found = _lease(handle)
        foreign = found is not None and not found.holder.same(holder) and not (gone and found.holder.same(gone))
        if free and not (foreign and found and counts(found)):
            return found
        if free:
            fcntl.flock(handle, fcntl.LOCK_UN)
        if found is None:
            found = first or Lease(holder, _moment(), now(), 0.0)
        works = foreign and first is not None and (found.holder, found.until) != (first.holder, first.until)
        if works or now() >= end:
            raise Held(found, busy=not free)
        time.sleep(0.2)


def counts(lease: Lease) -> bool:
    """Whether the lease has not run out. One that lasts longer than a renewal is of another boot."""
    return now() < lease.until <= now() + lease.seconds


def _flock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lease(handle: int) -> Lease | None:
    return _parse(os.pread(handle, 65536, 0))


def _parse(content: bytes) -> Lease | None:
    try:
        found = json.loads(content)
        return Lease(Holder.of(found["holder"]), str(found["since"]), float(found["until"]), float(found["seconds"]))
    except (ValueError, KeyError, TypeError, LockError):
        return None


def _write(handle: int, lease: Lease, path: Path) -> None:
    """In place, since the flock belongs to the file; one that is cut off counts as free."""
    text = json.dumps(lease.as_dict()).encode()
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, text, 0)
    except OSError as error:
        raise LockError(f"the lock {path} cannot be written: {error.strerror}") from error


def _moment() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def started(pid: int) -> str:
    """When a process started, as field 22 of /proc/PID/stat counts it; empty where there is none."""
    # The second field, the name in brackets, may hold anything.
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _by(host: str) -> str:
    user = os.environ.get("SUDO_USER") or ""
    with contextlib.suppress(OSError, KeyError):  # a user without a name
        user = user or getpass.getuser()
    return f"{user or os.getuid()}@{host}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
