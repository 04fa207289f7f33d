"""playbooks/diagnose.yml on saved and pasted logs, as a user calls it: no inventory, no host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
pytestmark = pytest.mark.skipif(not PLAYBOOK.exists(), reason="ansible-playbook is not beside this Python")


def diagnose(*extra: str) -> tuple[int, str]:
    arguments = [word for pair in extra for word in ("--extra-vars", pair)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    command = [str(PLAYBOOK), "--inventory", "localhost,", "playbooks/diagnose.yml", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_saved_log_names_the_cause_its_line_and_the_change() -> None:
    status, said = diagnose("sglang_log=tests/data/logs/nan-first-sampled-token.log")
    assert status == 0, said
    assert "1. nan-at-sampling" in said
    assert "Seen: line 39:" in said
    assert "sglang_backends:\n" in said


def test_a_log_with_rubbish_in_it_is_read_and_keys_are_not_shown(tmp_path: Path) -> None:
    log = tmp_path / "rubbish.log"
    log.write_bytes(b"\0\xff\xfe api_key='planted-secret-1'\nRuntimeError: CUDA out of memory, api_key='planted-secret-1'\n")
    status, said = diagnose(f"sglang_log={log}")
    assert status == 0, said
    assert "cuda-out-of-memory" in said
    assert "planted-secret-1" not in said


def test_pasted_text_that_nobody_knows_shows_what_to_read() -> None:
    status, said = diagnose('{"sglang_log_text": "one\\nOddError: nobody knows this\\n"}')
    assert status == 0, said
    assert "No known cause was recognised." in said
    assert "2: OddError: nobody knows this" in said


def test_a_log_that_is_not_there_is_one_clear_error() -> None:
    status, said = diagnose("sglang_log=/nowhere/x.log")
    assert status != 0
    assert "/nowhere/x.log: cannot be read: No such file or directory" in said
    assert "Traceback" not in said
