"""The sweep's method: what it tries next, whom it blames, what it keeps."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_deploy.sweep import order, prune
from sglang_deploy.sweep.space import Candidate, Dimension, Space, Value

SPACE = Space(
    "test",
    ("careful", "fast"),
    (
        Dimension("a", (Value("1"), Value("2"))),
        Dimension("b", (Value("x"), Value("y"))),
        Dimension("c", (Value("on"),)),
    ),
)


def free(candidate: Candidate) -> prune.Judged:
    return prune.Judged(candidate.key)


def sweep(
    speed: Callable[[Candidate], float | None],
    judge: Callable[[Candidate], prune.Judged] = free,
    launches: int = 40,
    space: Space = SPACE,
) -> tuple[order.State, list[order.Proposal]]:
    """Runs the method to its end on a landscape without noise; None fails."""
    state, asked = order.State(space), []
    while wanted := order.next_trial(state, judge, launches - state.launches):
        asked.append(wanted)
        value = speed(wanted.candidate)
        status = "failed" if value is None else "passed"
        state = state.told(
            order.Trial(wanted.candidate, wanted.identity, status, value or 0.0, 0.1, again=wanted.phase == "again")
        )
    return state, asked


def additive(effects: Mapping[tuple[str, str], float], base: float = 100.0) -> Callable[[Candidate], float]:
    return lambda candidate: base + sum(effects.get(change, 0.0) for change in candidate.changes)


def test_the_starting_points_come_first_and_the_first_is_the_reference() -> None:
    _, asked = sweep(additive({}))
    assert [each.candidate.key for each in asked[:2]] == ["careful", "fast"]
    assert asked[0].why == "the reference"


def test_independent_effects_are_found_and_only_what_pays_is_kept() -> None:
    state, _ = sweep(additive({("a", "2"): 30, ("b", "x"): -10, ("c", "on"): 0.5}))
    choice = order.choose(state)
    assert choice is not None
    assert choice.candidate.changes == (("a", "2"),)  # c is within the tie, so it is left out


def test_one_launch_less_than_the_least_tries_no_change() -> None:
    least = order.least(SPACE, order.Method())
    for launches, tried in ((least, 1), (least - 1, 0)):
        _, asked = sweep(additive({}), launches=launches)
        assert [each.phase for each in asked].count("change") == tried


def test_no_launch_is_made_twice_but_to_measure_again() -> None:
    _, asked = sweep(additive({("a", "1"): 5, ("b", "y"): 9}))
    first = [each.identity for each in asked if each.phase != "again"]
    assert len(first) == len(set(first))
    assert [each.phase for each in asked[-3:]] == ["again"] * 3


def test_a_failing_value_is_tried_beside_other_values_before_it_is_blamed() -> None:
    def speed(candidate: Candidate) -> float | None:
        if candidate.label("a") == "1":
            return None
        return 100 + 20 * (candidate.label("b") == "y")

    _, asked = sweep(speed)
    tried = [each for each in asked if each.candidate.label("a") == "1"]
    assert [each.phase for each in tried] == ["change", "retry"]
    others = {(each.candidate.profile, each.candidate.label("b")) for each in tried}
    assert len(others) == 2


def test_a_value_that_fails_only_beside_another_is_found_out() -> None:
    def speed(candidate: Candidate) -> float | None:
        if candidate.label("b") == "y" and candidate.profile == "careful":
            return None
        return 100 + 50 * (candidate.label("b") == "y")

    state, _ = sweep(speed)
    choice = order.choose(state)
    assert choice is not None and choice.candidate == Candidate("fast", (("b", "y"),))


def test_two_changes_that_only_help_together_are_found() -> None:
    def speed(candidate: Candidate) -> float:
        return 100 + 40 * (candidate.label("a") == "2" and candidate.label("b") == "y")

    choice = order.choose(sweep(speed)[0])
    assert choice is not None and choice.candidate.changes == (("a", "2"), ("b", "y"))


def test_a_launch_that_ended_the_host_is_not_tried_beside_others() -> None:
    state, asked = order.State(SPACE), []
    while wanted := order.next_trial(state, free, 30 - state.launches):
        asked.append(wanted)
        status = "died" if wanted.candidate.label("a") == "1" else "passed"
        state = state.told(order.Trial(wanted.candidate, wanted.identity, status, 100.0, 0.1, wanted.phase == "again"))
    assert sum(each.candidate.label("a") == "1" for each in asked) == 1


def test_what_is_refused_is_never_asked_and_what_is_the_same_is_asked_once() -> None:
    def judge(candidate: Candidate) -> prune.Judged:
        if candidate.label("a") == "2":
            return prune.Judged("", "some-rule", "no")
        without = SPACE.change(candidate, "c", None)
        return prune.Judged(without.key)  # c changes nothing

    _, asked = sweep(additive({("a", "2"): 100}), judge)
    assert all(each.candidate.label("a") != "2" for each in asked)
    assert all(each.candidate.label("c") is None for each in asked)


def test_where_no_start_works_one_change_is_looked_for_that_cures_it() -> None:
    def speed(candidate: Candidate) -> float | None:
        return 100.0 if candidate.label("b") == "y" else None

    state, asked = sweep(speed)
    assert asked[2].phase == "cure"
    choice = order.choose(state)
    assert choice is not None and choice.candidate.label("b") == "y"


def test_nothing_passes_and_nothing_is_chosen() -> None:
    state, _ = sweep(lambda _: None)
    assert order.choose(state) is None


def test_a_winner_that_fails_when_it_is_measured_again_is_not_chosen() -> None:
    state, asked = order.State(SPACE), 0
    while wanted := order.next_trial(state, free, 30 - state.launches):
        asked += 1
        best = wanted.candidate.label("a") == "2"
        status = "wrong" if best and wanted.phase == "again" else "passed"
        value = 150.0 if best else 100.0
        state = state.told(order.Trial(wanted.candidate, wanted.identity, status, value, 0.1, wanted.phase == "again"))
    choice = order.choose(state)
    assert asked and choice is not None and choice.candidate.label("a") != "2"


def test_second_measurements_decide() -> None:
    lucky, steady = Candidate("careful", (("a", "1"),)), Candidate("careful", (("a", "2"),))
    trials = (
        order.Trial(lucky, "lucky", "passed", 130.0, 0.5),
        order.Trial(steady, "steady", "passed", 120.0, 0.5),
        order.Trial(lucky, "lucky", "passed", 100.0, 0.5, again=True),
        order.Trial(steady, "steady", "passed", 121.0, 0.5, again=True),
    )
    choice = order.choose(order.State(SPACE, trials=trials))
    assert choice is not None and choice.candidate == steady and choice.value == 121.0


def test_the_effect_of_a_value_comes_from_pairs_that_differ_in_nothing_else() -> None:
    state, _ = sweep(additive({("a", "2"): 30, ("b", "y"): 10}))
    found = {(each.name, each.label): each for each in order.effects(state)}
    assert math.isclose(found["a", "2"].share, 0.3, abs_tol=0.03)
    assert found["a", "2"].pairs >= 1 and found["a", "2"].failed == 0


@given(st.integers(0, 10_000), st.integers(1, 30))
@settings(max_examples=40)
def test_the_budget_holds_and_the_method_can_be_cut_off_anywhere(seed: int, launches: int) -> None:
    dice = random.Random(seed)
    table: dict[str, float | None] = {}

    def speed(candidate: Candidate) -> float | None:
        return table.setdefault(candidate.key, None if dice.random() < 0.2 else dice.uniform(50, 150))

    state, asked = sweep(speed, launches=launches)
    assert state.launches <= launches
    for cut in range(len(state.trials)):
        resumed = order.State(SPACE, trials=state.trials[:cut])
        again = order.next_trial(resumed, free, launches - resumed.launches)
        assert again is not None and again.identity == asked[cut].identity and again.phase == asked[cut].phase
