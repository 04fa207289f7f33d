"""Tests here start real servers, one at a time. They need a Python with SGLang and a small model."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "server: starts a real SGLang (SGLANG_TEST_PYTHON, SGLANG_TEST_MODEL)")
