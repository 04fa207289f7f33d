"""Judgements on the NVIDIA driver. Each is id, severity, reason and remedy."""

from __future__ import annotations

import re

from .host_evidence import Evidence
from .host_needs import Needs
from .host_report import INFORM, REFUSE, WARN, Told
from .release_host import in_range

_INSTALL = "Install a driver with open modules and boot (nvidia_driver_install: true installs it)."
_HMM_FAULTY = ">=570,<580"
"""Branches of the driver in whose reports HMM keeps CUDA from starting."""


def driver(evidence: Evidence, needs: Needs) -> Told:
    """Whether a driver of the right kind and age is loaded and stays so. Nothing for a stack without CUDA."""
    if not needs.cuda:
        return
    if evidence.gpus:
        yield from _works(evidence, needs)
    else:
        yield _broken(evidence)
    yield from _stays(evidence)


def _broken(evidence: Evidence) -> tuple[str, str, str, str]:
    """The one reason why the driver lists no GPU."""
    found, log = evidence.driver, " ".join(evidence.kernel_log)
    error = found.error or ""
    if "version mismatch" in error or "API mismatch" in log:
        return _mismatch(found.loaded, found.library, error or "API mismatch in the kernel log")
    if found.silent:
        reason = f"{error}, so nothing is known of the GPUs: the driver starts anew each time, or a GPU does not answer."
        return "driver-silent", WARN, reason, "Enable nvidia-persistenced; where it is on, look at dmesg for Xid, and boot."
    if evidence.secure_boot and not found.loaded and ("Key was rejected" in log or found.packages):
        return (
            "secure-boot",
            REFUSE,
            "Secure Boot is on and the NVIDIA module is not loaded; a module whose key is not enrolled is rejected.",
            "Install the signed linux-modules-nvidia-*-open packages, or enrol the key (mokutil --import) and boot.",
        )
    if found.open is False and evidence.pci:
        return (
            "driver-proprietary",
            REFUSE,
            f"The proprietary modules of driver {found.loaded} list no GPU; Blackwell works with the open ones alone.",
            "Install the -open flavour of the driver (nvidia-driver-NNN-open, linux-modules-nvidia-NNN-open-*) and boot.",
        )
    if found.nouveau and not found.loaded:
        reason = "The kernel's nouveau holds the GPUs, and no NVIDIA driver is loaded."
        return "driver-absent", REFUSE, reason, f"{_INSTALL} It blocks nouveau."
    if not evidence.pci and not found.loaded:
        reason = f"No NVIDIA GPU is on the PCI bus ({error}), and the stack needs CUDA."
        return (
            "driver-absent",
            REFUSE,
            reason,
            "Deploy to a host with GPUs, or seat and power them; sglang_stack: cpu needs none.",
        )
    reason = f"{len(evidence.pci)} GPUs are on the PCI bus, and the driver lists none: {error}"
    return (
        "driver-absent",
        REFUSE,
        reason,
        f"{_INSTALL} dmesg says why a module does not load.",
    )


def _mismatch(loaded: str | None, library: str | None, why: str) -> tuple[str, str, str, str]:
    return (
        "driver-mismatch",
        REFUSE,
        f"The loaded NVIDIA module ({loaded or 'unknown'}) and the libraries ({library or 'unknown'}) differ: {why}",
        "Boot the host, so that the module of the installed packages is loaded; hold the packages (apt-mark hold).",
    )


def _works(evidence: Evidence, needs: Needs) -> Told:
    found = evidence.driver
    version = found.loaded or ""
    numbers = [int(number) for number in version.split(".")] if re.fullmatch(r"\d+(\.\d+)*", version) else []
    if needs.driver and numbers and not in_range(numbers, needs.driver):
        # An older CUDA 12 driver still runs much of CUDA 12, but none before 570 knows SM120.
        older = found.cuda and needs.cuda and found.cuda.split(".")[0] < needs.cuda.split(".")[0]
        blackwell = any((gpu.capability or "").startswith("12.") for gpu in evidence.gpus)
        severity = REFUSE if older or blackwell else WARN
        serves = f" (it serves CUDA {found.cuda})" if found.cuda else ""
        reason = (
            f"Driver {version}{serves} is older than the stack {needs.stack} needs: {needs.driver} for CUDA {needs.cuda}."
        )
        yield "driver-old", severity, reason, _INSTALL
    if found.library and found.loaded and found.library != found.loaded:
        reason = f"The loaded NVIDIA module is {found.loaded}, and the libraries are of {found.library}."
        yield "driver-reboot-due", WARN, reason, "Boot the host before the driver is next asked for something new."
    if found.devices and "nvidia-uvm" not in found.devices:
        reason = "/dev/nvidia-uvm is missing; the hardened service may not load the module, and CUDA needs it."
        yield (
            "uvm-device",
            WARN,
            reason,
            "Run nvidia-modprobe -u -c 0 at boot, or load nvidia-uvm through /etc/modules-load.d.",
        )
    yield from _hmm(evidence, needs, numbers)


def _hmm(evidence: Evidence, needs: Needs, numbers: list[int]) -> Told:
    on = any(gpu.addressing == "HMM" for gpu in evidence.gpus) or evidence.driver.hmm_off is False
    blackwell = any((gpu.capability or "").startswith("12.") for gpu in evidence.gpus)
    if not on or evidence.driver.hmm_off or not blackwell:
        return
    faulty = bool(numbers) and in_range(numbers, _HMM_FAULTY)
    if not faulty and not needs.p2p:
        return
    hurts = (
        "CUDA fails to start with it on some hosts with this driver"
        if faulty
        else "P2P is slow or hangs with it on some hosts"
    )
    reason = f"Heterogeneous memory management is on in nvidia_uvm; {hurts}."
    remedy = "Write `options nvidia_uvm uvm_disable_hmm=1` to a file in /etc/modprobe.d, and load the module again or boot."
    yield "hmm", WARN if faulty else INFORM, reason, remedy


def _stays(evidence: Evidence) -> Told:
    packages = [name for name in evidence.driver.packages if name not in evidence.driver.held]
    loose = [name for name in packages if not any(_matches(pattern, name) for pattern in evidence.upgrades_leave)]
    if evidence.upgrades and loose:
        reason = f"Unattended upgrades may replace the driver under a running server ({', '.join(loose[:3])})."
        yield (
            "driver-unattended-upgrade",
            WARN,
            reason,
            'Hold the packages (apt-mark hold), or add "nvidia" and "libnvidia" to Unattended-Upgrade::Package-Blacklist.',
        )


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.match(pattern, name) is not None
    except re.error:
        return False
