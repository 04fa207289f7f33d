#!/usr/bin/python
"""Wait until an instance works on no request."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_idle
short_description: Wait until an instance works on no request
description:
  - Asks the server of the unit how many requests run and wait there, until there was none for two seconds.
  - Nothing is waited for where nobody answers. A server that does not tell gets the whole time.
options:
  name:
    description: Name of the instance.
    type: str
    required: true
  config_root:
    description: Folder that holds a folder for each instance.
    type: path
    default: /etc/sglang
  seconds:
    description: Seconds that the requests may take.
    type: float
    default: 600
  holder:
    description: The controller's process that calls this, for the lock of the host. The action adds it.
    type: dict
attributes:
  check_mode:
    description: Waits for nothing.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: What it works on is finished
  sglang_idle:
    name: glm5
    seconds: 300
"""

RETURN = r"""
ok:
  description: Whether nothing was left.
  returned: always
  type: bool
left:
  description: Requests that still ran; null where the server does not tell.
  returned: always
  type: int
seconds:
  description: How long it took.
  returned: always
  type: float
summary:
  description: The same in words.
  returned: always
  type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import instance, lock, rolling, secrets
from ansible.module_utils.sglang_deploy.decode_check import Server


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "config_root": {"type": "path", "default": "/etc/sglang"},
            "seconds": {"type": "float", "default": 600.0},
            "holder": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    name, seconds = module.params["name"], module.params["seconds"]
    directory = Path(module.params["config_root"]) / name
    live = instance.live(name, directory)
    found = instance.read(live)
    if module.check_mode or not found or not instance.running(name).active:
        module.exit_json(changed=False, ok=True, left=0, seconds=0.0, summary="nothing runs there, so nothing is waited for")
    keys = secrets.read(live)
    server = Server(found["spec"]["url"], api_key=keys.values.get("api_key") if keys else None)
    try:
        with lock.kept(module.params["holder"]):
            ended = rolling.wait(rolling.asking(server), seconds)
    except lock.LockError as error:
        module.fail_json(msg=str(error))
    if not ended.ok:
        module.fail_json(
            msg=f"{name}: {ended.summary}. Nothing was stopped: run this again when they have ended, give them longer "
            "(sglang_drain_seconds), or set sglang_drain: false to cut them off.",
            **ended.as_dict(),
        )
    module.exit_json(changed=False, **ended.as_dict())


if __name__ == "__main__":
    main()
