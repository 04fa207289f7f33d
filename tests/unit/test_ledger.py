"""The ledger survives what happens to files: cut-off lines, damage, a full disk."""

from __future__ import annotations

import errno
import json
from datetime import datetime, timezone
from pathlib import Path

import pytest
from sglang_deploy import ledger

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=timezone.utc)


def deployment(name: str = "a") -> dict[str, object]:
    spec = {"hash": name * 64, "release": f"cpu-{name}", "profile": "cpu-lab"}
    return {"spec": spec, "launch": "#!/bin/sh\n", "environment": ""}


def test_a_good_deployment_becomes_the_last_good_one(tmp_path: Path) -> None:
    line = ledger.record(tmp_path, "deploy", deployment(), {"ok": True}, by="me", now=NOW)
    assert line["time"] == "2026-11-30T09:00:00Z"
    assert ledger.last_good(tmp_path).deployment == deployment()
    assert ledger.entries(tmp_path) == ([line], 0)
    assert json.loads((tmp_path / str(line["verdict"])).read_text()) == {"ok": True}


@pytest.mark.parametrize(("kind", "ok"), [("deploy", False), ("trial", True)])
def test_a_failed_one_and_a_trial_do_not(tmp_path: Path, kind: str, ok: bool) -> None:
    ledger.record(tmp_path, "deploy", deployment("a"), {"ok": True}, by="", now=NOW)
    ledger.record(tmp_path, kind, deployment("b"), {"ok": ok}, by="", now=NOW)
    assert ledger.last_good(tmp_path).deployment == deployment("a")
    assert [entry["ok"] for entry in ledger.entries(tmp_path)[0]] == [True, ok]


def test_a_line_that_was_cut_off_is_counted_and_the_next_is_whole(tmp_path: Path) -> None:
    ledger.record(tmp_path, "deploy", deployment("a"), {"ok": True}, by="", now=NOW)
    with (tmp_path / "ledger.jsonl").open("a") as stream:
        stream.write('{"time": "2026-11-30T09:0')
    ledger.record(tmp_path, "deploy", deployment("b"), {"ok": True}, by="", now=NOW)
    entries, unreadable = ledger.entries(tmp_path)
    assert unreadable == 1
    assert [entry["release"] for entry in entries] == ["cpu-a", "cpu-b"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe\x00", b'{"deployment": {"spec": {}}}', b'{"deployment": null}'])
def test_a_damaged_last_good_is_set_aside_and_never_trusted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "last_good.json").write_bytes(content)
    found = ledger.last_good(tmp_path)
    assert found.deployment is None
    assert Path(found.damaged).read_bytes() == content
    assert ledger.last_good(tmp_path) == ledger.LastGood(deployment=None)


def test_binary_rubbish_in_the_ledger_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(b'\x00\xff\n"text"\n{"time": "x"}\n')
    assert ledger.entries(tmp_path) == ([{"time": "x"}], 2)


def test_a_full_disk_names_the_file_and_keeps_the_last_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.record(tmp_path, "deploy", deployment("a"), {"ok": True}, by="", now=NOW)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "verdicts/x.json"))

    monkeypatch.setattr(ledger, "replace", full)
    with pytest.raises(ledger.LedgerError, match="x.json: No space left on device"):
        ledger.record(tmp_path, "deploy", deployment("b"), {"ok": True}, by="", now=NOW)
    assert ledger.last_good(tmp_path).deployment == deployment("a")
