"""What a sweep says on screen: what would be tried, and a table that grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .order import Effect, Proposal, State, Trial, next_trial
from .prune import Count, Judged
from .space import Candidate, Space

HEADINGS = ("", "trial", "result", "objective", "against best", "ready", "took")
UNITS = {"throughput": "tok/s", "latency": "req/s"}
MARK = {"passed": "passed", "failed": "FAILED", "wrong": "WRONG", "died": "HOST DIED", "same": "same", "refused": "refused"}


def spell(seconds: float) -> str:
    """A length of time for a person: 40 s, 12 min, 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def value_text(value: float, error: float, unit: str) -> str:
    """A value with its uncertainty; a negative one says how far above a ceiling it is."""
    if value < 0:
        return f"{-value:.2f} x ceiling"
    digits = 1 if value >= 10 else 3
    return f"{value:.{digits}f} ±{error:.{digits}f} {unit}" if error else f"{value:.{digits}f} {unit}"


def short(candidate: Candidate) -> str:
    """A candidate in a table: its changes, or the profile where there is none."""
    changes = ", ".join(f"{name} {label}" for name, label in candidate.changes)
    return f"{candidate.profile}: {changes}" if changes else candidate.profile


def plan_lines(
    space: Space,
    count: Count,
    judge: Callable[[Candidate], Judged],
    state: State,
    left: int,
    trial_seconds: float,
    budget: str,
) -> list[str]:
    """What would be tried, what is pruned by which rule, and how long it would take."""
    lines = [f"space {space.name}: {len(space.profiles)} starting points, {len(space.dimensions)} dimensions"]
    lines += [f"  {each.name}: {', '.join(value.label for value in each.values)}" for each in space.dimensions]
    how = "" if count.whole else f" ({count.judged} drawn at random were judged)"
    share = f"{count.left} launches remain" if count.whole else f"about {count.left / count.judged:.0%} remain"
    lines.append(f"full product: {space.size} combinations; {share}{how}")
    lines += [f"  {number} refused by {rule}" for rule, number in count.by_rule.items()]
    if count.same:
        lines.append(f"  {count.same} are the same launch as another one")
    lines.append("first candidates, one change at a time:")
    base = Candidate(space.profiles[0])
    pairs = [(each.name, value.label) for each in space.dimensions for value in each.values]
    candidates = [*map(Candidate, space.profiles), *(space.change(base, *pair) for pair in pairs)]
    reasons: list[str] = []
    seen: dict[str, str] = {}
    for candidate in candidates:
        judged = judge(candidate)
        note = f"   [pruned: {judged.rule}]" if judged.rule else ""
        if judged.rule:
            reasons.append(f"{judged.rule}: {judged.reason}")
        elif judged.identity in seen:
            note = f"   [the same as {seen[judged.identity]}]"
        else:
            seen[judged.identity] = short(candidate)
        lines.append(f"  {short(candidate)}{note}")
    if reasons:
        lines += ["why:", *(f"  {reason}" for reason in dict.fromkeys(reasons))]
    expected = remaining(state, judge, left)
    done = f"{state.launches} launches are done, " if state.launches else ""
    lines.append(f"{done}about {expected} to come, {spell(expected * trial_seconds)}; budget {budget}")
    return lines


def remaining(state: State, judge: Callable[[Candidate], Judged], left: int) -> int:
    """How many launches the method would still make if nothing that it tries were better."""
    count = 0
    while count < left and (wanted := next_trial(state, judge, left - count)):
        best = state.passed[0].value if state.passed else 1.0
        value = best * 0.5 if wanted.phase != "again" else best
        guess = Trial(wanted.candidate, wanted.identity, "passed", value, again=wanted.phase == "again")
        state = state.told(guess)
        count += 1
    return count


def row(number: int, proposal: Mapping[str, Any], line: Mapping[str, Any], best: float, unit: str, took: float) -> list[str]:
    """One line of the table. `best` is the best value before this trial."""
    status = str(line["status"])
    passed = status == "passed"
    value = float(line.get("value") or 0.0)
    against = f"{value / best - 1:+.1%}" if passed and best > 0 and value > 0 else ""
    ready = f"{line['ready_s']:.0f} s" if line.get("ready_s") else ""
    told = value_text(value, float(line.get("error") or 0.0), unit) if passed else str(line.get("reason", ""))[:90]
    return [str(number), str(proposal["said"]), MARK[status], told, against, ready, spell(took)]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as columns, under headings."""
    everything = [HEADINGS, *rows]
    widths = [max(len(each[column]) for each in everything) for column in range(len(HEADINGS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True)).rstrip() for each in everything]


def effect_lines(found: Sequence[Effect]) -> list[str]:
    """The effect of each value, for people."""
    lines = []
    for each in found:
        if each.pairs:
            told = f"{each.share:+.1%} ±{each.error:.1%} ({each.pairs} {'pair' if each.pairs == 1 else 'pairs'})"
        else:
            told = "not compared"
        failed = f", failed in {each.failed} of {each.tried}" if each.failed else ""
        lines.append(f"{each.name} {each.label}: {told}{failed}")
    return lines


def said(proposal: Proposal) -> str:
    """A proposal in a table."""
    again = " (again)" if proposal.phase == "again" else ""
    return short(proposal.candidate) + again
