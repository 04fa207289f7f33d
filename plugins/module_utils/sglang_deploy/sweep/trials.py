"""The record of a sweep on its host: a line before each launch and one after it, each on disk before anything goes on.

One file for each question that a sweep asks (space, workload, objective, versions), so that another one does not mix with
it. Runs on the managed host; standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import ledger

# Settings that do not change what is measured: a trial listens elsewhere than the deployment.
PLACE = frozenset({"host", "port", "served_model_name"})
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STARTED, ENDED, SKIPPED, OPENED, CLOSED = "start", "end", "skip", "sweep", "closed"


def identity(spec: Mapping[str, Any]) -> str:
    """What makes two launch specs (as_dict) the same launch: release, arguments and environment, but not the address."""
    settings: Mapping[str, Mapping[str, Any]] = spec["settings"]
    words = [word for name, choice in settings.items() if name not in PLACE for word in choice["options"]]
    environment = {name: variable["value"] for name, variable in spec["environment"].items()}
    return digest([spec.get("release"), words, list(spec["extra_args"]), environment])


def digest(value: Any) -> str:
    """SHA-256 over a JSON-able value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class Record:
    """What a file of trials holds.

    opened: the first line, {} where the file is new. ended, skipped: the lines of those kinds, oldest first. pending:
    the start that has no end, None where there is none. died: whether the host booted since. closed: whether the sweep
    came to its end.
    """

    opened: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[Mapping[str, Any], ...] = ()
    pending: Mapping[str, Any] | None = None
    died: bool = False
    closed: bool = False
    unreadable: int = 0

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "opened": dict(self.opened),
            "lines": [dict(line) for line in self.lines],
            "pending": dict(self.pending) if self.pending else None,
            "died": self.died,
            "closed": self.closed,
            "unreadable": self.unreadable,
        }


def boot_id() -> str:
    """What the kernel calls this boot."""
    return BOOT_ID.read_text(encoding="ascii").strip()


def read(path: Path, boot: str | None = None) -> Record:
    """A file of trials; an empty record where there is none. `boot` is the present boot's id."""
    if not path.exists():
        return Record()
    lines, unreadable = ledger.json_lines(path)
    starts = [line for line in lines if line.get("kind") == STARTED]
    ends = {line.get("trial") for line in lines if line.get("kind") == ENDED}
    pending = next((line for line in reversed(starts) if line.get("trial") not in ends), None)
    return Record(
        opened=next((line for line in lines if line.get("kind") == OPENED), {}),
        lines=tuple(line for line in lines if line.get("kind") in (ENDED, SKIPPED)),
        pending=pending,
        died=pending is not None and pending.get("boot") != (boot or boot_id()),
        closed=bool(lines) and lines[-1].get("kind") == CLOSED,
        unreadable=unreadable,
    )


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Add a line, and return when it is on disk. Raises OSError."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    ledger.append_line(path, line)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def failed_before(folder: Path, besides: Path, deployments: Sequence[Path], facts: str) -> dict[str, str]:
    """Launches that failed on this host with the same versions, by identity, each with the reason.

    folder: the files of other sweeps, of which those count that were opened with the same `facts` (driver, GPUs, model).
    deployments: state directories of instances, whose ledgers hold what was deployed and was not accepted.
    """
    found: dict[str, str] = {}
    for directory in deployments:
        kept: Mapping[str, Mapping[str, Any]] = ledger.deployments(directory)
        for line in ledger.entries(directory)[0]:
            spec = dict(kept.get(str(line.get("spec")), {}).get("spec") or {})
            if not spec:
                continue
            if line.get("ok"):
                found.pop(identity(spec), None)
            elif reason := _reason(ledger.verdict(directory, line)):
                found[identity(spec)] = f"{line.get('kind')} of {line.get('time')}: {reason}"
    for path in sorted(folder.glob("*.jsonl")):
        record = read(path, boot="") if path != besides else Record()
        if record.opened.get("facts") != facts:
            continue
        for ended in record.lines:
            known = any(one.get("severity") != "info" for one in ended.get("findings") or ())
            if ended.get("status") in ("wrong", "died") or (ended.get("status") == "failed" and known):
                found[str(ended["identity"])] = f"trial of {ended.get('time')}: {ended.get('reason')}"
            elif ended.get("status") == "passed":
                found.pop(str(ended["identity"]), None)
    return found


def _reason(verdict: Mapping[str, Any]) -> str:
    """The findings that a verdict names, or the checks that failed; empty where neither is there, as after a lost host."""
    named = [str(one["id"]) for one in verdict.get("findings") or () if one.get("severity") != "info"]
    checks = [str(check["name"]) for check in verdict.get("checks") or () if check.get("ok") is False]
    return ", ".join((named or checks)[:3])
