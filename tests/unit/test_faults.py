"""The matrix of faults is what it says: distinct rows that mean something, and a table that hides nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from faults import host, report, run
from faults.rows import Fault, load, parse

GOOD = host.Seen(True, "i1", True, "a" * 64, "a" * 64, "a" * 64, False, [], 2)


def seen(**change: Any) -> host.Seen:
    return host.Seen(**{**GOOD.__dict__, **change})


def test_there_are_forty_distinct_faults() -> None:
    titles = [fault.title for fault in load()]
    assert len(titles) == len(set(titles)) >= 40


def cut_points() -> list[str]:
    """Where deployments are cut off, as far as it is a task: `role : its name`, or the beginning of it."""
    points = yaml.safe_load(
        (run.host.ROOT / "molecule" / "interrupted" / "files" / "points.yml").read_text(encoding="utf-8")
    )
    words = {fault.at for fault in load()} | {point["at"] for point in points}
    return sorted(one for one in words if " : " in one)


@pytest.mark.parametrize("words", cut_points())
def test_where_a_deployment_is_cut_off_is_a_task_of_the_role(words: str) -> None:
    role, _, beginning = words.partition(" : ")
    tasks = "\n".join(path.read_text(encoding="utf-8") for path in (run.host.ROOT / "roles" / role / "tasks").glob("*.yml"))
    assert f"- name: {beginning}" in tasks


@pytest.mark.parametrize(
    "row",
    [
        {"name": "x", "phase": "y", "serve": "same"},
        {"name": "x", "phase": "y", "serves": "maybe"},
        {"name": "x", "phase": "y", "ends": "well"},
        {"name": "x", "phase": "y", "run": "reboot"},
        {"name": "x", "phase": "y", "at": "words"},
        {"name": "x", "phase": "y", "do": "kill"},
    ],
)
def test_a_row_that_means_nothing_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="x"):
        parse(row)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"active": False}, "not active"),
        ({"files": "b" * 64}, "differ"),
        ({"last_good": ""}, "differ"),
        ({"candidate": True}, "candidate"),
        ({"enabled": False}, "boot"),
        ({"building": ["x"]}, "half-built"),
    ],
)
def test_what_is_not_settled_is_named(change: dict[str, Any], problem: str) -> None:
    assert GOOD.settled() == []
    assert problem in seen(**change).settled()[0]


@pytest.mark.parametrize(
    ("fault", "ran", "after", "problem"),
    [
        ({}, run.Ran(2, "", False), {}, "ended refused"),
        ({"ends": "refused"}, run.Ran(0, "", False), {}, "ended good"),
        ({"says": ["full"]}, run.Ran(0, "empty", False), {}, "does not say 'full'"),
        ({}, run.Ran(0, "Traceback (most recent call last)", False), {}, "traceback"),
        ({"serves": "same"}, run.Ran(0, "", False), {"invocation": "i2"}, "restarted"),
        ({"serves": "good"}, run.Ran(0, "", False), {"process": "b" * 64}, "serves bbb"),
        ({"serves": "good"}, run.Ran(0, "", False), {"active": False}, "serves"),
        ({"serves": "asked"}, run.Ran(0, "", False), {}, "serves aaa"),
        ({"serves": "stopped"}, run.Ran(0, "", False), {}, "the unit runs"),
        ({"at": "x", "do": "kill"}, run.Ran(0, "", False), {}, "never had"),
        ({"at": "x", "second": {}}, run.Ran(0, "", True, (0, "")), {}, "not refused"),
    ],
)
def test_each_thing_that_goes_wrong_is_seen(
    fault: dict[str, Any], ran: run.Ran, after: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "decodes", lambda: "")
    found = run.judge(parse({"name": "n", "phase": "p", **fault}), ran, GOOD.process, GOOD, seen(**after))
    assert any(problem in one for one in found), found


def test_a_good_run_has_no_problem_unless_it_answers_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = parse({"name": "n", "phase": "p", "serves": "same"})
    monkeypatch.setattr(host, "decodes", lambda: "")
    assert run.judge(fault, run.Ran(0, "", False), GOOD.process, GOOD, GOOD) == []
    monkeypatch.setattr(host, "decodes", lambda: "log-probabilities [nan]")
    assert run.judge(fault, run.Ran(0, "", False), GOOD.process, GOOD, GOOD) != []


def test_the_table_tells_what_failed_and_what_was_never_tried(tmp_path: Path) -> None:
    faults = [Fault("one", "p"), Fault("two", "p"), Fault("three", "p")]
    base = {"ended": "succeeded", "served": "x", "seconds": 3, "date": "2026-11-30", "versions": {"SGLang": "1"}}
    results = {
        "p: one": {**base, "problems": []},
        "p: two": {**base, "problems": ["a | candidate is left"]},
        "p: gone": base,
    }
    kept = tmp_path / "results.json"
    report.keep(results, faults, kept)
    document = tmp_path / "doc.md"
    document.write_text(f"above\n{report.START}\nold\n{report.END}\nbelow\n")
    report.write(faults, report.read(kept), document)
    said = document.read_text()
    assert said.startswith("above\n") and said.endswith("below\n") and "old" not in said
    assert "3 faults are described, 2 were tried, 1 ended well." in said
    assert "| p | one | succeeded | x | as it should | 3 | 2026-11-30 |" in said
    assert "**a / candidate is left**" in said
    assert "Not yet tried: p: three." in said
    report.write(faults, report.read(kept), document)
    assert document.read_text() == said
