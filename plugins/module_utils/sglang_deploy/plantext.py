"""The plan as a person reads it: problems first, in words with their remedy, then the settings.

Texts come as lines, each with the colour that may underline what its words already say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import yaml

from .dialect import OptionMap
from .effective import shown
from .explain import Explanation
from .launch_spec import LaunchSpec
from .plan import Plan, Row
from .rules import Context, RuleResult

_MARKS = {"refuse": "REFUSED", "warn": "warning", "inform": "note", "not checked": "not checked"}
_COLOURS = {"refuse": "red", "warn": "yellow"}
_WIDEST = 48


@dataclass(frozen=True)
class Line:
    """One line, and the colour of Ansible's that goes with it, if any."""

    text: str
    colour: str | None = None


def describe(result: RuleResult) -> list[Line]:
    """A result: what, why, what to write instead, and how it is known. One line where the user allowed it."""
    if result.allowed:
        return [Line(f"allowed: {result.rule}: {result.reason}")]
    lines = [Line(f"{_MARKS[result.severity]}: {result.rule}: {result.reason}", _COLOURS.get(result.severity))]
    if remedy := result.remedy.as_text():
        lines.append(Line(f"    remedy: {remedy}"))
    lines.append(Line(f"    source: {', '.join(result.source)}"))
    if result.severity == "refuse" and not result.rule.startswith("command-"):  # what the parser refuses cannot be allowed
        lines.append(Line(f"    to go on all the same: sglang_allow: [{result.rule}]"))
    return lines


def problems(results: Iterable[RuleResult]) -> list[Line]:
    """Everything that was found, gravest first; what could not be checked is left out."""
    return [line for result in results if result.severity != "not checked" for line in describe(result)]


def refusals(results: Iterable[RuleResult]) -> list[Line]:
    """The refusals alone."""
    return [line for result in results if result.severity == "refuse" for line in describe(result)]


def show(plan: Plan, host: str, *, notes: Sequence[str] = (), verbose: bool = False) -> list[Line]:
    """The plan of one host, but for its refusals, with which the caller stops.

    notes: what a person should know of how it came about. verbose: name what could not be checked, too.
    """
    spec = plan.spec
    lines = [
        Line(f"{host}: plan of {spec.instance}: SGLang {spec.sglang_version}, stack {spec.stack}, profile {spec.profile}")
    ]
    found = problems(result for result in plan.results if result.severity != "refuse")
    lines += [*found, Line("")]
    lines += table(plan.rows, resolved=plan.not_resolved is None)
    lines += environment(spec)
    if plan.not_resolved:
        lines.append(Line(f"What SGLang makes of it: {plan.not_resolved}"))
    lines += [Line(note) for note in notes]
    lines += unchecked(plan.results, verbose=verbose)
    return lines


def explanation(found: Explanation, options: OptionMap, *, notes: Sequence[str] = (), verbose: bool = False) -> list[Line]:
    """A launch command explained: problems, the settings that it means, and the group_vars that reproduce it."""
    reading = found.reading
    lines = problems(found.results) or [Line("Nothing is known against this command.", "green")]
    rows = [(name, shown(value), _becomes(options, name)) for name, value in reading.settings.items()]
    rows += [(name, shown(value), "(no setting: sglang_extra_args)") for name, value in reading.options.items()]
    rows += [(name, value, "(environment)") for name, value in reading.environment.items()]
    lines += [Line(""), *map(Line, _columns([("setting", "value", "what it is"), *rows])), Line("")]
    lines += map(Line, (*_said(found), *notes))
    lines += unchecked(found.results, verbose=verbose)
    lines += [Line(""), Line("group_vars that reproduce it:"), Line("")]
    return [*lines, *map(Line, yaml.safe_dump(found.group_vars, sort_keys=False, width=120).splitlines())]


def _becomes(options: OptionMap, name: str) -> str:
    setting = options.get(name)
    return setting.summary if setting else ""


def _said(found: Explanation) -> Iterator[str]:
    """What a person should know of how the command was read."""
    reading, command = found.reading, found.command
    yield from command.notes
    if reading.abbreviations:
        yield f"abbreviated: {', '.join(f'{short} is {full}' for short, full in reading.abbreviations)}"
    if reading.deprecated:
        yield f"deprecated spellings: {', '.join(reading.deprecated)}"
    if reading.secrets:
        yield f"left out as secrets: {', '.join(reading.secrets)}"
    if reading.unresolved:
        yield f"placeholders, to be filled in: {', '.join(sorted(reading.unresolved))}"
    if command.container is not None:
        yield f"the container {command.container.image} and its options are not taken over"


def unchecked(results: Iterable[RuleResult], *, verbose: bool) -> list[Line]:
    """The rules that could not be checked: how many, or each with the facts that it lacks."""
    missing = [result for result in results if result.severity == "not checked"]
    if not missing:
        return []
    if verbose:
        return [Line(f"not checked: {result.rule}: {result.reason}") for result in missing]
    count = "1 rule" if len(missing) == 1 else f"{len(missing)} rules"
    return [Line(f"{count} not checked for want of facts (-v names them)")]


def table(rows: Iterable[Row], *, resolved: bool) -> list[Line]:
    """The settings, one a line. Without `resolved` the column with SGLang's own answer is left out."""
    head = Row("setting", "asked", "from", "becomes", "SGLang makes it")
    kept = [head, *rows]
    cells = [(row.setting, row.asked, row.source, row.option, row.resolved)[: 5 if resolved else 4] for row in kept]
    marks = [f"  <- {', '.join(row.findings)}" if row.findings else "" for row in kept]
    return [Line(text + mark) for text, mark in zip(_columns(cells), marks, strict=True)]


def environment(spec: LaunchSpec) -> list[Line]:
    """The variables that somebody chose. Those of the service itself (paths and caches) are left out."""
    chosen = [(name, found.value, found.source) for name, found in spec.environment.items() if found.source != "default"]
    if not chosen:
        return []
    return [Line(""), *map(Line, _columns([("variable", "value", "from"), *chosen])), Line("")]


def _columns(cells: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def facts(context: Context) -> str:
    """What the rules were told of versions, host and model; what is not known is left out."""
    parts = (context.versions, context.host, context.model)
    told = [(item.name, getattr(part, item.name)) for part in parts for item in fields(part)]
    told = [(name, value) for name, value in told if (name, value) not in (("patched", False), ("exact", True))]
    return ", ".join(f"{name} {_short(value)}" for name, value in told if value not in (None, "")) or "none"


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else shown(value)
