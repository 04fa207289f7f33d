"""Waits for the download of a model from the controller and shows how far it is; see the module of the same name."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

# Ansible finds a project's module_utils for modules only, which run on hosts; here they are plain Python.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugins" / "module_utils"))

from sglang_deploy import hub_progress

REPEAT = 15.0
"""Seconds between two lines while nothing but the number of bytes changes."""
OWN = frozenset({"state", "until"})


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    """Calls the module until the download has an outcome."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        arguments = dict(self._task.args)
        if set(arguments) & OWN:
            raise AnsibleActionFail(f"sglang_weights sets {', '.join(sorted(OWN))} by itself; leave them out")
        if self._task.check_mode:
            return {**result, "skipped": True, "changed": False, "msg": "nothing is downloaded in check mode"}
        host = str(task_vars.get("inventory_hostname", self._play_context.remote_addr))
        display = Display()
        state: dict[str, Any] = {}
        said, at = "", 0.0
        while not state.get("outcome"):
            call = {**arguments, "state": state, "until": REPEAT if state else 2.0}
            answer = self._execute_module(module_name="sglang_weights", module_args=call, task_vars=task_vars)
            if answer.get("failed") or answer.get("unreachable") or "state" not in answer:
                return {**result, **{key: value for key, value in answer.items() if key != "invocation"}}
            state = answer["state"]
            line = hub_progress.line(state)
            if line and line != said and (state["outcome"] or time.monotonic() - at >= REPEAT - 1):
                display.display(f"{host}  {hub_progress.clock(time.time() - state['started'])}  {line}")
                said, at = line, time.monotonic()
        if state["outcome"] == "failed":
            return {**result, "failed": True, "changed": False, "msg": state["reason"]}
        seconds = round(max(0.0, time.time() - state["started"]), 1)
        return {**result, "changed": state["outcome"] == "done", "bytes": state["total"], "seconds": seconds}
