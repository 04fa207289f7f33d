"""Lets the hosts of an instance stand and fall together: reads what each has found out in this play, on the controller."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

PROJECT = Path(__file__).resolve().parents[2]
# Ansible finds a project's module_utils for modules only, which run on hosts; here they are plain Python.
sys.path.insert(0, str(PROJECT / "plugins" / "module_utils"))

from sglang_deploy import nodes  # noqa: E402


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    """Arguments: hosts in the order of their ranks, and state.

    agreed: how far each host is (`__sglang_service_before`) becomes how far all are; returns `before`. Fails where they
    would not run the same, or one is not in the play.
    ended: how each host's start ended becomes `verdict`, the one on the whole; `reason` says why a host that is ready itself
    is not accepted.
    """

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        hosts = [str(host) for host in self._task.args["hosts"]]
        host = str(task_vars["inventory_hostname"])
        there = {name: task_vars["hostvars"][name] for name in hosts if name in task_vars["hostvars"]}
        state = self._task.args["state"]
        if state == "agreed":
            return {"changed": False, "before": self._agreed(hosts, host, there)}
        if state != "ended":
            raise AnsibleActionFail(f"sglang_nodes knows the states agreed and ended, not {state!r}")
        ended = {name: found for name, variables in there.items() if (found := _ended(variables))}
        verdict = nodes.verdict(hosts, ended, host)
        own = ended.get(host)
        fine = own is not None and own.outcome == "ready" and not own.reason
        return {
            "changed": False,
            "verdict": verdict,
            "reason": "" if verdict["ok"] or not fine else verdict.get("reason", ""),
        }

    @staticmethod
    def _agreed(hosts: list[str], host: str, there: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        befores = {name: before for name, variables in there.items() if (before := variables.get("__sglang_service_before"))}
        specs = {name: there[name]["sglang_deployment"]["deployment"]["spec"] for name in befores}
        try:
            found = nodes.agreed(hosts, {name: _standing(before) for name, before in befores.items()}, specs)
        except nodes.NodesError as error:
            raise AnsibleActionFail(f"Nothing was changed:\n{error}") from error
        own = dict(befores[host])
        problem = own["last_good_problem"]
        if own["last_good"] and not found.last_good:
            problem = problem or "its hosts do not have the same last good deployment, or one of them cannot run it"
        current, settled = found.current, found.settled
        return {
            **own,
            "current": current,
            "settled": settled,
            "answers": own["answers"] and current,
            "last_good_problem": problem,
        }


def _standing(before: Mapping[str, Any]) -> nodes.Standing:
    good = before["last_good"] or {}
    usable = good and not before["last_good_problem"]
    shared = str(good["spec"].get("shared", "")) if usable else ""
    return nodes.Standing(before["shared"], bool(before["current"]), bool(before["settled"]), shared)


def _ended(variables: Mapping[str, Any]) -> nodes.Ended | None:
    """How a host's start ended, None where it has not come so far."""
    watch = variables.get("__sglang_service_watch")
    if watch is None:
        return None
    outcome = str(watch.get("outcome") or ("ready" if watch.get("skipped") else "failed"))
    reason = str(variables.get("__sglang_service_broken") or "") or (
        "" if outcome == "ready" else str(watch.get("reason") or "")
    )
    return nodes.Ended(outcome, reason, variables.get("decode_check_verdict") or None)
