"""Judge a host by its evidence: pure, from evidence and needs to a report.

Only what is certain to fail is refused. Each judgement has an id, here with its sources; `host_check_allow` takes ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from .host_evidence import Evidence, Topology
from .host_judge_driver import driver
from .host_judge_gpu import gpus
from .host_judge_p2p import p2p
from .host_judge_system import system
from .host_needs import Needs
from .host_report import Judgement, Report, Told, report, summary

SOURCES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        # GPUs
        "gpu-count": ("NCCL and torch take one GPU for each rank",),
        "gpu-capability": ("catalog/stacks.yml",),
        "gpu-mixed": ("SGLang's tensor parallelism splits evenly",),
        "gpu-memory-taken": ("SGLang's own check of balanced memory (model_runner.py)", "sgl-project/sglang #22779"),
        "gpu-mig": ("NVIDIA MIG user guide",),
        "gpu-compute-mode": ("nvidia-smi(1)",),
        "gpu-ecc-errors": ("NVIDIA GPU memory error management",),
        "gpu-ecc-off": ("NVIDIA GPU memory error management",),
        "gpu-row-remap": ("NVIDIA GPU memory error management",),
        "gpu-recovery": ("nvidia-smi(1), GPU recovery action",),
        "gpu-power-cap": ("nvidia-smi(1)",),
        "gpu-persistence": ("NVIDIA driver persistence guide",),
        "gpu-hot": ("ormandj/sglang-glm53-flash-sm120 #11",),
        "gpu-xid": ("NVIDIA Xid catalogue", "NVIDIA/open-gpu-kernel-modules #1111"),
        "pcie-width": ("voipmonitor/rtx6kpro hardware/pcie-bandwidth.md",),
        "pcie-speed": ("voipmonitor/rtx6kpro hardware/pcie-bandwidth.md",),
        "pcie-errors": ("voipmonitor/rtx6kpro hardware/pcie-bandwidth.md", "sjug/rtx6kpro daily summary 2026-05-13"),
        # Driver
        "driver-absent": ("NVIDIA driver installation guide",),
        "driver-silent": ("NVIDIA/open-gpu-kernel-modules #1111", "NVIDIA driver persistence guide"),
        "driver-mismatch": ("NVIDIA/deepops #1186", "oddmario/NVIDIA-Ubuntu-Driver-Guide #4"),
        "driver-old": ("catalog/stacks.yml", "CUDA compatibility guide"),
        "driver-proprietary": ("runs-on/runner-images-for-aws #55", "oddmario/NVIDIA-Ubuntu-Driver-Guide #10"),
        "driver-unattended-upgrade": ("NVIDIA/deepops #1186", "oddmario/NVIDIA-Ubuntu-Driver-Guide #4"),
        "driver-reboot-due": ("oddmario/NVIDIA-Ubuntu-Driver-Guide #4",),
        "secure-boot": ("awesometic/realtek-r8126-dkms #3",),
        "uvm-device": ("NVIDIA driver README, device nodes", "systemd.exec(5), ProtectKernelModules"),
        "hmm": (
            "ollama/ollama #11593",
            "NVIDIA/open-gpu-kernel-modules #901",
            "voipmonitor/rtx6kpro hardware/pcie-bandwidth.md",
        ),
        # Between GPUs
        "p2p-refused": ("nvidia-smi(1), topo -p2p", "NCCL user guide, troubleshooting"),
        "p2p-registry": (
            "sjug/rtx6kpro daily summary 2026-06-30",
            "voipmonitor/rtx6kpro optimization/pcie-oneshot-allreduce.md",
        ),
        "p2p-bar1": ("voipmonitor/rtx6kpro hardware notes",),
        "nccl-level": ("NCCL user guide, NCCL_P2P_LEVEL", "voipmonitor/rtx6kpro optimization/nccl-tuning.md"),
        "iommu": ("vllm-project/vllm #33041", "pytorch/pytorch #84803", "model card of lukealonso/GLM-5-NVFP4"),
        "iommu-faults": ("pytorch/pytorch #84803",),
        "acs": ("NVIDIA/nccl #2079", "NCCL user guide, troubleshooting"),
        "acs-unknown": ("NCCL user guide, troubleshooting",),
        # System
        "no-systemd": ("systemd(1)",),
        "systemd-state": ("systemctl(1), is-system-running",),
        "python": ("catalog/stacks.yml",),
        "python-headers": ("Triton compiles against Python.h when it first runs",),
        "port-taken": ("bind(2)",),
        "tools": ("FlashInfer and Triton compile kernels when they first run",),
        "disk-release": ("catalog/stacks.yml",),
        "disk-weights": ("huggingface_hub checks the same",),
        "disk-caches": ("tests/faults: with a full disk neither a candidate nor the last good one started",),
        "disk-noexec": ("mount(8), noexec",),
        "filesystem": ("voipmonitor/rtx6kpro troubleshooting/common-issues.md",),
        "filesystem-slow": ("sgl-project/sglang #15235",),
        "shm": ("NVIDIA/nccl #290, #342", "vllm-project/vllm #1710"),
        "memlock": ("NCCL user guide, troubleshooting",),
        "open-files": ("SGLang raises its own limit (engine.py)",),
        "ram-load": ("sgl-project/sglang #20287, #37931",),
        "max-jobs": ("flashinfer-ai/flashinfer #3634",),
        "out-of-memory": ("sgl-project/sglang #15235",),
        "time": ("certificates are checked against the clock",),
    }
)
CHECKS: tuple[Callable[[Evidence, Needs], Told], ...] = (driver, gpus, p2p, system)


def visible(evidence: Evidence, numbers: str) -> Evidence:
    """The evidence as far as CUDA_VISIBLE_DEVICES lets a server see it; all of it where that holds no numbers."""
    words = [word.strip() for word in numbers.split(",")]
    if not all(word.isdigit() and int(word) < len(evidence.gpus) for word in words):
        return evidence
    kept = [int(word) for word in words]

    def part(matrix: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(matrix[row][column] for column in kept) for row in kept) if matrix else ()

    between = evidence.topology
    topology = Topology(part(between.paths), part(between.read), part(between.write))
    return replace(evidence, gpus=tuple(evidence.gpus[number] for number in kept), topology=topology)


def judge(evidence: Evidence, needs: Needs, allow: Sequence[str] = ()) -> Report:
    """The report on a host. Raises UnknownJudgement where `allow` names none."""
    seen = visible(evidence, needs.environment.get("CUDA_VISIBLE_DEVICES", ""))
    told = [Judgement(said[0], *said[1:], source=SOURCES[said[0]]) for check in CHECKS for said in check(seen, needs)]
    return report(told, summary(evidence), allow, SOURCES)
