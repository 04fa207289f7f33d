#!/usr/bin/python
"""Write the files of an instance and say what runs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_instance
short_description: Write the files of an instance and say what runs
description:
  - Brings C(launch), C(environment) and C(spec.json) under O(config_root)/O(name) to what a deployment says. Each file is replaced at once.
  - Says whether the unit runs exactly that deployment. Starts and stops nothing.
options:
  name:
    description: Name of the instance.
    type: str
    required: true
  deployment:
    description: Launch spec with the texts that follow from it, as C(sglang_plan) returns it. Without it, nothing is written.
    type: dict
  config_root:
    description: Folder that holds a folder for each instance.
    type: path
    default: /etc/sglang
  group:
    description: Group of the service, which reads the environment file.
    type: str
    default: sglang
attributes:
  check_mode:
    description: Compares and writes nothing.
    support: full
  diff_mode:
    description: Shows each file that differs.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: The instance's files are in place
  sglang_instance:
    name: glm5
    deployment: "{{ plan.deployment }}"
"""

RETURN = r"""
running:
  description: State, main process, restarts, invocation, hash of the launch spec and argument list of what runs.
  returned: always
  type: dict
deployment:
  description: The deployment that the instance's files describe, or the given one; empty where there is none.
  returned: always
  type: dict
current:
  description: Whether the unit is active, runs exactly the given deployment, and was started after its unit file changed.
  returned: always
  type: bool
"""

import grp
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import instance


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "deployment": {"type": "dict"},
            "config_root": {"type": "path", "default": "/etc/sglang"},
            "group": {"type": "str", "default": "sglang"},
        },
        supports_check_mode=True,
    )
    name, deployment = module.params["name"], module.params["deployment"]
    running = instance.running(name)
    directory = Path(module.params["config_root"]) / name
    result = {"running": running.as_dict(), "current": False, "deployment": deployment or instance.read(directory)}
    if deployment is None:
        module.exit_json(changed=False, **result)
    same = running.spec_hash == deployment["spec"]["hash"]
    result["current"] = running.active and same and not running.unit_newer
    try:
        group = grp.getgrnam(module.params["group"]).gr_gid
    except KeyError:
        if not module.check_mode:
            module.fail_json(
                msg=f"The group {module.params['group']} does not exist: the role creates it before this task."
            )
        group = -1  # a host that the role has not yet touched
    try:
        written = instance.write(
            deployment, Path(module.params["config_root"]) / name, group, apply=not module.check_mode
        )
    except OSError as error:
        module.fail_json(msg=f"Cannot write {error.filename}: {error.strerror}. Nothing was restarted.", **result)
    module.exit_json(changed=written.changed, diff=written.diff, **result)


if __name__ == "__main__":
    main()
