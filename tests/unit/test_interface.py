"""The interface says the same everywhere: defaults, argument specs and the pages made from them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())


def specs(role: str) -> dict[str, dict[str, object]]:
    text = (ROOT / "roles" / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["argument_specs"]


def defaults(role: str) -> dict[str, object]:
    return yaml.safe_load((ROOT / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("role", ROLES)
def test_defaults_and_argument_specs_have_the_same_keys_and_values(role: str) -> None:
    options = specs(role)["main"]["options"]
    assert list(options) == list(defaults(role))
    for name, value in defaults(role).items():
        if not (isinstance(value, str) and "{{" in value):
            assert options[name].get("default") == value, name


@pytest.mark.parametrize("role", ROLES)
def test_every_option_is_described(role: str) -> None:
    for entry, spec in specs(role).items():
        for name, option in spec["options"].items():
            assert option["description"], f"{role} {entry} {name}"


def test_no_variable_belongs_to_two_roles() -> None:
    seen: dict[str, str] = {}
    for role in ROLES:
        for name in defaults(role):
            assert name not in seen, f"{name}: {role} and {seen[name]}"
            seen[name] = role


def test_the_reference_pages_are_up_to_date() -> None:
    checked = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_group_vars_name_only_known_variables() -> None:
    known = {name for role in ROLES for name in defaults(role)}
    for path in (ROOT / "group_vars").glob("*.yml"):
        for name in yaml.safe_load(path.read_text(encoding="utf-8")):
            assert name in known or name.startswith("ansible_"), f"{path.name}: {name}"
