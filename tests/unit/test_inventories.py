"""What an inventory sets for a group is not lost to the files of group_vars, which win over it without a word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
INVENTORIES = sorted(
    path
    for folder in (ROOT / "inventory", ROOT / "molecule")
    for path in folder.rglob("*.yml")
    if path.parent.name == "inventory" or path.name == "hosts.yml"
)
# Ansible lays group_vars over the variables of all groups in the inventory's own file, however deep in the tree those are.
WINS = {path.stem: set(yaml.safe_load(path.read_text(encoding="utf-8"))) for path in (ROOT / "group_vars").glob("*.yml")}


def groups_in(tree: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, group in tree.items():
        yield name, group or {}
        yield from groups_in((group or {}).get("children") or {})


def lost(tree: dict[str, Any]) -> set[str]:
    groups = dict(groups_in(tree))
    wins = set().union(*(names for name, names in WINS.items() if name in {"all", *groups}))
    return {f"{name}.{key}" for name, group in groups.items() for key in group.get("vars", {}) if key in wins}


@pytest.mark.parametrize("path", INVENTORIES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_variable_of_a_group_is_lost(path: Path) -> None:
    assert lost(yaml.safe_load(path.read_text(encoding="utf-8"))) == set()


def test_no_variable_of_a_documented_inventory_is_lost() -> None:
    text = (ROOT / "docs" / "several-hosts.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^    .*\n)+", text, flags=re.MULTILINE)
    trees = [yaml.safe_load(dedent(block)) for block in blocks if "    glm5:\n" in block]
    assert len(trees) == 3
    assert [lost(tree) for tree in trees] == [set()] * 3
