"""Findings as a person reads them: the cause first, then what to change as group_vars lines, then the evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .finding_rules import Remedy
from .findings import Diagnosis, Finding

SETTINGS_VARIABLE = "sglang_backends"
ENVIRONMENT_VARIABLE = "sglang_environment"


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
    return "\n".join(lines)
