"""How evidence is got at: files below a root, commands with a time limit. What is missing is noted, no error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMIT_S = 5.0
"""Seconds for one command. All run side by side, and the whole look should end within ten."""
NVIDIA_LIMIT_S = 9.0
"""nvidia-smi may take longer, with many GPUs whose driver is not kept loaded."""
_USUAL_CUDA = "/usr/local/cuda"


class Machine:
    """The host that is looked at. `root` is another tree in tests; `not_told` fills with what could not be asked."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.not_told: list[str] = []

    def path(self, name: str) -> Path:
        """A path of the host."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str:
        """Text of a file; empty where it cannot be read."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def word(self, name: str) -> str | None:
        """The one word or number that a file of the kernel holds."""
        return self.read(name).strip() or None

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted; none where it is not there."""
        try:
            return sorted(entry.name for entry in self.path(folder).iterdir())
        except OSError:
            return []

    def which(self, tool: str, path: str | None = None) -> str | None:
        """Where a command is."""
        return shutil.which(tool, path=path)

    def run(self, command: Sequence[str], *, failing: bool = False, seconds: float | None = None) -> str:
        """What a command printed; empty where it is missing, fails or takes too long.

        failing: its output counts even when it fails, errors included. seconds: its limit, LIMIT_S unless given.
        """
        limit = LIMIT_S if seconds is None else seconds
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=limit)
        except subprocess.TimeoutExpired:
            self.not_told.append(f"{' '.join(command)}: no answer in {limit:g} s")
            return ""
        except OSError as error:
            self.not_told.append(f"{command[0]}: {error.strerror}")
            return ""
        if done.returncode and failing:
            return done.stdout + done.stderr
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            self.not_told.append(f"{' '.join(command)}: {said[-1] if said else f'exit {done.returncode}'}")
            return ""
        return done.stdout


def find_nvcc(cuda_home: str | None, environment: Mapping[str, str]) -> str | None:
    """The compiler of the named toolkit, and no other; without a name of CUDA_HOME, PATH or the usual place."""
    if cuda_home:
        return shutil.which("nvcc", path=f"{cuda_home}/bin")
    homes = [environment.get("CUDA_HOME", ""), _USUAL_CUDA]
    path = [f"{homes[0]}/bin" if homes[0] else "", environment.get("PATH", ""), f"{homes[1]}/bin"]
    return shutil.which("nvcc", path=os.pathsep.join(filter(None, path)))


def unit_of(control_group: str) -> str | None:
    """The service unit in the text of a process's cgroup file."""
    found = re.search(r"/([^/\n]+\.service)(?:/|$)", control_group, re.MULTILINE)
    return found[1] if found else None
