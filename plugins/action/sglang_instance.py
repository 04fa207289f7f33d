"""Tells the module of the same name which controller's process calls it, for the lock of the host."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# Ansible finds a project's module_utils for modules only, which run on hosts; here they are plain Python.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugins" / "module_utils"))

from sglang_deploy import lock


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    """Calls the module with `holder` added. The parent of the process that runs a task is ansible-playbook itself.

    Also the action of other modules that have the option `holder`, by links.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        call = {**self._task.args, "holder": asdict(lock.me(os.getppid()))}
        return {**result, **self._execute_module(module_args=call, task_vars=task_vars)}
