#!/usr/bin/python
"""Gather the evidence of a host; the action plugin of the same name judges it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_host_check
short_description: Is a host fit for a deployment
description:
  - Looks at GPUs, driver, PCI tree, IOMMU, memory, disks, limits, ports, kernel log, Pythons and tools, all at once.
    Changes nothing and starts nothing. Each probe has a time limit; a tool that is missing is evidence, not an error.
  - On the controller the evidence is judged against O(deployment). Problems are shown with reason and remedy, and the whole
    is written to C(.cache/host_check/HOST.json).
  - Fails where something is certain to fail and O(allow) does not name it.
options:
  deployment:
    description: What C(sglang_plan) made of the settings. The host is judged against its C(stack) and launch spec.
    type: dict
    required: true
  root:
    description: Folder of the releases.
    type: path
    default: /opt/sglang
  cache_root:
    description: Folder of kernel caches.
    type: path
    default: /var/cache/sglang
  model:
    description: The model's name or its folder on the host. By its name the size of the weights may be known.
    type: str
    default: ""
  model_source:
    description: Where the weights come from (see the role C(model_weights)). Room for them is judged for C(server) alone.
    type: str
    default: local
  model_root:
    description: Folder of the models that are downloaded from the hub.
    type: path
    default: /srv/models
  python:
    description: Path or name of the Python to build with, if a certain one is wanted.
    type: str
    default: ""
  user:
    description: The user that runs the service.
    type: str
    default: sglang
  allow:
    description: Ids of judgements that only warn.
    type: list
    elements: str
    default: []
  whole:
    description: Show notes and the summary, too, and sources with every problem.
    type: bool
    default: false
attributes:
  check_mode:
    description: Runs the same in check mode.
    support: full
author:
  - The sglang-deploy contributors
"""

EXAMPLES = r"""
- name: The host is fit
  sglang_host_check:
    deployment: "{{ sglang_deployment }}"
    root: /opt/sglang
  register: sglang_host_facts
"""

RETURN = r"""
host:
  description: gpus (names), capability, gpu_count, gpu_memory_gib (of the smallest), driver, nvlink, nvcc, sockets.
  returned: always
  type: dict
  sample: {capability: "12.0", gpu_count: 8, gpu_memory_gib: 95.6, driver: 580.95.05, nvlink: false, nvcc: "12.8"}
evidence:
  description: All that was found. What could not be told is null.
  returned: always
  type: dict
report:
  description: C(refused), C(judgements) (id, severity, reason, remedy, source, allowed; gravest first) and C(summary).
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import host_gather


def main() -> None:
    """Look. The options are those that the action plugin passes on."""
    module = AnsibleModule(
        argument_spec={
            "places": {"type": "dict", "default": {}},
            "ports": {"type": "list", "elements": "dict", "default": []},
            "tools": {"type": "list", "elements": "str", "default": []},
            "user": {"type": "str", "default": "sglang"},
            "python": {"type": "str", "default": ""},
            "cuda_home": {"type": "str", "default": ""},
            "instance": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    given = module.params
    question = host_gather.Question(
        places=given["places"],
        ports=tuple((port["instance"], port["address"], port["port"]) for port in given["ports"]),
        tools=tuple(given["tools"]),
        user=given["user"],
        python=given["python"] or None,
        cuda_home=given["cuda_home"] or None,
        instance=given["instance"],
    )
    module.exit_json(changed=False, evidence=host_gather.gather(question).as_dict())


if __name__ == "__main__":
    main()
