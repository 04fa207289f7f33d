#!/usr/bin/python
"""Look at a server's certificate before it is used."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_tls
short_description: Look at a server's certificate before it is used
description:
  - Says whether a certificate is in date and for a name, whether the key belongs to it, and whether the service, and no
    stranger, can read the key. Changes nothing.
options:
  certificate:
    description: Certificate chain (PEM).
    type: path
    required: true
  key:
    description: Its key (PEM).
    type: path
    required: true
  name:
    description: DNS name or address that it must be for. Empty leaves that unchecked.
    type: str
    default: ""
  group:
    description: Group of the service.
    type: str
    default: sglang
  hardening:
    description: What C(sglang_hardening) changes of the unit's directives, which decide what the service sees.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Does the same in check mode.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: The certificate can be used
  sglang_tls:
    certificate: /etc/ssl/sglang/fullchain.pem
    key: /etc/ssl/sglang/key.pem
    name: glm5.example.com
"""

RETURN = r"""
problems:
  description: Why it cannot be used, with what to do.
  returned: always
  type: list
  elements: str
soon:
  description: What will soon be one (not C(warnings), which Ansible takes out of every module's result).
  returned: always
  type: list
  elements: str
until:
  description: Its last day, empty where it cannot be used.
  returned: always
  type: str
"""

import grp
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import hardening, tls


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "certificate": {"type": "path", "required": True},
            "key": {"type": "path", "required": True, "no_log": False},
            "name": {"type": "str", "default": ""},
            "group": {"type": "str", "default": "sglang"},
            "hardening": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        group = grp.getgrnam(given["group"]).gr_gid
    except KeyError:
        missing = f"The service's group {given['group']} does not exist yet: groupadd --system {given['group']}"
        module.exit_json(changed=False, problems=[missing], soon=[], until="")
    try:
        unseen = hardening.unseen(given["hardening"])
    except hardening.HardeningError as error:
        module.fail_json(msg=str(error))
    found = tls.examine(Path(given["certificate"]), Path(given["key"]), given["name"], group, unseen=unseen)
    module.exit_json(changed=False, problems=list(found.problems), soon=list(found.warnings), until=found.until)


if __name__ == "__main__":
    main()
