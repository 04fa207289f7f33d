#!/usr/bin/python
"""Write the files of an instance and say what runs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_instance
short_description: Write the files of an instance and say what runs
description:
  - Brings C(launch), C(environment) and C(spec.json) under O(config_root)/O(name) to what a deployment says. Each file
    is replaced at once.
  - Says whether the unit runs exactly that deployment. Starts and stops nothing.
  - Writes only for the controller that has the lock of the host, or takes it. A host has one, whatever its instances.
options:
  name:
    description: Name of the instance.
    type: str
    required: true
  deployment:
    description: Launch spec with the texts that follow from it, from C(sglang_plan). Without it, nothing is written.
    type: dict
  state:
    description:
      - V(accepted) writes the instance's own files and takes a candidate's away.
      - V(candidate) leaves them alone and makes the deployment what the unit's next start runs, until it is accepted or
        the host boots again. Nothing is written where the unit runs it already.
      - V(discarded) takes a candidate's files away.
    type: str
    choices: [accepted, candidate, discarded]
    default: accepted
  config_root:
    description: Folder that holds a folder for each instance.
    type: path
    default: /etc/sglang
  template:
    description: Name of the template unit.
    type: str
    default: sglang
  group:
    description: Group of the service, which reads the environment file and the keys.
    type: str
    default: sglang
  keys:
    description:
      - Keys of the deployment by name, C(api_key) and C(admin_api_key).
      - Without them, the keys on the host are kept. A deployment that names none has them taken away.
    type: dict
  holder:
    description: The controller's process that calls this, for the lock of the host. The action adds it.
    type: dict
attributes:
  check_mode:
    description: Compares and writes nothing.
    support: full
  diff_mode:
    description: Shows each of the instance's own files that differs, and of the keys which ones there are.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: The instance's files are in place
  sglang_instance:
    name: glm5
    deployment: "{{ plan.deployment }}"
"""

RETURN = r"""
running:
  description: State, main process, restarts, invocation, hash of the launch spec and argument list of what runs.
  returned: always
  type: dict
deployment:
  description: The deployment that the instance's files describe, or the given one; empty where there is none.
  returned: always
  type: dict
current:
  description: Whether the unit is active, runs exactly the given deployment, and was started after its unit file changed.
  returned: always
  type: bool
context:
  description: Versions, settings and environment of the deployment, as C(sglang_watch) and C(sglang_diagnose) take them.
  returned: always
  type: dict
release_problem:
  description: Why the deployment's release, or the keys on the host, cannot run it; empty if they can.
  returned: always
  type: str
"""

import contextlib
import grp
import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import instance, lock, secrets


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "deployment": {"type": "dict"},
            "state": {"type": "str", "choices": ["accepted", "candidate", "discarded"], "default": "accepted"},
            "config_root": {"type": "path", "default": "/etc/sglang"},
            "template": {"type": "str", "default": instance.TEMPLATE},
            "group": {"type": "str", "default": "sglang"},
            "keys": {"type": "dict", "no_log": True},
            "holder": {"type": "dict"},
        },
        required_if=[("state", "candidate", ["deployment"])],
        supports_check_mode=True,
    )
    state, given, holder = (module.params[name] for name in ("state", "deployment", "holder"))
    writes = (given is not None or state == "discarded") and not module.check_mode
    try:
        with lock.taken(lock.Holder.of(holder)) if writes and holder else contextlib.nullcontext():
            act(module, state, given)
    except lock.LockError as error:
        module.fail_json(msg=str(error))


def act(module: AnsibleModule, state: str, given: dict[str, Any] | None) -> None:
    """Do what is asked for, and end the module."""
    name, template = module.params["name"], module.params["template"]
    directory = Path(module.params["config_root"]) / name
    running = instance.running(name, template)
    deployment = given or instance.read(directory)
    result = {
        "running": running.as_dict(),
        "current": False,
        "deployment": deployment,
        "context": instance.context(deployment) if deployment else {},
        "release_problem": _problem(deployment, directory, bool(module.params["keys"])) if deployment else "",
    }
    try:
        if state == "discarded":
            changed = instance.discard(name, directory, template=template, apply=not module.check_mode)
            if not module.check_mode:
                lock.release(module.params["holder"])  # what was to be deployed is given up
            module.exit_json(changed=changed, **result)
        if given is None:
            module.exit_json(changed=False, **result)
        result["current"] = instance.runs(running, deployment)
        group = _group(module)
        accept = state == "accepted" and not module.check_mode
        keys = _keys(module, deployment, instance.live(name, directory, template=template))
        written = instance.write(deployment, directory, group, apply=accept, keys=keys)
        changed = written.changed
        if state == "accepted":
            changed = instance.discard(name, directory, template=template, apply=accept) or changed
        elif not result["current"]:
            changed = True
            if not module.check_mode:
                instance.stage(name, deployment, directory, group, keys=keys, template=template)
    except OSError as error:
        left = "Nothing was restarted." if state == "candidate" else "What runs was left as it is; run it again."
        lock.release(module.params["holder"])  # the deployment ends here
        module.fail_json(msg=f"Cannot write {error.filename}: {error.strerror}. {left}", **result)
    except subprocess.CalledProcessError as error:
        module.fail_json(msg=f"systemd did not read its units again: {error.stderr.decode(errors='replace')}", **result)
    module.exit_json(changed=changed, diff=written.diff, **result)


def _problem(deployment: dict[str, Any], directory: Path, given: bool) -> str:
    return instance.release_problem(deployment) or ("" if given else instance.secrets_problem(deployment, directory))


def _keys(module: AnsibleModule, deployment: dict[str, Any], live: Path) -> secrets.Secrets | None:
    """The given keys with the id that the deployment carries, else those that the unit would read now."""
    if not deployment["spec"].get("secrets"):
        return None
    try:
        values = secrets.checked(module.params["keys"] or {})
    except secrets.SecretError as error:
        module.fail_json(msg=str(error))
    if not values:
        return secrets.read(live)
    return secrets.Secrets(values, deployment["spec"]["environment"][secrets.ID_VARIABLE]["value"])


def _group(module: AnsibleModule) -> int:
    try:
        return grp.getgrnam(module.params["group"]).gr_gid
    except KeyError:
        if not module.check_mode:
            module.fail_json(msg=f"The group {module.params['group']} does not exist: the role creates it before this task.")
        return -1  # a host that the role has not yet touched


if __name__ == "__main__":
    main()
