#!/usr/bin/python
"""Read the record of a sweep on its host, or add a line to it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_sweep_record
short_description: Read the record of a sweep on its host, or add a line to it
description:
  - A line is on disk before this returns, so that a host that dies in a trial can tell which one it was.
options:
  path:
    description: The record's file, JSON lines.
    type: path
    required: true
  line:
    description: A line to add. Without it the record is only read.
    type: dict
  deployments:
    description: State folders of instances whose failed deployments count as failed before.
    type: list
    elements: path
    default: []
  facts:
    description: What must be the same for another sweep's failures to count (driver, GPUs, model), as one text.
    type: str
    default: ""
attributes:
  check_mode:
    description: Reads and writes nothing.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: The record is read
  sglang_sweep_record:
    path: /var/lib/sglang/glm5-sweep/sweeps/0123456789ab.jsonl
"""

RETURN = r"""
record:
  description: C(opened), C(lines), C(pending), C(died), C(closed) and C(unreadable).
  returned: without O(line)
  type: dict
failed_before:
  description: Why launches failed on this host before with the same versions, by the launch's identity.
  returned: without O(line)
  type: dict
"""

from datetime import datetime, timezone
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy.sweep import trials


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "line": {"type": "dict"},
            "deployments": {"type": "list", "elements": "path", "default": []},
            "facts": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    path, line = Path(module.params["path"]), module.params["line"]
    try:
        if line is not None:
            now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            if not module.check_mode:
                trials.append(path, {"time": now, "boot": trials.boot_id(), **line})
            module.exit_json(changed=True)
        deployments = [Path(each) for each in module.params["deployments"]]
        before = trials.failed_before(path.parent, path, deployments, module.params["facts"])
        module.exit_json(changed=False, record=trials.read(path).as_dict(), failed_before=before)
    except OSError as error:
        module.fail_json(
            msg=f"The sweep's record {error.filename or path} cannot be used: {error.strerror}. Nothing was started."
        )


if __name__ == "__main__":
    main()
