"""The files: rules, scrape configuration, targets and the dashboard."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from .book import Book, Panel, filled
from .targets import Target

WRITTEN = "# Written by Ansible; edits are overwritten.\n"
COLUMNS = 24
SERVERS = "sglang"
"""The job of the servers. Its name is in alerts."""
COLONS = {"source_labels": ["__name__"], "regex": "sglang_(.+)", "target_label": "__name__", "replacement": "sglang:${1}"}
"""The colon of SGLang's names comes back: to whom asks for OpenMetrics, as Prometheus does, prometheus_client writes sglang_
(seen with Prometheus 2.42, prometheus_client 0.26.0 and SGLang 0.5.15.post1).
"""
HEIGHTS = {"stat": 5, "table": 7, "timeseries": 8}


def rules(book: Book) -> str:
    """Recording rules and alerts, as a file for rule_files."""
    recorded = [{"record": one.record, "expr": filled(one.expr, book.limits)} for one in book.records]
    alerts = [
        {
            "alert": one.alert,
            "expr": filled(one.expr, book.limits),
            "for": one.wait,
            "labels": {"severity": one.severity},
            "annotations": {"summary": one.summary, "remedy": one.remedy},
        }
        for one in book.alerts
    ]
    return _yaml({"groups": [{"name": "sglang-records", "rules": recorded}, {"name": "sglang-alerts", "rules": alerts}]})


def jobs(folder: str, names: Sequence[str], ca_file: str = "", seconds: int = 15) -> list[dict[str, Any]]:
    """Scrape jobs that read their targets from files in `folder`, so that a new host needs no reload.

    ca_file: authorities for HTTPS, on the host of Prometheus; empty takes the system's.
    """
    found = []
    for name in names:
        job: dict[str, Any] = {
            "job_name": name,
            "scrape_interval": f"{seconds}s",
            "scrape_timeout": f"{min(seconds, 10)}s",
            "file_sd_configs": [{"files": [f"{folder}/targets/{name}.json"]}],
        }
        if name == SERVERS:
            job |= {"metric_relabel_configs": [COLONS]} | ({"tls_config": {"ca_file": ca_file}} if ca_file else {})
        found.append(job)
    return found


def scrape_file(given: Sequence[Mapping[str, Any]]) -> str:
    """The jobs alone, for a Prometheus that is somebody else's (scrape_config_files, from 2.43 on)."""
    return _yaml({"scrape_configs": list(given)})


def configuration(folder: str, given: Sequence[Mapping[str, Any]], alertmanagers: Sequence[str]) -> str:
    """prometheus.yml of a Prometheus that only watches this inventory. alertmanagers: HOST:PORT each."""
    whole: dict[str, Any] = {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": [f"{folder}/rules.yml"],
        "scrape_configs": list(given),
    }
    if alertmanagers:
        whole["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]}
    return _yaml(whole)


def targets_file(found: Sequence[Target]) -> str:
    """Targets for file_sd_configs."""
    return json.dumps([target.as_dict() for target in found], indent=1) + "\n"


def dashboard(book: Book) -> str:
    """The dashboard as Grafana imports and provisions it; the data source is asked for."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in book.dashboard.rows:
        panels.append({"type": "row", "title": row.title, "collapsed": False, "panels": [], **_place(0, top, COLUMNS, 1)})
        top += 1
        left, height = 0, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, height = 0, top + height, 0
            panels.append({**_panel(panel), **_place(left, top, panel.width, HEIGHTS[panel.kind])})
            left, height = left + panel.width, max(height, HEIGHTS[panel.kind])
        top += height
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    whole = {
        "title": book.dashboard.title,
        "uid": book.dashboard.uid,
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }
    return json.dumps(whole, indent=1) + "\n"


def _panel(panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": source,
                "expr": expr,
                "legendFormat": legend or "__auto",
                **({"format": "table", "instant": True} if panel.kind == "table" else {}),
            }
            for number, (legend, expr) in enumerate(panel.exprs.items())
        ],
    }


def _place(left: int, top: int, width: int, height: int) -> dict[str, Any]:
    return {"gridPos": {"x": left, "y": top, "w": width, "h": height}}


def _yaml(value: Any) -> str:
    return WRITTEN + yaml.safe_dump(value, sort_keys=False, width=1000, allow_unicode=True)
