"""Explain a launch command: its settings, what the parser and the rules say of it, and the group_vars for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import Version

from .catalog import Catalog
from .command import ParsedCommand, parse
from .dialect import Dialect
from .interpretation import CommandProblem, Interpretation, group_vars, interpret
from .known import Source
from .rules import SEVERITIES, Context, Host, Model, Remedy, Rule, RuleResult, check

# What the parser's refusals are worth when the version is certain. A range is a limit of the project's own settings.
_SEVERITY = {"twice": "warn", "range": "warn"}


@dataclass(frozen=True)
class Explanation:
    """A command explained. `results` are the parser's objections and the rules', gravest first."""

    command: ParsedCommand
    reading: Interpretation
    results: tuple[RuleResult, ...]
    group_vars: dict[str, Any]

    @property
    def verdict(self) -> str:
        """The gravest severity: refuse, warn, inform, or ok."""
        found = [result.severity for result in self.results]
        return next((severity for severity in SEVERITIES if severity in found), "ok")


def explain(
    command: str | ParsedCommand,
    source: Source,
    host: Host,
    model: Model,
    catalog: Catalog,
    rules: Iterable[Rule],
    *,
    dialects: Sequence[Dialect] = (),
    allow: Sequence[str] = (),
) -> Explanation:
    """Explain a command for a version, a host and a model.

    Without `dialects` (the installed release's own) the recorded ones around the version are asked, all of them where no
    version is known; an option is unknown only where all of them lack it.

    Raises:
        CommandError, NotSglang: the text cannot be read or starts no SGLang server.
        UnknownRule: `allow` names no rule.
    """
    parsed = parse(command) if isinstance(command, str) else command
    reading = interpret(parsed, dialects or candidates(catalog, source), catalog.options)
    context = Context(
        settings=reading.settings,
        environment=reading.environment,
        versions=replace(source.versions, exact=source.exact),
        host=host,
        model=model,
        options=reading.options,
        unresolved=reading.unresolved,
        has_api_key="--api-key" in reading.secrets,
    )
    certain = source.exact and not source.versions.patched
    objections = [_objection(problem, source, certain) for problem in reading.problems]
    results = sorted((*objections, *check(rules, context, allow)), key=_gravity)
    variables = group_vars(reading, catalog.options)
    stacks = [stack.name for stack in catalog.stacks.values() if stack.sglang == source.versions.sglang]
    if source.exact and stacks:
        variables = {"sglang_stack": stacks[0], **variables}
    return Explanation(parsed, reading, tuple(results), variables)


def _gravity(result: RuleResult) -> int:
    return (*SEVERITIES, "not checked").index(result.severity)


def candidates(catalog: Catalog, source: Source) -> list[Dialect]:
    """The recorded option lists that a version may have: its own, else the ones around it, else all."""
    recorded = list(catalog.recorded)
    version = source.versions.sglang
    if version is None:
        return [catalog.dialect(name) for name in reversed(recorded)]
    if source.exact and version in recorded:
        return [catalog.dialect(version)]
    before = [name for name in recorded if Version(name) <= Version(version)][-1:]
    after = [name for name in recorded if Version(name) > Version(version)][:1]
    return [catalog.dialect(name) for name in [*before, *after]]


def _objection(problem: CommandProblem, source: Source, certain: bool) -> RuleResult:
    severity = _SEVERITY.get(problem.kind, "refuse")
    text = problem.text
    if source.versions.patched and problem.kind not in ("twice", "range", "missing"):
        severity = "inform"
        text += " (the source is no release, so it may have options of its own)"
    elif severity == "refuse" and not certain and problem.kind != "missing":
        severity = "warn"
        text += " (the version is not known exactly)"
    return RuleResult(
        rule=f"command-{problem.kind}",
        severity=severity,
        topic="works",
        reason=text,
        remedy=Remedy(text=problem.fix),
        source=("the option lists of the releases",),
    )
