"""State files that hold anything at all: never a traceback, never a deployment that is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang_deploy import instance, ledger, secrets, standing, status

FIELDS = [
    "deployment",
    "spec",
    "hash",
    "launch",
    "environment",
    "command",
    "argv",
    "url",
    "profile",
    "time",
    "verdict",
    "ok",
]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
    max_leaves=12,
)
CONTENT = st.one_of(
    ANY.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=100),
)
RUNNING = instance.Running(True, "active (running)", 7, 0, "i", "a" * 64, ("python",))
quick = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(CONTENT, CONTENT, CONTENT)
def test_a_ledger_of_anything(tmp_path_factory: pytest.TempPathFactory, lines: bytes, good: bytes, kept: bytes) -> None:
    folder = tmp_path_factory.mktemp("state")
    (folder / "deployments").mkdir()
    (folder / "ledger.jsonl").write_bytes(lines)
    (folder / "last_good.json").write_bytes(good)
    (folder / "deployments" / f"{'a' * 64}.json").write_bytes(kept)
    found, unreadable = ledger.entries(folder)
    assert unreadable >= 0 and all(isinstance(entry, dict) for entry in found)
    assert ledger.table(found)
    assert isinstance(ledger.last_failure(folder), list)
    last = ledger.last_good(folder)
    assert last.deployment is None or instance.whole(last.deployment["spec"])
    for deployment in ledger.deployments(folder).values():
        runnable(deployment)
    try:
        runnable(ledger.find(folder))
    except ledger.UnknownDeployment as error:
        assert "\n" in str(error) or str(error)
    ledger.forget(folder, ["cpu-x"])
    assert ledger.record(folder, "deploy", DEPLOYMENT, {"ok": True}, "ann")["ok"]
    assert ledger.last_good(folder).deployment == DEPLOYMENT, "the next good deployment is on record, whatever was there"


DEPLOYMENT: dict[str, Any] = {
    "spec": {
        "hash": "b" * 64,
        "url": "http://127.0.0.1:1",
        "release": "cpu-x",
        "profile": "p",
        "command": ["/opt/x/venv/bin/python"],
        "argv": [],
        "environment": {},
    },
    "launch": "",
    "environment": "",
}


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000])
def test_nested_without_end(tmp_path: Path, content: str) -> None:
    (tmp_path / "deployments").mkdir()
    for name in ("ledger.jsonl", "last_good.json", f"deployments/{'a' * 64}.json", "spec.json", "launch", "environment"):
        (tmp_path / name).write_text(content)
    assert ledger.entries(tmp_path) == ([], 1)
    assert ledger.deployments(tmp_path) == {}
    assert ledger.last_good(tmp_path).deployment is None
    assert instance.read(tmp_path) == {}


def runnable(deployment: dict[str, Any]) -> None:
    """What the plays do with a deployment from a file."""
    assert instance.release_problem(deployment)
    assert set(instance.context(deployment)) == {"versions", "settings", "environment"}
    assert isinstance(instance.runs(RUNNING, deployment), bool)


@quick
@given(CONTENT, CONTENT)
def test_an_instance_of_anything(tmp_path_factory: pytest.TempPathFactory, spec: bytes, launch: bytes) -> None:
    folder, state = tmp_path_factory.mktemp("etc"), tmp_path_factory.mktemp("state")
    (folder / "spec.json").write_bytes(spec)
    (folder / "launch").write_bytes(launch)
    (folder / "environment").write_bytes(launch)
    found = instance.read(folder)
    if found:
        runnable(found)
    assert status.lines("glm5", RUNNING, found, [])
    assert standing.edited(folder, state, ledger.LastGood(DEPLOYMENT)) != []
    assert standing.edited(folder, state, ledger.LastGood(None)) == []


@quick
@given(st.binary(max_size=300))
def test_keys_of_anything(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("etc")
    (folder / secrets.FILE).write_bytes(content)
    found = secrets.read(folder)
    assert found is None or isinstance(found, secrets.Secrets)


@quick
@given(CONTENT)
def test_a_verdict_of_anything(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("state")
    line = ledger.record(folder, "deploy", DEPLOYMENT, {"ok": False}, "ann")
    (folder / str(line["verdict"])).write_bytes(content)
    assert ledger.last_failure(folder)[0].startswith(line["time"])


@pytest.mark.parametrize("name", ["../../etc/passwd", "verdicts/../../x", "/etc/passwd", "verdicts/\0", "", None, 5])
def test_a_line_that_names_another_file_is_not_followed(tmp_path: Path, name: object) -> None:
    assert ledger.verdict(tmp_path, {"verdict": name}) == {}
