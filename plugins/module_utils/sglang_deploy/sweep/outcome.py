"""What came of a trial, as a line of the record, and the record read back into the state of the method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import measure, trials
from .order import State, Trial
from .prune import Judged
from .space import Candidate

FAILED_BEFORE = "failed-before"
_NAMED = ("trial", "key", "identity", "effective", "phase", "why", "said", "spec")


class Remembering:
    """A judge that also refuses what is known to have failed on this host with the same versions."""

    def __init__(self, judge: Callable[[Candidate], Judged], failed: Mapping[str, str]) -> None:
        self._judge, self._failed = judge, failed

    def __call__(self, candidate: Candidate) -> Judged:
        judged = self._judge(candidate)
        if judged.rule or judged.identity not in self._failed:
            return judged
        return replace(judged, rule=FAILED_BEFORE, reason=f"{candidate.key}: {self._failed[judged.identity]}")


def named(trial: Mapping[str, Any]) -> dict[str, Any]:
    """What names a trial in its lines."""
    return {name: trial[name] for name in _NAMED if name in trial}


def of(
    trial: Mapping[str, Any],
    *,
    watch: Mapping[str, Any],
    gate: Mapping[str, Any],
    measured: Mapping[str, Any],
    diagnosis: Mapping[str, Any],
    broken: str,
    objective: measure.Objective,
    seconds: float,
) -> dict[str, Any]:
    """The line that ends a trial.

    watch, gate, measured, diagnosis: what sglang_watch, sglang_decode_check, sglang_measure and sglang_diagnose
    returned; empty where they did not run. broken: a task that failed by itself. seconds: length of the trial.
    """
    line: dict[str, Any] = {
        **named(trial),
        "again": trial.get("phase") == "again",
        "seconds": round(seconds, 1),
        "ready_s": watch.get("ready_s"),
        "phases": dict(watch.get("phases") or {}),
        "checks": [dict(check) for check in gate.get("checks") or () if check.get("ok") is False],
        "findings": [dict(one) for one in diagnosis.get("findings") or watch.get("findings") or ()],
        "agreement": dict(measured.get("agreement") or {}),
        "measured": dict(measured.get("measured") or {}),
    }
    status, reason = _verdict(watch, gate, measured, diagnosis, broken)
    if status != "passed":
        return {**line, "status": status, "reason": reason}
    levels = [measure.Level(**level) for level in line["measured"]["levels"]]
    value, error, against = objective.score(levels)
    return {**line, "status": "passed", "value": value, "error": error, "reason": against}


def _verdict(
    watch: Mapping[str, Any],
    gate: Mapping[str, Any],
    measured: Mapping[str, Any],
    diagnosis: Mapping[str, Any],
    broken: str,
) -> tuple[str, str]:
    """The status, and what to say of one that did not pass."""
    summary = str(diagnosis.get("summary") or "")
    if broken:
        return "failed", broken
    # A server that answered already, as after a lost controller, is not watched again.
    if watch.get("outcome", "ready" if gate else "") != "ready":
        return "failed", summary or str(watch.get("reason") or "it did not start")
    if not gate.get("ok"):
        failed = [f"{check['name']}: {check['summary']}" for check in gate.get("checks") or () if check.get("ok") is False]
        return "wrong", summary or "; ".join(failed[:2]) or "the decode check did not pass"
    if problems := measured.get("problems"):
        return "wrong", "; ".join(map(str, problems))
    if not measured.get("measured"):
        return "failed", str(measured.get("reason") or measured.get("msg") or summary or "it could not be measured")
    return "passed", ""


def replay(state: State, record: trials.Record) -> State:
    """The state that a record leads to. Lines about candidates that the space no longer has are passed over."""
    for line in record.lines:
        candidate = state.space.parse(str(line["key"]))
        if candidate is not None:
            state = state.told(
                Trial(
                    candidate,
                    str(line["identity"]),
                    line["status"],
                    float(line.get("value") or 0.0),
                    float(line.get("error") or 0.0),
                    bool(line.get("again")),
                    str(line.get("other") or ""),
                )
            )
    return state


def twin(record: trials.Record, identity: str, effective: str) -> str | None:
    """The identity of another launch of which SGLang made the same; None where there is none, or where it is not known."""
    for line in record.lines:
        if effective and line.get("effective") == effective and line["identity"] != identity:
            return str(line["identity"])
    return None


def best_before(ended: Iterable[Mapping[str, Any]], number: int) -> float:
    """The best value of the trials before the one of that number, counted from 1."""
    values: Sequence[float] = [
        float(line["value"]) for line in list(ended)[: number - 1] if line["status"] == "passed" and not line.get("again")
    ]
    return max(values, default=0.0)
