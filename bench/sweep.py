#!/usr/bin/env python3
"""The sweep's method against trying everything, on made-up and recorded landscapes.

    bench/sweep.py [--landscapes 200] [--launches 24] [--noise 0.02] [--recorded FILE]

A landscape gives every combination of a space its true speed: an effect for each value, interactions between pairs of
values, values that kill the server, and pairs that do. The method sees it through noise. Regret is how much slower its
choice really is than the best combination; a random search with as many launches is the comparison. FILE is JSON, a
measured product: {"dimensions": {NAME: [VALUE, ...]}, "points": {"NAME=VALUE + ...": SPEED or null}}. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "plugins" / "module_utils"))

from sglang_deploy.sweep import order, prune, space  # noqa: E402

START = "start"
RECORDED = ROOT / "bench" / "data" / "sweep_cpu.json"
Speed = Callable[[space.Candidate], float | None]


@dataclass(frozen=True)
class Landscape:
    """A space, and the true speed of each candidate; None where it does not run."""

    space: space.Space
    speed: Speed

    def best(self) -> float:
        """The speed of the best combination."""
        return max(found for each in prune.product(self.space) if (found := self.speed(each)) is not None)


@dataclass(frozen=True)
class Result:
    """What a search came to: launches, and how much slower its choice is than the best, as a share."""

    launches: int
    regret: float


def made_up(dice: random.Random) -> Landscape:
    """Five to seven dimensions with two to four values, most of them of little effect, as backends and sizes are."""
    dimensions = []
    effects: dict[tuple[str, str | None], float] = {}
    for number in range(dice.randint(5, 7)):
        name = f"d{number}"
        values = tuple(space.Value(str(value)) for value in range(dice.randint(1, 3)))
        dimensions.append(space.Dimension(name, values))
        strong = 0.25 if dice.random() < 0.35 else 0.04
        for value in values:
            effects[name, value.label] = dice.gauss(0, strong)
    dead = {pair for pair in effects if dice.random() < 0.08}
    names = [each.name for each in dimensions]
    labelled = [(each.name, value.label) for each in dimensions for value in each.values]
    pairs = [(one, two) for one in labelled for two in labelled if one[0] < two[0]]
    together = {pair: dice.gauss(0, 0.12) for pair in pairs if dice.random() < 0.15}
    deadly = {pair for pair in pairs if dice.random() < 0.04}

    def speed(candidate: space.Candidate) -> float | None:
        changes = candidate.changes
        if dead.intersection(changes):
            return None
        value = sum(effects[change] for change in changes)
        for index, one in enumerate(changes):
            for two in changes[index + 1 :]:
                if (one, two) in deadly:
                    return None
                value += together.get((one, two), 0.0)
        return 100 * math.exp(value)

    assert names == sorted(names)  # noqa: S101 - pairs rely on it
    return Landscape(space.Space("made-up", (START,), tuple(dimensions)), speed)


def recorded(path: Path) -> Landscape:
    """A measured product. A dimension's first value is what the starting point has."""
    data = json.loads(path.read_text(encoding="utf-8"))
    dimensions = tuple(
        space.Dimension(name, tuple(space.Value(str(value)) for value in values[1:]))
        for name, values in data["dimensions"].items()
    )
    first = {name: str(values[0]) for name, values in data["dimensions"].items()}

    def speed(candidate: space.Candidate) -> float | None:
        chosen = {**first, **dict(candidate.changes)}
        found = data["points"][" + ".join(f"{name}={value}" for name, value in chosen.items())]
        return None if found is None else float(found)

    return Landscape(space.Space(path.stem, (START,), dimensions), speed)


def measured(
    landscape: Landscape, candidate: space.Candidate, noise: float, dice: random.Random, rounds: int = 3
) -> order.Trial:
    """A trial of a candidate: the mean of some noisy rounds."""
    speed = landscape.speed(candidate)
    if speed is None:
        return order.Trial(candidate, candidate.key, "failed")
    values = [speed * math.exp(dice.gauss(0, noise)) for _ in range(rounds)]
    return order.Trial(
        candidate, candidate.key, "passed", statistics.fmean(values), statistics.stdev(values) / math.sqrt(rounds)
    )


def method(landscape: Landscape, launches: int, noise: float, dice: random.Random) -> Result:
    """The sweep's own method."""
    state = order.State(landscape.space)

    def judge(candidate: space.Candidate) -> prune.Judged:
        return prune.Judged(candidate.key)

    while wanted := order.next_trial(state, judge, launches - state.launches):
        trial = measured(landscape, wanted.candidate, noise, dice)
        state = state.told(order.Trial(**{**vars(trial), "again": wanted.phase == "again"}))
    chosen = order.choose(state)
    return _result(landscape, state.launches, chosen.candidate if chosen else None)


def at_random(landscape: Landscape, launches: int, noise: float, dice: random.Random) -> Result:
    """As many launches drawn at random, the starting point among them; the best as measured is kept."""
    points = [each for each in prune.product(landscape.space) if each.changes]
    drawn = [space.Candidate(START), *dice.sample(points, min(launches - 1, len(points)))]
    trials = [measured(landscape, each, noise, dice) for each in drawn]
    passed = [trial for trial in trials if trial.status == "passed"]
    best = max(passed, key=lambda trial: trial.value, default=None)
    return _result(landscape, len(drawn), best.candidate if best else None)


def _result(landscape: Landscape, launches: int, candidate: space.Candidate | None) -> Result:
    speed = landscape.speed(candidate) if candidate else None
    return Result(launches, 1 - (speed or 0.0) / landscape.best())


def summary(results: list[Result]) -> dict[str, float]:
    """Medians and tails over landscapes."""
    regrets = sorted(result.regret for result in results)
    return {
        "launches": statistics.fmean(result.launches for result in results),
        "regret_mean": statistics.fmean(regrets),
        "regret_median": statistics.median(regrets),
        "regret_p90": regrets[int(0.9 * (len(regrets) - 1))],
        "within_2_percent": sum(regret <= 0.02 for regret in regrets) / len(regrets),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscapes", type=int, default=200)
    parser.add_argument("--launches", type=int, default=24)
    parser.add_argument("--noise", type=float, default=0.02, help="of one round, as a share")
    parser.add_argument("--recorded", type=Path, default=RECORDED)
    given = parser.parse_args()
    made = [made_up(random.Random(seed)) for seed in range(given.landscapes)]  # noqa: S311 - not a secret
    kinds = {"made-up": made}
    if given.recorded.exists():
        kinds[given.recorded.name] = [recorded(given.recorded)] * 50
    answer: dict[str, dict[str, object]] = {}
    for kind, landscapes in kinds.items():
        sizes = statistics.fmean(each.space.size for each in landscapes)
        answer[kind] = {"exhaustive_launches": sizes}
        for name, search in (("method", method), ("random", at_random)):
            found = [
                search(each, given.launches, given.noise, random.Random(1000 + number))  # noqa: S311
                for number, each in enumerate(landscapes)
            ]
            told = summary(found)
            answer[kind][name] = told
            print(
                f"{kind}: {name}: {told['launches']:.1f} launches of {sizes:.0f}, regret {told['regret_mean']:.1%} mean, "
                f"{told['regret_median']:.1%} median, {told['regret_p90']:.1%} p90, within 2 % of the best in "
                f"{told['within_2_percent']:.0%}"
            )
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
