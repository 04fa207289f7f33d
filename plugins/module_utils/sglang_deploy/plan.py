"""The plan: what would run, what SGLang makes of it, and what is known against it.

`plantext.py` shows it to a person; `effective.py` compares the running server with it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .dialect import Dialect, Given
from .effective import OVERRIDES, Difference, compare_effective, in_words, shown
from .launch_spec import LaunchSpec
from .names import suggest
from .rules import SEVERITIES, Context, Host, Model, Remedy, Rule, RuleResult, UnknownRule, Versions, check

SCHEMA = 1
NOT_RESOLVABLE = "not resolvable here"
NOT_BUILT = "the release is not built yet"
RELEASE_REFUSES = "release-refuses"

# Settings that SGLang itself decides or overrides: the options whose field of the server's arguments tells.
SERVER_FIELDS: dict[str, tuple[str, ...]] = {
    "attention": ("--attention-backend",),
    "prefill_attention": ("--prefill-attention-backend",),
    "decode_attention": ("--decode-attention-backend",),
    "sparse_prefill": ("--dsa-prefill-backend", "--nsa-prefill-backend"),
    "sparse_decode": ("--dsa-decode-backend", "--nsa-decode-backend"),
    "kv_cache_dtype": ("--kv-cache-dtype",),
    "quantization": ("--quantization",),
    "moe_runner": ("--moe-runner-backend",),
    "moe_a2a": ("--moe-a2a-backend",),
    "fp8_gemm": ("--fp8-gemm-backend",),
    "fp4_gemm": ("--fp4-gemm-backend",),
    "sampling_backend": ("--sampling-backend",),
    "grammar_backend": ("--grammar-backend",),
    "page_size": ("--page-size",),
    "mem_fraction_static": ("--mem-fraction-static",),
    "chunked_prefill_size": ("--chunked-prefill-size",),
    "cuda_graph_max_bs": ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"),
    "max_running_requests": ("--max-running-requests",),
    "context_length": ("--context-length",),
    "speculative_algorithm": ("--speculative-algorithm",),
}


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
    noted: Iterable[RuleResult] = (),
    allow: Sequence[str] = (),
) -> Plan:
    """Join a launch spec, the rules and the release's own resolution (JSON of resolution.py; None where there is none).

    `noted` are results from elsewhere than the rules. Where the release itself refuses the arguments, or makes something
    else of one, that is one more refusal: `release-refuses` and `sglang-overrides`.

    Raises:
        UnknownRule: `allow` names no rule.
    """
    rules = list(rules)
    own = (RELEASE_REFUSES, OVERRIDES)
    ids = [*own, *(rule.id for rule in rules)]
    if unknown := [name for name in allow if name not in ids]:
        raise UnknownRule(f"there is no rule {unknown[0]!r}; {suggest(unknown[0], ids)}")
    found = [*noted, *check(rules, context, [name for name in allow if name not in own])]
    resolved: Mapping[str, Any] = {}
    not_resolved: str | None = f"{NOT_RESOLVABLE}: {NOT_BUILT}"
    if resolution is not None:
        resolved = resolution.get("resolved") or {}
        not_resolved = None if resolution.get("ok") else f"{NOT_RESOLVABLE}: {resolution.get('reason', 'no reason given')}"
        if resolution.get("refused"):
            found.append(_release_refuses(str(resolution.get("reason")), RELEASE_REFUSES in allow))
    fields = server_fields(spec, dialect)
    asked = {"settings": spec.as_dict()["settings"], "server_fields": fields}
    said = (resolution or {}).get("log") or ()
    if overridden := [d for d in compare_effective(asked, resolved, said, "its arguments'") if d.severity == "finding"]:
        found.append(_overrides(overridden, OVERRIDES in allow))
    order = (*SEVERITIES, "not checked")
    results = tuple(sorted(found, key=lambda result: order.index(result.severity)))
    # What nobody asked for is shown where SGLang decides it, or where something is known against leaving it open.
    chosen = {name for name, told in fields.items() if any(resolved.get(field) not in (None, "auto") for field in told)}
    concerned = {name for result in results if result.severity != "not checked" for name in result.about}
    names = [*spec.settings, *sorted((chosen | concerned) - set(spec.settings))]
    rows = tuple(_row(spec, name, fields.get(name, {}), resolved, not_resolved, results) for name in names)
    return Plan(spec, results, resolved, not_resolved, rows)


def server_fields(spec: LaunchSpec, dialect: Dialect) -> dict[str, dict[str, Any]]:
    """Which fields of the server's arguments tell of a setting, and what they hold where it runs as asked.

    Settings that nobody asked for, but that SGLang decides, have None there. Plain data, since it travels with the
    launch spec to where the server runs; `effective.compare_effective` reads it.
    """
    fields = {
        name: {item.option.dest: _expected(item) for item in dialect.split(choice.options).given}
        for name, choice in spec.settings.items()
    }
    for name, flags in SERVER_FIELDS.items():
        option = next((found for flag in flags if (found := dialect.find(flag)) is not None), None)
        if option is not None:
            fields.setdefault(name, {option.dest: None})
    return fields


def _expected(item: Given) -> Any:
    if not item.option.takes_value:
        return not (item.option.kind == "BooleanOptionalAction" and item.flag.startswith("--no-"))
    return item.values[0] if len(item.values) == 1 else list(item.values)


def _release_refuses(reason: str, allowed: bool) -> RuleResult:
    return RuleResult(
        rule=RELEASE_REFUSES,
        severity="warn" if allowed else "refuse",
        topic="works",
        reason=f"The installed release does not start with these arguments: {reason}",
        remedy=Remedy(text="change the setting that it names"),
        source=("the release's own argument check, run on this host",),
        allowed=allowed,
    )


def _overrides(differences: Sequence[Difference], allowed: bool) -> RuleResult:
    return RuleResult(
        rule=OVERRIDES,
        severity="warn" if allowed else "refuse",
        topic="works",
        reason=f"SGLang would not run what is asked: {'; '.join(map(str, differences))}",
        remedy=Remedy(text="ask for what it runs, or take the setting out (null)"),
        source=("the release's own resolution, run on this host",),
        about=tuple(difference.setting for difference in differences),
        allowed=allowed,
    )


def _findings(name: str, results: Iterable[RuleResult]) -> tuple[str, ...]:
    return tuple(r.rule for r in results if name in r.about and r.severity != "not checked")


def _row(
    spec: LaunchSpec,
    name: str,
    fields: Mapping[str, Any],
    resolved: Mapping[str, Any],
    not_resolved: str | None,
    results: Sequence[RuleResult],
) -> Row:
    choice = spec.settings.get(name)
    asked = choice.value if choice else None
    told = [in_words(asked, expected, resolved.get(field)) for field, expected in fields.items()]
    return Row(
        setting=name,
        asked=shown(asked),
        source=choice.source if choice else "SGLang",
        option=(" ".join(choice.options) or "(needs none)") if choice else "",
        resolved=NOT_RESOLVABLE if not_resolved else shown(next((value for value in told if value != asked), asked)),
        findings=_findings(name, results),
    )
