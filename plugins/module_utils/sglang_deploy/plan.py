"""The plan: what would run, what SGLang makes of it, and what is known against it.

`effective.py` compares the running server with it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .dialect import Dialect
from .effective import SERVER_FIELDS, shown
from .launch_spec import LaunchSpec
from .rules import Context, Host, Model, Rule, RuleResult, Versions, check

SCHEMA = 1
NOT_RESOLVABLE = "not resolvable here"


@dataclass(frozen=True)
class Row:
    """One line of the table: a setting, what was asked and where, the option it becomes, and what is known of it."""

    setting: str
    asked: str
    source: str
    option: str
    resolved: str
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A launch spec with the results of the rules and with what SGLang resolves it to."""

    spec: LaunchSpec
    results: tuple[RuleResult, ...]
    resolved: Mapping[str, Any]
    not_resolved: str | None
    rows: tuple[Row, ...]

    @property
    def refused(self) -> bool:
        """Whether a rule refuses it."""
        return any(result.severity == "refuse" for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form, as it stands in plan.json."""
        return {
            "schema": SCHEMA,
            "refused": self.refused,
            "spec": self.spec.as_dict(),
            "resolved": dict(self.resolved),
            "not_resolved": self.not_resolved,
            "rows": [{**vars(row), "findings": list(row.findings)} for row in self.rows],
            "findings": [result.as_dict() for result in self.results],
            "allowed": [result.rule for result in self.results if result.allowed],
        }

    def table(self) -> str:
        """Problems first, in words with their remedy; then the settings."""
        lines = [line for result in self.results if result.severity != "not checked" for line in describe(result)]
        if lines:
            lines.append("")
        head = Row("setting", "asked", "from", "option", "SGLang makes it")
        rows = [head, *self.rows]
        cells = [(row.setting, row.asked, row.source, row.option, row.resolved) for row in rows]
        widths = [min(48, max(len(row[column]) for row in cells)) for column in range(5)]
        for row, texts in zip(rows, cells, strict=True):
            line = "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True))
            lines.append((line + ("  <- " + ", ".join(row.findings) if row.findings else "")).rstrip())
        if self.not_resolved:
            lines += ["", self.not_resolved]
        unchecked = [result for result in self.results if result.severity == "not checked"]
        if unchecked:
            lines += ["", "Not checked:"]
            lines += [f"  {result.rule}: {result.reason}" for result in unchecked]
        return "\n".join(lines)


def describe(result: RuleResult) -> list[str]:
    """A result for a person: what, why, and what to write instead."""
    mark = {"refuse": "REFUSED", "warn": "warning", "inform": "note", "not checked": "not checked"}[result.severity]
    lines = [f"{mark}: {result.rule}{' (allowed)' if result.allowed else ''}: {result.reason}"]
    if remedy := result.remedy.as_text():
        lines.append(f"    remedy: {remedy}")
    lines.append(f"    source: {', '.join(result.source)}")
    return lines


def context_of(
    spec: LaunchSpec,
    dialect: Dialect,
    *,
    versions: Versions,
    host: Host,
    model: Model,
    has_api_key: bool = False,
) -> Context:
    """What the rules look at for a launch spec."""
    options: dict[str, Any] = {}
    for item in dialect.split(spec.extra_args).given:
        options[item.option.dest] = (item.values[0] if len(item.values) == 1 else list(item.values)) or True
    return Context(
        settings={name: choice.value for name, choice in spec.settings.items()},
        environment=spec.variables,
        versions=versions,
        host=host,
        model=model,
        options=options,
        has_api_key=has_api_key,
    )


def make(
    spec: LaunchSpec,
    context: Context,
    rules: Iterable[Rule],
    dialect: Dialect,
    *,
    resolution: Mapping[str, Any] | None = None,
    allow: Sequence[str] = (),
) -> Plan:
    """Join a launch spec, the rules and the release's own resolution (JSON of resolution.py; None where there is none).

    Raises:
        UnknownRule: `allow` names no rule.
    """
    results = tuple(check(rules, context, allow))
    resolved: Mapping[str, Any] = {}
    not_resolved: str | None = f"{NOT_RESOLVABLE}: the release is not built yet"
    if resolution is not None:
        resolved = resolution.get("resolved") or {}
        not_resolved = None if resolution.get("ok") else f"{NOT_RESOLVABLE}: {resolution.get('reason', 'no reason given')}"
    rows = [_row(spec, name, dialect, resolved, not_resolved, results) for name in spec.settings]
    chosen = {name for result in results for name in result.about} - set(spec.settings)
    rows += [_unset_row(name, dialect, resolved, not_resolved, results) for name in sorted(chosen)]
    return Plan(spec, results, resolved, not_resolved, tuple(rows))


def _findings(name: str, results: Iterable[RuleResult]) -> tuple[str, ...]:
    return tuple(r.rule for r in results if name in r.about and r.severity != "not checked")


def _row(
    spec: LaunchSpec,
    name: str,
    dialect: Dialect,
    resolved: Mapping[str, Any],
    not_resolved: str | None,
    results: Sequence[RuleResult],
) -> Row:
    choice = spec.settings[name]
    option = next((found for word in choice.options if (found := dialect.find(word)) is not None), None)
    value = resolved.get(option.dest) if option is not None else None
    return Row(
        setting=name,
        asked=shown(choice.value),
        source=choice.source,
        option=" ".join(choice.options) or "(needs none)",
        resolved=NOT_RESOLVABLE if not_resolved else shown(value) if option is not None else "",
        findings=_findings(name, results),
    )


def _unset_row(
    name: str, dialect: Dialect, resolved: Mapping[str, Any], not_resolved: str | None, results: Sequence[RuleResult]
) -> Row:
    dest = next((found.dest for flag in SERVER_FIELDS.get(name, ()) if (found := dialect.find(flag)) is not None), None)
    value = NOT_RESOLVABLE if not_resolved else shown(resolved.get(dest)) if dest else ""
    return Row(name, "(unset)", "SGLang", "", value, _findings(name, results))
