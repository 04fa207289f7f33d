#!/usr/bin/python
"""Write a redacted support bundle on the host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_bundle
short_description: Write a redacted support bundle on the host
description:
  - Packs the unit's journal, the instance's files, ledger and verdicts, the release's receipt, versions, nvidia-smi,
    topology and the kernel's lines about GPUs.
  - Keys, tokens, account names, addresses, host names, prompts and answers are taken out on the host, before anything
    leaves it.
options:
  name:
    description: Name of the instance.
    type: str
    required: true
  path:
    description: File to write, a tar.gz that only its owner reads.
    type: path
    required: true
  hosts:
    description: Further host names that must not appear, such as the inventory's.
    type: list
    elements: str
    default: []
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
    description: Collects and writes nothing.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: The bundle is packed
  sglang_bundle:
    name: glm5
    path: /tmp/bundle.tar.gz
"""

RETURN = r"""
parts:
  description: Names of the files in the bundle.
  returned: always
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import bundle


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "hosts": {"type": "list", "elements": "str", "default": []},
            "config_root": {"type": "path", "default": "/etc/sglang"},
            "state_root": {"type": "path", "default": "/var/lib/sglang"},
        },
        supports_check_mode=True,
    )
    given = module.params
    parts = bundle.collect(given["name"], Path(given["config_root"]), Path(given["state_root"]))
    if not module.check_mode:
        try:
            bundle.write(parts, bundle.known_names(parts, given["hosts"]), Path(given["path"]))
        except OSError as error:
            module.fail_json(msg=f"Cannot write {given['path']}: {error.strerror}")
    module.exit_json(changed=True, parts=sorted(parts))


if __name__ == "__main__":
    main()
