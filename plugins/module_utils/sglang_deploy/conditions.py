"""The condition language of catalog/rules.yml: a tree of data, evaluated with three values.

A condition is one of
    {all: [CONDITION, ...]}    {any: [CONDITION, ...]}    {not: CONDITION}
    {field: NAME, TEST: OPERAND}                with one TEST, and optionally {default: VALUE} for a field that is unset

Tests: `equals`, `in` (value is one of a list), `overlaps` (a list-valued field shares an element with the operand),
`version` (PEP 440 range such as ">=0.5.9,<0.5.13"), `less`, `at_least` (numbers), `exists` (true or false),
`truthy` (reads 1/true/yes/on and 0/false/no/off), `contains` (text).

A fact that is not known makes a condition unknown (None), never true. `all` is false as soon as one part is false.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from .names import suggest


class ConditionError(ValueError):
    """A condition is not written in the language; the message names the part and the nearest known word."""


class Unknown:
    """The value of a fact that nobody could tell."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()


@dataclass(frozen=True)
class Outcome:
    """Truth of a condition: True, False, or None where `needs` names the unknown fields that decide it."""

    truth: bool | None
    needs: frozenset[str] = frozenset()


def truthy(value: object) -> bool:
    """How SGLang's own environment reader takes a value."""
    return str(value).strip().lower() in ("1", "true", "yes", "y", "on")


def in_version_range(version: str, wanted: str) -> bool:
    """Whether a version lies in a PEP 440 range; pre- and development releases count."""
    return SpecifierSet(wanted).contains(Version(version), prereleases=True)


def _number(value: object) -> float:
    return float(str(value))


_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "equals": lambda value, operand: _plain(value) == _plain(operand),
    "in": lambda value, operand: _plain(value) in [_plain(item) for item in operand],
    "overlaps": lambda value, operand: bool({_plain(v) for v in value} & {_plain(item) for item in operand}),
    "version": lambda value, operand: in_version_range(str(value), operand),
    "less": lambda value, operand: _number(value) < operand,
    "at_least": lambda value, operand: _number(value) >= operand,
    "truthy": lambda value, operand: truthy(value) is operand,
    "contains": lambda value, operand: operand in str(value),
}
TESTS = frozenset({*_TESTS, "exists"})


def _plain(value: object) -> object:
    """Booleans stay; everything else is compared as text, since options and environment are text in the end."""
    return value if isinstance(value, bool) else str(value)


def evaluate(condition: Mapping[str, Any], fields: Mapping[str, Any]) -> Outcome:
    """Evaluate a checked condition over a flat mapping of field names; a name that is absent is unset (None)."""
    if "all" in condition:
        return _fold([evaluate(part, fields) for part in condition["all"]], decided_by=False)
    if "any" in condition:
        return _fold([evaluate(part, fields) for part in condition["any"]], decided_by=True)
    if "not" in condition:
        inner = evaluate(condition["not"], fields)
        return Outcome(None if inner.truth is None else not inner.truth, inner.needs)
    return _leaf(condition, fields)


def _fold(parts: list[Outcome], *, decided_by: bool) -> Outcome:
    if any(part.truth is decided_by for part in parts):
        return Outcome(decided_by)
    unknown = [part for part in parts if part.truth is None]
    if unknown:
        return Outcome(None, frozenset().union(*(part.needs for part in unknown)))
    return Outcome(not decided_by)


def _leaf(condition: Mapping[str, Any], fields: Mapping[str, Any]) -> Outcome:
    name = condition["field"]
    value = fields.get(name)
    if value is UNKNOWN:
        return Outcome(None, frozenset({name}))
    if "exists" in condition:
        return Outcome((value is not None) is condition["exists"])
    if value is None:
        value = condition.get("default")
    if value is None:
        return Outcome(False)
    test = next(key for key in condition if key in _TESTS)
    try:
        return Outcome(_TESTS[test](value, condition[test]))
    except (InvalidVersion, ValueError, TypeError):
        return Outcome(None, frozenset({name}))  # a value that is no number or version decides nothing


def check_condition(condition: object, known_field: Callable[[str], bool], where: str) -> None:
    """Raise ConditionError unless the tree is well formed and every field is known."""
    if not isinstance(condition, Mapping) or not condition:
        raise ConditionError(f"{where}: a condition is a mapping, not {condition!r}")
    for junction in ("all", "any"):
        if junction in condition:
            parts = condition[junction]
            if len(condition) > 1 or not isinstance(parts, list) or not parts:
                raise ConditionError(f"{where}: `{junction}` stands alone and takes a list of conditions")
            for number, part in enumerate(parts, start=1):
                check_condition(part, known_field, f"{where}, {junction} {number}")
            return
    if "not" in condition:
        if len(condition) > 1:
            raise ConditionError(f"{where}: `not` stands alone")
        check_condition(condition["not"], known_field, f"{where}, not")
        return
    _check_leaf(condition, known_field, where)


def _check_leaf(condition: Mapping[Any, Any], known_field: Callable[[str], bool], where: str) -> None:
    for key in condition:
        if key not in TESTS and key not in ("field", "default"):
            words = [*TESTS, "field", "default", "all", "any", "not"]
            raise ConditionError(f"{where}: unknown test {key!r}; {suggest(str(key), words)}")
    tests = [key for key in condition if key in TESTS]
    if "field" not in condition or len(tests) != 1:
        raise ConditionError(f"{where}: a test needs `field` and exactly one of {', '.join(sorted(TESTS))}")
    if not isinstance(condition["field"], str) or not known_field(condition["field"]):
        raise ConditionError(f"{where}: unknown field {condition['field']!r}")
    test, operand = tests[0], condition[tests[0]]
    if test in ("in", "overlaps") and not isinstance(operand, list):
        raise ConditionError(f"{where}: `{test}` takes a list, not {operand!r}")
    if test in ("exists", "truthy") and not isinstance(operand, bool):
        raise ConditionError(f"{where}: `{test}` takes true or false, not {operand!r}")
    if test in ("less", "at_least") and (isinstance(operand, bool) or not isinstance(operand, (int, float))):
        raise ConditionError(f"{where}: `{test}` takes a number, not {operand!r}")
    if test == "version":
        try:
            SpecifierSet(operand)
        except (InvalidSpecifier, TypeError, AttributeError) as error:
            raise ConditionError(f"{where}: {operand!r} is no version range such as '>=0.5.9,<0.5.13'") from error
