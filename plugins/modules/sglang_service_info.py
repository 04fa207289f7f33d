#!/usr/bin/python
"""Say how far a host already is what a deployment wants."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_service_info
short_description: Say how far a host already is what a deployment wants
description:
  - Compares unit, user, group, folders, the running process, the instance's files and the last good deployment with what
    is wanted, all in one look. Changes nothing of them, in check mode and out of it.
  - Where there is something to do, takes the lock of the host, which keeps a second controller from deploying meanwhile.
    The lock ends with the deployment, or when the controller says nothing for O(silence) seconds.
options:
  deployment:
    description: Launch spec with the texts that follow from it, from C(sglang_plan) or C(sglang_ledger).
    type: dict
    required: true
  unit:
    description: Text of the template unit.
    type: str
    required: true
  user:
    description: User of the service.
    type: str
    default: sglang
  group:
    description: Group of the service.
    type: str
    default: sglang
  folders:
    description: Folders that root owns and everybody may enter.
    type: list
    elements: path
    default: []
  config_root:
    description: Folder that holds a folder with the files of each instance.
    type: path
    default: /etc/sglang
  state_root:
    description: Folder that holds a folder with the ledger of each instance.
    type: path
    default: /var/lib/sglang
  template:
    description: Name of the template unit.
    type: str
    default: sglang
  silence:
    description: Seconds without a task of this deployment after which the lock counts no more.
    type: float
    default: 180
  holder:
    description: The controller's process that calls this, for the lock of the host. The action adds it.
    type: dict
  dead:
    description: A holder of whom the controller knows that it ended. The action adds it.
    type: dict
  wait:
    description: Seconds to wait for a lock that runs out. The action sets it.
    type: float
    default: 0
attributes:
  check_mode:
    description: Takes no lock, and says as a change which files would be put back that were edited by hand.
    support: full
  diff_mode:
    description: In check mode, shows them.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: It is known what there is to do
  sglang_service_info:
    deployment: "{{ plan.deployment }}"
    unit: "{{ lookup('ansible.builtin.template', 'sglang@.service.j2') }}"
"""

RETURN = r"""
installed:
  description: Whether unit, user, group and folders are as wanted.
  returned: always
  type: bool
current:
  description: Whether the unit is active, runs exactly the deployment, and was started after its unit file changed.
  returned: always
  type: bool
answers:
  description: Whether the server of a current deployment says that it is up.
  returned: always
  type: bool
settled:
  description: Whether the deployment is current and accepted, with its files, the start at boot and the ledger saying so.
  returned: always
  type: bool
running:
  description: State, main process, restarts, invocation, hash of the launch spec and argument list of what runs.
  returned: always
  type: dict
context:
  description: Versions, settings and environment of the deployment, as C(sglang_watch) and C(sglang_diagnose) take them.
  returned: always
  type: dict
shared:
  description: Hash of what all hosts of the instance have to have alike; empty on one host.
  returned: always
  type: str
last_good:
  description: The deployment that passed its gate last, empty if there is none.
  returned: always
  type: dict
last_good_time:
  description: When it passed, in UTC.
  returned: always
  type: str
edited:
  description: Files of the accepted deployment that are not what was accepted.
  returned: always
  type: list
  elements: str
held:
  description: Who has the lock of the host, where that is somebody else; nothing was looked at then.
  returned: when the lock is held
  type: dict
canary:
  description: Whether the canary of the instance is on.
  returned: always
  type: bool
last_good_problem:
  description: Why the release of the last good deployment cannot run it; empty if it can.
  returned: always
  type: str
"""

import contextlib
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import instance, ledger, lock, standing
from ansible.module_utils.sglang_deploy.canary import record as canary


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "dict", "required": True},
            "unit": {"type": "str", "required": True},
            "user": {"type": "str", "default": "sglang"},
            "group": {"type": "str", "default": "sglang"},
            "folders": {"type": "list", "elements": "path", "default": []},
            "config_root": {"type": "path", "default": "/etc/sglang"},
            "state_root": {"type": "path", "default": "/var/lib/sglang"},
            "template": {"type": "str", "default": instance.TEMPLATE},
            "silence": {"type": "float", "default": lock.SILENCE},
            "holder": {"type": "dict"},
            "dead": {"type": "dict"},
            "wait": {"type": "float", "default": 0},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        found = look(module)
        if given["holder"] and not (module.check_mode or found["settled"]):
            # What was seen without the lock may be what another deployment was about to change.
            with lock.taken(lock.Holder.of(given["holder"]), given["silence"], given["dead"], given["wait"]):
                found = look(module)
    except lock.Held as error:
        held = {**error.lease.as_dict(), "busy": error.busy, "left": error.left}
        module.exit_json(changed=False, held=held, msg=f"{error} Nothing was changed.")
    except lock.LockError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"The files of {given['deployment']['spec']['instance']} cannot be looked at: {error}")
    module.exit_json(**found)


def look(module: AnsibleModule) -> dict[str, Any]:
    """All that the module returns."""
    given = module.params
    deployment = given["deployment"]
    name = deployment["spec"]["instance"]
    directory = Path(given["config_root"]) / name
    folders = [Path(folder) for folder in given["folders"]]
    wanted = standing.Wanted(given["unit"], given["user"], given["group"], folders)
    installed = standing.installed(wanted, standing.unit_file(given["template"]))
    running = instance.running(name, given["template"])
    try:
        good = ledger.last_good(Path(given["state_root"]) / name)
    except OSError as error:
        module.fail_json(msg=f"The ledger of {name}: {error}")
    if good.damaged:
        module.warn(f"last_good.json was not readable and lies at {good.damaged}; there is no last good deployment now.")
    current = installed and instance.runs(running, deployment)
    edited = standing.edited(directory, Path(given["state_root"]) / name, good)
    if edited:
        module.warn(f"{', '.join(edited)} is not what was accepted: edited by hand, most likely. A deployment puts it back.")
    diff: list[dict[str, str]] = []
    if module.check_mode and edited and current:
        with contextlib.suppress(OSError):
            shown = instance.write(deployment, directory, -1, apply=False).diff
            diff = [entry for entry in shown if entry["before"] != entry["after"]]
    return {
        "changed": bool(diff),
        "diff": diff,
        "edited": edited,
        "installed": installed,
        "current": current,
        "answers": current and standing.answers(deployment["spec"]["url"]),
        "settled": current and standing.settled(deployment, directory, given["group"], running, good, given["template"]),
        "running": running.as_dict(),
        "context": instance.context(deployment),
        "shared": str(deployment["spec"].get("shared", "")),
        "last_good": good.deployment or {},
        "last_good_time": good.time,
        "canary": canary.switched_on(name),
        "last_good_problem": instance.release_problem(good.deployment) if good.deployment else "",
    }


if __name__ == "__main__":
    main()
