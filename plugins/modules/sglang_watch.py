#!/usr/bin/python
"""Follows a starting server for some seconds; the action plugin of the same name calls it again and again."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_watch
short_description: Follow the start of an SGLang server until it is ready or has failed
description:
  - Follows the journal of a systemd unit, or a log file, from the last start on, and shows each phase and its progress
    (loading weights 37 %, compiling kernels, capturing graphs 3/12) while it waits.
  - A line of a known fatal finding ends the wait at once, and so does a unit that failed or was started again.
    Silence alone never does. A phase that makes no progress for longer than its limit is reported as hung, by name.
  - The wait runs on the controller as many calls of a few seconds, so nothing stays behind on the host when it is
    interrupted. The options O(state), O(until), O(patterns) and O(stop) are for those calls; a play leaves them out.
options:
  unit:
    description: Systemd unit to follow. Either this or O(path).
    type: str
  path:
    description: Log file to follow. Either this or O(unit).
    type: path
  pid:
    description: With O(path), the process that writes it; its end ends the wait.
    type: int
  url:
    description:
      - Address that answers 200 when the server is ready, such as C(http://127.0.0.1:30000/health_generate).
      - Without it the ready line in the log counts.
    type: str
  api_key:
    description: Key for O(url).
    type: str
  limits:
    description:
      - Seconds that a phase may stay without any progress, by phase. Phases are V(starting), V(importing), V(arguments),
        V(distributed), V(weights), V(memory), V(compiling), V(capturing) and V(warmup). What is left out has its default.
    type: dict
    default: {}
  total:
    description: Seconds that the whole start may take.
    type: int
    default: 7200
  findings:
    description: Catalog of known failures on the controller.
    type: path
    default: catalog/findings.yml of the project
  context:
    description:
      - What is known of the deployment and makes findings exact, C(versions), C(settings), C(environment) and C(host),
        each a dictionary.
    type: dict
    default: {}
  ranks:
    description: Inventory hosts that run the instance together. Where the start of one has failed, the wait for all ends.
    type: list
    elements: str
    default: []
  attempt:
    description: With O(ranks), what tells this start from others in the same play.
    type: str
  fail:
    description: Whether a start that failed fails the task.
    type: bool
    default: true
  state:
    description: What the last call returned.
    type: dict
    default: {}
  until:
    description: Seconds after which a call returns even if nothing happened.
    type: float
    default: 10
  patterns:
    description: Expressions to look for.
    type: list
    elements: str
    default: []
  stop:
    description: Those of O(patterns) that end the wait.
    type: list
    elements: str
    default: []
  holder:
    description: The controller's process that calls this, for the lock of the host. The action adds it.
    type: dict
author:
  - SGLang deploy project
"""

EXAMPLES = r"""
- name: The server is ready
  sglang_watch:
    unit: sglang@glm5.service
    url: http://127.0.0.1:30000/health_generate
    limits:
      compiling: 7200
"""

RETURN = r"""
outcome:
  description: V(ready), V(failed), V(hung) or V(timeout); empty in a call of the module that ended before.
  type: str
  returned: always
reason:
  description: Why the wait ended, in words; empty when the server is ready.
  type: str
  returned: always
ready_s:
  description: Seconds from the start of the unit to readiness.
  type: float
  returned: when ready
phases:
  description: Seconds of each phase that was seen.
  type: dict
  returned: always
findings:
  description: Known failures and notable facts seen in the log, in order of confidence.
  type: list
  elements: dict
  returned: always
last_lines:
  description: The last lines of the log, without secrets.
  type: list
  elements: str
  returned: always
exit:
  description: How the process ended, C(status) or C(signal).
  type: dict
  returned: always
start_id:
  description: Systemd's id of the start that was followed; empty for a log file.
  type: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import lock, textscan, watch


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str"},
            "path": {"type": "path"},
            "pid": {"type": "int", "default": 0},
            "url": {"type": "str", "default": ""},
            "api_key": {"type": "str", "no_log": True},
            "limits": {"type": "dict", "default": {}},
            "total": {"type": "int", "default": 7200},
            "state": {"type": "dict", "default": {}},
            "until": {"type": "float", "default": 10.0},
            "patterns": {"type": "list", "elements": "str", "default": []},
            "stop": {"type": "list", "elements": "str", "default": []},
            "holder": {"type": "dict"},
        },
        mutually_exclusive=[("unit", "path")],
        required_one_of=[("unit", "path")],
        supports_check_mode=True,
    )
    given = module.params
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, msg="nothing starts in check mode")
    headers = {"Authorization": f"Bearer {given['api_key']}"} if given["api_key"] else {}
    target = watch.Target(given["unit"] or "", given["path"] or "", given["pid"], given["url"], headers)
    try:
        limits = {phase: int(seconds) for phase, seconds in given["limits"].items()}
        watched = watch.Watched(tuple(given["patterns"]), frozenset(given["stop"]), limits, given["total"])
        with lock.kept(given["holder"] if given["unit"] else None):
            events, state = watch.step(target, watched, given["state"], given["until"])
    except (watch.WatchError, textscan.BadPattern, lock.LockError) as error:
        module.fail_json(msg=str(error))
    except (TypeError, ValueError) as error:
        module.fail_json(msg=f"limits must be numbers of seconds, and state what the last call returned: {error}")
    module.exit_json(changed=False, events=events, state=state, outcome=state["outcome"])


if __name__ == "__main__":
    main()
