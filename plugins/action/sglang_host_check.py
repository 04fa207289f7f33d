"""Judges a host's evidence on the controller and shows what is wrong with it; see the module of the same name."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.color import stringc
from ansible.utils.display import Display

PROJECT = Path(__file__).resolve().parents[2]
# Ansible finds a project's module_utils for modules only, which run on hosts; here they are plain Python.
sys.path.insert(0, str(PROJECT / "plugins" / "module_utils"))

from sglang_deploy import (  # noqa: E402
    catalog,
    fields,
    host_facts,
    host_gather,
    host_judge,
    host_needs,
    host_report,
    hub,
    known,
)
from sglang_deploy.host_evidence import Evidence  # noqa: E402

DEFAULTS: Mapping[str, Any] = {
    "root": "/opt/sglang",
    "cache_root": "/var/cache/sglang",
    "model": "",
    "model_source": "local",
    "model_root": "/srv/models",
    "python": "",
    "user": "sglang",
    "allow": [],
    "whole": False,
}


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    """One call of the module, then everything else here."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        if wrong := sorted(set(self._task.args) - {*DEFAULTS, "deployment"}):
            raise AnsibleActionFail(
                f"sglang_host_check has no option {', '.join(wrong)}; it has deployment, {', '.join(DEFAULTS)}"
            )
        args = {**DEFAULTS, **self._task.args}
        stack, spec = args["deployment"]["stack"], args["deployment"]["deployment"]["spec"]
        needs = host_needs.of_deployment(
            stack,
            spec,
            python=str(args["python"] or ""),
            weights_gib=_weights_gib(str(args["model"])) if stack.get("cuda") else None,
            weights_there=args["model_source"] != "server",  # the role model_weights sees to the others
        )
        answer = self._execute_module(
            module_name="sglang_host_check", module_args=question(args, needs, spec), task_vars=task_vars
        )
        if "evidence" not in answer:  # a lost connection, say: a result of its own, passed on as it is
            return {**result, **{key: value for key, value in answer.items() if key != "invocation"}}
        evidence = fields.build(Evidence, answer["evidence"], "the host's evidence")
        allow = args["allow"].split(",") if isinstance(args["allow"], str) else args["allow"]
        try:
            report = host_judge.judge(evidence, needs, [str(name) for name in allow])
        except host_report.UnknownJudgement as error:
            raise AnsibleActionFail(str(error)) from error
        host = str(task_vars.get("inventory_hostname", self._play_context.remote_addr))
        whole = boolean(args["whole"]) or Display().verbosity > 0
        written = _write(host, {"evidence": answer["evidence"], "report": report.as_dict()})
        if report.refusals:
            _show(host_report.lines(report, host, whole=whole), written)
            raise AnsibleActionFail("\n".join(host_report.refusal(report)))
        if whole or any(found.severity != host_report.INFORM for found in report.judgements):
            _show(host_report.lines(report, host, whole=whole), written)
        result.update(
            changed=False, host=host_facts.facts(evidence).as_dict(), evidence=answer["evidence"], report=report.as_dict()
        )
        return result


def question(args: Mapping[str, Any], needs: host_needs.Needs, spec: Mapping[str, Any]) -> dict[str, Any]:
    """What the module is to look at."""
    settings = {name: entry["value"] for name, entry in spec["settings"].items()}
    home = needs.environment.get("HF_HOME") or f"{args['cache_root']}/huggingface"
    cache = needs.environment.get("HF_HUB_CACHE") or f"{home}/hub"  # in the hub library's order
    model = str(args["model"])
    weights = {
        "server": model if model.startswith("/") else hub.repo_folder(cache, model),
        "hub": str(args["model_root"]),
    }
    return {
        "places": {
            host_gather.RELEASES: str(args["root"]),
            host_gather.WEIGHTS: weights.get(str(args["model_source"]), model),
            host_gather.CACHES: str(args["cache_root"]),
        },
        "ports": [{"instance": needs.instance, "address": str(settings["host"]), "port": int(str(settings["port"]))}],
        "tools": ["g++", "ninja"] if needs.cuda else ["g++"],
        "user": str(args["user"]),
        "python": needs.python or "",
        "cuda_home": needs.environment.get("CUDA_HOME", ""),
        "instance": needs.instance,
    }


def _weights_gib(model: str) -> float | None:
    """How large a model of that name is, where the catalog knows it."""
    return known.load(catalog.load(PROJECT / "catalog")).model(model).weights_gib


def _write(host: str, found: Mapping[str, Any]) -> Path:
    path = PROJECT / ".cache" / "host_check" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', host)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return path.relative_to(PROJECT)


def _show(lines: list[tuple[str, str | None]], written: Path) -> None:
    text = [stringc(line, colour) if colour else line for line, colour in lines]
    Display().display("\n".join([*text, f"written to {written}"]))
