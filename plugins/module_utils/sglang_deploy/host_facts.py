"""What the rules of the plan want to know of a host, out of the evidence. Standard library only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .host_evidence import Evidence
from .host_gather import WEIGHTS


@dataclass(frozen=True)
class HostFacts:
    """Facts of one host; None is not known.

    capability such as "12.0", None where GPUs differ in it. gpu_memory_gib is the smallest GPU's, in GiB. nvcc and
    driver are versions. nvlink tells whether any two GPUs are joined by it. weights tells whether something lies in the
    folder of the weights.
    """

    gpus: tuple[str, ...] = ()
    capability: str | None = None
    gpu_count: int | None = None
    gpu_memory_gib: float | None = None
    driver: str | None = None
    nvlink: bool | None = None
    nvcc: str | None = None
    sockets: int | None = None
    weights: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


def facts(evidence: Evidence) -> HostFacts:
    """The facts of the host that the evidence is of."""
    gpus = evidence.gpus
    kinds = {gpu.capability for gpu in gpus if gpu.capability}
    sizes = [gpu.memory_mib for gpu in gpus if gpu.memory_mib]  # a chip without memory of its own does not tell
    places = [disk.inhabited for disk in evidence.disks if disk.use == WEIGHTS]
    cells = [cell for row in evidence.topology.paths for cell in row]
    return HostFacts(
        gpus=tuple(gpu.name for gpu in gpus),
        capability=kinds.pop() if len(kinds) == 1 else None,
        gpu_count=len(gpus) or None,
        gpu_memory_gib=round(min(sizes) / 1024, 1) if sizes and len(sizes) == len(gpus) else None,
        driver=evidence.driver.loaded if gpus else None,
        nvlink=any(cell.startswith("NV") for cell in cells) if len(gpus) > 1 and cells else None,
        nvcc=evidence.nvcc,
        sockets=evidence.sockets,
        weights=any(places) if places else None,
    )
