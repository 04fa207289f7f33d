"""The task sglang_release as plays use it: in the background, in sight, once; and what it says where it cannot build."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sglang_deploy import release

ROOT = Path(__file__).resolve().parents[2]
STACK = {
    "name": "small",
    "sglang": "0.5.9",
    "source": {"kind": "index", "package": "sglang", "version": "0.5.9"},
    "python": ">=3.10",
    "torch": "2.9.1",
    "transformers": "5.2.0",
    "overrides": ["transformers==5.2.0"],
}
pytestmark = pytest.mark.slow  # a dozen of Ansible's own starts

PLAY = """\
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - sglang_release: "{{ arguments }}"
      register: made
    - ansible.builtin.copy:
        content: "{{ made | to_json }}"
        dest: "{{ out }}"
        mode: "0644"
"""


@pytest.fixture
def task(index: release.Index, tmp_path: Path, uv: str) -> Any:
    """``task(stack=...)`` runs the task in a play; its result, and what was on screen."""

    def run(*options: str, **changes: Any) -> tuple[dict[str, Any], str]:
        play, out = tmp_path / "play.yml", tmp_path / "out.json"
        play.write_text(PLAY, encoding="utf-8")
        out.unlink(missing_ok=True)
        given = {"find_links": list(index.find_links), "offline": True, "cache_dir": index.cache_dir}
        arguments = {"root": str(tmp_path / "root"), "stack": STACK, "index": given, "uv": uv, "python": sys.executable}
        variables = json.dumps({"arguments": arguments | changes, "out": str(out)})
        environment = os.environ | {
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_ASYNC_DIR": str(tmp_path / ".ansible_async"),
        }
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-e", variables]
        command += ["-e", f"ansible_python_interpreter={sys.executable}"]
        done = subprocess.run(
            [*command, *options, str(play)], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        said = done.stdout + done.stderr
        return json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}, said

    return run


def test_a_build_is_in_sight_and_done_once(task: Any, tmp_path: Path) -> None:
    made, said = task()
    assert made.get("changed"), said
    assert made["receipt"]["versions"]["transformers"] == "5.2.0"
    assert {option["dest"] for option in made["options"]["options"]} >= {"model_path", "tp_size"}
    assert "localhost  0:0" in said and "  installing 4 packages" in said
    assert not list((tmp_path / "root").glob(".progress-*")) and not list((tmp_path / ".ansible_async").iterdir())
    again, said = task()
    assert not again["changed"] and again["receipt"] == made["receipt"] and again["options"] == made["options"]
    assert "installing" not in said


def test_what_stands_in_the_way_is_a_message(task: Any, tmp_path: Path) -> None:
    _, said = task(stack=STACK | {"torch": "2.10"})
    assert "The built environment is not the stack: torch is 2.9.1+cpu, the stack says 2.10" in said
    assert "Traceback" not in said and not list((tmp_path / "root" / "releases").iterdir())


def test_looking_builds_nothing_and_fails_for_nothing(task: Any, tmp_path: Path) -> None:
    looked, _ = task(build=False)
    assert not looked["changed"] and looked["id"].startswith("small-") and looked["receipt"] == looked["options"] == {}
    problem, _ = task(build=False, stack=STACK | {"python": ">=4"})
    assert "The stack needs Python >=4" in problem["problem"] and "failed" not in {
        key for key in problem if problem[key] is True
    }
    nowhere, _ = task(build=False, source="wheelhouse", wheelhouse=str(tmp_path / "none"))
    assert "There is no wheelhouse" in nowhere["problem"]
    unset, _ = task(build=False, source="wheelhouse")
    assert "set sglang_wheelhouse" in unset["problem"]
    assert not (tmp_path / "root").exists()


def test_check_mode_only_says(task: Any, tmp_path: Path) -> None:
    _, said = task("--check")
    assert "changed=" in said and "failed=0" in said
    assert not (tmp_path / "root").exists()


def test_what_the_task_sets_itself_is_refused(task: Any) -> None:
    _, said = task(offset=3)
    assert "sets offset by itself" in said
