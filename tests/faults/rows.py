"""The faults that are tried, as faults.yml describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("faults.yml")
RUNS = {
    "deploy": ("deploy-glm5.yml",),
    "check": ("deploy-glm5.yml", "--check", "--diff"),
    "rollback": ("playbooks/rollback.yml",),
    "status": ("playbooks/status.yml",),
    "plan": ("playbooks/plan.yml",),
}
ENDS = ("good", "refused", "cut", "any")
SERVES = ("same", "good", "asked", "stopped", "any")
CONTROLLER = ("kill", "cut", "host")


@dataclass(frozen=True)
class Fault:
    """One row; faults.yml says what each field means."""

    name: str
    phase: str
    before: str = ""
    after: str = ""
    run: str = "deploy"
    vars: Mapping[str, Any] = field(default_factory=dict)
    at: str = ""
    do: str = ""
    second: Mapping[str, Any] | None = None
    ends: str = "good"
    says: tuple[str, ...] = ()
    serves: str = "good"
    boots: bool = False

    @property
    def title(self) -> str:
        return f"{self.phase}: {self.name}"


def load(path: Path = FILE) -> list[Fault]:
    """All rows. Raises ValueError for one that is none."""
    return [parse(row) for row in yaml.safe_load(path.read_text(encoding="utf-8"))]


def parse(row: Mapping[str, Any]) -> Fault:
    known = {one.name for one in fields(Fault)}
    if unknown := set(row) - known:
        raise ValueError(f"{row.get('name')}: no field {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    fault = Fault(**{**row, "says": tuple(row.get("says", ()))})
    for name, value, choices in (("run", fault.run, RUNS), ("ends", fault.ends, ENDS), ("serves", fault.serves, SERVES)):
        if value not in choices:
            raise ValueError(f"{fault.title}: {name}: {value!r} is none of {', '.join(choices)}")
    if bool(fault.at) != (bool(fault.do) or fault.second is not None):
        raise ValueError(f"{fault.title}: `at` says when, `do` or `second` what")
    return fault
