"""What the rules want to know of a host: its GPUs, driver, compiler and sockets. Read-only; standard library only.

What cannot be told is None: a host without nvidia-smi has an unknown number of GPUs, never none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

QUERY = ("name", "compute_cap", "memory.total", "driver_version")
_USUAL_CUDA = "/usr/local/cuda"
_TIMEOUT_S = 30


@dataclass(frozen=True)
class HostFacts:
    """Facts of one host.

    capability such as "12.0", None where GPUs differ in it. gpu_memory_gib is the smallest GPU's, in GiB. nvcc and
    driver are versions. nvlink tells whether any two GPUs are joined by it.
    """

    gpus: tuple[str, ...] = ()
    capability: str | None = None
    gpu_count: int | None = None
    gpu_memory_gib: float | None = None
    driver: str | None = None
    nvlink: bool | None = None
    nvcc: str | None = None
    sockets: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


def look(cuda_home: str | None = None) -> HostFacts:
    """The facts of this host. `cuda_home` is the toolkit that the server would use; without it the usual places count."""
    query = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    facts = parse_gpus(_said(query)) if shutil.which("nvidia-smi") else {}
    several = (facts.get("gpu_count") or 0) > 1
    compiler = find_nvcc(cuda_home, os.environ)
    return HostFacts(
        **facts,
        nvlink=parse_topology(_said(["nvidia-smi", "topo", "-m"])) if several else None,
        nvcc=parse_nvcc(_said([compiler, "--version"])) if compiler else None,
        sockets=count_sockets(),
    )


def parse_gpus(text: str) -> dict[str, Any]:
    """The fields of HostFacts in the CSV of `nvidia-smi --query-gpu` with QUERY; empty where it lists no GPU."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    rows = [row for row in rows if len(row) == len(QUERY)]
    if not rows:
        return {}
    names, capabilities, memories, drivers = zip(*rows, strict=True)
    kinds = {text for text in capabilities if re.fullmatch(r"\d+\.\d+", text)}
    sizes = [int(text) for text in memories if text.isdigit()]  # a chip without memory of its own says [N/A]
    return {
        "gpus": names,
        "gpu_count": len(rows),
        "capability": kinds.pop() if len(kinds) == 1 else None,
        "gpu_memory_gib": round(min(sizes) / 1024, 1) if len(sizes) == len(rows) else None,
        "driver": drivers[0] if re.fullmatch(r"\d+(\.\d+)+", drivers[0]) else None,
    }


def parse_topology(text: str) -> bool | None:
    """Whether `nvidia-smi topo -m` shows an NVLink between two GPUs; None where it shows no matrix."""
    rows = [line.split() for line in text.splitlines()]
    links = [cell for row in rows if row and re.fullmatch(r"GPU\d+", row[0]) for cell in row[1:]]
    return any(re.fullmatch(r"NV\d+", cell) for cell in links) if "X" in links else None


def parse_nvcc(text: str) -> str | None:
    """The release in the answer of `nvcc --version`, such as "12.8"."""
    found = re.search(r"\brelease (\d+\.\d+)", text)
    return found[1] if found else None


def find_nvcc(cuda_home: str | None, environment: Mapping[str, str]) -> str | None:
    """The compiler of the named toolkit, and no other; without a name of CUDA_HOME, PATH or the usual place."""
    if cuda_home:
        return shutil.which("nvcc", path=f"{cuda_home}/bin")
    homes = [environment.get("CUDA_HOME", ""), _USUAL_CUDA]
    path = [f"{homes[0]}/bin" if homes[0] else "", environment.get("PATH", ""), f"{homes[1]}/bin"]
    return shutil.which("nvcc", path=os.pathsep.join(filter(None, path)))


def count_sockets(cpus: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """The number of CPU sockets; None where the kernel does not tell."""
    packages = set()
    for entry in cpus.glob("cpu[0-9]*/topology/physical_package_id"):
        text = entry.read_text(encoding="ascii").strip()
        if text.isdigit():  # -1 where the firmware does not say
            packages.add(text)
    return len(packages) or None


def _said(command: Sequence[str]) -> str:
    """What a command printed; empty where it fails, as nvidia-smi does without a driver."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
