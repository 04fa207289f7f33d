"""Action plugins as modules: Ansible loads them by path, and so do tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def plugin(name: str) -> ModuleType:
    """The action `name`, loaded anew."""
    spec = importlib.util.spec_from_file_location(f"action_{name}", ROOT / "plugins" / "action" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the names in annotations
    spec.loader.exec_module(module)
    return module
