#!/usr/bin/python
"""Look for a CUDA toolkit, prove that it compiles, or make one of PyPI's packages."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_cuda
short_description: The CUDA toolkit of a stack
description:
  - With O(state=looked), says whether the toolkit stands in O(home) and was proved there. Starts nothing where its receipt
    still holds. Fails where another toolkit stands there, or where O(way) cannot provide it.
  - With O(state=proved), compiles and links a small kernel for O(capabilities) on the service's own search path and writes
    the receipt. Fails with the compiler's own words.
  - With O(state=wheels), puts the toolkit made of NVIDIA's packages on PyPI into O(home).
options:
  state:
    description: What to do.
    type: str
    choices: [looked, proved, wheels]
    default: looked
  release:
    description: Release of CUDA, such as C(12.8).
    type: str
    required: true
  home:
    description: Folder of the toolkit, the service's C(CUDA_HOME).
    type: path
    required: true
  way:
    description: How the toolkit gets there.
    type: str
    choices: [apt, wheels, existing]
    default: existing
  capabilities:
    description: Compute capabilities to compile for, such as C(12.0).
    type: list
    elements: str
    default: []
  receipt:
    description: File that keeps the proof.
    type: path
    required: true
  parts:
    description: Extras of the package C(cuda-toolkit), for O(state=wheels).
    type: list
    elements: str
    default: [nvcc, cccl]
  index:
    description: Where packages come from, as in M(sglang_release).
    type: dict
    default: {}
  root:
    description: Folder that holds uv.
    type: path
    default: /opt/sglang
  uv_version:
    description: Version of uv, which installs the packages.
    type: str
author:
  - The sglang-deploy contributors
attributes:
  check_mode:
    description: Looks alike in check mode; proves and installs nothing.
    support: full
"""

EXAMPLES = r"""
- name: The stack's toolkit is looked for
  sglang_cuda:
    release: "12.8"
    home: /usr/local/cuda-12.8
    way: apt
    capabilities: ["12.0"]
    receipt: /opt/sglang/cuda/12.8.json
  register: toolkit

- name: It compiles for the stack's chips
  sglang_cuda:
    state: proved
    release: "12.8"
    home: /usr/local/cuda-12.8
    capabilities: ["12.0"]
    receipt: /opt/sglang/cuda/12.8.json
"""

RETURN = r"""
missing:
  description: Whether the toolkit has to be installed.
  returned: with state looked
  type: bool
proved:
  description: Whether an earlier proof still holds.
  returned: with state looked
  type: bool
toolkits:
  description: Full versions of all toolkits in the usual places, by folder.
  returned: with state looked, where the proof does not hold
  type: dict
package:
  description: Name of the apt package with this toolkit.
  returned: with state looked
  type: str
receipt:
  description: nvcc (full version), seconds, ninja (path) and what was proved.
  returned: with state proved
  type: dict
nvcc:
  description: Full version of nvcc.
  returned: with state wheels
  type: str
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import cuda, cuda_proof, cuda_wheels, release_host, release_uv


def looked(given: dict[str, Any]) -> dict[str, Any]:
    home, receipt = given["home"], Path(given["receipt"])
    answer = {"package": cuda.package(given["release"])}
    try:
        proved = cuda_proof.holds(receipt, cuda_proof.fingerprint(given["release"], home, given["capabilities"]))
    except cuda.CudaError:
        proved = False
    if proved:
        return {"missing": False, "proved": True, "toolkits": {}, **answer}
    others = cuda.installed()
    wanted = cuda.Wanted(given["release"], home, given["way"])
    missing = cuda.judge(wanted, cuda.ask(Path(home)), others)
    toolkits = {toolkit.home: toolkit.version for toolkit in others}
    return {"missing": missing, "proved": False, "toolkits": toolkits, **answer}


def wheels(given: dict[str, Any], index: release_uv.Index) -> str:
    version: str = given["uv_version"]
    uv = Path(given["root"]) / "uv" / version
    nvcc: str = cuda_wheels.install(given["release"], Path(given["home"]), given["parts"], index, uv, version)
    return nvcc


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["looked", "proved", "wheels"], "default": "looked"},
            "release": {"type": "str", "required": True},
            "home": {"type": "path", "required": True},
            "way": {"type": "str", "choices": list(cuda.WAYS), "default": "existing"},
            "capabilities": {"type": "list", "elements": "str", "default": []},
            "receipt": {"type": "path", "required": True},
            "parts": {"type": "list", "elements": "str", "default": ["nvcc", "cccl"]},
            "index": {"type": "dict", "default": {}},
            "root": {"type": "path", "default": "/opt/sglang"},
            "uv_version": {"type": "str"},
        },
        required_if=[("state", "wheels", ["uv_version"])],
        supports_check_mode=True,
    )
    given = module.params
    try:
        if given["state"] == "looked":
            module.exit_json(changed=False, **looked(given))
        if module.check_mode:
            module.exit_json(changed=True)
        if given["state"] == "proved":
            record = cuda_proof.prove(given["release"], given["home"], given["capabilities"], Path(given["receipt"]))
            module.exit_json(changed=True, receipt=record)
        index = release_uv.Index.from_mapping(given["index"])
        module.no_log_values |= index.secrets()
        module.exit_json(changed=True, nvcc=wheels(given, index))
    except (cuda.CudaError, release_host.ReleaseError, release_uv.UvError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
