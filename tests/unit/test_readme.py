"""What the README tells people to type exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
    internal = {"playbooks/deploy.yml", "playbooks/inventory.yml"}  # imported by others
    assert plays - internal <= named
    assert all((ROOT / name).is_file() for name in named)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)", README))))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_ci_runs_the_readmes_test_command() -> None:
    assert "make test" in README
    assert re.search(r"^exec make test$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), flags=re.MULTILINE)
