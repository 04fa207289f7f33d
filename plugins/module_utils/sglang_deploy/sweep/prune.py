"""Which candidates need no launch: refused by the plan's rules, the same as another one, or too big for the memory."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..catalog import Catalog
from ..launch_spec import LaunchSpecError, Request, resolve
from ..plan import context_of
from ..rules import Context, Rule, RuleResult, check
from . import trials
from .space import Candidate, Space

SOURCE = "the sweep"
# Warnings of the plan that a sweep takes for a refusal: the start is known to end in "Not enough memory".
CANNOT_FIT = ("no-room-for-kv", "one-gpu-for-all-weights", "graph-batch-512")


@dataclass(frozen=True)
class Judged:
    """What is known of a candidate before any launch.

    identity: the same text for candidates that are the same launch; empty where it cannot be resolved at all.
    rule, reason: why it is not tried; empty where it may be.
    """

    identity: str
    rule: str = ""
    reason: str = ""


class Judge:
    """Judges candidates of one host by the plan's rules, and remembers what it said.

    requests: what would be asked for with each profile and no change. context: the rules' facts of the host, the model and
    the versions; what it says of settings does not count. `allow` as for a deployment.
    """

    def __init__(
        self,
        space: Space,
        catalog: Catalog,
        requests: Mapping[str, Request],
        rules: Iterable[Rule],
        context: Context,
        allow: Sequence[str] = (),
    ) -> None:
        self._space, self._catalog, self._requests, self._context = space, catalog, requests, context
        self._rules = tuple(rules)
        ids = {rule.id for rule in self._rules}
        self._allow = tuple(name for name in allow if name in ids)
        self._known: dict[str, Judged] = {}

    def request(self, candidate: Candidate) -> Request:
        """What is asked for with a candidate: its profile, and its changes over everything that group_vars say."""
        settings, environment = self._space.layers(candidate)
        base = self._requests[candidate.profile]
        return replace(
            base,
            layers=[*base.layers, (SOURCE, settings)],
            environment_layers=[*base.environment_layers, (SOURCE, environment)],
        )

    def __call__(self, candidate: Candidate) -> Judged:
        """The judgement of a candidate."""
        if candidate.key not in self._known:
            self._known[candidate.key] = self._judge(candidate)
        return self._known[candidate.key]

    def _judge(self, candidate: Candidate) -> Judged:
        try:
            request = self.request(candidate)
            spec = resolve(self._catalog, request)
        except LaunchSpecError as error:
            return Judged("", "cannot-be-asked", "; ".join(str(problem) for problem in error.problems))
        identity = trials.identity(spec.as_dict())
        facts = self._context
        context = context_of(spec, request.dialect, versions=facts.versions, host=facts.host, model=facts.model)
        results = check(self._rules, context, self._allow)
        against = next((result for result in results if refuses(result)), None)
        if against is None:
            return Judged(identity)
        return Judged(identity, against.rule, against.reason)


def refuses(result: RuleResult) -> bool:
    """Whether a rule's result keeps a candidate from being launched."""
    return result.severity == "refuse" or (result.rule in CANNOT_FIT and result.severity == "warn" and not result.allowed)


@dataclass(frozen=True)
class Count:
    """What of a space's full product needs a launch.

    judged: how many points were looked at, all of them or a sample. left: how many different launches may be tried
    among those. by_rule: refused points by rule. same: points that are the same launch as another one.
    """

    size: int
    judged: int
    left: int
    same: int
    by_rule: Mapping[str, int]

    @property
    def whole(self) -> bool:
        """Whether every point was looked at."""
        return self.judged == self.size


def count(space: Space, judge: Callable[[Candidate], Judged], most: int = 2000) -> Count:
    """Judge the full product, or `most` points of it drawn at random (always the same ones) where it is larger."""
    points = list(product(space)) if space.size <= most else list(_sample(space, most))
    refused: Counter[str] = Counter()
    seen: set[str] = set()
    same = 0
    for candidate in points:
        judged = judge(candidate)
        if judged.rule:
            refused[judged.rule] += 1
        elif judged.identity in seen:
            same += 1
        if not judged.rule:
            seen.add(judged.identity)
    return Count(space.size, len(points), len(seen), same, dict(refused.most_common()))


def product(space: Space) -> Iterator[Candidate]:
    """Every point of a space."""
    choices = [[None, *(value.label for value in dimension.values)] for dimension in space.dimensions]
    for profile in space.profiles:
        for labels in itertools.product(*choices):
            named = zip(space.dimensions, labels, strict=True)
            yield Candidate(profile, tuple((each.name, label) for each, label in named if label is not None))


def _sample(space: Space, most: int) -> Iterator[Candidate]:
    dice = random.Random(0)  # noqa: S311 - not a secret
    for _ in range(most):
        named = ((each.name, dice.choice([None, *(value.label for value in each.values)])) for each in space.dimensions)
        yield Candidate(dice.choice(space.profiles), tuple((name, label) for name, label in named if label is not None))
