"""What was found on a host, before anybody judges it: plain data that can be written down and read back.

What could not be told is None and never zero: a host without nvidia-smi has an unknown number of GPUs. Standard library
only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Holder:
    """A process that holds a port or GPU memory, and the systemd unit it belongs to, if any.

    `pid` is None where it cannot be told (another user's process, seen without root). `address` is where it listens,
    `memory_mib` what it holds on a GPU. `own` is True for a process of the instance that the check is made for.
    """

    pid: int | None
    name: str
    unit: str | None = None
    own: bool = False
    address: str | None = None
    memory_mib: int | None = None

    def __str__(self) -> str:
        where = f", on {self.address}" if self.address else ""
        return f"{self.name} (pid {self.pid or '?'}{f', {self.unit}' if self.unit else ''}{where})"


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi describes it; `index` is its number there.

    Memory in MiB, power in W. Links are PCIe generations and lanes; an idle GPU lowers the generation to save power.
    `addressing` is HMM, ATS or None. `uncorrected` counts uncorrectable ECC errors since the driver was loaded.
    `recovery` is what the driver wants done to the GPU (None where nothing).
    """

    name: str
    index: int = 0
    bus_id: str | None = None
    capability: str | None = None
    memory_mib: int | None = None
    used_mib: int | None = None
    bar1_mib: int | None = None
    addressing: str | None = None
    persistence: bool | None = None
    mig: bool | None = None
    compute_mode: str | None = None
    state: str | None = None
    link_gen: int | None = None
    link_gen_max: int | None = None
    link_gen_device: int | None = None
    link_width: int | None = None
    link_width_max: int | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temperature_c: int | None = None
    ecc: bool | None = None
    uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery: str | None = None
    processes: tuple[Holder, ...] = ()


@dataclass(frozen=True)
class Bridge:
    """A PCIe bridge above a GPU. `acs` is the ACS control register, None without that capability or without the right
    to read it (`readable` False)."""

    address: str
    acs: int | None = None
    readable: bool = True


@dataclass(frozen=True)
class PciGpu:
    """An NVIDIA GPU on the PCI bus, whether or not its driver works. `iommu` is the type of its IOMMU group's domain:
    identity, DMA or DMA-FQ; None where no IOMMU translates."""

    address: str
    driver: str | None = None
    numa: int | None = None
    iommu: str | None = None
    bridges: tuple[Bridge, ...] = ()


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver: the version of the module that is loaded, of the libraries, and of packages that are installed.

    `open` tells whether the loaded module is the open one. `cuda` is the newest CUDA that it serves. `error` is what
    nvidia-smi said where it failed, `silent` that it said nothing in time. `hmm_off` is the parameter uvm_disable_hmm of
    nvidia_uvm. `registry` is the value of RegistryDwords. `devices` are the names under /dev.
    """

    loaded: str | None = None
    open: bool | None = None
    library: str | None = None
    cuda: str | None = None
    error: str | None = None
    silent: bool = False
    nouveau: bool = False
    hmm_off: bool | None = None
    registry: str = ""
    devices: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    held: tuple[str, ...] = ()


@dataclass(frozen=True)
class Topology:
    """Matrices of nvidia-smi over the GPUs: paths (PIX, PXB, PHB, NODE, SYS, NV#), and P2P read and write (OK, CNS ...).
    Empty where they were not told."""

    paths: tuple[tuple[str, ...], ...] = ()
    read: tuple[tuple[str, ...], ...] = ()
    write: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Disk:
    """The filesystem of a folder that the deployment uses; the folder itself may not be there yet. Sizes in MiB."""

    use: str
    path: str
    mount: str | None = None
    kind: str | None = None
    options: tuple[str, ...] = ()
    free_mib: int | None = None
    total_mib: int | None = None
    rotational: bool | None = None
    inhabited: bool = False


@dataclass(frozen=True)
class Memory:
    """Main memory and /dev/shm, in MiB."""

    total_mib: int | None = None
    available_mib: int | None = None
    shm_mib: int | None = None
    shm_free_mib: int | None = None


@dataclass(frozen=True)
class Limits:
    """What a service can be given: locked memory of process 1 in KiB (-1 is unlimited), the kernel's most open files, and
    whether process 1 may raise limits at all."""

    memlock_kib: int | None = None
    open_files: int | None = None
    may_raise: bool | None = None


@dataclass(frozen=True)
class Port:
    """A port that an instance is to listen on, and who listens there now."""

    instance: str
    address: str
    port: int
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True)
class PythonFound:
    """A Python of the host, and whether its C headers are there."""

    path: str
    version: str
    headers: bool


@dataclass(frozen=True)
class Evidence:
    """Everything that was found.

    `parameters` are those of the kernel's command line that concern GPUs, PCI and the IOMMU. `upgrades` tells whether
    packages are upgraded unattended, `upgrades_leave` which are left alone. `not_told` names the probes that failed and
    why. `seconds` is what looking took.
    """

    init: str | None = None
    systemd: str | None = None
    distribution: Mapping[str, str] = field(default_factory=dict)
    kernel: str | None = None
    parameters: tuple[str, ...] = ()
    cpus: int | None = None
    sockets: int | None = None
    numa_nodes: int | None = None
    gpus: tuple[Gpu, ...] = ()
    pci: tuple[PciGpu, ...] = ()
    driver: Driver = field(default_factory=Driver)
    topology: Topology = field(default_factory=Topology)
    nvcc: str | None = None
    memory: Memory = field(default_factory=Memory)
    disks: tuple[Disk, ...] = ()
    limits: Limits = field(default_factory=Limits)
    ports: tuple[Port, ...] = ()
    kernel_log: tuple[str, ...] = ()
    secure_boot: bool | None = None
    upgrades: bool | None = None
    upgrades_leave: tuple[str, ...] = ()
    time_synced: bool | None = None
    pythons: tuple[PythonFound, ...] = ()
    tools: Mapping[str, str | None] = field(default_factory=dict)
    user: int | None = None
    not_told: tuple[str, ...] = ()
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form; `fields.build(Evidence, ...)` reads it back."""
        return asdict(self)
