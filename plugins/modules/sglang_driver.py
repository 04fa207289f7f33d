#!/usr/bin/python
"""Judge NVIDIA's driver on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_driver
short_description: What NVIDIA's driver on a host needs
description:
  - Compares the loaded module, the module on disk, the installed packages, holds and configuration with what is wanted.
  - Changes nothing. Fails where something stands in the way that the role must not touch.
options:
  floor:
    description: Range with the lowest driver, such as C(>=570).
    type: str
    required: true
  branch:
    description: Branch to install. 0 takes that of the floor.
    type: int
    default: 0
  packages:
    description: Packages to install instead of those known for the distribution.
    type: list
    elements: str
    default: []
  files:
    description: Content of configuration files by their path.
    type: dict
    default: {}
  options:
    description: Module options, such as C(nvidia_uvm uvm_disable_hmm=1).
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
- name: The driver is looked at
  sglang_driver:
    floor: ">=570"
    options: [nvidia_uvm uvm_disable_hmm=1]
  register: driver
"""

RETURN = r"""
install:
  description: Why packages have to be installed; empty where they have not.
  returned: always
  type: str
packages:
  description: The packages to install, where any have to be.
  returned: always
  type: list
  elements: str
hold:
  description: Installed packages of the driver that are not held.
  returned: always
  type: list
  elements: str
held:
  description: Installed packages of the driver that are held.
  returned: always
  type: list
  elements: str
write:
  description: Paths of O(files) whose content differs.
  returned: always
  type: list
  elements: str
reboot:
  description: Why the host has to boot; empty where it has not.
  returned: always
  type: str
blocking:
  description: Whether nothing can run before it has booted.
  returned: always
  type: bool
loaded:
  description: Version of the loaded module; empty without one.
  returned: always
  type: str
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import cuda_apt, driver, driver_look


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "floor": {"type": "str", "required": True},
            "branch": {"type": "int", "default": 0},
            "packages": {"type": "list", "elements": "str", "default": []},
            "files": {"type": "dict", "default": {}},
            "options": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    files = {str(path): str(content) for path, content in given["files"].items()}
    seen = driver_look.look(files, given["options"])
    try:
        found = driver.judge(seen, driver.Wanted(given["floor"], files, tuple(given["options"])))
        if found.refuse:
            raise driver.DriverError(found.refuse)
        packages = given["packages"]
        if found.install and not packages:
            system = cuda_apt.parse_os_release(Path("/etc/os-release").read_text(encoding="utf-8"))
            packages = driver.packages_for(system.get("ID", ""), given["floor"], os.uname().release, given["branch"])
    except driver.DriverError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=False,
        install=found.install,
        packages=packages if found.install else [],
        hold=found.hold,
        held=[package.name for package in seen.packages if package.held],
        write=found.write,
        reboot=found.reboot,
        blocking=found.blocking,
        loaded=seen.loaded.version if seen.loaded else "",
    )


if __name__ == "__main__":
    main()
