"""In which order candidates are tried. The method, and why, is in docs/sweep.md.

Ask and tell: `next_trial` names the trial that is worth most, given all that were told; `State.told` adds one. It is a
function of what was told and nothing else, so a sweep that was cut off goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from .prune import Judged
from .space import Candidate, Space

Status = Literal["passed", "failed", "wrong", "same", "refused", "died"]
"""passed: measured. failed: did not start or died. wrong: started, and is not correct. same: SGLang makes the same of it
as of another candidate. refused: the installed release does not take it. died: the host did not survive it."""
LAUNCHED = ("passed", "failed", "wrong", "died")
NEAR = 0.1
"""Values that lost by no more than this share are tried once more when the rest has changed."""


@dataclass(frozen=True)
class Trial:
    """What came of one candidate. `value` is the objective's score, higher is better, and `error` its standard error.

    identity: that of the launch; `other` names the identity that a trial of status `same` is the same as.
    again: whether it is a second measurement.
    """

    candidate: Candidate
    identity: str
    status: Status
    value: float = 0.0
    error: float = 0.0
    again: bool = False
    other: str = ""


@dataclass(frozen=True)
class Method:
    """How sure is sure. tie: share below which two values are equal. top: how many are measured again, `repeats` times."""

    tie: float = 0.02
    sigmas: float = 2.0
    top: int = 3
    repeats: int = 1


@dataclass(frozen=True)
class Proposal:
    """The next trial. phase: start, change, cure, retry, pair, leave-out or again; `why` is for people."""

    candidate: Candidate
    identity: str
    phase: str
    why: str


@dataclass(frozen=True)
class State:
    """A space and everything that was told of it, in order."""

    space: Space
    method: Method = field(default_factory=Method)
    trials: tuple[Trial, ...] = ()

    def told(self, trial: Trial) -> State:
        """The state after one more trial."""
        return replace(self, trials=(*self.trials, trial))

    @property
    def launches(self) -> int:
        """How many servers were started."""
        return sum(trial.status in LAUNCHED for trial in self.trials)

    def first(self, identity: str) -> Trial | None:
        """The first trial of a launch, that of another one where SGLang makes the same of both."""
        same = {trial.identity: trial.other for trial in self.trials if trial.status == "same"}
        wanted = same.get(identity, identity)
        return next((trial for trial in self.trials if trial.identity == wanted and trial.status != "same"), None)

    def again(self, identity: str) -> list[Trial]:
        """The further measurements of a launch."""
        return [trial for trial in self.trials if trial.again and trial.identity == identity]

    @property
    def passed(self) -> list[Trial]:
        """The first trial of each launch that is correct, the best first."""
        return sorted(
            (trial for trial in self.trials if trial.status == "passed" and not trial.again), key=lambda each: -each.value
        )


class _Wanted(Exception):
    def __init__(self, proposal: Proposal) -> None:
        super().__init__()
        self.proposal = proposal


def next_trial(state: State, judge: Callable[[Candidate], Judged], left: int) -> Proposal | None:
    """The next trial, or None where nothing is left that is worth a launch. `left` launches may still be made."""
    if left <= 0:
        return None
    try:
        _Walk(state, judge, left).all()
    except _Wanted as wanted:
        return wanted.proposal
    return None


def least(space: Space, method: Method) -> int:
    """Launches without which no change is tried: the starting points, one change, and those kept for measuring again.

    A space without changes compares its starting points, and each launch does that.
    """
    return len(space.profiles) + 1 + method.top * method.repeats if space.dimensions else 1


def better(one: Trial, other: Trial, method: Method) -> bool:
    """Whether `one` is better than `other` beyond noise and beyond what counts as a tie."""
    noise = method.sigmas * math.hypot(one.error, other.error)
    return one.value - other.value > max(noise, method.tie * abs(other.value))


class _Walk:
    """Goes through the method from its beginning, and stops at the first trial whose outcome is not known yet."""

    def __init__(self, state: State, judge: Callable[[Candidate], Judged], left: int) -> None:
        self.state, self.space, self.judge, self.left = state, state.space, judge, left
        self.tested: dict[tuple[str, str], tuple[Candidate, float]] = {}
        # For each changed value, the candidates in which it failed.
        self.failures: dict[tuple[str, str], list[Candidate]] = {}

    def all(self) -> None:
        base = self.starts() or self.cure()
        if base is None:
            return
        base = self.pass_over(base, [(each.name, value.label) for each in self.space.dimensions for value in each.values])
        while True:
            before = base
            base = self.retries(base)
            base = self.pass_over(base, self.near(base, NEAR))
            if base == before:
                base = self.pass_over(base, self.near(base, math.inf))
            if base == before:
                base = self.pairs(base)
            if base == before:
                break
        base = self.leave_out(base)
        self.measure_again(base)

    def ask(self, candidate: Candidate, phase: str, why: str, reserve: int) -> Trial | None:
        """The outcome of a candidate; None where it may not be tried, or where what is left is needed for later."""
        judged = self.judge(candidate)
        if judged.rule:
            return None
        known = self.state.first(judged.identity)
        if known is None and self.left > reserve:
            raise _Wanted(Proposal(candidate, judged.identity, phase, why))
        return known

    def reserve(self, base: Candidate | None) -> int:
        """Launches that are kept for leaving changes out and for measuring again."""
        again = self.state.method.top * self.state.method.repeats - sum(trial.again for trial in self.state.trials)
        unknown = 0
        for name, _ in base.changes if base else ():
            judged = self.judge(self.space.change(base, name, None)) if base else Judged("", "none")
            unknown += not judged.rule and self.state.first(judged.identity) is None
        return max(0, again) + unknown

    def starts(self) -> Candidate | None:
        """The best of the starting points."""
        best: Trial | None = None
        for number, profile in enumerate(self.space.profiles):
            why = "the reference" if number == 0 else "another starting point"
            trial = self.ask(Candidate(profile), "start", why, 0)
            if trial and trial.status == "passed" and (best is None or better(trial, best, self.state.method)):
                best = trial
        return best.candidate if best else None

    def cure(self) -> Candidate | None:
        """Where no starting point works, the first single change that makes one work."""
        for profile in self.space.profiles:
            for dimension in self.space.dimensions:
                for value in dimension.values:
                    candidate = self.space.change(Candidate(profile), dimension.name, value.label)
                    why = f"no starting point works; {dimension.name} may be why"
                    trial = self.ask(candidate, "cure", why, self.state.method.repeats)
                    if trial and trial.status == "passed":
                        return candidate
        return None

    def pass_over(self, base: Candidate, pairs: Iterable[tuple[str, str]]) -> Candidate:
        """One change at a time on the best known, which moves on as soon as a change is better."""
        for name, label in pairs:
            if base.label(name) == label:
                continue
            candidate = self.space.change(base, name, label)
            trial = self.ask(candidate, "change", f"{name} {label} on the best so far", self.reserve(base))
            current = self.trial(base)
            if trial is None or current is None:
                self.tested.setdefault((name, label), (base, -math.inf if trial is None and self.left else 0.0))
                continue
            if trial.status != "passed":
                self.failures.setdefault((name, label), []).append(candidate)
                self.tested[name, label] = (base, -math.inf)
                continue
            self.tested[name, label] = (base, (trial.value - current.value) / (abs(current.value) or 1.0))
            if better(trial, current, self.state.method):
                base = candidate
        return base

    def pairs(self, base: Candidate) -> Candidate:
        """Two changes at once, where neither was better by itself: they may be together. The closest ones first."""
        shares = [(share, *pair) for pair, (_, share) in self.tested.items() if share > -math.inf]
        alone = [(share, name, label) for share, name, label in shares if base.label(name) != label]
        two = [(one, other) for one in alone for other in alone if one[1] < other[1]]
        for one, other in sorted(two, key=lambda each: (-each[0][0] - each[1][0], each)):
            if one[0] + other[0] < -2 * NEAR:
                break
            candidate = self.space.change(self.space.change(base, *one[1:]), *other[1:])
            why = f"{one[1]} {one[2]} and {other[1]} {other[2]} together"
            trial, current = self.ask(candidate, "pair", why, self.reserve(base)), self.trial(base)
            if trial and current and trial.status == "passed" and better(trial, current, self.state.method):
                return candidate
        return base

    def trial(self, candidate: Candidate) -> Trial | None:
        judged = self.judge(candidate)
        return None if judged.rule else self.state.first(judged.identity)

    def near(self, base: Candidate, lost: float) -> list[tuple[str, str]]:
        """Values that lost by at most that share, or could not be tried, beside other values than now; the closest first."""
        found = []
        for (name, label), (tested_on, share) in self.tested.items():
            moved = self.space.change(tested_on, name, None) != self.space.change(base, name, None)
            untried = share == -math.inf and (name, label) not in self.failures
            if moved and (share > -lost or untried) and base.label(name) != label:
                found.append((-math.inf if untried else -share, name, label))
        return [(name, label) for _, name, label in sorted(found)]

    def retries(self, base: Candidate) -> Candidate:
        """Each value that only ever failed is tried once more beside other values, before it is blamed."""
        passed = self.state.passed
        for (name, label), failed in list(self.failures.items()):
            if any(trial.candidate.label(name) == label for trial in passed):
                continue
            if any((trial := self.trial(each)) and trial.status == "died" for each in failed):
                continue
            contexts = sorted(passed, key=lambda trial: -_distance(trial.candidate, failed[0], name))
            for context in contexts:
                candidate = self.space.change(context.candidate, name, label)
                if not _distance(context.candidate, failed[0], name) or self.judge(candidate).rule:
                    continue
                why = f"{name} {label} failed; does it fail beside other values, too?"
                trial = self.ask(candidate, "retry", why, self.reserve(base))
                best = self.trial(base)
                if trial and best and trial.status == "passed" and better(trial, best, self.state.method):
                    base = candidate
                break
        return base

    def leave_out(self, base: Candidate) -> Candidate:
        """Every change of the winner is taken out by itself; one that does not pay for itself stays out."""
        again = True
        while again:
            again = False
            for name, label in base.changes:
                candidate = self.space.change(base, name, None)
                why = f"does {name} {label} pay for itself?"
                trial = self.ask(candidate, "leave-out", why, self.state.method.top * self.state.method.repeats)
                current = self.trial(base)
                if trial and current and trial.status == "passed" and not better(current, trial, self.state.method):
                    base, again = candidate, True
                    break
        return base

    def measure_again(self, base: Candidate) -> None:
        """The best few are started and measured again: the best of many noisy values is flattered."""
        for trial in finalists(self.state, base):
            if len(self.state.again(trial.identity)) < self.state.method.repeats:
                raise _Wanted(Proposal(trial.candidate, trial.identity, "again", "one of the best, measured again"))


def finalists(state: State, base: Candidate | None = None) -> list[Trial]:
    """The launches to measure again: the one that the method ended at, and the best ones.

    One that did not pass a second time makes room for the next.
    """
    steady = [trial for trial in state.passed if all(later.status == "passed" for later in state.again(trial.identity))]
    ended = [trial for trial in steady if base is not None and trial.candidate == base]
    return [*ended, *(trial for trial in steady if trial not in ended)][: state.method.top]


def _distance(one: Candidate, other: Candidate, besides: str) -> int:
    """In how many ways two candidates differ, one dimension left out."""
    left, right = dict(one.changes), dict(other.changes)
    names = (left.keys() | right.keys()) - {besides}
    return (one.profile != other.profile) + sum(left.get(name) != right.get(name) for name in names)


@dataclass(frozen=True)
class Choice:
    """The candidate to keep. value and error: of its last measurements. tied: others that are as good within noise."""

    candidate: Candidate
    identity: str
    value: float
    error: float
    measured: int
    tied: tuple[Candidate, ...]


def choose(state: State) -> Choice | None:
    """The best launch by its second measurements; of those that are equal within noise, the simplest. None: none passed."""
    # One that did not pass a second time is not to be relied on, however fast it was.
    steady = [trial for trial in state.passed if all(later.status == "passed" for later in state.again(trial.identity))]
    entered = [trial for trial in steady if state.again(trial.identity)] or steady
    if not entered:
        return None
    final = [_final(state, trial) for trial in entered]
    spread = between_launches(state)
    final = [replace(trial, error=math.hypot(trial.error, spread * trial.value)) for trial in final]
    best = max(final, key=lambda trial: trial.value)
    equal = [trial for trial in final if not better(best, trial, state.method)]
    simplest = min(equal, key=lambda trial: (len(trial.candidate.changes), -trial.value))
    return Choice(
        simplest.candidate,
        simplest.identity,
        simplest.value,
        simplest.error,
        1 + len(state.again(simplest.identity)),
        tuple(trial.candidate for trial in equal if trial is not simplest),
    )


def _final(state: State, trial: Trial) -> Trial:
    """A trial with the mean of its second measurements, which were not chosen for being high."""
    later = [each for each in state.again(trial.identity) if each.status == "passed"]
    if not later:
        return trial
    mean = sum(each.value for each in later) / len(later)
    error = math.sqrt(sum(each.error**2 for each in later)) / len(later)
    return replace(trial, value=mean, error=error)


def between_launches(state: State) -> float:
    """How much two launches of the same thing differ, as a share of the value; 0 where nothing was measured twice."""
    ratios = []
    for trial in state.passed:
        for later in state.again(trial.identity):
            if later.status == "passed" and trial.value:
                ratios.append(math.log(max(later.value, 1e-9) / trial.value) if trial.value > 0 else 0.0)
    return math.sqrt(sum(ratio**2 for ratio in ratios) / 2 / len(ratios)) if ratios else 0.0


@dataclass(frozen=True)
class Effect:
    """What one value of a dimension does, from pairs of trials that differ in nothing else.

    share: mean change of the objective, 0.1 for ten percent more. error: its standard error. failed: in how many other
    surroundings it failed, of `tried`.
    """

    name: str
    label: str
    pairs: int
    share: float
    error: float
    failed: int
    tried: int


def effects(state: State) -> list[Effect]:
    """The effect of every value that was tried, in the space's order."""
    first = [trial for trial in state.trials if trial.status in LAUNCHED and not trial.again]
    passed = {trial.candidate: trial for trial in first if trial.status == "passed"}
    found = []
    for dimension in state.space.dimensions:
        for value in dimension.values:
            having = [trial for trial in first if trial.candidate.label(dimension.name) == value.label]
            shares, errors = [], []
            for trial in having:
                rest = state.space.change(trial.candidate, dimension.name, None)
                other = passed.get(rest)
                if trial.status == "passed" and other and other.value > 0 and trial.value > 0:
                    shares.append(trial.value / other.value - 1)
                    errors.append(
                        math.hypot(trial.error / trial.value, other.error / other.value) * trial.value / other.value
                    )
            if having:
                count = len(shares)
                own = math.sqrt(sum(each**2 for each in errors)) / count if count else 0.0
                spread = _deviation(shares) / math.sqrt(count) if count > 1 else 0.0
                failed = sum(trial.status != "passed" for trial in having)
                mean = sum(shares) / count if count else 0.0
                found.append(Effect(dimension.name, value.label, count, mean, max(own, spread), failed, len(having)))
    return found


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
