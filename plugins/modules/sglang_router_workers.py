#!/usr/bin/python
"""Take a worker out of a router, or into it; runs on the router's host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_router_workers
short_description: Take a worker out of a router, or into it
description:
  - Asks the router that runs on this host, with the keys that it was deployed with. A router that is not deployed here, or
    is stopped, sends nobody a request; nothing is done then, and RV(routes) is false.
  - A request that runs on a worker when it is taken out goes on to its end.
options:
  name:
    description: Name of the router.
    type: str
    default: router
  config_root:
    description: Folder that holds a folder for each router.
    type: path
    default: /etc/sglang-router
  state:
    description:
      - V(left) takes the worker out, and refuses where no other one is healthy, but for O(alone).
      - V(joined) takes it in, and waits until the router calls it healthy.
      - V(filled) makes the workers those of O(workers), and waits for none. It fails where the router has a key and does
        not ask for it.
    type: str
    choices: [left, joined, filled]
    required: true
  worker:
    description: C(url), and where it is not regular C(kind) and C(bootstrap_port).
    type: dict
  workers:
    description: Those of V(filled).
    type: list
    elements: dict
    default: []
  alone:
    description: Take out the last healthy worker, too.
    type: bool
    default: false
  seconds:
    description: Limit of the wait.
    type: float
    default: 60
attributes:
  check_mode:
    description: Changes nothing, and looks at nothing.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: The router sends it nothing more
  sglang_router_workers:
    state: left
    worker: {url: "http://gpu1.example.com:8000"}
  delegate_to: router1
"""

RETURN = r"""
routes:
  description: Whether a router runs here.
  returned: always
  type: bool
workers:
  description: The workers that the router has now, as it lists them.
  returned: where one runs, not in check mode
  type: list
  elements: dict
added:
  description: Addresses that were taken in.
  returned: with state filled
  type: list
  elements: str
removed:
  description: Addresses that were taken out.
  returned: with state filled
  type: list
  elements: str
"""

import fcntl
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import instance, router_api


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "default": "router"},
            "config_root": {"type": "path", "default": "/etc/sglang-router"},
            "state": {"type": "str", "choices": ["left", "joined", "filled"], "required": True},
            "worker": {"type": "dict"},
            "workers": {"type": "list", "elements": "dict", "default": []},
            "alone": {"type": "bool", "default": False},
            "seconds": {"type": "float", "default": 60.0},
        },
        required_if=[("state", "left", ["worker"]), ("state", "joined", ["worker"])],
        supports_check_mode=True,
    )
    given = module.params
    directory = Path(given["config_root"]) / given["name"]
    deployed = instance.read(directory)
    if module.check_mode or not deployed:
        module.exit_json(changed=False, routes=bool(deployed))
    router = router_api.of_instance(given["name"], directory, deployed)
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(handle, fcntl.LOCK_EX)  # until the module ends: two deployments may not each count on the other's worker
        result = act(given, router)
        module.exit_json(**result, routes=True, workers=[asdict(worker) for worker in router.workers()])
    except router_api.NoRouter as error:
        if instance.running(given["name"], router_api.TEMPLATE).active:
            module.fail_json(msg=str(error))
        module.exit_json(changed=False, routes=False, msg=str(error))
    except router_api.RouterProblem as error:
        module.fail_json(msg=str(error))
    except (KeyError, TypeError, ValueError) as error:
        module.fail_json(
            msg=f"a worker is {given['worker'] or given['workers']}: write its url, kind and bootstrap_port ({error})"
        )


def act(given: dict[str, Any], router: router_api.Router) -> dict[str, Any]:
    """Do what is asked for. Raises RouterProblem, TypeError."""
    if given["state"] == "left":
        return {"changed": router_api.leave(router, str(given["worker"]["url"]), given["seconds"], alone=given["alone"])}
    if given["state"] == "joined":
        return {"changed": router_api.join(router, router_api.Target(**given["worker"]), given["seconds"])}
    if problem := router_api.open_to_strangers(router):
        raise router_api.RouterProblem(problem)
    added, removed = router_api.fill(router, [router_api.Target(**worker) for worker in given["workers"]])
    return {"changed": bool(added or removed), "added": added, "removed": removed}


if __name__ == "__main__":
    main()
