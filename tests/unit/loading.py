"""Plugins as modules: Ansible loads them by path, and so do tests."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

import pytest
import sglang_deploy
from ansible.module_utils import basic

ROOT = Path(__file__).resolve().parents[2]


def plugin(name: str) -> ModuleType:
    """The action `name`, loaded anew."""
    return _load("action", name)


def answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, given: dict[str, Any], **how: Any
) -> Any:
    """What the module `name` answers in this process; `how` are Ansible's own arguments, such as check_mode."""
    # Each part under Ansible's name, too: a second copy of one would not be what a test has patched.
    for part in ["sglang_deploy", *(entry.name for entry in walk_packages(sglang_deploy.__path__, "sglang_deploy."))]:
        monkeypatch.setitem(sys.modules, f"ansible.module_utils.{part}", importlib.import_module(part))
    arguments = {**given, **{f"_ansible_{key}": value for key, value in how.items()}}
    monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode())
    monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
    with pytest.raises(SystemExit):
        _load("modules", name).main()
    return json.loads(capsys.readouterr().out)


def _load(kind: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{kind}_{name}", ROOT / "plugins" / kind / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the names in annotations
    spec.loader.exec_module(module)
    return module
