"""The unit and its main process, read from systemd and /proc."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from .context import Expectations
from .verdict import Outcome


@dataclass(frozen=True)
class UnitState:
    """What systemd says of a unit. `restarts` is NRestarts, `pid` 0 without a main process."""

    active: str
    restarts: int
    pid: int


def unit_state(unit: str, seconds: float = 10.0) -> UnitState | str:
    """The unit's state, or why it cannot be read."""
    argv = ["systemctl", "show", "--property=ActiveState,NRestarts,MainPID", "--", unit]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds, check=True)
        values = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        return UnitState(values["ActiveState"], int(values["NRestarts"]), int(values["MainPID"]))
    except (OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
        return f"systemctl cannot tell the state of {unit}: {error}"


def running_argv(pid: int, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """The argument list of a process. Raises OSError where there is none."""
    raw = (proc / str(pid) / "cmdline").read_bytes()
    return tuple(raw.decode("utf-8", "surrogateescape").removesuffix("\0").split("\0"))


def argv_difference(expected: tuple[str, ...], running: tuple[str, ...]) -> str | None:
    """The first difference in words, None if equal. Values are not shown: an argument list may hold a key."""
    if expected == running:
        return None
    gone = [a for a in expected if a not in running and a.startswith("--")]
    new = [a for a in running if a not in expected and a.startswith("--")]
    if gone or new:
        return f"missing: {' '.join(gone) or 'none'}; not expected: {' '.join(new) or 'none'}"
    places = range(min(len(expected), len(running)))
    place = next((i for i in places if expected[i] != running[i]), len(places))
    before = running[place - 1] if place else "its beginning"
    return f"{len(running)} arguments against {len(expected)} expected; they part after {before}"


def from_now(expect: Expectations) -> Expectations:
    """The same, with the unit's present restarts where none are given: a crash that systemd mended before is no fault."""
    if expect.unit is None or expect.restarts is not None:
        return expect
    state = unit_state(expect.unit)
    return expect if isinstance(state, str) else replace(expect, restarts=state.restarts)


def check_process(expect: Expectations) -> Outcome:
    """The unit is active, was not restarted, and its main process has the expected argument list."""
    if expect.unit is None:
        return Outcome(None, "not applicable: no unit is named")
    state = unit_state(expect.unit)
    if isinstance(state, str):
        return Outcome(False, state)
    evidence = {"unit": expect.unit, "active": state.active, "restarts": state.restarts, "pid": state.pid}
    if state.active != "active" or not state.pid:
        return Outcome(False, f"{expect.unit} is {state.active}", evidence)
    if expect.restarts is not None and state.restarts > expect.restarts:
        return Outcome(False, f"{expect.unit} crashed meanwhile, and systemd started it again", evidence)
    if expect.argv is not None:
        try:
            difference = argv_difference(expect.argv, running_argv(state.pid))
        except OSError as error:
            return Outcome(False, f"the arguments of process {state.pid} cannot be read: {error}", evidence)
        if difference:
            return Outcome(False, f"the running process has other arguments than its launch script: {difference}", evidence)
    same = ", arguments as in its launch script" if expect.argv is not None else ""
    before = f"restarted {state.restarts} times before" if state.restarts else "no restart"
    return Outcome(True, f"{expect.unit} is active, process {state.pid}, {before}{same}", evidence)
