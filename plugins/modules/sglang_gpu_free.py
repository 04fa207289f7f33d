#!/usr/bin/python
"""Wait until a stopped server has let go of the GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_gpu_free
short_description: Wait until a stopped server has let go of the GPUs
description:
  - Waits until the unit has no process and no GPU holds more than O(most_mib). Without nvidia-smi only the unit counts.
options:
  unit:
    description: The unit that was stopped.
    type: str
    required: true
  most_mib:
    description: MiB that a GPU may still hold.
    type: int
    default: 2048
  seconds:
    description: How long to wait at most.
    type: float
    default: 180
  holder:
    description: The controller's process that calls this, for the lock of the host. The action adds it.
    type: dict
attributes:
  check_mode:
    description: Does not wait.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: The GPUs are free
  sglang_gpu_free:
    unit: sglang@glm5.service
"""

RETURN = r"""
seconds:
  description: How long it took.
  returned: always
  type: float
memory_mib:
  description: What each GPU still holds.
  returned: always
  type: list
  elements: int
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import lock
from ansible.module_utils.sglang_deploy.sweep import gpu


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "most_mib": {"type": "int", "default": 2048},
            "seconds": {"type": "float", "default": 180},
            "holder": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    given = module.params
    if module.check_mode:
        module.exit_json(changed=False, seconds=0.0, memory_mib=[])
    try:
        with lock.kept(given["holder"]):
            free = gpu.wait(given["unit"], given["most_mib"], given["seconds"])
    except (gpu.NotFree, lock.LockError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, seconds=free.seconds, memory_mib=list(free.memory_mib))


if __name__ == "__main__":
    main()
