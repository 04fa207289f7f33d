"""deploy-glm5.yml where something in it is left out; on this machine, where it ends before anything is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
pytestmark = pytest.mark.skipif(not PLAYBOOK.exists(), reason="ansible-playbook is not beside this Python")


def test_without_preparation_a_release_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    places = {f"sglang_{name}": str(tmp_path / name) for name in ("root", "config_root", "state_root", "cache_root")}
    own = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "sglang_stack": "cpu",
        "sglang_profile": "cpu-lab-glm4moe",
        "sglang_model": str(tmp_path / "model"),
        "sglang_model_source": "local",
        "sglang_settings": {},
        "sglang_environment": {},
    }
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(json.dumps({"all": {"children": {"glm5": {"hosts": {"here": own | places}}}}}), encoding="utf-8")
    done = subprocess.run(
        [str(PLAYBOOK), "--inventory", str(inventory), "deploy-glm5.yml", "--skip-tags", "prepare"],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert "The release of the stack cpu is not built on this host, and --skip-tags prepare leaves the building out" in said
    assert "undefined" not in said and "Traceback" not in said
    assert not any(Path(place).exists() for place in places.values())
