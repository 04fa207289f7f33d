"""Judgements on single GPUs: count, kind, memory, health, link. Each is id, severity, reason and remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from .host_evidence import Evidence, Gpu
from .host_needs import Needs
from .host_report import INFORM, REFUSE, WARN, Told

_TAKEN_MIB = 1024
"""Memory of others that is worth a word; a driver without any process holds some hundreds."""
_HOT_C = 85
_XIDS = {
    13: "exception in a kernel",
    31: "memory page fault",
    43: "a program stopped by a fault",
    48: "double bit ECC error",
    62: "internal halt",
    63: "row remapping",
    64: "row remapping failed",
    74: "NVLink error",
    79: "fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP does not answer",
    120: "GSP error",
    154: "recovery is due",
}
_OF_PROGRAMS = {13, 31, 43}
"""Xids that a faulty program causes; they say nothing of the hardware by themselves."""


def gpus(evidence: Evidence, needs: Needs) -> Told:
    """Whether the GPUs are enough, of the right kind, free and sound. Nothing for a stack without CUDA."""
    if not needs.cuda:
        return
    if evidence.gpus:
        yield from _kind(evidence, needs)
        yield from _memory(evidence.gpus, needs)
        yield from _state(evidence.gpus)
        yield from _links(evidence.gpus)
    yield from _log(evidence)


def _kind(evidence: Evidence, needs: Needs) -> Told:
    found = evidence.gpus
    if len(found) < needs.gpus:
        bus = f"; {len(evidence.pci)} are on the PCI bus" if len(evidence.pci) > len(found) else ""
        reason = (
            f"The deployment takes {needs.gpus} GPUs (tp_size, pp_size and dp_size), and the driver lists {len(found)}{bus}."
        )
        yield (
            "gpu-count",
            REFUSE,
            reason,
            "Lower tp_size, dp_size or pp_size, or bring the missing GPUs back (dmesg, power, seating).",
        )
    kinds = sorted({gpu.capability for gpu in found if gpu.capability})
    other = [kind for kind in kinds if needs.capabilities and kind not in needs.capabilities]
    if other:
        meant = ", ".join(needs.capabilities)
        reason = f"The GPUs have compute capability {', '.join(other)}; the stack {needs.stack} is for {meant}."
        yield "gpu-capability", WARN, reason, "Take a stack for these chips, or leave the judgement to the decode check."
    sizes = {gpu.memory_mib for gpu in found if gpu.memory_mib}
    if needs.gpus > 1 and (len(kinds) > 1 or (sizes and max(sizes) > 1.1 * min(sizes))):
        names = ", ".join(sorted({gpu.name for gpu in found}))
        reason = f"The GPUs are not alike ({names}); the smallest sets the limits, and kernels are chosen by the first."
        yield "gpu-mixed", WARN, reason, "Choose GPUs of one kind with CUDA_VISIBLE_DEVICES in sglang_environment."


def _memory(found: tuple[Gpu, ...], needs: Needs) -> Told:
    own = {number for number, gpu in enumerate(found) if any(process.own for process in gpu.processes)}
    taken: dict[int, int] = {}
    for number, gpu in enumerate(found):
        others = sum(process.memory_mib or 0 for process in gpu.processes if not process.own)
        unnamed = 0 if number in own or gpu.processes else gpu.used_mib or 0  # held by what is not shown, in a container say
        if max(others, unnamed) > _TAKEN_MIB:
            taken[number] = max(others, unnamed)
    if not taken:
        return
    who = sorted({str(held) for number in taken for held in found[number].processes if not held.own})
    wants = needs.weights_mib_per_gpu
    short = [n for n, mib in taken.items() if wants and (size := found[n].memory_mib) and size - mib < wants]
    holders = ", ".join(who[:4]) or "processes not shown here"
    reason = f"GPU {_numbers(found, taken)}: {max(taken.values()) / 1024:.1f} GiB held by {holders}"
    if short and len(found) - len(short) < needs.gpus:
        reason += f"; the weights need {(wants or 0) / 1024:.1f} GiB of each GPU and do not fit beside it."
        yield "gpu-memory-taken", REFUSE, reason, "Stop those processes before the deployment."
    else:
        reason += "; SGLang sizes its cache by the GPU with the least free memory, or stops because they differ."
        yield "gpu-memory-taken", WARN, reason, "Stop those processes, or choose other GPUs with CUDA_VISIBLE_DEVICES."


def _state(found: tuple[Gpu, ...]) -> Told:
    def which(test: Callable[[Gpu], bool | None]) -> list[int]:
        return [number for number, gpu in enumerate(found) if test(gpu)]

    if some := which(lambda gpu: gpu.mig):
        remedy = "Turn MIG off (nvidia-smi -mig 0) and reset the GPU."
        yield "gpu-mig", REFUSE, f"GPU {_numbers(found, some)}: MIG is on, so no rank can have the whole GPU.", remedy
    if some := which(lambda gpu: gpu.compute_mode == "Prohibited"):
        yield (
            "gpu-compute-mode",
            REFUSE,
            f"GPU {_numbers(found, some)}: compute mode Prohibited, so CUDA is refused.",
            "nvidia-smi -c 0",
        )
    if some := which(lambda gpu: (gpu.uncorrected or 0) > 0):
        reason = f"GPU {_numbers(found, some)}: uncorrectable ECC errors since the driver was loaded."
        yield "gpu-ecc-errors", WARN, reason, "Reset the GPU (or boot); have it replaced if they come back."
    if some := which(lambda gpu: gpu.ecc is False):
        yield (
            "gpu-ecc-off",
            INFORM,
            f"GPU {_numbers(found, some)}: ECC is off; a flipped bit goes unseen.",
            "nvidia-smi -e 1, then boot.",
        )
    if some := which(lambda gpu: gpu.remap_failed):
        yield "gpu-row-remap", WARN, f"GPU {_numbers(found, some)}: row remapping has failed.", "Have the GPU replaced."
    elif some := which(lambda gpu: gpu.remap_pending):
        reason = f"GPU {_numbers(found, some)}: a faulty row is remapped at the next reset."
        yield "gpu-row-remap", WARN, reason, "Reset the GPU (nvidia-smi -r) or boot before deploying."
    if some := which(lambda gpu: gpu.recovery is not None):
        wants = ", ".join(sorted({gpu.recovery for gpu in found if gpu.recovery}))
        yield (
            "gpu-recovery",
            WARN,
            f"GPU {_numbers(found, some)}: the driver asks for a recovery: {wants}.",
            "Do it before deploying.",
        )
    if some := which(lambda gpu: (gpu.power_limit_w or 1e9) < 0.99 * (gpu.power_default_w or 0)):
        gpu = found[some[0]]
        reason = f"GPU {_numbers(found, some)}: limited to {gpu.power_limit_w:.0f} W of {gpu.power_default_w:.0f} W."
        yield "gpu-power-cap", INFORM, reason, "nvidia-smi -pl, if this is not on purpose; prefill slows most."
    if some := which(lambda gpu: gpu.persistence is False):
        reason = f"GPU {_numbers(found, some)}: persistence is off, so the driver starts anew for each first process."
        yield "gpu-persistence", INFORM, reason, "systemctl enable --now nvidia-persistenced"
    if some := which(lambda gpu: (gpu.temperature_c or 0) >= _HOT_C):
        hottest = max(gpu.temperature_c or 0 for gpu in found)
        yield (
            "gpu-hot",
            WARN,
            f"GPU {_numbers(found, some)}: up to {hottest} C.",
            "Look at fans and air flow; hard stops were seen above 90 C.",
        )


def _links(found: tuple[Gpu, ...]) -> Told:
    narrow = [n for n, gpu in enumerate(found) if gpu.link_width and gpu.link_width < (gpu.link_width_max or 0)]
    if narrow:
        gpu = found[narrow[0]]
        reason = (
            f"GPU {_numbers(found, narrow)}: PCIe x{gpu.link_width} of x{gpu.link_width_max}, so GPUs exchange data slower."
        )
        yield (
            "pcie-width",
            WARN,
            reason,
            "Seat the card and riser anew; look at the slot's lanes and bifurcation in the BIOS.",
        )
    # An idle GPU lowers its link, so only a busy one can be judged by what it runs at.
    slow = [
        n
        for n, gpu in enumerate(found)
        if gpu.state in ("P0", "P1", "P2") and gpu.link_gen and gpu.link_gen < (gpu.link_gen_max or 0)
    ]
    held = [n for n, gpu in enumerate(found) if gpu.link_gen_max and gpu.link_gen_max < (gpu.link_gen_device or 0)]
    if slow:
        gpu = found[slow[0]]
        reason = f"GPU {_numbers(found, slow)}: PCIe {gpu.link_gen}.0 under load, where {gpu.link_gen_max}.0 is possible."
        yield "pcie-speed", WARN, reason, "Look at risers and the slot's speed in the BIOS; dmesg may show AER errors."
    elif held:
        gpu = found[held[0]]
        reason = f"GPU {_numbers(found, held)}: the slot allows PCIe {gpu.link_gen_max}.0, the card {gpu.link_gen_device}.0."
        yield (
            "pcie-speed",
            INFORM,
            reason,
            "Another slot or BIOS setting, if the board has one; GPUs exchange data at this speed.",
        )


def _log(evidence: Evidence) -> Told:
    xids = [(line, int(found[1])) for line in evidence.kernel_log if (found := re.search(r"\bXid\b.*?: (\d+)\b", line))]
    hardware = [number for _, number in xids if number not in _OF_PROGRAMS]
    if xids:
        numbers = sorted(set(hardware or [number for _, number in xids]))
        meaning = ", ".join(f"{number} ({_XIDS.get(number, 'see the catalogue')})" for number in numbers)
        reason = f"Xid in the kernel log since boot ({len(xids)}): {meaning}. Last: {xids[-1][0]}"
        if hardware:
            yield (
                "gpu-xid",
                WARN,
                reason,
                "Boot; then look at power, risers, slot and temperature before you trust this GPU.",
            )
        else:
            yield (
                "gpu-xid",
                INFORM,
                reason,
                "A program's fault by itself; a sign of hardware only if it comes back with other programs.",
            )
    errors = [line for line in evidence.kernel_log if re.search(r"AER: |PCIe Bus Error|Surprise Link Down", line)]
    if errors:
        reason = f"{len(errors)} PCIe error lines in the kernel log. Last: {errors[-1]}"
        yield "pcie-errors", WARN, reason, "Boot with pcie_aspm=off pcie_port_pm=off; look at risers and slots."


def _numbers(found: Sequence[Gpu], some: Iterable[int]) -> str:
    return ", ".join(str(found[place].index) for place in sorted(some))
