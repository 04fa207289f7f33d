"""Waits for a starting server from the controller and shows what it does; see the module of the same name."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

PROJECT = Path(__file__).resolve().parents[2]
# Ansible finds a project's module_utils for modules only, which run on hosts; here they are plain Python.
sys.path.insert(0, str(PROJECT / "plugins" / "module_utils"))

from sglang_deploy import diagnose, findings, lock, startup, watch  # noqa: E402

REPEAT = 10.0
"""Seconds between two lines that differ in progress alone."""
OWN = frozenset({"state", "until", "patterns", "stop", "holder"})
KNOWN = frozenset(
    {"unit", "path", "pid", "url", "api_key", "limits", "total", "findings", "context", "fail", "ranks", "attempt"}
)


class ActionModule(ActionBase):  # type: ignore[misc]
    """Calls the module until the start has an outcome."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        arguments = dict(self._task.args)
        rules, context = self._prepare(arguments)
        fail = boolean(arguments.pop("fail", True))
        ranks, attempt = list(arguments.pop("ranks", None) or []), str(arguments.pop("attempt", ""))
        if self._task.check_mode:
            return {**result, "skipped": True, "changed": False, "msg": "nothing starts in check mode"}
        host = str(task_vars.get("inventory_hostname", self._play_context.remote_addr))
        state: dict[str, Any] = {}
        shown = Shown(host)
        holder = asdict(lock.me(os.getppid()))
        others = Others(ranks, host, attempt)
        while not state.get("outcome"):
            call = {
                **arguments,
                "state": state,
                "patterns": sorted(findings.patterns(rules)),
                "stop": sorted(findings.stopping(rules)),
                "holder": holder,
            }
            answer = self._execute_module(module_name="sglang_watch", module_args=call, task_vars=task_vars)
            if answer.get("failed") or answer.get("unreachable") or "state" not in answer:
                # a lost connection and a call that could not run are results of their own, and are passed on as they are
                return {**result, **{key: value for key, value in answer.items() if key != "invocation"}}
            first, state = not state, others.ended(answer["state"])
            if not (first and state.get("outcome") == "ready"):  # a server that was ready before has nothing to tell
                shown.say(state, answer["events"])
        ended = outcome(rules, context, state)
        return {**result, **ended, "failed": fail and ended.get("failed", False)}

    def _prepare(self, arguments: dict[str, Any]) -> tuple[tuple[findings.Rule, ...], findings.Context]:
        unknown = set(arguments) - KNOWN
        if unknown & OWN:
            raise AnsibleActionFail(f"sglang_watch sets {', '.join(sorted(unknown & OWN))} by itself; leave it out")
        if unknown:
            raise AnsibleActionFail(
                f"sglang_watch has no option {', '.join(sorted(unknown))}; it has {', '.join(sorted(KNOWN))}"
            )
        limits = arguments.get("limits") or {}
        if wrong := sorted(set(limits) - set(startup.LIMITS)):
            raise AnsibleActionFail(f"there is no phase {', '.join(wrong)}; phases are {', '.join(startup.LIMITS)}")
        path = Path(arguments.pop("findings", None) or PROJECT / "catalog" / "findings.yml")
        given = arguments.pop("context", None) or {}
        try:
            rules = findings.parse_catalog(yaml.safe_load(path.read_text(encoding="utf-8")), str(path))
            return rules, findings.context_from(given)
        except OSError as error:
            raise AnsibleActionFail(f"{path}: cannot be read: {error.strerror}") from error
        except yaml.YAMLError as error:
            raise AnsibleActionFail(f"{path}: not YAML: {error}") from error
        except findings.CatalogError as error:
            raise AnsibleActionFail(str(error)) from error


class Others:
    """The ranks of an instance over several hosts, each watched by a process of its own: one that fails ends all waits.

    They tell each other by files in the folder that Ansible makes for this run and takes away after it.
    """

    def __init__(self, ranks: list[str], host: str, attempt: str) -> None:
        self._ranks, self._host = ranks, host
        self._folder = Path(constants.DEFAULT_LOCAL_TMP) / f"sglang-ranks-{attempt}"

    def ended(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state of this host's wait, ended where another one's has failed; a failure is left for the others to see."""
        if not self._ranks:
            return state
        if state.get("outcome"):
            if state["outcome"] != "ready":
                self._folder.mkdir(exist_ok=True)
                (self._folder / self._host).write_text(str(state["reason"]), encoding="utf-8")
            return state
        for rank, name in enumerate(self._ranks):
            told = self._folder / name
            if name != self._host and told.exists():
                said = told.read_text(encoding="utf-8", errors="replace")
                return {**state, "outcome": "failed", "reason": f"rank {rank} ({name}) failed: {said}"}
        return state


class Shown:
    """What one host has on screen: a line for each change, and at most one in ten seconds for progress alone."""

    def __init__(self, host: str) -> None:
        self._host, self._said, self._at = host, "", 0.0
        self._display = Display()

    def say(self, state: dict[str, Any], events: list[str]) -> None:
        """Shows what changed in a call."""
        elapsed = state["now"] - state["started"]
        now = time.monotonic()
        for text in events:
            self._line(elapsed, text, now)
            self._said = text
        if not events and state["says"] != self._said and now - self._at >= REPEAT:
            self._line(elapsed, state["says"], now)
            self._said = state["says"]
        elif not events and now - self._at >= 6 * REPEAT:
            since = watch.spell(state["now"] - state["tracker"]["phase_since"])
            self._line(elapsed, f"{state['says']} (for {since})", now)

    def _line(self, elapsed: float, text: str, now: float) -> None:
        seconds = max(0, int(elapsed))
        clock = f"{seconds // 60}:{seconds % 60:02d}"
        colour = "red" if text.startswith(("failed", "hung", "timeout")) else None
        self._display.display(f"{self._host}  {clock}  {text}", color=colour)
        self._at = now


def outcome(rules: tuple[findings.Rule, ...], context: findings.Context, state: dict[str, Any]) -> dict[str, Any]:
    """The task's result of a finished wait: what was seen, and on failure a message with the findings first."""
    found = findings.from_watch(rules, context, state)
    tracker = state["tracker"]
    result: dict[str, Any] = {
        "changed": False,
        "outcome": state["outcome"],
        "reason": state["reason"],
        "phases": tracker["spent"],
        "findings": [finding.as_dict() for finding in found.findings],
        "last_lines": state["tail"],
        "exit": state["exit"],
        "start_id": state["unit"].get("invocation", ""),
    }
    if state["outcome"] == "ready":
        result["ready_s"] = tracker["phase_since"] - tracker["started"]
        result["ready_s"] = round(result["ready_s"], 1)
        return result
    result["failed"] = True
    result["msg"] = diagnose.message(found, state)
    return result
