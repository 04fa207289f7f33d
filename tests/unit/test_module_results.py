"""What Ansible keeps to itself of a module's result, no module returns: it never reaches the play or the action."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

MODULES = sorted((Path(__file__).resolve().parents[2] / "plugins" / "modules").glob("sglang_*.py"))
# Taken out of the result and shown, or read as something of Ansible's own.
RESERVED = {"warnings", "deprecations", "exception", "invocation", "ansible_facts", "add_host", "add_group", "results"}


def names_in(tree: ast.AST) -> set[str]:
    """Keywords of calls that end the module, and the keys of every dictionary that it builds, which may be a result."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("exit_json", "fail_json")
        ):
            found |= {keyword.arg for keyword in node.keywords if keyword.arg}
        if isinstance(node, ast.Dict):
            found |= {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_module_returns_what_ansible_takes_away(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert names_in(ast.parse(text)) & RESERVED == set()
    documented = yaml.safe_load(text.split('RETURN = r"""')[1].split('"""')[0]) or {}
    assert set(documented) & RESERVED == set()


def test_a_result_with_such_a_name_would_be_seen() -> None:
    assert names_in(ast.parse("module.exit_json(changed=False, warnings=[])")) & RESERVED == {"warnings"}
    assert names_in(ast.parse("result = {'exception': 1, **more}")) & RESERVED == {"exception"}
