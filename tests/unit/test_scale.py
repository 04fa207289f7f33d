"""The bench of many hosts judges growth as it says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("scale", Path(__file__).resolve().parents[2] / "bench" / "scale.py")
assert spec is not None and spec.loader is not None
scale = importlib.util.module_from_spec(spec)
sys.modules["scale"] = scale
spec.loader.exec_module(scale)


def costs(*cpu: float, mb: float = 60.0) -> list[scale.Cost]:
    return [scale.Cost("plan", 10**power, 1.0, seconds, mb) for power, seconds in enumerate(cpu)]


@pytest.mark.parametrize(
    ("measured", "problems"),
    [
        (costs(2.0, 5.0, 35.0, 335.0), 0),  # a third of a second each
        (costs(2.0, 5.0, 35.0, 3000.0), 1),
        (costs(2.0, 2.1, 2.2, 2.3), 0),
        (costs(2.0, 2.0, 2.5, 8.0), 0),  # less than a hundredth each
        (costs(2.0), 0),
    ],
)
def test_growth_is_judged_by_what_each_further_host_costs(measured: list[scale.Cost], problems: int) -> None:
    assert len(scale.faster(measured)) == problems
