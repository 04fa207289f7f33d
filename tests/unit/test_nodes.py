"""One instance over several hosts: ranks, layouts, what has to be alike, and the verdict on the whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import nodes
from sglang_deploy.nodes import Ended, Standing

HOSTS = ("a", "b")


def test_the_order_of_the_hosts_gives_the_ranks() -> None:
    found = nodes.group_of(HOSTS, "b", "10.0.0.1", 20000)
    assert found
    assert found.settings == {"nnodes": 2, "node_rank": 1, "dist_init_addr": "10.0.0.1:20000"}
    assert found.environment == {}


def test_rank_0_is_met_by_its_inventory_name_and_colons_stand_in_brackets() -> None:
    assert nodes.group_of(HOSTS, "a", "", "20000").settings["dist_init_addr"] == "a:20000"  # type: ignore[union-attr]
    assert nodes.group_of(HOSTS, "a", "fd00::1", 1).settings["dist_init_addr"] == "[fd00::1]:1"  # type: ignore[union-attr]


def test_the_interface_is_told_to_both_libraries() -> None:
    found = nodes.group_of(HOSTS, "a", "", 1, "eth1")
    assert found
    assert found.environment == {"NCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth1"}


def test_no_hosts_are_an_instance_on_one_host() -> None:
    assert nodes.group_of((), "a", "", 20000) is None


@pytest.mark.parametrize(
    ("hosts", "host", "port", "said"),
    [
        (("a", "a"), "a", 1, "more than once"),
        (("a",), "a", 1, "leave it empty"),
        (HOSTS, "c", 1, "c is not in sglang_nodes"),
        (HOSTS, "a", "x", "is no port"),
        (HOSTS, "a", 0, "is no port"),
        ("a,b", "a", 1, "write a list"),
    ],
)
def test_groups_that_cannot_be_are_refused(hosts: Any, host: str, port: object, said: str) -> None:
    with pytest.raises(nodes.NodesError, match=said):
        nodes.group_of(hosts, host, "", port)


@pytest.mark.parametrize(
    ("settings", "count", "said"),
    [
        ({"tp_size": 8}, 3, "does not divide among 3 hosts"),
        ({}, 2, "does not divide among 2 hosts"),
        ({"tp_size": 4, "pp_size": 3}, 2, "a stage would be cut"),
        ({"tp_size": 16, "dp_size": 2}, 2, "DP attention"),
    ],
)
def test_layouts_that_do_not_divide_are_told(settings: dict[str, Any], count: int, said: str) -> None:
    assert any(said in problem for problem in nodes.layout_problems(settings, count))


@pytest.mark.parametrize(
    "settings",
    [
        {"tp_size": 16},
        {"tp_size": 8, "pp_size": 2},
        {"tp_size": 8, "pp_size": 4},
        {"tp_size": 16, "dp_size": 2, "dp_attention": 2},
    ],
)
def test_layouts_that_divide_are_not(settings: dict[str, Any]) -> None:
    assert nodes.layout_problems(settings, 2) == []


@given(st.integers(1, 64), st.integers(1, 16), st.integers(2, 9))
def test_a_layout_that_is_let_through_gives_every_host_whole_processes(tp: int, pp: int, count: int) -> None:
    if not nodes.layout_problems({"tp_size": tp, "pp_size": pp}, count):
        stages_per_host, hosts_per_stage = max(pp // count, 1), max(count // pp, 1)
        assert tp % hosts_per_stage == 0
        assert stages_per_host * (tp // hosts_per_stage) * count == tp * pp


def spec(**changes: Any) -> dict[str, Any]:
    settings = {"tp_size": ["--tp-size", "2"], "node_rank": ["--node-rank", "0"], "host": ["--host", "10.0.0.1"]}
    settings |= changes.pop("settings", {})
    base: dict[str, Any] = {"release": "r", "extra_args": [], "environment": {"A": {"value": "1", "source": "x"}}}
    return {**base, **changes, "settings": {name: {"options": words} for name, words in settings.items()}}


def test_ranks_may_differ_in_rank_and_address_alone() -> None:
    other = {"node_rank": ["--node-rank", "1"], "host": ["--host", "10.0.0.2"], "port": ["--port", "30001"]}
    one = nodes.shared_hash(spec())
    assert one == nodes.shared_hash(spec(settings=other))
    for other in (
        {"release": "s"},
        {"extra_args": ["--x"]},
        {"environment": {"A": {"value": "2", "source": "x"}}},
        {"settings": {"tp_size": ["--tp-size", "4"]}},
    ):
        assert nodes.shared_hash(spec(**other)) != one


def test_the_id_of_the_keys_is_each_hosts_own() -> None:
    keyed = {"A": {"value": "1", "source": "x"}, "SGLANG_SECRETS_ID": {"value": "f" * 16, "source": "x"}}
    assert nodes.shared_hash(spec()) == nodes.shared_hash(spec(environment=keyed))


def test_where_a_value_came_from_does_not_matter() -> None:
    assert nodes.shared_hash(spec()) == nodes.shared_hash(spec(environment={"A": {"value": "1", "source": "elsewhere"}}))


def test_what_one_rank_lacks_all_lack() -> None:
    both = {"a": Standing("s", True, True, "g"), "b": Standing("s", False, False, "g")}
    assert nodes.agreed(HOSTS, both, {}) == Standing("s", False, False, "g")
    assert nodes.agreed(HOSTS, {**both, "b": Standing("s", True, True, "h")}, {}).last_good == ""
    assert nodes.agreed(HOSTS, {"a": Standing("s", True, True), "b": Standing("s", True, True)}, {}) == Standing(
        "s", True, True
    )


def test_a_rank_that_is_not_there_or_would_run_something_else_is_refused() -> None:
    with pytest.raises(nodes.NodesError, match="b is not part of this run"):
        nodes.agreed(HOSTS, {"a": Standing("s", True, True)}, {})
    both = {"a": Standing("s", True, True), "b": Standing("t", True, True)}
    specs = {"a": spec(), "b": spec(settings={"tp_size": ["--tp-size", "4"]}, environment={}, extra_args=["--x", "1"])}
    with pytest.raises(nodes.NodesError, match="would not run the same") as caught:
        nodes.agreed(HOSTS, both, specs)
    assert list(caught.value.problems[1:]) == [
        "tp_size: a --tp-size 2, b --tp-size 4",
        "A: a 1, b nothing",
        "extra_args: a nothing, b --x 1",
    ]


GATE = {"ok": True, "checks": [{"name": "greedy_chat", "ok": True, "summary": "12 tokens"}]}
BAD = {"ok": False, "checks": [{"name": "logprobs", "ok": False, "summary": "NaN"}]}


def test_the_gate_of_rank_0_speaks_for_all() -> None:
    ended = {"a": Ended("ready", verdict=GATE), "b": Ended("ready")}
    assert nodes.verdict(HOSTS, ended, "a") == GATE
    assert nodes.verdict(HOSTS, ended, "b") == {**GATE, "asked": "a"}


def test_a_gate_that_fails_names_rank_0_elsewhere() -> None:
    ended = {"a": Ended("ready", verdict=BAD), "b": Ended("ready")}
    assert nodes.verdict(HOSTS, ended, "a") == BAD
    assert nodes.verdict(HOSTS, ended, "b")["reason"] == "rank 0 (a): NaN"


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ({"a": Ended("ready", verdict=GATE), "b": Ended("failed", "out of memory")}, "rank 1 (b): out of memory"),
        ({"a": Ended("ready", verdict=GATE), "b": Ended("hung")}, "rank 1 (b): hung"),
        ({"a": Ended("ready", verdict=GATE)}, "rank 1 (b) gave no answer"),
        ({"a": Ended("failed", "x"), "b": Ended("failed", "y")}, "rank 0 (a): x; rank 1 (b): y"),
    ],
)
def test_a_rank_that_failed_fails_all_and_is_named(host: str, ended: dict[str, Ended], said: str) -> None:
    found = nodes.verdict(HOSTS, ended, host)
    assert not found["ok"]
    assert found["reason"] == said


@pytest.mark.parametrize("host", HOSTS)
def test_a_rank_0_that_nobody_asked_fails_all(host: str) -> None:
    found = nodes.verdict(HOSTS, {"a": Ended("ready"), "b": Ended("ready")}, host)
    assert not found["ok"]
    assert "was not asked" in found["reason"]
