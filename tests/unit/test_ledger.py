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
    spec = {"hash": name * 64, "release": f"cpu-{name}", "profile": "cpu-lab", "url": "http://127.0.0.1:8000"}
    spec |= {"command": ["python"], "argv": [], "environment": {}}
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


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe\x00", b'{"deployment": {"spec": {}}}', b'{"deployment": null}']
)
def test_a_damaged_last_good_is_set_aside_and_never_trusted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "last_good.json").write_bytes(content)
    found = ledger.last_good(tmp_path)
    assert found.deployment is None
    assert Path(found.damaged).read_bytes() == content
    assert ledger.last_good(tmp_path) == ledger.LastGood(deployment=None)


def test_binary_rubbish_in_the_ledger_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(b'\x00\xff\n"text"\n{"spec": "x"}\n{"spec": ["x"]}\n')
    assert ledger.entries(tmp_path) == ([{"spec": "x"}], 3)


def test_a_full_disk_names_the_file_and_keeps_the_last_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.record(tmp_path, "deploy", deployment("a"), {"ok": True}, by="", now=NOW)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "verdicts/x.json"))

    monkeypatch.setattr(ledger, "replace", full)
    with pytest.raises(ledger.LedgerError, match=r"x\.json: No space left on device"):
        ledger.record(tmp_path, "deploy", deployment("b"), {"ok": True}, by="", now=NOW)
    assert ledger.last_good(tmp_path).deployment == deployment("a")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_disk_that_fills_up_while_the_line_is_written(tmp_path: Path) -> None:
    ledger.record(tmp_path, "deploy", deployment("a"), {"ok": True}, by="", now=NOW)
    (tmp_path / "ledger.jsonl").unlink()
    (tmp_path / "ledger.jsonl").symlink_to("/dev/full")
    with pytest.raises(ledger.LedgerError, match=r"cannot write .*: No space left on device"):
        ledger.record(tmp_path, "deploy", deployment("b"), {"ok": True}, by="", now=NOW)
    assert ledger.last_good(tmp_path).deployment == deployment("a")


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A state directory with a, then b good, then c refused."""
    for name, ok in (("a", True), ("b", True), ("c", False)):
        ledger.record(tmp_path, "deploy", deployment(name), {"ok": ok, "report": [f"about {name}"]}, by="me", now=NOW)
    return tmp_path


def test_going_back_means_the_one_that_was_good_before(three: Path) -> None:
    assert ledger.find(three) == deployment("a")
    ledger.record(three, "rollback", deployment("a"), {"ok": True}, by="", now=NOW)
    assert ledger.find(three) == deployment("b")


def test_a_trial_is_nothing_to_go_back_to(tmp_path: Path) -> None:
    ledger.record(tmp_path, "deploy", deployment("a"), {"ok": True}, by="", now=NOW)
    ledger.record(tmp_path, "trial", deployment("b"), {"ok": True}, by="", now=NOW)
    with pytest.raises(ledger.UnknownDeployment, match="no other deployment was good before"):
        ledger.find(tmp_path)


def test_the_beginning_of_a_hash_is_enough(three: Path) -> None:
    assert ledger.find(three, "BBB") == deployment("b")
    assert ledger.find(three, "c" * 64) == deployment("c")


def test_an_unknown_hash_lists_the_known_ones(three: Path) -> None:
    with pytest.raises(ledger.UnknownDeployment) as error:
        ledger.find(three, "f00")
    assert all(text in str(error.value) for text in ("'f00'", "a" * 12, "b" * 12, "c" * 12, "failed"))


def test_an_ambiguous_hash_is_refused(tmp_path: Path) -> None:
    for last in "12":
        made = deployment()
        made["spec"] = {**made["spec"], "hash": "a" * 63 + last}  # type: ignore[dict-item]
        ledger.record(tmp_path, "deploy", made, {"ok": True}, by="", now=NOW)
    with pytest.raises(ledger.UnknownDeployment, match="beginning of 2 deployments"):
        ledger.find(tmp_path, "aaa")


def test_nothing_on_record_is_said(tmp_path: Path) -> None:
    with pytest.raises(ledger.UnknownDeployment, match="none that could be run again"):
        ledger.find(tmp_path, "a")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"spec": {"hash": "x"}, "launch": "", "environment": ""}'])
def test_a_damaged_deployment_is_not_offered(three: Path, content: bytes) -> None:
    (three / "deployments" / f"{'a' * 64}.json").write_bytes(content)
    assert set(ledger.deployments(three)) == {"b" * 64, "c" * 64}


def test_deployments_go_with_their_releases_and_history_stays(three: Path) -> None:
    assert ledger.forget(three, ["cpu-a"]) == ["a" * 64]
    assert len(ledger.entries(three)[0]) == 3
    with pytest.raises(ledger.UnknownDeployment):
        ledger.find(three, "aaa")


def test_what_may_hold_secrets_is_for_root_alone(three: Path) -> None:
    for path in (three / "last_good.json", *(three / "deployments").iterdir()):
        assert path.stat().st_mode & 0o7777 == 0o600


def test_the_table_has_a_line_for_each_entry(three: Path) -> None:
    lines = ledger.table(ledger.entries(three)[0])
    assert [line.split()[2] for line in lines] == ["result", "passed", "passed", "failed"]
    assert lines[3].split()[3] == "c" * ledger.HASH_CHARACTERS


def test_the_last_failure_is_told_from_its_verdict(three: Path) -> None:
    told = ledger.last_failure(three)
    assert "was not accepted" in told[0]
    assert told[1] == "about c"


@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_a_damaged_verdict_is_said_and_not_trusted(three: Path, content: str) -> None:
    line = ledger.entries(three)[0][-1]
    (three / str(line["verdict"])).write_text(content)
    assert ledger.verdict(three, line) == {}
    assert "missing or damaged" in ledger.last_failure(three)[0]


def test_a_verdict_lies_beside_the_ledger(three: Path) -> None:
    (three.parent / "evil.json").write_text('{"ok": true}')
    assert ledger.verdict(three, {"verdict": "verdicts/../../evil.json"}) == {}
    assert ledger.verdict(three, {"verdict": "/etc/hostname"}) == {}
