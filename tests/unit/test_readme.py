"""What the README tells people to type exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))


def test_every_make_target_exists() -> None:
    named = set(re.findall(r"\bmake ([a-z]+)\b", README))
    assert {"demo", "test"} <= named
    assert named <= TARGETS


def test_every_play_is_named_and_exists() -> None:
    named = set(re.findall(r"`((?:playbooks/)?[a-z0-9_-]+\.yml)`", README))
    plays = {f"playbooks/{path.name}" for path in (ROOT / "playbooks").glob("*.yml")} | {"deploy-glm5.yml"}
    internal = {"playbooks/deploy.yml", "playbooks/inventory.yml", "playbooks/router_inventory.yml"}  # imported by others
    assert plays - internal <= named
    assert all((ROOT / name).is_file() for name in named)


def tasks_in(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        yield entry
        for name in ("tasks", "block", "rescue", "always"):
            yield from tasks_in(entry.get(name, []))


def test_every_tag_of_the_readme_is_one_of_a_deployments() -> None:
    tasks = tasks_in(yaml.safe_load((ROOT / "playbooks" / "deploy.yml").read_text(encoding="utf-8")))
    tags = {tag for task in tasks for tag in task.get("tags", [])}
    (told,) = re.findall(r"`--tags .*?\n\n", README, flags=re.DOTALL)
    named = {word.removeprefix("--tags ") for word in re.findall(r"`([^`]+)`", told)} - {"--skip-tags"}
    assert named == tags - {"always"}


@pytest.mark.parametrize("folder", ["playbooks", "roles"])
def test_a_tag_of_an_include_reaches_what_it_includes(folder: str) -> None:
    """Without `apply`, --tags runs the include and silently skips everything in it."""
    for path in (ROOT / folder).rglob("*.yml"):
        if folder == "roles" and path.parent.name != "tasks":
            continue
        for task in tasks_in(yaml.safe_load(path.read_text(encoding="utf-8"))):
            included = task.get("ansible.builtin.include_role", task.get("ansible.builtin.include_tasks"))
            if included is not None and "tags" in task:
                assert isinstance(included, dict) and included["apply"]["tags"] == task["tags"], (path, task["name"])


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)", README))))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_ci_runs_the_readmes_test_command() -> None:
    assert "make test" in README
    assert re.search(r"^exec make test$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), flags=re.MULTILINE)
