"""What the canary of an instance remembers between two looks: one JSON file beside the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..instance import replace
from ..jsonfile import dump, parse

FILE = "canary.json"
SCHEMA = 1
UNITS = Path("/etc/systemd/system")
PASSED, WRONG, SILENT = "passed", "wrong", "silent"
VERDICTS = (PASSED, WRONG, SILENT)
"""Outcomes that say something of the server: it decodes, it answers wrongly, it does not answer."""


@dataclass(frozen=True)
class Asked:
    """The last verdict. at, ended: seconds since 1970; outcome: one of VERDICTS; spec, invocation: of the server asked.

    seconds: how long it was asked, 0 where it did not even say that it is up. verdict: the record of the decode check.
    """

    at: float
    ended: float
    seconds: float
    outcome: str
    reason: str
    spec: str
    invocation: str
    verdict: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Xids:
    """Errors of the NVIDIA driver in the kernel's log of this boot: how many and when the newest, by Xid.

    cursor: how far the log was read.
    """

    boot: str = ""
    cursor: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    newest: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """looked: when the canary looked last; outcome and reason: what came of it; counts: outcomes since it was installed."""

    looked: float = 0.0
    outcome: str = ""
    reason: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    asked: Asked | None = None
    xids: Xids = field(default_factory=Xids)

    def counted(self, outcome: str) -> dict[str, int]:
        return {**self.counts, outcome: self.counts.get(outcome, 0) + 1}


def read(state: Path) -> Record:
    """The record in an instance's state folder; an empty one where there is none, or one that is damaged."""
    try:
        kept = parse((state / FILE).read_text(encoding="utf-8"))
        if kept["schema"] != SCHEMA:
            return Record()
        asked, xids = kept["asked"], kept["xids"]
        return Record(
            float(kept["looked"]),
            str(kept["outcome"]),
            str(kept["reason"]),
            {str(name): int(count) for name, count in kept["counts"].items()},
            None if asked is None else _asked(asked),
            Xids(
                str(xids["boot"]),
                str(xids["cursor"]),
                {str(xid): int(count) for xid, count in xids["counts"].items()},
                {str(xid): float(moment) for xid, moment in xids["newest"].items()},
            ),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Record()


def _asked(kept: Mapping[str, Any]) -> Asked:
    numbers = {name: float(kept[name]) for name in ("at", "ended", "seconds")}
    texts = {name: str(kept[name]) for name in ("outcome", "reason", "spec", "invocation")}
    if texts["outcome"] not in VERDICTS or not isinstance(kept["verdict"], dict):
        raise ValueError("no verdict")
    return Asked(**numbers, **texts, verdict=kept["verdict"])  # type: ignore[arg-type]  # names that belong together


def write(state: Path, record: Record) -> None:
    """Keep a record. Raises OSError."""
    replace(state / FILE, dump({"schema": SCHEMA, **asdict(record)}), 0o644)


def line(record: Record) -> str:
    """For people: the last verdict, and the last look where that brought none. Empty where the canary never looked."""
    if not record.looked:
        return ""
    looked = f"last look {moment(record.looked)}: {record.reason or record.outcome}"
    if record.asked is None:
        return f"canary has not asked yet, {looked}"
    verdict = record.asked
    said = f"canary {verdict.outcome} at {moment(verdict.ended)}"
    if verdict.outcome != PASSED:
        said = f"CANARY {verdict.outcome} at {moment(verdict.ended)}: {verdict.reason}"
    return said if record.outcome in VERDICTS else f"{said}, {looked}"


def moment(seconds: float) -> str:
    """Seconds since 1970 as UTC, for people."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


def timer(name: str) -> str:
    """The unit that starts the canary of an instance."""
    return f"sglang-canary@{name}.timer"


def switched_on(name: str, units: Path = UNITS) -> bool:
    """Whether the canary of an instance is on."""
    return (units / "timers.target.wants" / timer(name)).is_symlink()
