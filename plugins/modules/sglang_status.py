#!/usr/bin/python
"""Say what runs on a host and how it got there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_status
short_description: Say what runs on a host and how it got there
description:
  - Compares the unit, the instance's files and the ledger, and asks the server for its load and nvidia-smi for memory.
  - A router is asked for its workers instead.
  - Changes nothing.
options:
  name:
    description: Name of the instance.
    type: str
    required: true
  config_root:
    description: Folder that holds a folder for each instance.
    type: path
    default: /etc/sglang
  state_root:
    description: Folder that holds the ledgers.
    type: path
    default: /var/lib/sglang
  template:
    description: Name of the template unit; V(sglang-router) for a router.
    type: str
    default: sglang
attributes:
  check_mode:
    description: Runs the same in check mode.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: What runs is known
  sglang_status:
    name: glm5
"""

RETURN = r"""
lines:
  description: The state in words, a fact a line.
  returned: always
  type: list
  elements: str
running:
  description: State, main process, restarts and launch spec of what runs.
  returned: always
  type: dict
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import instance, ledger, router_api, secrets, standing, status
from ansible.module_utils.sglang_deploy.canary import record


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "config_root": {"type": "path", "default": "/etc/sglang"},
            "state_root": {"type": "path", "default": "/var/lib/sglang"},
            "template": {"type": "str", "default": instance.TEMPLATE},
        },
        supports_check_mode=True,
    )
    name, template = module.params["name"], module.params["template"]
    running = instance.running(name, template)
    directory = Path(module.params["config_root"]) / name
    deployment = instance.read(directory)
    state = Path(module.params["state_root"]) / name
    try:
        entries, unreadable = ledger.entries(state)
        edited = standing.edited(directory, state, ledger.last_good(state))
    except OSError as error:
        module.fail_json(msg=f"The ledger of {name}: {error}")
    up = running.active and bool(deployment)
    if template == router_api.TEMPLATE:
        lines = status.lines(
            name, running, deployment, entries, edited=edited, more=_workers(name, directory, deployment, up)
        )
    else:
        load = _load(name, directory, deployment) if up else None
        more = [line] if (line := record.line(record.read(state))) else []
        lines = status.lines(name, running, deployment, entries, load, status.gpu_memory(), edited, more)
    if unreadable:
        module.warn(f"{unreadable} lines of the ledger could not be read and are left as they are.")
    module.exit_json(changed=False, lines=lines, running=running.as_dict())


def _load(name: str, directory: Path, deployment: dict[str, Any]) -> status.Load:
    """What the server says of itself."""
    spec = deployment["spec"]
    metrics = spec.get("settings", {}).get("enable_metrics", {}).get("value")
    keys = secrets.read(instance.live(name, directory))
    return status.ask(spec["url"], bool(metrics), api_key=keys.values.get("api_key", "") if keys else "")


def _workers(name: str, directory: Path, deployment: dict[str, Any], up: bool) -> list[str]:
    """What the router says of its workers; nothing of one that does not run."""
    try:
        return [router_api.in_words(router_api.of_instance(name, directory, deployment).workers())] if up else []
    except router_api.RouterProblem as error:
        return [str(error)]


if __name__ == "__main__":
    main()
