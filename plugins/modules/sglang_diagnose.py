#!/usr/bin/python
"""Say what failed, from a unit's journal; the action plugin of the same name also reads logs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_diagnose
short_description: Name known failures in a log, with their cause and what to change
description:
  - Reads the journal of a unit's last start, a log file on the controller, or pasted text, and names the known failures
    in it.
  - Changes nothing.
options:
  unit:
    description: Systemd unit whose journal is read. One of O(unit), O(log) and O(text).
    type: str
  log:
    description: Log file on the controller.
    type: path
  text:
    description: Log text.
    type: str
  gate:
    description: Verdict of the decode check, if it spoke. Its failed checks are evidence too.
    type: dict
    default: {}
  start:
    description: What C(sglang_watch) returned, if the start failed. Its findings are taken as they are.
    type: dict
    default: {}
  reason:
    description: What failed, if neither O(gate) nor O(start) says.
    type: str
    default: ""
  findings:
    description: Catalog of known failures on the controller.
    type: path
    default: catalog/findings.yml of the project
  context:
    description: What is known of the deployment, as for C(sglang_watch).
    type: dict
    default: {}
  start_id:
    description:
      - Systemd's id of the start whose log is read. The action plugin sets it, from O(start).
      - Without it the present start is meant, or the last one, if the unit no longer runs.
    type: str
    default: ""
  catalog:
    description: The catalog's content. The action plugin sets it.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Runs the same in check mode.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: What failed
  sglang_diagnose:
    unit: sglang@glm5.service
"""

RETURN = r"""
report:
  description: Findings in order of confidence, for people; without any, the lines most worth reading.
  returned: always
  type: list
  elements: str
summary:
  description: The first finding that names a cause, or else what failed, in one line.
  returned: always
  type: str
known:
  description: Whether a finding names a cause.
  returned: always
  type: bool
findings:
  description: The findings as data.
  returned: always
  type: list
  elements: dict
verdict:
  description: Record of the failure for the ledger.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import diagnose, findings, journal, watch


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "catalog": {"type": "dict", "required": True},
            "context": {"type": "dict", "default": {}},
            "start_id": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    unit = module.params["unit"]
    try:
        rules = findings.parse_catalog(module.params["catalog"])
        show = watch.unit_state(unit)
        known = show.get("InvocationID", "")
        start_id = module.params["start_id"] or known or journal.last_start(unit)
        _, ended = watch.describe_unit(unit, show, {}, watch.GRACE)
        if known not in ("", start_id):
            ended = {}  # systemd has started it again, and tells of that start
        context = findings.context_from({**module.params["context"], **ended_as_context(ended)})
        with journal.lines(unit, start_id) as stream:
            found = diagnose.without_secrets(findings.diagnose(rules, stream, context))
    except (findings.CatalogError, journal.JournalError, watch.WatchError) as error:
        module.fail_json(msg=str(error))
    state = f"{show.get('ActiveState', 'unknown')} ({show.get('SubState', 'unknown')})"
    module.exit_json(
        changed=False, state=state, known=found.known, report=diagnose.report(found), findings=found.as_dict()["findings"]
    )


def ended_as_context(ended: dict[str, object]) -> dict[str, object]:
    """How the process ended, in the words of a findings context."""
    return {new: ended[old] for old, new in (("status", "exit_status"), ("signal", "signal")) if old in ended}


if __name__ == "__main__":
    main()
