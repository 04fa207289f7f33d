"""Waits until a server that was stopped has really let go: its unit has no process left, and the GPUs' memory is free.

The driver frees memory after the process has ended; a start in between ends in "out of memory" that is nobody's fault.
Runs on the managed host; standard library only.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_POLL_S = 1.0
_TIMEOUT_S = 30
MEMORY_QUERY = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
PROCESS_QUERY = ("nvidia-smi", "--query-compute-apps=pid,used_memory,name", "--format=csv,noheader")


class NotFree(Exception):
    """Memory or processes were not let go in time; the message names them and what to do."""


@dataclass(frozen=True)
class Free:
    """How long it took, in seconds, and what each GPU still holds, in MiB; no GPU without nvidia-smi."""

    seconds: float
    memory_mib: tuple[int, ...]


def wait(unit: str, most_mib: int, seconds: float, said: Callable[[Sequence[str]], str] | None = None) -> Free:
    """Wait until the unit has no process and every GPU holds at most `most_mib`, for at most `seconds`.

    said: runs a command and returns its output, empty where it fails. Raises NotFree.
    """
    ask = said or _said
    started = time.monotonic()
    while True:
        tasks = _tasks(ask(("systemctl", "show", "--property=TasksCurrent", "--value", "--", unit)))
        memory = tuple(int(row) for row in ask(MEMORY_QUERY).splitlines() if row.strip().isdigit())
        waited = time.monotonic() - started
        if not tasks and all(used <= most_mib for used in memory):
            return Free(round(waited, 1), memory)
        if waited >= seconds:
            raise NotFree(_reason(unit, tasks, memory, most_mib, waited, ask(PROCESS_QUERY)))
        time.sleep(_POLL_S)


def _reason(unit: str, tasks: int, memory: Sequence[int], most_mib: int, waited: float, processes: str) -> str:
    parts = [f"{unit} still has {tasks} processes or threads"] if tasks else []
    parts += [f"GPU {number} still holds {used} MiB" for number, used in enumerate(memory) if used > most_mib]
    holders = ", ".join(line.strip() for line in processes.splitlines()[:8]) or "nvidia-smi names no process"
    return (
        f"After {waited:.0f} s {'; '.join(parts)}. On the GPUs: {holders}. End what holds it, or, if it may stay, set "
        f"sweep_gpu_free_mib above it ({most_mib} MiB now)."
    )


def _tasks(text: str) -> int:
    # systemd says [not set], or the largest number there is, where a unit has no group of processes.
    return int(text) if text.strip().isdigit() and int(text) < 2**63 else 0


def _said(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(list(command), capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
