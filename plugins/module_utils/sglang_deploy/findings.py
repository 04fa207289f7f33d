"""What failed, and what cures it: the known failures that evidence shows, in order of confidence.

`judge` takes what was seen (log lines, exit, answers) and what is known of the deployment. `diagnose` does so for a
whole log, `from_watch` for a start that was followed. Standard library only, since this also runs on the managed
host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, BinaryIO

from . import finding_rules, logtext, textscan
from .finding_rules import (
    CONFIDENCES,
    SEVERITIES,
    VERSION_CLAUSE,
    CatalogError,
    Remedy,
    Rule,
    When,
    parse_catalog,
)
from .textscan import Hit

__all__ = ["CatalogError", "Context", "Diagnosis", "Finding", "Rule", "diagnose", "from_watch", "judge", "parse_catalog"]


@dataclass(frozen=True)
class Context:
    """What is known of the deployment that failed. Everything may be missing.

    settings: option (as in `server_args`, e.g. `kv_cache_dtype`) -> value. answers: names of facts about answers
    (`null_logprobs`, `uniform_logprobs`, `empty_content`, ...) that hold. signal: `SIGKILL` and the like.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    host: Mapping[str, str] = field(default_factory=dict)
    answers: frozenset[str] = frozenset()
    last: Hit | None = None
    exit_status: int | None = None
    signal: str | None = None


@dataclass(frozen=True)
class Finding:
    """A rule that holds, made exact for this deployment. `line_number` is 0 when no line decided."""

    id: str
    cls: str
    phase: str
    severity: str
    confidence: str
    cause: str
    remedy: Remedy
    line_number: int
    line: str
    source: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `class` is the key of `cls`."""
        data = asdict(self)
        data["class"] = data.pop("cls")
        data["remedy"] = {
            "words": self.remedy.words,
            "settings": dict(self.remedy.settings),
            "environment": dict(self.remedy.environment),
        }
        data["source"] = list(self.source)
        return data


@dataclass(frozen=True)
class Diagnosis:
    """Findings in order of confidence. `known` is false when nothing names a cause; then `worth_reading` holds the
    lines to look at.
    """

    findings: tuple[Finding, ...]
    worth_reading: tuple[Hit, ...] = ()

    @property
    def known(self) -> bool:
        """Whether a finding names a cause."""
        return any(finding.cls != "unknown" and finding.severity != "info" for finding in self.findings)

    @property
    def cls(self) -> str:
        """Class of the first finding that names a cause, else `unknown`."""
        return next((one.cls for one in self.findings if one.cls != "unknown" and one.severity != "info"), "unknown")

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "known": self.known,
            "findings": [finding.as_dict() for finding in self.findings],
            "worth_reading": [asdict(hit) for hit in self.worth_reading],
        }


# ------------------------------------------------------------ judging


def patterns(rules: Iterable[Rule]) -> set[str]:
    """Every expression that has to be looked for to judge these rules."""
    return {pattern for rule in rules for pattern in rule.patterns()}


def judge(rules: tuple[Rule, ...], hits: Mapping[str, Hit], context: Context | None = None) -> tuple[Finding, ...]:
    """Findings in order of confidence.

    hits: pattern -> first occurrence, as a textscan.Scanner collects them. A rule's consequences and what it must not
    be confused with are dropped; then severity, confidence and place in the log decide, so the first cause stands
    before what it led to.
    """
    context = context or Context()
    matched: list[tuple[Rule, Hit]] = []
    for rule in rules:
        hit = _evidence(rule, hits, context)
        if hit and (rule.match.also is None or _holds(rule.match.also, hits, context)):
            matched.append((rule, hit))
    ids = {rule.id for rule, _ in matched}
    explained = {other for rule, _ in matched for other in rule.consequences if other != rule.id}
    left = [(rule, hit) for rule, hit in matched if rule.id not in explained and not ids.intersection(rule.not_with)]
    causes = [pair for pair in left if pair[0].confidence != "consequence" and pair[0].severity == "fatal"]
    if causes:
        left = [pair for pair in left if pair[0].confidence != "consequence"]
    left.sort(key=lambda pair: (SEVERITIES.index(pair[0].severity), CONFIDENCES.index(pair[0].confidence), pair[1].number))
    return tuple(_finding(rule, hit, hits, context) for rule, hit in left)


def _evidence(rule: Rule, hits: Mapping[str, Hit], context: Context) -> Hit | None:
    seen = [hits[pattern] for pattern in rule.match.log if pattern in hits]
    if seen:
        return min(seen, key=lambda hit: hit.number)
    if context.exit_status is not None and context.exit_status in rule.match.exit_status:
        return Hit(0, f"exit status {context.exit_status}")
    if context.signal is not None and context.signal in rule.match.signal:
        return Hit(0, f"ended by {context.signal}")
    if context.last and any(re.search(pattern, context.last.text, re.IGNORECASE) for pattern in rule.match.last):
        return context.last
    for fact in rule.match.answers:
        if fact in context.answers:
            return Hit(0, f"answers: {fact.replace('_', ' ')}")
    return None


def _holds(when: When, hits: Mapping[str, Hit], context: Context) -> bool:
    if when.log and not any(pattern in hits for pattern in when.log):
        return False
    return (
        all(
            component in context.versions and version_in(context.versions[component], clauses)
            for component, clauses in when.versions
        )
        and all(_value(context.settings, names, wanted) for names, wanted in when.settings)
        and all(_value(context.environment, names, wanted) for names, wanted in when.environment)
        and all(context.host.get(fact) == wanted for fact, wanted in when.host)
    )


def _value(values: Mapping[str, str], names: str, wanted: str) -> bool:
    return any(name in values and re.fullmatch(wanted, str(values[name]), re.IGNORECASE) for name in names.split("|"))


def _finding(rule: Rule, hit: Hit, hits: Mapping[str, Hit], context: Context) -> Finding:
    fitting = [narrow for narrow in rule.narrow if _holds(narrow.when, hits, context)]
    first = fitting[0] if fitting else None
    return Finding(
        id=rule.id,
        cls=(first.cls if first else "") or rule.cls,
        phase=rule.phase,
        severity=rule.severity,
        confidence=rule.confidence,
        cause=" ".join([rule.cause, *(narrow.cause for narrow in fitting)]),
        remedy=next((narrow.remedy for narrow in fitting if narrow.remedy), rule.remedy),
        line_number=hit.number,
        line=hit.text,
        source=rule.source,
    )


def version_in(version: str, clauses: str) -> bool:
    """Whether `0.5.10.post1` fits `>=0.5.9,<0.5.13`. Numbers are compared; `rc`, `dev` and the like count as older,
    `post` as newer.
    """
    have = _version(version)
    for clause in clauses.split(","):
        found = VERSION_CLAUSE.match(clause.strip())
        if not found:
            raise CatalogError(f"{clause!r} is not a comparison such as '>=0.5.9'")
        operator, want = found[1], _version(found[2])
        good = {
            "<": have < want,
            "<=": have <= want,
            ">": have > want,
            ">=": have >= want,
            "==": have == want,
            "!=": have != want,
        }
        if not good[operator]:
            return False
    return True


def _version(text: str) -> tuple[tuple[int, ...], tuple[int, int]]:
    found = re.match(r"v?(\d+(?:\.\d+)*)[-._]?(post|rc|dev|a|b)?\.?(\d*)", text.strip())
    if not found:
        return ((-1,), (0, 0))
    numbers = [int(part) for part in found[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    order = {"dev": -3, "a": -2, "b": -2, "rc": -1, "post": 1}
    return (tuple(numbers), (order.get(found[2] or "", 0), int(found[3] or 0)))


# ------------------------------------------------------------ a whole log

_ERROR_END = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning|Timeout|Resources)\b(?::|$)"
)
_BAD_WORD = re.compile(
    r"\b(?:error|fatal|critical|failed|failure|exception|abort(?:ed)?|killed|cannot|unable|timed? ?out|assert\w*)\b",
    re.IGNORECASE,
)
WORTH_A_LOOK = (
    *(
        "error",
        "fatal",
        "critical",
        "fail",
        "exception",
        "abort",
        "killed",
        "cannot",
        "unable",
        "timed",
        "timeout",
        "assert",
    ),
    *("exit", "interrupt", "resources", "server_args="),
)
"""Words of the lines that are shown when nothing is recognised, in lower case."""
_DULL = re.compile(r"warning|deprecat|ignore import error|fail to set rlimit|server_args=", re.IGNORECASE)
_SETTING = re.compile(r"\b([a-z][a-z0-9_]+)=(?:'([^']*)'|(None|True|False|-?\d+(?:\.\d+)?))")
WORTH_READING = 12


class _Reader:
    """Picks, while a log goes by, the lines that a person would read first, and the settings that the server printed."""

    def __init__(self) -> None:
        self.ends: list[Hit] = []
        self.bad: list[Hit] = []
        self.last: Hit | None = None
        self.settings: dict[str, str] = {}

    def __call__(self, line: logtext.Line) -> None:
        text = line.text
        if not text.strip():
            return
        self.last = Hit(line.number, text[:400])
        if "server_args=" in text and not self.settings:
            self.settings = {name: quoted or bare for name, quoted, bare in _SETTING.findall(text)}
        if _DULL.search(text):
            return
        if _ERROR_END.match(text):
            self.ends = [*self.ends[: WORTH_READING // 2], Hit(line.number, text[:400])]
        elif _BAD_WORD.search(text) and len(self.bad) < WORTH_READING:
            self.bad.append(Hit(line.number, text[:400]))

    def chosen(self) -> tuple[Hit, ...]:
        picked = {hit.number: hit for hit in [*self.ends, *self.bad][:WORTH_READING]}
        if self.last:
            picked.setdefault(self.last.number, self.last)
        return tuple(picked[number] for number in sorted(picked))


def diagnose(rules: tuple[Rule, ...], stream: BinaryIO, context: Context | None = None) -> Diagnosis:
    """Findings of a whole log of any size, read from a binary stream. Settings that the server printed complete the
    context.
    """
    scanner, reader = textscan.Scanner(patterns(rules)), _Reader()
    scanner.read(stream, reader, WORTH_A_LOOK)
    context = context or Context()
    context = replace(context, settings={**reader.settings, **context.settings}, last=reader.last)
    found = Diagnosis(judge(rules, scanner.hits, context))
    return found if found.known else Diagnosis(found.findings, reader.chosen())


# ------------------------------------------------------------ a start that was watched


def stopping(rules: Iterable[Rule]) -> set[str]:
    """Patterns whose first occurrence ends the wait for a start: a server that writes one of them does not recover.

    Patterns that are only likely to be fatal are left to the server's own end, which follows within a second when
    they are.
    """
    return {
        pattern
        for rule in rules
        if rule.severity == "fatal" and rule.confidence in ("certain", "consequence") and rule.match.also is None
        for pattern in rule.match.log
    }


def context_from(data: Mapping[str, Any]) -> Context:
    """A Context of plain data: versions, settings, environment, host, answers, exit_status, signal. Raises
    CatalogError.
    """
    finding_rules.mapping(
        dict(data), "context", {"versions", "settings", "environment", "host", "answers", "exit_status", "signal"}
    )
    versions, settings, environment, host = (
        {str(key): str(value) for key, value in (data.get(name) or {}).items() if value is not None}
        for name in ("versions", "settings", "environment", "host")
    )
    status = data.get("exit_status")
    return Context(
        versions=versions,
        settings=settings,
        environment=environment,
        host=host,
        answers=frozenset(data.get("answers") or ()),
        exit_status=None if status is None else int(status),
        signal=data.get("signal"),
    )


def from_watch(rules: tuple[Rule, ...], context: Context, state: Mapping[str, Any]) -> Diagnosis:
    """Findings of a start that was followed with watch.step, from its last state."""
    hits = {pattern: Hit(*hit) for pattern, hit in state["hits"].items()}
    ended = state["exit"]
    hung = state["outcome"] in ("hung", "timeout")
    context = replace(
        context,
        exit_status=ended.get("status", context.exit_status),
        signal=ended.get("signal", context.signal),
        last=Hit(state["lines"], state["tail"][-1]) if hung and state["tail"] else None,
    )
    found = Diagnosis(judge(rules, hits, context))
    if found.known or state["outcome"] == "ready":
        return found
    reader = _Reader()
    first = state["lines"] - len(state["tail"])
    for number, text in enumerate(state["tail"], 1):
        reader(logtext.Line(first + number, text))
    return Diagnosis(found.findings, reader.chosen())
