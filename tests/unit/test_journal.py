"""Which start's journal is read: stand-ins of journalctl give out what a real one printed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from sglang_deploy import journal

UNIT = "sglang@glm5.service"


def entries(*rows: dict[str, str]) -> str:
    return "".join(json.dumps({"_BOOT_ID": "d8fd", **row}) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("printed", "start"),
    [
        ("", ""),
        # a unit that ended well: systemd's word about it, its own line, then those of the start before
        (
            entries(
                {"INVOCATION_ID": "b", "MESSAGE": "Deactivated successfully."},
                {"_SYSTEMD_INVOCATION_ID": "b", "_SYSTEMD_UNIT": UNIT},
                {"INVOCATION_ID": "a", "MESSAGE": "Deactivated successfully."},
            ),
            "b",
        ),
        # what dumped its core wrote about it, from a start of its own
        (
            entries(
                {"_SYSTEMD_INVOCATION_ID": "dump", "_SYSTEMD_UNIT": "systemd-coredump@0.service"},
                {"_SYSTEMD_INVOCATION_ID": "a", "_SYSTEMD_UNIT": UNIT},
            ),
            "a",
        ),
    ],
)
def test_the_last_start_is_found_when_systemd_has_forgotten_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, start: str
) -> None:
    (tmp_path / "printed").write_text(printed)
    program = tmp_path / "journalctl"
    program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\ncat {tmp_path}/printed\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert journal.last_start(UNIT) == start
    assert "--reverse" in (tmp_path / "asked").read_text()


def test_without_a_journal_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(journal.JournalError, match="cannot be read"):
        journal.last_start(UNIT)
