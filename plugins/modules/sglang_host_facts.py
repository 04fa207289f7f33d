#!/usr/bin/python
"""Say what the plan must know of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_host_facts
short_description: Read GPUs, driver, CUDA compiler and sockets of a host
description:
  - Asks C(nvidia-smi), C(nvcc) and the kernel. What none of them can tell is null, not zero.
  - Changes nothing on the host.
options:
  cuda_home:
    description: The CUDA toolkit that the server would use. Without it C(CUDA_HOME), C(PATH) and C(/usr/local/cuda) count.
    type: path
attributes:
  check_mode:
    description: Runs the same in check mode.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: The host's GPUs are known
  sglang_host_facts:
    cuda_home: /usr/local/cuda-12.8
  register: facts
"""

RETURN = r"""
host:
  description: gpus (names), capability, gpu_count, gpu_memory_gib (of the smallest), driver, nvlink, nvcc, sockets.
  returned: always
  type: dict
  sample: {capability: "12.0", gpu_count: 8, gpu_memory_gib: 95.6, driver: 580.95.05, nvlink: false, nvcc: "12.8"}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import host_facts


def main() -> None:
    module = AnsibleModule(argument_spec={"cuda_home": {"type": "path"}}, supports_check_mode=True)
    module.exit_json(changed=False, host=host_facts.look(module.params["cuda_home"]).as_dict())


if __name__ == "__main__":
    main()
