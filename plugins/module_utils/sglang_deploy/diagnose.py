"""Findings as a person reads them: the cause first, then what to change as group_vars lines, then the evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import redact
from .finding_rules import Remedy
from .findings import Diagnosis, Finding

SETTINGS_VARIABLE = "sglang_backends"
ENVIRONMENT_VARIABLE = "sglang_environment"
LAST_LINES = 12
"""Lines of a failed start that are shown; its verdict has more."""
_ANSWERS = {
    "the logits are NaN": "null_logprobs",
    "every choice is equally likely": "uniform_logprobs",
    "200 with an empty answer": "empty_content",
    "the text repeats itself": "repetition_loop",
    "replacement characters": "replacement_characters",
}
"""Words of a failed check -> the fact about answers that findings know."""


def group_vars(remedy: Remedy) -> list[str]:
    """The lines of group_vars that apply a remedy; empty when it is words only."""
    lines = []
    for variable, pairs in ((SETTINGS_VARIABLE, remedy.settings), (ENVIRONMENT_VARIABLE, remedy.environment)):
        if pairs:
            lines += [f"{variable}:", *(f"  {name}: {_yaml(value)}" for name, value in pairs)]
    return lines


def _yaml(value: Any) -> str:
    """A scalar as YAML; text is quoted, since JSON's strings are YAML's."""
    plain = (
        isinstance(value, str)
        and value.replace("_", "").isalpha()
        and value.lower() not in ("true", "false", "null", "yes", "no", "on", "off")
    )
    return value if plain else json.dumps(value)


def describe(finding: Finding, number: int = 0) -> list[str]:
    """One finding: cause, what to do, the line that shows it."""
    head = f"{number}. " if number else ""
    sure = {"certain": "", "likely": " (likely)", "possible": " (possible)", "consequence": ""}[finding.confidence]
    lines = [f"{head}{finding.id}{sure}: {finding.cause}"]
    indent = " " * len(head)
    if finding.remedy.words:
        lines.append(f"{indent}What to do: {finding.remedy.words}")
    if change := group_vars(finding.remedy):
        lines += [f"{indent}In group_vars:", *(f"{indent}    {line}" for line in change)]
    where = f"line {finding.line_number}: " if finding.line_number else ""
    lines.append(f"{indent}Seen: {where}{finding.line}")
    return lines


def report(found: Diagnosis, limit: int = 5) -> str:
    """All of a diagnosis as text: findings in order of confidence; without a known cause the lines most worth
    reading.
    """
    telling = [finding for finding in found.findings if finding.severity != "info"]
    lines: list[str] = []
    for number, finding in enumerate(telling[:limit], 1):
        lines += [*describe(finding, number), ""]
    if not found.known:
        lines.insert(0, "No known cause was recognised." + (" What was seen:" if telling else ""))
        if found.worth_reading:
            lines += ["Most worth reading:", *(f"  {hit.number:>6}: {hit.text}" for hit in found.worth_reading)]
    return "\n".join(lines).rstrip()


def message(found: Diagnosis, state: Mapping[str, Any]) -> str:
    """Why a start failed, findings first, for a failed task; `state` is what watching it returned."""
    lines = [report(found), ""] if found.findings or found.worth_reading else []
    lines.append(f"The start {'failed' if state['outcome'] == 'failed' else 'did not end'}: {state['reason']}.")
    lines.append(f"It was {state['says']}.")
    if tail := state["tail"][-LAST_LINES:]:
        lines += ["The last lines:", *(f"  {line}" for line in tail)]
    return "\n".join(lines)


def without_secrets(found: Diagnosis) -> Diagnosis:
    """The same diagnosis, to be shown and stored: keys and tokens are taken out of the lines that it quotes."""
    return Diagnosis(
        tuple(replace(finding, line=redact.secrets(finding.line)) for finding in found.findings),
        tuple(replace(hit, text=redact.secrets(hit.text)) for hit in found.worth_reading),
    )


def failed_checks(gate: Mapping[str, Any]) -> list[str]:
    """`name: summary` of each check of a verdict that failed."""
    return [f"{check['name']}: {check['summary']}" for check in gate.get("checks", []) if check.get("ok") is False]


def answers(gate: Mapping[str, Any]) -> frozenset[str]:
    """The facts about answers, for a findings.Context, that the failed checks of a verdict name."""
    said = " ".join(failed_checks(gate))
    return frozenset(fact for words, fact in _ANSWERS.items() if words in said)


def summary(findings: Sequence[Mapping[str, Any]], reason: str) -> str:
    """The first finding that names a cause, or else the reason, in one line."""
    telling = _telling(findings)
    return f"{telling[0]['id']}: {telling[0]['cause']}" if telling else reason or "no known cause was recognised"


def names_cause(findings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of these findings, as plain data, names a cause."""
    return bool(_telling(findings))


def _telling(findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [one for one in findings if one["severity"] != "info" and one["class"] != "unknown"]


def verdict(
    findings: Sequence[Mapping[str, Any]],
    gate: Mapping[str, Any],
    start: Mapping[str, Any],
    reason: str,
    text: str = "",
) -> dict[str, Any]:
    """The record of a deployment that was not accepted, also when the gate never spoke.

    gate: the decode check's verdict, start: what watching the start returned; either may be empty.
    `phase` says how far it came: `start` or `gate`. text: what people were shown.
    """
    record = {"schema": 1, "checks": [], **gate, "ok": False, "phase": "gate" if gate else "start", "reason": reason}
    record["report"] = text.splitlines()
    kept = {name: start[name] for name in ("phases", "exit", "last_lines") if start.get(name)}
    return {**record, "findings": [dict(finding) for finding in findings], **kept}
