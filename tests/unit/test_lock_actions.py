"""What a controller does about a lock that somebody else has."""

from __future__ import annotations

import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from loading import plugin
from sglang_deploy import lock

ROOT = Path(__file__).resolve().parents[2]


def run(name: str, answers: list[dict[str, Any]], **args: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The action's result, and the arguments of each call of the module."""
    task = mock.Mock(args=args, async_val=0, check_mode=False)
    action = plugin(name).ActionModule(task, mock.Mock(), mock.Mock(), None, None, None)
    calls: list[dict[str, Any]] = []

    def execute(module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        calls.append(module_args)
        return answers[len(calls) - 1]

    with mock.patch.object(action, "_execute_module", execute):
        return action.run(task_vars={"inventory_hostname": "gpu1"}), calls


def held(holder: lock.Holder, busy: bool = False, left: float = 60.0) -> dict[str, Any]:
    lease = lock.Lease(holder, "2026-11-30T12:00:00Z", 1e9, 180.0)
    return {"changed": False, "held": {**lease.as_dict(), "busy": busy, "left": left}, "msg": lock.refusal(lease, busy)}


FREE = {"changed": False, "settled": False}


def test_a_free_lock_costs_one_call() -> None:
    result, calls = run("sglang_service_info", [FREE], unit="x")
    assert not result["failed"]
    assert [call["unit"] for call in calls] == ["x"]
    assert calls[0]["holder"] == asdict(lock.me(os.getppid())), "the holder is the process that starts the tasks"


def test_a_dead_holder_of_this_machine_is_passed_over_at_once() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        gone = lock.me(other.pid)
        other.kill()
    result, calls = run("sglang_service_info", [held(gone), FREE])
    assert not result["failed"] and len(calls) == 2
    assert (calls[1]["dead"], calls[1]["wait"]) == (asdict(gone), 0.0)
    result, calls = run("sglang_service_info", [held(gone, busy=True), FREE])
    assert calls[1]["wait"] == 120.0, "its last step may still run on the host"


def test_a_living_holder_of_this_machine_is_not_waited_for() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        result, calls = run("sglang_service_info", [held(lock.me(other.pid))])
        other.kill()
    assert result["failed"] and len(calls) == 1
    assert "deploys to this host since 2026-11-30T12:00:00Z" in result["msg"]


@pytest.mark.parametrize("second", [FREE, held(lock.Holder("elsewhere", 1, "1", "bob@elsewhere"))])
def test_a_holder_elsewhere_gets_the_time_of_its_lease(second: dict[str, Any]) -> None:
    first = held(lock.Holder("elsewhere", 1, "1", "bob@elsewhere"), left=7.0)
    result, calls = run("sglang_service_info", [first, second])
    assert (calls[1]["dead"], calls[1]["wait"]) == (None, 8.0)
    assert result["failed"] == ("held" in second)


@pytest.mark.parametrize("name", ["sglang_instance", "sglang_ledger", "sglang_decode_check"])
def test_steps_say_who_they_belong_to(name: str) -> None:
    result, calls = run(name, [{"changed": True}], url="x")
    assert result["changed"]
    assert calls == [{"url": "x", "holder": asdict(lock.me(os.getppid()))}]
