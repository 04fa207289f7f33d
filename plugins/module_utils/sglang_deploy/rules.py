"""Rules over a launch: what is known to fail, to mislead or to be unsafe, before anything starts.

The rules are data, `catalog/rules.yml`; this module loads and evaluates them. A rule that needs a fact which nobody
could tell is reported as not checked, with the fact it needs; it is never silently taken as true or false.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from .conditions import UNKNOWN, ConditionError, check_condition, evaluate
from .names import suggest

# libyaml's, ten times as fast, where PyYAML has it
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SEVERITIES = ("refuse", "warn", "inform")
TOPICS = ("works", "security", "performance")


class RuleError(ValueError):
    """A rule file is wrong; the message names the file, the rule and what to write."""


class UnknownRule(ValueError):
    """`allow` names a rule that does not exist."""


@dataclass(frozen=True)
class Versions:
    """Versions on the host; None is not known.

    `patched` marks a source that is no release (a fork, local patches); `exact` is False where they were guessed, from a
    date for one.
    """

    sglang: str | None = None
    flashinfer: str | None = None
    transformers: str | None = None
    torch: str | None = None
    cuda: str | None = None
    deep_gemm: str | None = None
    python: str | None = None
    patched: bool = False
    exact: bool = True


@dataclass(frozen=True)
class Host:
    """One host: compute capability such as "12.0", GPUs on it, memory of one GPU in GiB, sockets, nvcc and driver."""

    capability: str | None = None
    gpu_count: int | None = None
    gpu_memory_gib: float | None = None
    sockets: int | None = None
    nvcc: str | None = None
    driver: str | None = None
    nvlink: bool | None = None


@dataclass(frozen=True)
class Model:
    """The checkpoint. `sparse_attention` is DSA (lightning indexer); `weights_gib` is all of it, in GiB. `local` says that
    the server gets a directory, `fetched` that the cache of a server that gets a name holds some of it; `writable` says
    that the service could change its files.
    """

    architecture: str | None = None
    quantization: str | None = None
    sparse_attention: bool | None = None
    mla: bool | None = None
    moe: bool | None = None
    shared_experts_bf16: bool | None = None
    has_mtp: bool | None = None
    num_heads: int | None = None
    weights_gib: float | None = None
    local: bool | None = None
    fetched: bool | None = None
    writable: bool | None = None


@dataclass(frozen=True)
class Context:
    """Everything that a rule may look at.

    `settings` holds logical names that were asked for, `options` further server options by their name without dashes
    (`dtype`, `enable_dp_lm_head`), `unresolved` the names among both whose value is a placeholder.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    versions: Versions = field(default_factory=Versions)
    host: Host = field(default_factory=Host)
    model: Model = field(default_factory=Model)
    options: Mapping[str, Any] = field(default_factory=dict)
    unresolved: frozenset[str] = frozenset()
    has_api_key: bool = False


@dataclass(frozen=True)
class Remedy:
    """What cures it: settings (None removes one) and environment that can be applied as they stand, or words."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)
    text: str = ""

    def as_text(self) -> str:
        """One line for a person."""
        parts = [f"{name}: {'null' if value is None else _yaml(value)}" for name, value in self.settings.items()]
        parts += [f"{name}={'(unset)' if value is None else value}" for name, value in self.environment.items()]
        applied = "set " + ", ".join(parts) if parts else ""
        return "; ".join(part for part in (applied, self.text) if part)


@dataclass(frozen=True)
class Rule:
    """One entry of the rule file. `if_unknown` maps a field to the severity where nothing but that field is unknown."""

    id: str
    severity: str
    topic: str
    when: Mapping[str, Any]
    reason: str
    remedy: Remedy
    source: tuple[str, ...]
    about: tuple[str, ...] = ()
    if_unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RuleResult:
    """What a rule says of a launch.

    `severity` is refuse, warn or inform, or "not checked" where `needs` names the missing facts. `allowed` is True for
    a refusal that the user allowed; it is then a warning.
    """

    rule: str
    severity: str
    topic: str
    reason: str
    remedy: Remedy
    source: tuple[str, ...]
    about: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    allowed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "topic": self.topic,
            "reason": self.reason,
            "remedy": {
                "settings": dict(self.remedy.settings),
                "environment": dict(self.remedy.environment),
                "text": self.remedy.text,
            },
            "source": list(self.source),
            "about": list(self.about),
            "needs": list(self.needs),
            "allowed": self.allowed,
        }


def load(path: Path, settings: Collection[str] | None = None) -> tuple[Rule, ...]:
    """Load a rule file. With `settings` (the logical names) a rule about an unknown setting is an error.

    Raises:
        RuleError: unknown field, test or severity, a rule without reason or source, an id given twice.
    """
    data = yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)  # noqa: S506 - a safe loader either way
    if not isinstance(data, dict) or set(data) != {"rules"} or not isinstance(data["rules"], list):
        raise RuleError(f"{path}: the file holds one key, `rules`, with a list")
    rules: list[Rule] = []
    for entry in data["rules"]:
        rule = _rule(entry, path, settings)
        if rule.id in {other.id for other in rules}:
            raise RuleError(f"{path}: rule {rule.id} stands there twice")
        rules.append(rule)
    return tuple(rules)


def check(rules: Iterable[Rule], context: Context, allow: Sequence[str] = ()) -> list[RuleResult]:
    """What the rules say of a launch, refusals first, rules that could not be checked last.

    `allow` turns a refusal into a warning that is marked. A refusal that rests on a version is a warning where the version
    was guessed. On a patched source a refusal is a warning and a warning a
    note, since the patches may contain the very fix that the rule misses.

    Raises:
        UnknownRule: `allow` names no rule.
    """
    rules = list(rules)
    ids = [rule.id for rule in rules]
    for name in allow:
        if name not in ids:
            raise UnknownRule(f"allow: there is no rule {name!r}; {suggest(name, ids)}")
    flat = flatten(context)
    results = [result for rule in rules if (result := _apply(rule, flat, context, allow)) is not None]
    order = (*SEVERITIES, "not checked")
    return sorted(results, key=lambda result: order.index(result.severity))


def _apply(rule: Rule, flat: Mapping[str, Any], context: Context, allow: Sequence[str]) -> RuleResult | None:
    outcome = evaluate(rule.when, flat)
    if outcome.truth is False:
        return None
    severity, reason = rule.severity, _fill(rule.reason, flat)
    needs = tuple(sorted(outcome.needs))
    if outcome.truth is None:
        known_as = [rule.if_unknown.get(name) for name in needs]
        told = min((name for name in known_as if name), key=SEVERITIES.index, default=None) if all(known_as) else None
        severity = told or "not checked"
        missing = f"needs {', '.join(needs)}"
        reason = f"{reason} (not certain: {missing})" if told else missing
    if context.versions.patched and rule.topic == "works" and severity in ("refuse", "warn"):
        severity = SEVERITIES[SEVERITIES.index(severity) + 1]
        reason += " (the source is no release, so this may be patched)"
    elif severity == "refuse" and not context.versions.exact and _rests_on_version(rule.when):
        severity = "warn"
        reason += " (the version is not known exactly)"
    allowed = severity == "refuse" and rule.id in allow
    return RuleResult(
        rule=rule.id,
        severity="warn" if allowed else severity,
        topic=rule.topic,
        reason=reason,
        remedy=rule.remedy,
        source=rule.source,
        about=rule.about,
        needs=needs,
        allowed=allowed,
    )


def _rests_on_version(condition: Mapping[str, Any]) -> bool:
    parts = [*condition.get("all", ()), *condition.get("any", ()), *([condition["not"]] if "not" in condition else ())]
    return str(condition.get("field", "")).startswith("versions.") or any(_rests_on_version(part) for part in parts)


def flatten(context: Context) -> dict[str, Any]:
    """All fields of a context by dotted name, and the derived ones."""
    flat: dict[str, Any] = {}
    for name, value in context.settings.items():
        flat[f"settings.{name}"] = UNKNOWN if name in context.unresolved else value
    for name, value in context.options.items():
        flat[f"options.{name}"] = UNKNOWN if name in context.unresolved else value
    for name, text in context.environment.items():
        flat[f"environment.{name}"] = UNKNOWN if name in context.unresolved else text
    for prefix, part in (("versions", context.versions), ("host", context.host), ("model", context.model)):
        for item in fields(part):
            value = getattr(part, item.name)
            flat[f"{prefix}.{item.name}"] = UNKNOWN if value is None else value
    flat["has_api_key"] = context.has_api_key
    flat.update(_derived(flat))
    return flat


_COMMIT = re.compile(r"[0-9a-f]{40}")  # names of branches and tags move
DERIVED = (
    "attentions", "sparse_backends", "native_sparse", "dense_on_sparse", "gpus_wanted_per_host", "gpu_shortage",
    "heads_remainder", "weights_gib_per_gpu", "weights_over_memory", "weights_over_static", "tp_over_dp_remainder",
    "ep_is_tp", "revision_is_commit",
)  # fmt: skip


def _derived(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that several rules need and that are arithmetic over others; unknown where a part is."""
    attentions: Any = _chosen(flat, ("attention", "prefill_attention", "decode_attention"))
    sparse = flat["model.sparse_attention"]
    dense: Any = UNKNOWN
    if sparse is False or (attentions is not UNKNOWN and not attentions):
        dense = False
    elif isinstance(attentions, tuple) and sparse is True:
        dense = any(name not in ("nsa", "dsa") for name in attentions)
    native: Any = UNKNOWN
    if sparse is False or dense is True:
        native = False
    elif sparse is True and dense is False:
        native = True
    tp, pp, dp = (_number(flat, f"settings.{name}", 1) for name in ("tp_size", "pp_size", "dp_size"))
    nodes, ep = _number(flat, "settings.nnodes", 1), _number(flat, "settings.ep_size", 1)
    attention_dp = _number(flat, "settings.dp_attention", 1)
    wanted = _times(tp, pp, dp)
    per_host = _over(wanted, nodes)
    shortage: Any = UNKNOWN
    if per_host is not UNKNOWN and flat["host.gpu_count"] is not UNKNOWN:
        shortage = max(0, per_host - flat["host.gpu_count"])
    per_gpu = _over(_weights(flat), _times(tp, pp))
    over_memory = _over(per_gpu, flat["host.gpu_memory_gib"])
    fraction = flat.get("settings.mem_fraction_static")
    over_static = None if fraction is None else _over(over_memory, _number(flat, "settings.mem_fraction_static", 1))
    heads = flat["model.num_heads"]
    attention_tp = _over(tp, attention_dp)
    return {
        "derived.attentions": attentions,
        "derived.sparse_backends": _chosen(flat, ("sparse_prefill", "sparse_decode")),
        "derived.native_sparse": native,
        "derived.dense_on_sparse": dense,
        "derived.gpus_wanted_per_host": per_host,
        "derived.gpu_shortage": shortage,
        "derived.heads_remainder": _remainder(heads, attention_tp),
        "derived.weights_gib_per_gpu": per_gpu,
        "derived.weights_over_memory": over_memory,
        "derived.weights_over_static": over_static,
        "derived.tp_over_dp_remainder": _remainder(tp, attention_dp),
        "derived.ep_is_tp": UNKNOWN if tp is UNKNOWN or ep is UNKNOWN else tp == ep,
        "derived.revision_is_commit": bool(_COMMIT.fullmatch(str(flat.get("settings.revision") or ""))),
    }


def _weights(flat: Mapping[str, Any]) -> Any:
    """GiB of weights in GPU memory. Unquantised weights shrink where a quantization is asked for."""
    asked = flat.get("settings.quantization")
    if asked is None or flat["model.quantization"] != "none":
        return flat["model.weights_gib"]
    if asked in ("fp8", "w8a8_fp8", "w8a8_int8", "modelopt_fp8") and flat["model.weights_gib"] is not UNKNOWN:
        return flat["model.weights_gib"] / 2
    return UNKNOWN


def _chosen(flat: Mapping[str, Any], names: Sequence[str]) -> Any:
    values = [flat.get(f"settings.{name}") for name in names]
    if any(value is UNKNOWN for value in values):
        return UNKNOWN
    return tuple(str(value) for value in values if value is not None)


def _number(flat: Mapping[str, Any], name: str, default: float) -> Any:
    value = flat.get(name)
    if value is None:
        return default
    try:
        return UNKNOWN if value is UNKNOWN else float(str(value))
    except ValueError:
        return UNKNOWN


def _times(*values: Any) -> Any:
    if any(value is UNKNOWN for value in values):
        return UNKNOWN
    product = 1.0
    for value in values:
        product *= value
    return product


def _over(value: Any, divisor: Any) -> Any:
    return UNKNOWN if value is UNKNOWN or divisor is UNKNOWN or not divisor else value / divisor


def _remainder(value: Any, divisor: Any) -> Any:
    return UNKNOWN if value is UNKNOWN or divisor is UNKNOWN or not divisor else value % divisor


def _fill(text: str, flat: Mapping[str, Any]) -> str:
    def value(match: re.Match[str]) -> str:
        found = flat.get(match[1])
        if isinstance(found, float):
            return f"{found:.3g}"
        if isinstance(found, tuple):
            return ", ".join(found) or "unset"
        return "unset" if found is None else str(found)

    return re.sub(r"\{([a-z]+\.\w+)\}", value, text)


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_FIELDS = {item.name for item in fields(Rule)}
_PARTS = {"versions": Versions, "host": Host, "model": Model}


def _rule(entry: object, path: Path, settings: Collection[str] | None) -> Rule:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        raise RuleError(f"{path}: a rule is a mapping with an `id`, not {entry!r}")
    where = f"{path}: rule {entry['id']}"
    for key in entry:
        if key not in _FIELDS:
            raise RuleError(f"{where}: unknown field {key!r}; {suggest(str(key), sorted(_FIELDS))}")
    for key in ("severity", "when", "reason", "remedy", "source"):
        if not entry.get(key):
            raise RuleError(f"{where}: `{key}` is missing")
    unknown = entry.get("if_unknown", {})
    if not isinstance(unknown, dict):
        raise RuleError(f"{where}: `if_unknown` maps fields to severities")
    chosen = [("severity", entry["severity"], SEVERITIES), ("topic", entry.get("topic", "works"), TOPICS)]
    for key, value, known in [*chosen, *(("if_unknown", value, SEVERITIES) for value in unknown.values())]:
        if value not in known:
            raise RuleError(f"{where}: `{key}` is one of {', '.join(known)}, not {value!r}")

    def known_field(name: str) -> bool:
        prefix, _, rest = name.partition(".")
        if prefix == "settings":
            return settings is None or rest in settings
        if prefix in _PARTS:
            return rest in {item.name for item in fields(_PARTS[prefix])}
        return name == "has_api_key" or (prefix == "derived" and rest in DERIVED) or prefix in ("environment", "options")

    for name in unknown:
        if not known_field(name):
            raise RuleError(f"{where}: `if_unknown` names the unknown field {name!r}")
    try:
        check_condition(entry["when"], known_field, f"{where}, when")
    except ConditionError as error:
        raise RuleError(str(error)) from error
    return Rule(
        id=entry["id"],
        severity=entry["severity"],
        topic=entry.get("topic", "works"),
        when=entry["when"],
        reason=" ".join(str(entry["reason"]).split()),
        remedy=_remedy(entry["remedy"], where, settings),
        source=tuple(entry["source"]),
        about=tuple(entry.get("about", ())),
        if_unknown=dict(unknown),
    )


def _remedy(entry: object, where: str, settings: Collection[str] | None) -> Remedy:
    if isinstance(entry, str):
        return Remedy(text=" ".join(entry.split()))
    if not isinstance(entry, dict):
        raise RuleError(f"{where}: `remedy` is text or a mapping of settings, environment and text")
    for key in entry:
        if key not in ("settings", "environment", "text"):
            raise RuleError(
                f"{where}: unknown field {key!r} in remedy; {suggest(str(key), ['settings', 'environment', 'text'])}"
            )
    for name in entry.get("settings", {}):
        if settings is not None and name not in settings:
            raise RuleError(f"{where}: remedy sets the unknown setting {name!r}; {suggest(name, sorted(settings))}")
    return Remedy(
        settings=dict(entry.get("settings", {})),
        environment=dict(entry.get("environment", {})),
        text=" ".join(str(entry.get("text", "")).split()),
    )
