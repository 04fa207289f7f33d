"""The record of a run: one entry a check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class Outcome:
    """What a check found. `ok` is None where it does not apply or was not run; `summary` is one line for a person."""

    ok: bool | None
    summary: str
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One check of a verdict. `seconds` is its wall time."""

    name: str
    ok: bool | None
    summary: str
    evidence: dict[str, Any]
    seconds: float


PART = "part"
"""Level for an instance that only prefills or only decodes: it answers nobody by itself, so process and settings are looked
at, and the decode check is the router's gate."""


@dataclass(frozen=True)
class Verdict:
    """The result of a run. `ok`: no check failed and, but for the level PART, an answer was decoded. `answer` is that one.

    effective: what the server says it runs, secrets left out.
    """

    level: str
    url: str
    kind: str
    started: str
    seconds: float
    checks: tuple[Check, ...]
    answer: dict[str, str] | None
    effective: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return (self.answer is not None or self.level == PART) and all(check.ok is not False for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.ok is False)

    def as_dict(self) -> dict[str, Any]:
        """The verdict as plain JSON data. Times are seconds, `started` is UTC in ISO 8601."""
        return {
            "schema": SCHEMA,
            "started": self.started,
            "seconds": round(self.seconds, 3),
            "ok": self.ok,
            "level": self.level,
            "url": self.url,
            "kind": self.kind,
            "checks": [
                {
                    "name": c.name,
                    "ok": c.ok,
                    "summary": c.summary,
                    "evidence": c.evidence,
                    "seconds": round(c.seconds, 3),
                }
                for c in self.checks
            ],
            "answer": self.answer,
            "effective": self.effective,
        }

    def lines(self) -> list[str]:
        """One line a check, failures first."""
        words = {True: "ok", False: "FAILED", None: "-"}
        ordered = sorted(self.checks, key=lambda c: c.ok is not False)
        return [f"{words[c.ok]:<7}{c.name:<16} {c.seconds:6.1f} s  {c.summary}" for c in ordered]
