"""The PCI tree above NVIDIA GPUs, out of sysfs: bridges, ACS, IOMMU, NUMA. Read-only; standard library only.

ACS control: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html and the PCI Express base
specification (extended capability 0x000d, control register at offset 6).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .host_evidence import Bridge, PciGpu
from .host_probe import Machine

NVIDIA = "0x10de"
REDIRECT = 0x04 | 0x08
"""Bits of the ACS control register that send traffic between GPUs up to the root: P2P request and completion redirect."""
_ACS = 0x000D
_EXTENDED = 0x100  # where extended capabilities start; only root can read so far
_ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"


def gpus(machine: Machine) -> tuple[PciGpu, ...]:
    """NVIDIA's display and 3D controllers, in the order of the bus."""
    return tuple(_gpu(machine, address) for address in machine.names("/sys/bus/pci/devices") if _is_gpu(machine, address))


def _is_gpu(machine: Machine, address: str) -> bool:
    device = f"/sys/bus/pci/devices/{address}"
    return machine.word(f"{device}/vendor") == NVIDIA and (machine.word(f"{device}/class") or "").startswith("0x03")


def _gpu(machine: Machine, address: str) -> PciGpu:
    device = machine.path(f"/sys/bus/pci/devices/{address}")
    numa = machine.word(f"/sys/bus/pci/devices/{address}/numa_node")
    driver, group = device / "driver", device / "iommu_group"
    kind = machine.word(f"/sys/kernel/iommu_groups/{group.resolve().name}/type") if group.exists() else None
    return PciGpu(
        address=address,
        driver=driver.resolve().name if driver.exists() else None,
        numa=int(numa) if numa and numa.isdigit() else None,  # -1 where the firmware does not say
        iommu=kind,
        bridges=tuple(_bridges(device)),
    )


def _bridges(device: Path) -> Iterator[Bridge]:
    """The bridges between a device and the root, nearest first."""
    for parent in device.resolve().parents:
        if not re.fullmatch(_ADDRESS, parent.name):
            return
        try:
            config = (parent / "config").read_bytes()
        except OSError:
            config = b""
        yield Bridge(parent.name, acs_control(config), readable=len(config) > _EXTENDED)


def acs_control(config: bytes) -> int | None:
    """The ACS control register in a PCI Express configuration space; None where the device has none."""
    offset, seen = _EXTENDED, set()
    while _EXTENDED <= offset <= len(config) - 8 and offset not in seen:
        seen.add(offset)
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(config[offset + 6 : offset + 8], "little")
        offset = header >> 20
    return None
