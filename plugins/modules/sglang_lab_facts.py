#!/usr/bin/python
"""Decide how systemd containers run on this machine."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_lab_facts
short_description: Decide how systemd containers run on this machine
description:
  - Looks at distribution, control groups, tools, limits and package index settings, and returns what to install and how
    to start a container.
  - Fails with everything that is missing when the lab cannot run here. Changes nothing.
author: The project's authors
"""

EXAMPLES = r"""
- name: Decide how containers run here
  sglang_lab_facts:
  register: lab
"""

RETURN = r"""
plan:
  description: Packages to install, container runtime, arguments for podman run, archive lines and tag of the host image.
  type: dict
  returned: always
index:
  description: The controller's package index settings, in the form of C(sglang_index).
  type: dict
  returned: always
folders:
  description: Folders that the index settings name, to be mounted into the containers.
  type: list
  elements: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import lab


def main() -> None:
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    try:
        plan = lab.decide(lab.gather())
    except lab.LabError as error:
        module.fail_json(msg=str(error))
    index = lab.controller_index()
    module.exit_json(changed=False, plan=plan.as_dict(), index=index, folders=lab.local_folders(index))


if __name__ == "__main__":
    main()
