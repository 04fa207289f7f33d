#!/usr/bin/python
"""Say what runs on a host and how it got there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_status
short_description: Say what runs on a host and how it got there
description:
  - Compares the unit, the instance's files and the ledger, and asks the server for its load and nvidia-smi for memory.
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

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import instance, ledger, secrets, standing, status
from ansible.module_utils.sglang_deploy.canary import record


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "config_root": {"type": "path", "default": "/etc/sglang"},
            "state_root": {"type": "path", "default": "/var/lib/sglang"},
        },
        supports_check_mode=True,
    )
    name = module.params["name"]
    running = instance.running(name)
    deployment = instance.read(Path(module.params["config_root"]) / name)
    state = Path(module.params["state_root"]) / name
    spec = deployment.get("spec", {})
    try:
        entries, unreadable = ledger.entries(state)
        edited = standing.edited(Path(module.params["config_root"]) / name, state, ledger.last_good(state))
    except OSError as error:
        module.fail_json(msg=f"The ledger of {name}: {error}")
    metrics = spec.get("settings", {}).get("enable_metrics", {}).get("value")
    keys = secrets.read(instance.live(name, Path(module.params["config_root"]) / name))
    key = keys.values.get("api_key", "") if keys else ""
    load = status.ask(spec["url"], bool(metrics), api_key=key) if running.active and spec else None
    canary = record.line(record.read(state))
    lines = status.lines(name, running, deployment, entries, load, status.gpu_memory(), edited, canary)
    if unreadable:
        module.warn(f"{unreadable} lines of the ledger could not be read and are left as they are.")
    module.exit_json(changed=False, lines=lines, running=running.as_dict())


if __name__ == "__main__":
    main()
