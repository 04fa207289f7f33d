"""Whether to ask the server now. Pure: what was seen goes in, a decision comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..decode_check.context import Requests
from .record import PASSED, SILENT, Record

ASK = "ask"
AGAIN_SECONDS = 60.0
"""After a bad verdict the server is asked again as soon as this, whatever the interval: it may have been mended."""
WRONG_ACTIONS = ("report", "stop")


class SettingsError(ValueError):
    """A setting that cannot be meant; the message says what can be written."""


@dataclass(frozen=True)
class Settings:
    """interval: seconds between two verdicts. share: the part of the time that asking may take, whatever the interval.

    busy_seconds: how long a server with requests is left alone. start_seconds: how long one that starts may be silent.
    wrong: what to do about a wrong verdict, besides telling. textfile_dir: where the node exporter reads.
    """

    interval: float = 600.0
    share: float = 0.05
    busy_seconds: float = 3600.0
    start_seconds: float = 7200.0
    wrong: str = "report"
    textfile_dir: str = "/var/lib/prometheus/node-exporter"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """From a mapping with these names. Raises SettingsError."""
        unknown = set(given) - {field.name for field in fields(cls)}
        if unknown:
            raise SettingsError(f"{sorted(unknown)[0]} is no setting of the canary")
        try:
            numbers = {name: float(given[name]) for name in ("interval", "share", "busy_seconds", "start_seconds")}
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(f"the canary's settings: a number is missing or is none ({error})") from error
        wrong, folder = given.get("wrong"), str(given.get("textfile_dir"))
        if numbers["interval"] < AGAIN_SECONDS:
            raise SettingsError(
                f"sglang_canary_interval is {numbers['interval']:g}: write {AGAIN_SECONDS:.0f} seconds or more"
            )
        if not 0 < numbers["share"] <= 0.5:
            raise SettingsError(f"sglang_canary_share is {numbers['share']:g}: write a part of the time, 0.5 at most")
        if min(numbers["busy_seconds"], numbers["start_seconds"]) < 0:
            raise SettingsError("sglang_canary_busy_seconds is less than 0: write seconds")
        if wrong not in WRONG_ACTIONS:
            raise SettingsError(f"sglang_canary_wrong is {wrong!r}: write {' or '.join(WRONG_ACTIONS)}")
        if not folder.startswith("/") or any(letter.isspace() or letter in '%"\\' for letter in folder):
            raise SettingsError(f"sglang_canary_textfile_dir is {folder!r}: write an absolute path without spaces")
        return cls(**numbers, wrong=str(wrong), textfile_dir=folder)


@dataclass(frozen=True)
class Seen:
    """What a look at the host found.

    accepted: hash of the launch spec that passed its gate last, empty where there is none; spec: that of the process.
    active_seconds: how long the unit has been active. answers: whether the server says that it is up.
    requests: what it works on, None where it does not tell. deploying: somebody has the lock of the host.
    part: why this process cannot answer alone, empty where it can.
    """

    accepted: str
    active: bool
    state: str = ""
    spec: str | None = None
    invocation: str = ""
    active_seconds: float = 0.0
    deploying: bool = False
    answers: bool = False
    requests: Requests | None = None
    part: str = ""


@dataclass(frozen=True)
class Decision:
    """outcome: ASK, `silent`, or why no verdict is made now; reason: the same for people."""

    outcome: str
    reason: str


def decide(now: float, seen: Seen, record: Record, settings: Settings) -> Decision:
    """What to do at `now`, in seconds since 1970.

    Nothing is asked of what no gate has accepted, or while somebody deploys: the canary would disturb the gate's judgement,
    and a candidate is the gate's to judge.
    """
    if not seen.accepted:
        return Decision("not_deployed", "no deployment was accepted here")
    if seen.deploying:
        return Decision("deploying", "somebody deploys to this host")
    if not seen.active:
        return Decision("stopped", f"the unit is {seen.state}")
    if seen.spec != seen.accepted:
        return Decision("candidate", "what runs is not what was accepted last: the next deployment decides")
    if seen.part:
        return Decision("part", seen.part)
    asked = record.asked
    same = asked is not None and asked.invocation == seen.invocation
    if not seen.answers:
        if same or seen.active_seconds >= settings.start_seconds:
            return Decision(SILENT, "the unit is active, and the server does not say that it is up")
        return Decision("starting", f"the server has been starting for {seen.active_seconds:.0f} s")
    if asked is not None:
        pause = asked.seconds / settings.share
        if same:
            pause = max(pause, settings.interval if asked.outcome == PASSED else AGAIN_SECONDS)
        if 0 <= now - asked.ended < pause:
            return Decision("waiting", f"the next question is due in {asked.ended + pause - now:.0f} s")
    since = max(0.0, now - asked.ended) if asked is not None else seen.active_seconds
    if seen.requests is not None:
        running, waiting = seen.requests.running, seen.requests.waiting
        if waiting or (running and since < settings.busy_seconds):
            return Decision("busy", f"{running} requests run and {waiting} wait")
    return Decision(ASK, "the next question is due")
