#!/usr/bin/python
"""Ask an installed release what it makes of an argument list."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_resolve
short_description: Ask an installed SGLang what it makes of an argument list
description:
  - Runs the release's own argument resolution in a child of limited time and memory, without a network and without weights.
  - Changes nothing but the folder O(cache), where answers are kept.
options:
  python:
    description: The release's interpreter.
    type: path
    required: true
  argv:
    description: The server's arguments, options only.
    type: list
    elements: str
    required: true
  environment:
    description: The server's environment. Its folders for kernel caches are not touched.
    type: dict
    default: {}
  cache:
    description: Folder on the host for answers. Without it none is kept.
    type: path
  user:
    description:
      - User to ask as, since a model may bring code of its own. V(nobody) where it does not exist.
      - Only root can ask as somebody else.
    type: str
    default: nobody
  seconds:
    description: How long the release may take.
    type: float
    default: 300
attributes:
  check_mode:
    description: Asks, and keeps no answer.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: What SGLang makes of the arguments is known
  sglang_resolve:
    python: /opt/sglang/releases/cpu-0123456789ab/venv/bin/python
    argv: [--model-path, /srv/models/glm5, --device, cpu]
    cache: /var/cache/sglang/plan
"""

RETURN = r"""
resolution:
  description: C(ok), C(refused), C(reason), C(resolved) (the fields of the server's arguments), C(log), C(seconds) it took.
  returned: always
  type: dict
"""

import os
import pwd
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import resolution


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "path", "required": True},
            "argv": {"type": "list", "elements": "str", "required": True},
            "environment": {"type": "dict", "default": {}},
            "cache": {"type": "path"},
            "user": {"type": "str", "default": "nobody"},
            "seconds": {"type": "float", "default": resolution.TIMEOUT_S},
        },
        supports_check_mode=True,
    )
    given = module.params
    answer = resolution.resolve(
        Path(given["python"]),
        given["argv"],
        {name: str(value) for name, value in given["environment"].items()},
        timeout_s=given["seconds"],
        cache=Path(given["cache"]) if given["cache"] else None,
        keep=not module.check_mode,
        identity=_identity(given["user"]),
    )
    module.exit_json(changed=False, resolution=answer.as_dict())


def _identity(user: str) -> tuple[int, int] | None:
    """User and group id to ask as; None for this module's own."""
    if os.geteuid() != 0:
        return None
    for name in (user, "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    return None


if __name__ == "__main__":
    main()
