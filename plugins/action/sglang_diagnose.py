"""Names known failures: in a log on the controller here, in a unit's journal by the module of the same name."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

PROJECT = Path(__file__).resolve().parents[2]
# Ansible finds a project's module_utils for modules only, which run on hosts; here they are plain Python.
sys.path.insert(0, str(PROJECT / "plugins" / "module_utils"))

from sglang_deploy import diagnose, findings  # noqa: E402


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    """Arguments and result: see the module."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args = self._task.args
        gate, start = dict(args.get("gate") or {}), dict(args.get("start") or {})
        reason = str(args.get("reason") or start.get("reason") or "; ".join(diagnose.failed_checks(gate)))
        watched = start.get("outcome") not in (None, "ready") and not args.get("reason")
        answer: dict[str, Any] = {"known": False, "findings": start.get("findings"), "report": start.get("msg")}
        if not watched or not diagnose.names_cause(start["findings"]):
            # the wait ended with the first fatal line; what was written after it may name the cause
            found = self._answer(args, gate, task_vars or {})
            if not watched and (found.get("failed") or found.get("unreachable")):
                return found
            if not watched or found.get("known"):
                answer = found
        report = str(answer["report"])
        if answer.get("state", "").startswith("active") and not (answer["known"] or gate or reason):
            report = "Its journal shows no known failure."
        checks = [f"- {line}" for line in diagnose.failed_checks(gate)]
        if checks:
            parts = [report, "The server answers, but does not decode:\n" + "\n".join(checks)]
            report = "\n\n".join(parts if answer["known"] else reversed(parts))
        elif args.get("reason"):
            report = f"{report}\n\n{args['reason']}"
        return {
            "changed": False,
            "known": answer["known"],
            "findings": answer["findings"],
            "state": answer.get("state", ""),
            "report": report.splitlines(),
            "summary": diagnose.summary(answer["findings"], reason),
            "verdict": diagnose.verdict(answer["findings"], gate, start, reason, report),
        }

    def _answer(self, args: dict[str, Any], gate: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """The diagnosis of the one source that is named."""
        named = [name for name in ("unit", "log", "text") if args.get(name)]
        if len(named) != 1:
            raise AnsibleActionFail(f"name one of unit, log and text, not {' and '.join(named) or 'none'}")
        path = Path(args.get("findings") or PROJECT / "catalog" / "findings.yml")
        context = {**(args.get("context") or {}), "answers": sorted(diagnose.answers(gate))}
        try:
            catalog = yaml.safe_load(path.read_text(encoding="utf-8"))
            if named == ["unit"]:
                start_id = (args.get("start") or {}).get("start_id", "")
                call = {"unit": args["unit"], "catalog": catalog, "context": context, "start_id": start_id}
                answer = self._execute_module(module_name="sglang_diagnose", module_args=call, task_vars=task_vars)
                return {key: value for key, value in answer.items() if key != "invocation"}
            rules = findings.parse_catalog(catalog, str(path))
            if named == ["log"]:
                with Path(args["log"]).expanduser().open("rb") as stream:
                    found = findings.diagnose(rules, stream, findings.context_from(context))
            else:
                found = findings.diagnose(rules, io.BytesIO(str(args["text"]).encode()), findings.context_from(context))
        except OSError as error:
            raise AnsibleActionFail(f"{error.filename}: cannot be read: {error.strerror}") from error
        except (yaml.YAMLError, findings.CatalogError) as error:
            raise AnsibleActionFail(f"{path}: {error}") from error
        found = diagnose.without_secrets(found)
        return {"known": found.known, "findings": found.as_dict()["findings"], "report": diagnose.report(found)}
