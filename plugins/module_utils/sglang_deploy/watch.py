"""Follows a starting server on its host: phases, progress, failures, readiness.

A start is followed in short calls of `step`, each of which ends after a few seconds, or at once when something
changed. What one call knows is handed to the next as plain data, so nothing stays behind on the host between calls,
whatever happens to the caller. Standard library only, since it runs on the managed host.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from . import local_http, logtext, redact, startup, textscan

TAIL = 40
"""Lines kept to show when a start fails."""
DRAIN = 0.4
"""Seconds in which the rest of a traceback is read after a fatal line."""
LINGER = 1.5
"""Seconds that a call goes on after a change, since a phase that fails at once should end the wait in the same call."""
GRACE = 15.0
"""Seconds in which a unit that was just started may still be inactive."""

SETTLED = 20.0
"""Seconds after which a unit that is looked at for the first time may well be ready."""


@dataclass(frozen=True)
class Target:
    """What is watched: a systemd unit through its journal, or a log file; with `pid`, the process that writes the
    file.

    url: answers 200 when the server is ready. Without it SGLang's ready line counts. headers go with the request, for
    a key.
    """

    unit: str = ""
    path: str = ""
    pid: int = 0
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Watched:
    """What is looked for: all patterns of the findings, and those that end the wait; limits in seconds, for phases
    and for the whole.
    """

    patterns: tuple[str, ...] = ()
    stop: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=dict)
    total: int = 7200


class WatchError(ValueError):
    """Watching is impossible as asked; the message says why."""


class Source(Protocol):
    """Gives log records as they appear."""

    def poll(self, wait: float) -> list[tuple[float, bytes, bool]]:
        """Records (time, text, written by the server itself) that are there within `wait` seconds."""

    def save(self) -> dict[str, Any]:
        """Where reading goes on in the next call."""

    def close(self) -> None:
        """Lets go of files and processes."""


class FileSource:
    """A growing file. A file that was replaced or cut is read from its start."""

    def __init__(self, path: str, saved: Mapping[str, Any]) -> None:
        self._path = Path(path)
        self._inode = int(saved.get("inode", 0))
        self._offset = int(saved.get("offset", 0))
        self._splitter = logtext.Splitter()

    def poll(self, wait: float) -> list[tuple[float, bytes, bool]]:
        deadline = time.monotonic() + wait
        while True:
            data = self._read()
            if data:
                now = time.time()
                return [(now, record, True) for record in self._splitter.feed(data)]
            if time.monotonic() >= deadline:
                return []
            time.sleep(0.1)

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset = status.st_ino, 0
                    self._splitter = logtext.Splitter()
                stream.seek(self._offset)
                data = stream.read(textscan.BLOCK)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise WatchError(f"{self._path}: cannot be read: {error.strerror}") from error
        self._offset += len(data)
        return data

    def save(self) -> dict[str, Any]:
        return {"inode": self._inode, "offset": self._offset - len(self._splitter.rest)}

    def close(self) -> None:
        pass


class JournalSource:
    """The journal of one invocation of a unit, through `journalctl --follow --output json`."""

    def __init__(self, unit: str, since: float, invocation: str, saved: Mapping[str, Any]) -> None:
        self._cursor = str(saved.get("cursor", ""))
        self._invocation = invocation
        place = ["--after-cursor", self._cursor] if self._cursor else ["--since", f"@{int(since) - 2}"]
        # --all: without it fields over 4096 bytes come as null, and SGLang's line of arguments is longer
        command = [
            "journalctl",
            "--unit",
            unit,
            "--output",
            "json",
            "--all",
            "--no-pager",
            "--quiet",
            "--follow",
            "--no-tail",
        ]
        try:
            self._process = subprocess.Popen([*command, *place], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError as error:
            raise WatchError(f"the journal of {unit} cannot be read: {error}") from error
        assert self._process.stdout is not None  # noqa: S101
        os.set_blocking(self._process.stdout.fileno(), False)
        self._splitter = logtext.Splitter()

    def poll(self, wait: float) -> list[tuple[float, bytes, bool]]:
        deadline = time.monotonic() + wait
        stream: IO[bytes] | None = self._process.stdout
        while stream is not None:
            data = stream.read(textscan.BLOCK)
            if data:
                return self._records(self._splitter.feed(data))
            if data == b"" and (status := self._process.poll()) not in (None, 0):
                raise WatchError(f"journalctl ended with status {status}; can this user read the journal?")
            if time.monotonic() >= deadline:
                break
            time.sleep(0.05)
        return []

    def _records(self, lines: list[bytes]) -> list[tuple[float, bytes, bool]]:
        records = []
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            self._cursor = entry.get("__CURSOR", self._cursor)
            of = entry.get("_SYSTEMD_INVOCATION_ID") or entry.get("INVOCATION_ID")
            message = entry.get("MESSAGE")
            if message is None or (self._invocation and of and of != self._invocation):
                continue
            # text with colours or carriage returns comes as a list of byte values
            raw = bytes(message) if isinstance(message, list) else str(message).encode()
            when = int(entry.get("__REALTIME_TIMESTAMP", 0)) / 1e6 or time.time()
            own = entry.get("_COMM") != "systemd" and entry.get("_PID") != "1"
            records += [(when, part, own) for part in logtext.Splitter().feed(raw + b"\n")]
        return records

    def save(self) -> dict[str, Any]:
        return {"cursor": self._cursor}

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


class Probe:
    """One readiness request at a time, beside the reading of the log, since a busy server may let it hang."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float = 4.0) -> None:
        self._url, self._headers, self._timeout = url, headers, timeout
        self._thread: threading.Thread | None = None
        self._again = 0.0
        self.ready = False

    def poke(self, every: float) -> None:
        """Asks if the last request is over and `every` seconds have passed."""
        now = time.monotonic()
        if self._url and now >= self._again and not (self._thread and self._thread.is_alive()):
            self._again = now + every
            self._thread = threading.Thread(target=self._ask, daemon=True)
            self._thread.start()

    def _ask(self) -> None:
        key = self._headers.get("Authorization", "").removeprefix("Bearer ")
        self.ready = local_http.get(self._url, self._timeout, api_key=key) is not None or self.ready


def step(
    target: Target, watched: Watched, state: Mapping[str, Any], until: float = 10.0
) -> tuple[list[str], dict[str, Any]]:
    """Follows for at most `until` seconds; less when a phase, a failure or readiness came.

    Returns what changed, one line each for a person, and the state for the next call. `state["outcome"]` is empty
    while the start goes on, else `ready`, `failed`, `hung` or `timeout`; `state["reason"]` says it in words;
    `state["hits"]` holds what was seen of the patterns. An empty `state` begins at the unit's last start, or at the
    beginning of the file. Raises WatchError.
    """
    if bool(target.unit) == bool(target.path):
        raise WatchError("name either a unit or a log file to watch")
    watcher = _Watcher(target, watched, state)
    try:
        return watcher.run(until)
    finally:
        watcher.close()


class _Watcher:
    def __init__(self, target: Target, watched: Watched, state: Mapping[str, Any]) -> None:
        self._target, self._watched = target, watched
        self._limits = {**startup.LIMITS, **watched.limits}
        self._events: list[str] = []
        self._unit = dict(state.get("unit", {}))
        show = unit_state(target.unit) if target.unit else {}
        if target.unit and "restarts" not in self._unit:
            self._unit = {"invocation": show.get("InvocationID", ""), "restarts": int(show.get("NRestarts") or 0)}
        started = float(state.get("started") or _started(show))
        self._tracker = startup.Tracker(**state["tracker"]) if "tracker" in state else startup.Tracker(started)
        hits = {pattern: textscan.Hit(*hit) for pattern, hit in state.get("hits", {}).items()}
        self._scanner = textscan.Scanner(watched.patterns, hits)
        self._count = int(state.get("lines", 0))
        self._tail: list[str] = list(state.get("tail", []))
        self._began = float(state.get("began") or time.time())
        self._outcome, self._reason = str(state.get("outcome", "")), str(state.get("reason", ""))
        self._exit: dict[str, Any] = dict(state.get("exit", {}))
        self._stopped_by = ""
        self._probe = Probe(target.url, target.headers)
        if not state and time.time() - started > SETTLED:
            self._probe.poke(0)  # a server that runs for long is asked at once, whatever its log holds
        place = state.get("place", {})
        self._source: Source = (
            JournalSource(target.unit, started, self._unit["invocation"], place)
            if target.unit
            else FileSource(target.path, place)
        )

    def close(self) -> None:
        self._source.close()

    def run(self, until: float) -> tuple[list[str], dict[str, Any]]:
        deadline = time.monotonic() + until
        look = time.monotonic() + 0.5
        changed = time.monotonic()
        while not self._outcome:
            self._take(self._source.poll(0.2))
            if self._stopped_by:
                self._drain(DRAIN)
                self._end("failed", "a fatal line was written")
                break
            if time.monotonic() >= look:
                look = time.monotonic() + 1.0
                gone = self._gone()
                if gone:
                    self._drain(DRAIN)
                    self._end("failed", gone)
                    break
            if self._ready():
                self._tracker.finish(time.time())
                self._end("ready", "")
                break
            self._overdue()
            if self._events:
                deadline = min(deadline, changed + LINGER)
            else:
                changed = time.monotonic()
            if time.monotonic() >= deadline:
                break
        return self._events, self._state()

    def _take(self, records: list[tuple[float, bytes, bool]]) -> None:
        changed = False
        for when, raw, own in records:
            self._count += 1
            line = logtext.clean(logtext.decode(raw), self._count)
            if not line.text.strip():
                continue
            self._tail = [*self._tail[1 - TAIL :], redact.secrets(line.text[:400])]
            for pattern in self._scanner.feed(line):
                if pattern in self._watched.stop and not self._stopped_by:
                    self._stopped_by = line.text
            if own:
                what = self._tracker.feed(line, when)
                changed = changed or what == "phase"
        if changed:
            self._events.append(self._tracker.says())

    def _drain(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            records = self._source.poll(0.2)
            self._take(records)
            if not records:
                break

    def _end(self, outcome: str, reason: str) -> None:
        self._outcome, self._reason = outcome, reason
        self._events.append(self._tracker.says() if outcome == "ready" else f"{outcome}: {reason}")

    def _gone(self) -> str:
        """Why the server is not running (any more), or an empty text."""
        if self._target.pid and not _alive(self._target.pid):
            return f"the server process {self._target.pid} has ended"
        if not self._target.unit:
            return ""
        show = unit_state(self._target.unit)
        reason, self._exit = describe_unit(self._target.unit, show, self._unit, time.time() - self._began)
        if not self._unit["invocation"]:
            self._unit["invocation"] = show.get("InvocationID", "")
        return reason

    def _ready(self) -> bool:
        tracker, now = self._tracker, time.time()
        if not self._target.url:
            return tracker.ready and (tracker.http_up or now - tracker.moved > 10)
        if tracker.ready:
            self._probe.poke(1.0)
        elif tracker.http_up or (tracker.phase in ("starting", "importing") and now - tracker.started > 20):
            self._probe.poke(5.0)  # the log may be set so quiet that no line tells
        return self._probe.ready

    def _overdue(self) -> None:
        now = time.time()
        limit = self._tracker.overdue(self._limits, now, self._began)
        if limit is not None:
            what = f"no progress for {spell(limit)} while {self._tracker.says()} (the limit of this phase){gpus_busy()}"
            self._end("hung", what)
        elif now - max(self._tracker.started, self._began) > self._watched.total:
            self._end("timeout", f"not ready after {spell(self._watched.total)}, now {self._tracker.says()}{gpus_busy()}")

    def _state(self) -> dict[str, Any]:
        return {
            "started": self._tracker.started,
            "began": self._began,
            "now": time.time(),
            "tracker": self._tracker.as_dict(),
            "says": self._tracker.says(),
            "hits": {pattern: [hit.number, redact.secrets(hit.text)] for pattern, hit in self._scanner.hits.items()},
            "lines": self._count,
            "tail": self._tail,
            "unit": self._unit,
            "exit": self._exit,
            "outcome": self._outcome,
            "reason": self._reason,
            "place": self._source.save(),
        }


def spell(seconds: float) -> str:
    """`45 s`, `6 min 10 s`, `1 h 5 min`."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    parts = [f"{hours} h"] * bool(hours) + [f"{minutes} min"] * bool(minutes) + [f"{rest} s"] * bool(rest and not hours)
    return " ".join(parts) or "0 s"


_UNIT_PROPERTIES = (
    "LoadState,ActiveState,SubState,Result,ExecMainCode,ExecMainStatus,NRestarts,InvocationID,InactiveExitTimestampMonotonic"
)


def unit_state(unit: str) -> dict[str, str]:
    """What systemd says of a unit. Raises WatchError without systemd."""
    command = ["systemctl", "show", unit, "--property", _UNIT_PROPERTIES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WatchError(f"systemd cannot be asked about {unit}: {error}") from error
    if done.returncode:
        raise WatchError(f"systemd cannot be asked about {unit}: {done.stderr.strip() or done.returncode}")
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def describe_unit(
    unit: str, show: Mapping[str, str], first: Mapping[str, Any], watched_for: float
) -> tuple[str, dict[str, Any]]:
    """Why a unit no longer runs as it was started (empty when it does), and how its process ended: {status} or
    {signal}.
    """
    ended: dict[str, Any] = {}
    code, status = show.get("ExecMainCode", "0"), int(show.get("ExecMainStatus") or 0)
    if code == "1":
        ended = {"status": status}
    elif code in ("2", "3"):
        ended = {"signal": signal.Signals(status).name if status in set(signal.Signals) else f"signal {status}"}
    how = f" with status {ended['status']}" if "status" in ended else f" by {ended['signal']}" if ended else ""
    active, sub = show.get("ActiveState", ""), show.get("SubState", "")
    if show.get("LoadState") == "not-found":
        return f"there is no unit {unit}", ended
    if active == "failed":
        return f"{unit} failed: its process ended{how} ({show.get('Result', 'unknown result')})", ended
    if sub == "auto-restart":
        return f"{unit} crashed{how} and systemd is about to start it again", ended
    same = not first.get("invocation") or show.get("InvocationID", "") in ("", first["invocation"])
    if int(show.get("NRestarts") or 0) > int(first.get("restarts", 0)) or not same:
        return f"{unit} crashed{how} and was started again while it was watched", ended
    if active in ("inactive", "deactivating") and watched_for > GRACE:
        return f"{unit} was stopped" + how, ended
    return "", {}


def gpus_busy() -> str:
    """`; GPUs 100 % busy at 130 W`: what nvidia-smi says of the busiest GPU, or an empty text without it."""
    command = ["nvidia-smi", "--query-gpu=utilization.gpu,power.draw", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=True)
        rows = [[float(cell) for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""
    if not rows:
        return ""
    busiest, watts = max(row[0] for row in rows), max(row[1] for row in rows)
    return f"; the busiest GPU is at {busiest:.0f} %, {watts:.0f} W"


def _started(show: Mapping[str, str]) -> float:
    """When the unit left the inactive state, as seconds since the epoch; now if that is unknown."""
    monotonic = int(show.get("InactiveExitTimestampMonotonic") or 0) / 1e6
    return time.time() - max(0.0, time.monotonic() - monotonic) if monotonic else time.time()


def _alive(pid: int) -> bool:
    try:
        # a zombie has ended, though its parent has not asked yet
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
