"""What the hosts of an instance tell each other through the controller: one look, one wait, one verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ansible import constants
from ansible.errors import AnsibleActionFail
from loading import plugin

ROOT = Path(__file__).resolve().parents[2]


def before(shared: str = "s", current: bool = True, good: str = "g", problem: str = "") -> dict[str, Any]:
    settings = {"tp_size": {"options": ["--tp-size", shared]}}
    spec = {"release": "r", "settings": settings, "extra_args": [], "environment": {}}
    last_good = {"spec": {"shared": good}} if good else {}
    found = {"shared": shared, "current": current, "settled": current, "answers": current}
    return {
        "__sglang_service_before": {**found, "last_good": last_good, "last_good_problem": problem},
        "sglang_deployment": {"deployment": {"spec": spec}},
    }


def nodes(state: str, hostvars: dict[str, Any], host: str) -> dict[str, Any]:
    task = mock.Mock(args={"hosts": ["a", "b"], "state": state}, async_val=0, check_mode=False)
    action = plugin("sglang_nodes").ActionModule(task, mock.Mock(), mock.Mock(), None, None, None)
    return action.run(task_vars={"inventory_hostname": host, "hostvars": hostvars})


@pytest.mark.parametrize("host", ["a", "b"])
def test_a_host_that_has_to_be_changed_has_all_changed(host: str) -> None:
    found = nodes("agreed", {"a": before(), "b": before(current=False)}, host)["before"]
    assert (found["current"], found["settled"], found["answers"]) == (False, False, False)
    assert found["last_good_problem"] == ""


def test_where_nothing_is_to_do_nothing_is_done() -> None:
    assert nodes("agreed", {"a": before(), "b": before()}, "a")["before"] == before()["__sglang_service_before"]


@pytest.mark.parametrize("other", [before(good="h"), before(good=""), before(problem="its release is gone")])
def test_only_what_was_good_on_all_hosts_can_be_put_back(other: dict[str, Any]) -> None:
    found = nodes("agreed", {"a": before(), "b": other}, "a")["before"]
    assert "do not have the same last good" in found["last_good_problem"]


def test_a_host_that_is_not_in_the_play_is_told() -> None:
    with pytest.raises(AnsibleActionFail, match="b is not part of this run"):
        nodes("agreed", {"a": before(), "b": {}}, "a")


def test_what_the_hosts_would_not_run_alike_is_named() -> None:
    with pytest.raises(AnsibleActionFail, match="tp_size: a --tp-size s, b --tp-size t"):
        nodes("agreed", {"a": before(), "b": before(shared="t")}, "a")


READY = {"__sglang_service_watch": {"outcome": "ready"}, "__sglang_service_broken": ""}
KEPT = {"__sglang_service_watch": {"skipped": True}, "__sglang_service_broken": ""}
BROKEN = {"__sglang_service_watch": {"outcome": "failed", "reason": "out of memory"}, "__sglang_service_broken": ""}
GATE = {"decode_check_verdict": {"ok": True, "checks": []}}


def test_the_verdict_is_one() -> None:
    there = {"a": {**READY, **GATE}, "b": KEPT}
    assert nodes("ended", there, "a") == {"changed": False, "verdict": {"ok": True, "checks": []}, "reason": ""}
    assert nodes("ended", there, "b")["verdict"]["ok"]


def test_a_host_that_is_ready_learns_why_it_is_not_accepted() -> None:
    there = {"a": {**READY, **GATE}, "b": BROKEN}
    assert nodes("ended", there, "a")["reason"] == "rank 1 (b): out of memory"
    assert nodes("ended", there, "b")["reason"] == ""  # its own log says more


def test_a_task_that_broke_on_a_host_counts() -> None:
    there = {"a": {**READY, **GATE}, "b": {**READY, "__sglang_service_broken": "The unit runs: no such file"}}
    assert not nodes("ended", there, "a")["verdict"]["ok"]


def test_an_unknown_state_is_refused() -> None:
    with pytest.raises(AnsibleActionFail, match="agreed and ended"):
        nodes("begun", {"a": READY, "b": READY}, "a")


def test_a_start_that_failed_ends_the_wait_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    watch = plugin("sglang_watch")
    first, second, later = (watch.Others(["a", "b"], host, kind) for host, kind in (("a", "x"), ("b", "x"), ("a", "y")))
    waiting = {"outcome": "", "reason": ""}
    assert first.ended(waiting) == waiting
    assert second.ended({"outcome": "ready", "reason": ""})["outcome"] == "ready"
    assert first.ended(waiting) == waiting
    second.ended({"outcome": "failed", "reason": "out of memory"})
    assert first.ended(waiting) == {"outcome": "failed", "reason": "rank 1 (b) failed: out of memory"}
    assert later.ended(waiting) == waiting
    assert watch.Others([], "a", "x").ended(waiting) == waiting
