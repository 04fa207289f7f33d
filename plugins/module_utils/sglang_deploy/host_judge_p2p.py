"""Judgements on what lies between GPUs: paths, P2P, NCCL's level, IOMMU and ACS. Each is id, severity, reason and remedy."""

from __future__ import annotations

from collections.abc import Sequence

from .host_evidence import Evidence
from .host_needs import Needs
from .host_pci import REDIRECT
from .host_report import INFORM, WARN, Told

LEVELS = ("LOC", "NVL", "PIX", "PXB", "PXN", "PHB", "SYS")
"""Values of NCCL_P2P_LEVEL, nearest first; each stands for the farthest path over which P2P is used."""
_PATHS = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS"}
"""Paths as nvidia-smi names them and the level that NCCL needs; between bridges of one NUMA node NCCL sees one CPU."""
_DEFAULT = "PXB"
"""How far NCCL goes by itself on most CPUs."""
_P2P_WORDS = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "NS": "it is not supported",
    "DR": "a registry key of the driver turns it off",
}


def p2p(evidence: Evidence, needs: Needs) -> Told:
    """Whether several GPUs reach one another's memory. Nothing where one GPU or none is used, or P2P is off."""
    if not needs.cuda or not needs.p2p or len(evidence.gpus) < 2:
        return
    refused = sorted(_refused(evidence))
    if refused:
        why = ", ".join(f"{word}: {_P2P_WORDS.get(word, 'not told')}" for word in refused)
        reason = f"The driver refuses P2P between some GPUs ({why}), so data goes through main memory."
        yield (
            "p2p-refused",
            WARN,
            reason,
            "IOMMU and ACS off in BIOS and kernel, and a current driver; else NCCL_P2P_DISABLE=1 says it.",
        )
    level = needed_level(evidence.topology.paths)
    yield from _level(level, needs)
    yield from _registry(evidence)
    if level != "NVL":  # what follows concerns traffic over PCIe
        yield from _bar1(evidence)
        yield from _iommu(evidence)
        yield from _acs(evidence)


def needed_level(paths: Sequence[Sequence[str]]) -> str | None:
    """The NCCL_P2P_LEVEL that takes in every pair of GPUs; None where the paths are not known."""
    cells = {cell for row in paths for cell in row if cell != "X"}
    if not cells:
        return None
    levels = ["NVL" if cell.startswith("NV") else _PATHS.get(cell, "SYS") for cell in cells]
    return max(levels, key=LEVELS.index)


def _refused(evidence: Evidence) -> set[str]:
    matrices = (evidence.topology.read, evidence.topology.write)
    return {cell for matrix in matrices for row in matrix for cell in row if cell not in ("X", "OK")}


def _level(level: str | None, needs: Needs) -> Told:
    asked = needs.environment.get("NCCL_P2P_LEVEL", "").upper()
    known = {
        **{name: name for name in LEVELS},
        **{str(number): name for number, name in enumerate(("LOC", "PIX", "PXB", "PHB", "SYS"))},
    }
    if asked and asked not in known:
        reason = f"NCCL_P2P_LEVEL={asked} is none of {', '.join(LEVELS)}; NCCL ignores it."
        yield "nccl-level", WARN, reason, f"Set NCCL_P2P_LEVEL: {level or 'SYS'} in sglang_environment."
        return
    set_to = known.get(asked, _DEFAULT)
    if level is None or LEVELS.index(set_to) >= LEVELS.index(level):
        return
    said = f"NCCL_P2P_LEVEL={asked}" if asked else f"Without NCCL_P2P_LEVEL NCCL goes as far as {_DEFAULT}, which"
    far = {"PHB": "under different bridges of one CPU", "SYS": "under different CPUs or NUMA nodes"}.get(level, level)
    reason = f"{said} leaves out pairs of GPUs {far}; they exchange data through main memory."
    yield (
        "nccl-level",
        WARN,
        reason,
        f"Set NCCL_P2P_LEVEL: {level} in sglang_environment, and prove it with host_check_p2p: true.",
    )


def _registry(evidence: Evidence) -> Told:
    keys = [key for key in ("RMForceP2PType", "RMPcieP2PType", "ForceP2P") if key in evidence.driver.registry]
    if keys:
        reason = f"Registry keys of the driver force P2P ({', '.join(keys)}); `invalid device ordinal` was seen with them."
        yield (
            "p2p-registry",
            WARN,
            reason,
            "Take NVreg_RegistryDwords out of /etc/modprobe.d and boot, unless a kernel of yours needs it.",
        )


def _bar1(evidence: Evidence) -> Told:
    small = [
        n for n, gpu in enumerate(evidence.gpus) if gpu.bar1_mib and gpu.memory_mib and gpu.bar1_mib < 0.9 * gpu.memory_mib
    ]
    if small:
        gpu = evidence.gpus[small[0]]
        which = ", ".join(str(evidence.gpus[n].index) for n in small)
        reason = f"GPU {which}: BAR1 has {gpu.bar1_mib} MiB for {gpu.memory_mib} MiB, so peers do not reach all memory."
        yield "p2p-bar1", WARN, reason, "Turn on Above 4G Decoding and Resizable BAR in the BIOS."


def _iommu(evidence: Evidence) -> Told:
    kinds = sorted({gpu.iommu for gpu in evidence.pci if gpu.iommu and gpu.iommu != "identity"})
    if kinds:
        booted = ", ".join(word for word in evidence.parameters if "iommu" in word) or "no iommu parameter"
        domain = ", ".join(kinds)
        reason = f"The IOMMU translates for the GPUs ({domain}; {booted}): P2P hangs or corrupts on such hosts."
        remedy = "Boot with iommu=pt (AMD: amd_iommu=pt beside it), or with iommu=off; prove it with host_check_p2p: true."
        yield "iommu", WARN, reason, remedy
    faults = [line for line in evidence.kernel_log if "IO_PAGE_FAULT" in line or "DMAR" in line]
    if faults:
        reason = f"{len(faults)} IOMMU faults in the kernel log. Last: {faults[-1]}"
        yield "iommu-faults", WARN, reason, "Boot with iommu=pt or iommu=off."


def _acs(evidence: Evidence) -> Told:
    bridges = {bridge.address: bridge for gpu in evidence.pci for bridge in gpu.bridges}
    on = sorted(address for address, bridge in bridges.items() if (bridge.acs or 0) & REDIRECT)
    if on:
        shown = " ".join(on[:4]) + (" ..." if len(on) > 4 else "")
        reason = f"ACS sends P2P through the CPU at {len(on)} bridges ({shown}): slow, and NCCL hangs on some boards."
        remedy = "Turn ACS off in the BIOS, or at each boot: setpci -s BRIDGE ECAP_ACS+6.w=0000 for each bridge."
        yield "acs", WARN, reason, remedy
    elif bridges and not any(bridge.readable for bridge in bridges.values()):
        reason = "Whether ACS is on cannot be told; the configuration space is for root alone."
        yield "acs-unknown", INFORM, reason, "Look with become: true."
