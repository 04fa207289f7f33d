"""The catalog of known failures: its shape, and reading it from plain data.

`parse_catalog` turns the data of catalog/findings.yml into Rules and refuses what does not fit. Reading YAML is the
caller's work. Standard library only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import textscan

CLASSES = frozenset(
    {
        *(
            "allreduce",
            "apt",
            "arch_dispatch",
            "checkpoint_format",
            "cli",
            "deepgemm",
            "deps_pinning",
            "disk",
            "download",
        ),
        *("driver", "fp4_backend", "fp4_kernel_numeric", "gpu_hw", "host_memory", "jit_cache_stale", "jit_toolchain"),
        *(
            "kv_dtype",
            "memory_sizing",
            "moe_cubin",
            "multi_symptom",
            "network",
            "p2p_iommu",
            "parser",
            "pep668",
            "port",
        ),
        *(
            "restart",
            "router",
            "secure_boot",
            "smem_limit",
            "spec_decode",
            "systemd",
            "timeout",
            "wrong_wheel",
            "unknown",
        ),
    }
)
PHASES = ("install", "host", "start", "load", "compile", "capture", "prefill", "decode", "serve", "any")
SEVERITIES = ("fatal", "warning", "info")
CONFIDENCES = ("certain", "likely", "possible", "consequence")
"""certain: the text has one cause. likely: mostly this one. possible: a guess from weak text. consequence: something
failed before this.
"""

VERSION_CLAUSE = re.compile(r"(<=|>=|==|!=|<|>)\s*(\d[\w.+]*)$")


class CatalogError(ValueError):
    """The catalog of findings has an entry that cannot be used; the message names the entry, the field and what to
    write instead.
    """


@dataclass(frozen=True)
class When:
    """Conditions on a deployment; all that are given must hold, and an unknown fact never holds.

    versions: component -> comma-separated clauses such as `>=0.5.9,<0.5.13`. settings: option -> expression that its
    whole value matches, `a|b` names two spellings of one option. environment: the same for variables. host: fact ->
    text it must equal. log: expressions of which one was seen.
    """

    versions: tuple[tuple[str, str], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    host: tuple[tuple[str, str], ...] = ()
    log: tuple[str, ...] = ()


@dataclass(frozen=True)
class Remedy:
    """What to change: settings (logical names) and environment that can be applied as they are, and words for the
    rest.
    """

    words: str = ""
    settings: tuple[tuple[str, Any], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Narrow:
    """A more exact cause that holds under conditions; what it leaves empty stays as in the rule."""

    when: When
    cause: str
    cls: str = ""
    remedy: Remedy | None = None


@dataclass(frozen=True)
class Match:
    """What shows a failure: any log pattern, exit status, signal or answer fact; and, if given, all conditions of
    `also`.
    """

    log: tuple[str, ...] = ()
    exit_status: tuple[int, ...] = ()
    signal: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    also: When | None = None


@dataclass(frozen=True)
class Rule:
    """One known failure."""

    id: str
    cls: str
    phase: str
    severity: str
    confidence: str
    match: Match
    cause: str
    remedy: Remedy
    source: tuple[str, ...]
    not_with: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()
    narrow: tuple[Narrow, ...] = ()

    def patterns(self) -> set[str]:
        """Every expression that has to be looked for to judge this rule."""
        conditions = [self.match.also] if self.match.also else []
        conditions += [narrow.when for narrow in self.narrow]
        return {*self.match.log, *(pattern for when in conditions for pattern in when.log)}


def parse_catalog(data: Any, source: str = "catalog/findings.yml") -> tuple[Rule, ...]:
    """Rules of a loaded catalog file, `{findings: [...]}`. Raises CatalogError at the first entry that does not fit."""
    entries = mapping(data, source, {"findings"}).get("findings")
    if not isinstance(entries, list) or not entries:
        raise CatalogError(f"{source}: 'findings' must be a list with at least one entry")
    rules: dict[str, Rule] = {}
    for index, entry in enumerate(entries):
        name = entry.get("id") if isinstance(entry, dict) else None
        rule = _rule(entry, f"{source}: finding {name or index + 1}")
        if rule.id in rules:
            raise CatalogError(f"{source}: finding {rule.id} stands there twice")
        rules[rule.id] = rule
    for rule in rules.values():
        for other in (*rule.not_with, *rule.consequences):
            if other not in rules:
                raise CatalogError(
                    f"{source}: finding {rule.id} names {other!r}, which does not exist{_nearest(other, rules)}"
                )
    return tuple(rules.values())


def _rule(entry: Any, where: str) -> Rule:
    known = {
        "id",
        "class",
        "phase",
        "severity",
        "confidence",
        "match",
        "not_with",
        "consequences",
        "cause",
        "narrow",
        "remedy",
        "source",
    }
    data = mapping(entry, where, known, required={"id", "class", "phase", "severity", "match", "cause", "source"})
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", str(data["id"])):
        raise CatalogError(f"{where}: id must be lower-case words joined by '-'")
    match = _match(data["match"], f"{where}: match")
    rule = Rule(
        id=data["id"],
        cls=_choice(data["class"], CLASSES, f"{where}: class"),
        phase=_choice(data["phase"], PHASES, f"{where}: phase"),
        severity=_choice(data["severity"], SEVERITIES, f"{where}: severity"),
        confidence=_choice(data.get("confidence", "certain"), CONFIDENCES, f"{where}: confidence"),
        match=match,
        cause=_text(data["cause"], f"{where}: cause"),
        remedy=_remedy(data.get("remedy", {}), f"{where}: remedy"),
        source=_texts(data["source"], f"{where}: source"),
        not_with=_texts(data.get("not_with", []), f"{where}: not_with"),
        consequences=_texts(data.get("consequences", []), f"{where}: consequences"),
        narrow=tuple(
            _narrow(one, f"{where}: narrow {i + 1}")
            for i, one in enumerate(_list(data.get("narrow", []), f"{where}: narrow"))
        ),
    )
    for pattern in {*rule.patterns(), *match.last}:
        try:
            re.compile(pattern)
            textscan.literal(pattern)
        except (re.error, textscan.BadPattern) as error:
            raise CatalogError(f"{where}: {error}") from error
    return rule


def _match(entry: Any, where: str) -> Match:
    data = mapping(entry, where, {"log", "last", "exit_status", "signal", "answers", "also"})
    if not set(data) - {"also"}:
        raise CatalogError(f"{where}: needs at least one of log, last, exit_status, signal, answers")
    statuses = _list(data.get("exit_status", []), f"{where}: exit_status")
    if not all(isinstance(one, int) for one in statuses):
        raise CatalogError(f"{where}: exit_status must be a list of numbers")
    return Match(
        log=_texts(data.get("log", []), f"{where}: log"),
        exit_status=tuple(statuses),
        signal=_texts(data.get("signal", []), f"{where}: signal"),
        answers=_texts(data.get("answers", []), f"{where}: answers"),
        last=_texts(data.get("last", []), f"{where}: last"),
        also=_when(data["also"], f"{where}: also") if "also" in data else None,
    )


def _when(entry: Any, where: str) -> When:
    data = mapping(entry, where, {"versions", "settings", "environment", "host", "log"})
    if not data:
        raise CatalogError(f"{where}: needs at least one condition")
    versions = _pairs(data.get("versions", {}), f"{where}: versions")
    for component, clauses in versions:
        for clause in clauses.split(","):
            if not VERSION_CLAUSE.match(clause.strip()):
                raise CatalogError(f"{where}: versions: {component}: {clause!r} is not a comparison such as '>=0.5.9'")
    return When(
        versions=versions,
        settings=_pairs(data.get("settings", {}), f"{where}: settings"),
        environment=_pairs(data.get("environment", {}), f"{where}: environment"),
        host=_pairs(data.get("host", {}), f"{where}: host"),
        log=_texts(data.get("log", []), f"{where}: log"),
    )


def _narrow(entry: Any, where: str) -> Narrow:
    data = mapping(entry, where, {"when", "cause", "class", "remedy"}, required={"when", "cause"})
    return Narrow(
        when=_when(data["when"], f"{where}: when"),
        cause=_text(data["cause"], f"{where}: cause"),
        cls=_choice(data["class"], CLASSES, f"{where}: class") if "class" in data else "",
        remedy=_remedy(data["remedy"], f"{where}: remedy") if "remedy" in data else None,
    )


def _remedy(entry: Any, where: str) -> Remedy:
    data = mapping(entry, where, {"words", "settings", "environment"})
    settings = mapping(data.get("settings", {}), f"{where}: settings")
    for name, value in settings.items():
        if not isinstance(value, str | int | float | bool):
            raise CatalogError(f"{where}: settings: {name} must be a single value")
    return Remedy(
        words=_text(data["words"], f"{where}: words") if "words" in data else "",
        settings=tuple(settings.items()),
        environment=_pairs(data.get("environment", {}), f"{where}: environment"),
    )


def mapping(value: Any, where: str, known: set[str] | None = None, required: set[str] = frozenset()) -> dict[str, Any]:  # type: ignore[assignment]
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise CatalogError(f"{where}: must be a mapping with names as keys")
    for key in value:
        if known is not None and key not in known:
            raise CatalogError(f"{where}: unknown field {key!r}{_nearest(key, known)}")
    if missing := required - set(value):
        raise CatalogError(f"{where}: missing {', '.join(sorted(missing))}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise CatalogError(f"{where}: must be a list")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise CatalogError(f"{where}: must be text (quote numbers and true/false)")
    return value.strip()


def _texts(value: Any, where: str) -> tuple[str, ...]:
    return tuple(_text(one, where) for one in _list(value, where))


def _pairs(value: Any, where: str) -> tuple[tuple[str, str], ...]:
    return tuple((key, _text(one, f"{where}: {key}")) for key, one in mapping(value, where).items())


def _choice(value: Any, known: Iterable[str], where: str) -> str:
    if value not in known:
        raise CatalogError(f"{where}: {value!r} is not one of the known values{_nearest(str(value), known)}")
    return str(value)


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 3)
    return f"; did you mean {' or '.join(near)}?" if near else f"; known: {', '.join(sorted(known)[:40])}"
