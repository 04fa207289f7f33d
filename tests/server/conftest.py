"""Tests here start real servers, one at a time.

They need a Python with SGLang and a small model with random weights. SGLANG_TEST_PYTHON names one; else the release of the
stack `cpu` is built under .cache/server, as a host would build it. SGLANG_TEST_MODEL names models, separated by colons; else
one is made there, which has experts. SGLANG_TEST_PORT (31010) is the port.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from sglang_deploy import lab, release

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "server"
MODELS = [path for path in os.environ.get("SGLANG_TEST_MODEL", "").split(":") if path]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "server: starts a real SGLang")


@pytest.fixture(scope="session")
def server_python() -> str:
    """A Python that has SGLang."""
    if given := os.environ.get("SGLANG_TEST_PYTHON"):
        return given
    stack = {"name": "cpu", **yaml.safe_load((ROOT / "catalog" / "stacks.yml").read_text())["cpu"]}
    index = release.Index.from_mapping({**lab.controller_index(), "cache_dir": str(CACHE / "uv")})
    constraints = (ROOT / "catalog" / stack["constraints"]).read_text()
    CACHE.mkdir(parents=True, exist_ok=True)
    built = release.build(
        release.Request.from_stack(stack, index, constraints), CACHE, uv=str(ROOT / ".venv" / "bin" / "uv")
    )
    return str(built.path / "venv" / "bin" / "python")


@pytest.fixture(scope="session", params=MODELS or [""], ids=[Path(path).name for path in MODELS] or ["glm4moe"])
def model(request: pytest.FixtureRequest, server_python: str) -> Path:
    """A small model with random weights."""
    if request.param:
        return Path(request.param)
    target = CACHE / "models" / "glm4moe"
    script = ROOT / "roles" / "model_weights" / "files" / "make_tiny_model.py"
    if not (target / "model.safetensors").exists():
        subprocess.run([server_python, script, "--architecture", "glm4moe", target], check=True)
    return target
