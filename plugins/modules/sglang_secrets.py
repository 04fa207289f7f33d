#!/usr/bin/python
"""Tell whether an instance's keys are those that are asked for."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_secrets
short_description: Tell whether an instance's keys are those that are asked for
description:
  - Compares keys with those that the unit's next start would read, and changes nothing.
  - O(id) stands in the launch spec, so that new keys are a new deployment. It is random and tells nothing of the keys.
options:
  name:
    description: Name of the instance.
    type: str
    required: true
  config_root:
    description: Folder that holds a folder for each instance.
    type: path
    default: /etc/sglang
  template:
    description: Name of the template unit.
    type: str
    default: sglang
  keys:
    description: Keys by name, C(api_key) and C(admin_api_key).
    type: dict
    required: true
attributes:
  check_mode:
    description: Does the same in check mode.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: The keys are compared
  sglang_secrets:
    name: glm5
    keys:
      api_key: "{{ sglang_api_key }}"
"""

RETURN = r"""
id:
  description: Id of this set of keys, that of the host's where it is the same set, else a new one.
  returned: always
  type: str
same:
  description: Whether the host has exactly these keys.
  returned: always
  type: bool
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import instance, secrets


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "config_root": {"type": "path", "default": "/etc/sglang"},
            "template": {"type": "str", "default": instance.TEMPLATE},
            "keys": {"type": "dict", "required": True, "no_log": True},
        },
        supports_check_mode=True,
    )
    name, template = module.params["name"], module.params["template"]
    try:
        wanted = secrets.checked(module.params["keys"])
    except secrets.SecretError as error:
        module.fail_json(msg=str(error))
    before = secrets.read(instance.live(name, Path(module.params["config_root"]) / name, template=template))
    found = secrets.identified(wanted, before)
    module.exit_json(changed=False, id=found.id, same=found is before)


if __name__ == "__main__":
    main()
