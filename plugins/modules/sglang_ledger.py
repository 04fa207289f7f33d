#!/usr/bin/python
"""Record a verdict in an instance's ledger, or read what it holds."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_ledger
short_description: Record a verdict in an instance's ledger, or read what it holds
description:
  - With O(verdict), writes the verdict, appends a line to the ledger and, if the verdict is good, makes the deployment
    the last good one.
  - A good verdict of a deployment or rollback ends it, and lets go of the lock of the host.
  - Without O(verdict), only reads. A damaged file is set aside and never trusted.
options:
  name:
    description: Name of the instance.
    type: str
    required: true
  state_root:
    description: Folder that holds a folder for each instance.
    type: path
    default: /var/lib/sglang
  kind:
    description: What kind of start it was. A trial never becomes the last good deployment.
    type: str
    choices: [deploy, rollback, trial]
    default: deploy
  deployment:
    description: Launch spec with the texts that follow from it. Required with O(verdict).
    type: dict
  verdict:
    description: The gate's verdict.
    type: dict
  by:
    description: Who deployed, for the ledger.
    type: str
    default: ""
  find:
    description: Beginning of the hash of a deployment to look for. Empty means the one that was good before the last.
    type: str
  forget_releases:
    description: Releases that are gone. What is kept of their deployments goes too.
    type: list
    elements: str
    default: []
  holder:
    description: The controller's process that calls this, for the lock of the host. The action adds it.
    type: dict
attributes:
  check_mode:
    description: Reads and writes nothing.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: The verdict is on record
  sglang_ledger:
    name: glm5
    deployment: "{{ plan.deployment }}"
    verdict: "{{ verdict }}"
"""

RETURN = r"""
last_good:
  description: The deployment that passed its gate last, empty if there is none.
  returned: always
  type: dict
last_good_time:
  description: When it passed, in UTC.
  returned: always
  type: str
entries:
  description: The ledger's lines, oldest first.
  returned: always
  type: list
  elements: dict
last_good_problem:
  description: Why the release of the last good deployment cannot run it; empty if it can.
  returned: always
  type: str
found:
  description: The deployment that O(find) means.
  returned: with O(find)
  type: dict
lines:
  description: The ledger as a table for people.
  returned: always
  type: list
  elements: str
last_failure:
  description: What was said of the newest deployment that failed, for people.
  returned: always
  type: list
  elements: str
caches:
  description: C(RELEASE/PROFILE) of every deployment on record, which is where its kernel caches lie under the cache root.
  returned: always
  type: list
  elements: str
unreadable:
  description: Lines of the ledger that could not be read.
  returned: always
  type: int
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import instance, ledger, lock


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state_root": {"type": "path", "default": "/var/lib/sglang"},
            "kind": {"type": "str", "choices": ["deploy", "rollback", "trial"], "default": "deploy"},
            "deployment": {"type": "dict"},
            "verdict": {"type": "dict"},
            "by": {"type": "str", "default": ""},
            "find": {"type": "str"},
            "forget_releases": {"type": "list", "elements": "str", "default": []},
            "holder": {"type": "dict"},
        },
        required_by={"verdict": ["deployment"]},
        supports_check_mode=True,
    )
    given = module.params
    directory = Path(given["state_root"]) / given["name"]
    changed = given["verdict"] is not None and not module.check_mode
    found = {}
    try:
        if changed:
            ledger.record(directory, given["kind"], given["deployment"], given["verdict"], given["by"])
            if given["verdict"].get("ok") and given["kind"] != "trial":
                lock.release(given["holder"])
        if given["forget_releases"] and not module.check_mode:
            changed = bool(ledger.forget(directory, given["forget_releases"])) or changed
        if given["find"] is not None:
            found = ledger.find(directory, given["find"])
        good = ledger.last_good(directory)
        entries, unreadable = ledger.entries(directory)
    except (ledger.LedgerError, OSError) as error:
        module.fail_json(msg=f"The ledger of {given['name']}: {error}")
    problem = instance.release_problem(good.deployment) if good.deployment else ""
    if good.damaged:
        module.warn(f"last_good.json was not readable and lies at {good.damaged}; there is no last good deployment now.")
    if unreadable:
        module.warn(f"{unreadable} lines of {directory}/ledger.jsonl could not be read and are left as they are.")
    module.exit_json(
        changed=changed,
        last_good=good.deployment or {},
        last_good_time=good.time,
        last_good_problem=problem,
        found=found,
        lines=ledger.table(entries) if entries else [f"{given['name']}: nothing is on record"],
        entries=entries,
        last_failure=ledger.last_failure(directory),
        caches=sorted(
            {f"{line['release']}/{line['profile']}" for line in entries if line.get("release") and line.get("profile")}
        ),
        unreadable=unreadable,
    )


if __name__ == "__main__":
    main()
