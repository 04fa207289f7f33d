"""catalog/monitoring.yml: metrics and who produces them, limits, recording rules, alerts and the dashboard."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..fields import FieldError, build
from ..names import suggest

SEVERITIES = ("warning", "critical")
KINDS = ("stat", "timeseries", "table")
_LIMIT = re.compile(r"\[\[(\w+)\]\]")
# A name of a metric, or of a recorded one, where no label, function or number can stand.
_NAME = re.compile(r"(?<![\w:\"$])((?:sglang|smg|node|service|host)[a-zA-Z_]*[:_][\w:]+|up|ALERTS)(?=[\s{\[)]|$)")
_HISTOGRAM = re.compile(r"_(?:bucket|sum|count)$")


class MonitoringError(ValueError):
    """The catalog or a setting cannot be used; the message says what to write."""


@dataclass(frozen=True)
class Recorded:
    """A series that Prometheus computes by itself."""

    record: str
    expr: str


@dataclass(frozen=True)
class Alert:
    """A warning. wait: how long its condition has to hold. summary, remedy: for people, with labels."""

    alert: str
    expr: str
    summary: str
    remedy: str
    severity: str = field(metadata={"choices": SEVERITIES})
    wait: str = field(default="0m", metadata={"key": "for"})


@dataclass(frozen=True)
class Panel:
    """A panel of the dashboard. exprs: expressions by the legend of their lines."""

    title: str
    exprs: Mapping[str, str]
    kind: str = field(metadata={"choices": KINDS})
    width: int = 8
    unit: str = "short"


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    title: str
    uid: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Book:
    """metrics: by who produces them. limits: numbers that expressions name as [[limit]]."""

    metrics: Mapping[str, tuple[str, ...]]
    limits: Mapping[str, float]
    records: tuple[Recorded, ...]
    alerts: tuple[Alert, ...]
    dashboard: Dashboard

    @property
    def expressions(self) -> dict[str, str]:
        """Every expression, by the name of what it stands in."""
        found = {one.record: one.expr for one in self.records} | {one.alert: one.expr for one in self.alerts}
        for row in self.dashboard.rows:
            for panel in row.panels:
                found |= {f"{panel.title}: {legend}": expr for legend, expr in panel.exprs.items()}
        return found


def load(path: Path, limits: Mapping[str, Any] | None = None) -> Book:
    """Read the catalog, with `limits` laid over its own. Raises MonitoringError for an unknown or unused name."""
    try:
        book = build(Book, yaml.safe_load(path.read_text(encoding="utf-8")), path.name)
    except (OSError, yaml.YAMLError) as error:
        raise MonitoringError(f"{path}: {error}") from error
    except FieldError as error:
        raise MonitoringError(str(error)) from error
    _check(book, path.name)
    changed = {}
    for name, value in (limits or {}).items():
        if name not in book.limits:
            raise MonitoringError(f"monitoring_limits: {name} is no limit; {suggest(str(name), book.limits)}")
        try:
            changed[name] = float(value)
        except (TypeError, ValueError):
            raise MonitoringError(f"monitoring_limits.{name} is {value!r}: write a number") from None
    return Book(book.metrics, {**book.limits, **changed}, book.records, book.alerts, book.dashboard)


def used(expression: str) -> set[str]:
    """Names of metrics in an expression; of a histogram its own name."""
    return {_HISTOGRAM.sub("", name) for name in _NAME.findall(expression)}


def filled(expression: str, limits: Mapping[str, float]) -> str:
    """The expression with the limits' numbers."""
    return _LIMIT.sub(lambda found: f"{limits[found[1]]:.15g}", expression)


def _check(book: Book, where: str) -> None:
    known = {name for names in book.metrics.values() for name in names}
    recorded = {one.record for one in book.records}
    problems, named = [], set()
    for place, expression in book.expressions.items():
        limits = set(_LIMIT.findall(expression))
        problems += [f"{place}: [[{name}]] is no limit" for name in sorted(limits - set(book.limits))]
        metrics = used(expression)
        problems += [f"{place}: {name} stands under no producer" for name in sorted(metrics - known - recorded)]
        problems += [] if metrics else [f"{place}: names no metric"]
        named |= metrics | limits
    problems += [f"{name} is used nowhere" for name in sorted((known | set(book.limits)) - named)]
    if problems:
        raise MonitoringError("\n".join(f"{where}, {problem}" for problem in problems))
