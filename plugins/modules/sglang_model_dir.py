"""Check a model directory on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_model_dir
short_description: Check that a model directory is whole, and read what it holds
description:
  - Looks at config.json, the tokenizer, and at names, sizes and headers of the weight files. The weights themselves are
    not read.
  - Changes nothing. Fails with a list of all that is wrong.
options:
  path:
    description: The model's directory.
    type: path
    required: true
author:
  - The sglang-deploy contributors
attributes:
  check_mode:
    description: Runs the same in check mode.
    support: full
"""

EXAMPLES = r"""
- name: The model is whole
  sglang_model_dir:
    path: /srv/models/glm-5-nvfp4
  register: model
"""

RETURN = r"""
model:
  description:
    - Architecture, quantisation, layers, heads, experts, sizes and types of the weights, and a fingerprint that changes
      with the model.
  returned: success
  type: dict
problems:
  description: All that is wrong, each with its cure.
  returned: failure
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import model_dir


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={"path": {"type": "path", "required": True}}, supports_check_mode=True)
    try:
        summary = model_dir.inspect(Path(module.params["path"]))
    except model_dir.ModelDirError as error:
        module.fail_json(msg=str(error), problems=list(error.problems))
    module.exit_json(changed=False, model=summary.as_dict())


if __name__ == "__main__":
    main()
