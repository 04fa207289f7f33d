"""Looks at a host, and waits for another controller's deployment to let go of it; see the module of the same name."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

# Ansible finds a project's module_utils for modules only, which run on hosts; here they are plain Python.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugins" / "module_utils"))

from sglang_deploy import lock

LEFTOVER = 120.0
"""Seconds to wait for a step that a controller which is gone left running on the host."""


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    """Calls the module; where somebody else has the lock, once more if that somebody may be gone."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        me = lock.me(os.getppid())
        call = {**self._task.args, "holder": asdict(me)}
        answer = self._execute_module(module_args=call, task_vars=task_vars)
        if held := answer.get("held"):
            lives = lock.alive(lock.Holder.of(held["holder"]), me.controller)
            if not lives:
                wait = LEFTOVER if held["busy"] else 0.0 if lives is False else held["left"] + 1.0
                if wait:
                    host = str(task_vars.get("inventory_hostname", self._play_context.remote_addr))
                    Display().display(f"{host}  waiting up to {wait:.0f} s, whether it lets go: {answer['msg']}")
                call |= {"wait": wait, "dead": held["holder"] if lives is False else None}
                answer = self._execute_module(module_args=call, task_vars=task_vars)
        return {**result, **answer, "failed": bool(answer.get("failed") or answer.get("held"))}
