#!/usr/bin/python
"""Measure a running server: agreement with a reference, then SGLang's own bench_serving."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_measure
short_description: Compare a running server with a reference, and measure its speed
description:
  - Sends fixed prompts and compares log-probabilities with those of a reference, or takes the reference where there is
    none yet. Then runs the release's own bench_serving at each number of users.
  - A server that does not agree is not measured.
options:
  url:
    description: The server's address on the host.
    type: str
    required: true
  deployment:
    description: The deployment that runs, for its interpreter, environment and model.
    type: dict
    required: true
  workload:
    description: C(users), C(input_tokens), C(output_tokens), C(requests_per_user) and C(rounds).
    type: dict
    required: true
  users:
    description: The number of users that the objective names.
    type: int
    required: true
  reference:
    description: File on the host with the reference. Written where it is missing.
    type: path
    required: true
  argmax:
    description: Share of tokens that must agree with the reference.
    type: float
    default: 0.95
  gap:
    description: Mean distance of log-probabilities that is allowed, in nats.
    type: float
    default: 0.1
  seconds:
    description: Limit for all of it.
    type: float
    default: 3600
  seed:
    description: First seed of the prompts. Another one for another measurement.
    type: int
    default: 1
  user:
    description: User to run bench_serving as, since it may load code that came with the model.
    type: str
    default: sglang
  holder:
    description: The controller's process that calls this, for the lock of the host. The action adds it.
    type: dict
attributes:
  check_mode:
    description: Does nothing.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: The trial is measured
  sglang_measure:
    url: http://127.0.0.1:8001
    deployment: "{{ trial.deployment }}"
    workload: {users: [1, 8], input_tokens: 512, output_tokens: 128, requests_per_user: 4, rounds: 3}
    users: 8
    reference: /var/lib/sglang/glm5-sweep/sweeps/0123456789ab.reference.json
"""

RETURN = r"""
agreement:
  description: C(argmax), C(first), C(gap), C(worst) and C(tokens); empty for the reference itself.
  returned: always
  type: dict
problems:
  description: Why it does not agree; empty where it does.
  returned: always
  type: list
  elements: str
measured:
  description: Levels, and memory and power of the GPUs; empty where it does not agree or could not be measured.
  returned: always
  type: dict
reason:
  description: Why it could not be measured; empty where it could.
  returned: always
  type: str
"""

import json
import os
import pwd
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import instance, lock
from ansible.module_utils.sglang_deploy.decode_check.client import Client, Deadline, DecodeCheckError, Server
from ansible.module_utils.sglang_deploy.jsonfile import dump
from ansible.module_utils.sglang_deploy.sweep import agreement, measure


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "deployment": {"type": "dict", "required": True},
            "workload": {"type": "dict", "required": True},
            "users": {"type": "int", "required": True},
            "reference": {"type": "path", "required": True},
            "argmax": {"type": "float", "default": 0.95},
            "gap": {"type": "float", "default": 0.1},
            "seconds": {"type": "float", "default": 3600},
            "seed": {"type": "int", "default": 1},
            "user": {"type": "str", "default": "sglang"},
            "holder": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    given = module.params
    result = {"changed": False, "agreement": {}, "problems": [], "measured": {}, "reason": ""}
    if module.check_mode:
        module.exit_json(**result)
    try:
        with lock.kept(given["holder"]):
            act(given, result)
    except (DecodeCheckError, measure.MeasureError) as error:
        result["reason"] = str(error)
    except (lock.LockError, OSError, TypeError, ValueError, KeyError) as error:
        module.fail_json(msg=f"The trial cannot be measured: {type(error).__name__}: {error}", **result)
    module.exit_json(**result)


def act(given: dict[str, Any], result: dict[str, Any]) -> None:
    """Compare, then measure; what is found goes into `result`."""
    ends = time.monotonic() + given["seconds"]
    spec = given["deployment"]["spec"]
    workload = measure.Workload(**{**given["workload"], "users": tuple(given["workload"]["users"])})
    agreed = _agreement(Client(Server(given["url"])), Path(given["reference"]), Deadline(given["seconds"]))
    if agreed is not None:
        result["agreement"] = agreed.as_dict()
        result["problems"] = agreed.problems(given["argmax"], given["gap"])
    if result["problems"]:
        return
    measured = measure.run(
        python=spec["command"][0],
        environment={name: str(variable["value"]) for name, variable in spec["environment"].items()},
        workload=workload,
        named=given["users"],
        url=given["url"],
        model=spec["model"],
        seconds=max(1.0, ends - time.monotonic()),
        first_seed=given["seed"],
        owner=_owner(given["user"]),
    )
    result["measured"] = measured.as_dict()


def _agreement(client: Client, path: Path, deadline: Deadline) -> agreement.Agreement | None:
    """How the server agrees with the reference in a file; None where it has become the reference itself."""
    if path.exists():
        reference = agreement.samples_from(json.loads(path.read_text(encoding="utf-8")))
        return agreement.compare(client, deadline, reference)
    samples = agreement.take(client, deadline)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    instance.replace(path, dump([sample.as_dict() for sample in samples]), 0o644)
    return None


def _owner(user: str) -> tuple[int, int] | None:
    """User and group id to run as; None for this module's own."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return None
    return entry.pw_uid, entry.pw_gid


if __name__ == "__main__":
    main()
