"""Look at a host before anything on it is changed."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_preflight
short_description: Check that a host can be deployed to
description:
  - Looks at systemd, the distribution, the Pythons, the ports and who holds them, free disk, the service user and build
    tools.
  - Changes nothing. Fails with every problem of severity C(refuse) that O(allow) does not name; the others become warnings.
options:
  instances:
    description: Where instances will listen. A port that an instance's own service holds is no problem.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The instance.
        type: str
        required: true
      host:
        description: The address that it binds.
        type: str
        default: 127.0.0.1
      port:
        description: The port.
        type: int
        required: true
  python_range:
    description: Versions of Python that the stack allows, such as C(>=3.10,<3.13).
    type: str
  python:
    description: Path or name of the Python to build with, if a certain one is wanted.
    type: str
  root:
    description: Folder of the releases.
    type: path
    default: /opt/sglang
  disk_mib:
    description: MiB that must be free there; 0 where no release has to be built.
    type: int
    default: 0
  user:
    description: The user that runs the service.
    type: str
    default: sglang
  tools:
    description: Commands of which the absence is worth a warning.
    type: list
    elements: str
    default: [g++, ninja]
  allow:
    description: Ids of problems that only warn.
    type: list
    elements: str
    default: []
author:
  - The sglang-deploy contributors
attributes:
  check_mode:
    description: Runs the same in check mode.
    support: full
"""

EXAMPLES = r"""
- name: The host is fit for the stack
  sglang_preflight:
    python_range: "{{ stack.python }}"
    disk_mib: "{{ stack.disk_mib }}"
    instances:
      - {name: glm5, port: 8000}
  register: preflight
"""

RETURN = r"""
facts:
  description: What was found (distribution, systemd, pythons, python, disk_free_mib, tools, user).
  returned: always
  type: dict
problems:
  description: Problems, refusals first.
  returned: always
  type: list
  elements: dict
  contains:
    id:
      description: Which problem.
      type: str
    severity:
      description: C(refuse) or C(warn).
      type: str
    message:
      description: What is wrong.
      type: str
    remedy:
      description: What to do about it.
      type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import preflight


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "instances": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "host": {"type": "str", "default": "127.0.0.1"},
                    "port": {"type": "int", "required": True},
                },
            },
            "python_range": {"type": "str"},
            "python": {"type": "str"},
            "root": {"type": "path", "default": "/opt/sglang"},
            "disk_mib": {"type": "int", "default": 0},
            "user": {"type": "str", "default": "sglang"},
            "tools": {"type": "list", "elements": "str", "default": ["g++", "ninja"]},
            "allow": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    wanted = preflight.Wanted(
        ports=tuple((entry["name"], entry["host"], entry["port"]) for entry in given["instances"]),
        python_range=given["python_range"],
        python=given["python"],
        root=Path(given["root"]),
        disk_mib=given["disk_mib"],
        user=given["user"],
        tools=tuple(given["tools"]),
    )
    report = preflight.check(wanted)
    refused = [entry for entry in report.problems if entry.severity == "refuse" and entry.id not in given["allow"]]
    for entry in report.problems:
        if entry not in refused:
            module.warn(f"{entry.message} {entry.remedy} [{entry.id}]")
    if refused:
        lines = "\n".join(f"- {entry.message} {entry.remedy} [{entry.id}]" for entry in refused)
        module.fail_json(msg=f"This host is not fit; nothing was changed:\n{lines}", **report.as_dict())
    module.exit_json(changed=False, **report.as_dict())


if __name__ == "__main__":
    main()
