"""What the canary tells Prometheus, in the text format of the node exporter's textfile collector.

Every series carries `service`, the instance's name: the files of two instances of a host must not hold the same series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .record import PASSED, VERDICTS, WRONG, Record, Xids

Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True)
class Gpu:
    """Memory of a GPU in bytes."""

    index: str
    used: float
    total: float


@dataclass(frozen=True)
class Host:
    """What a look found beside the verdict. certificate_end: seconds since 1970, None without a certificate.

    gpus_lost: lines of nvidia-smi that are no numbers, such as those of a GPU that fell off the bus. alone: whether the
    server can answer alone, and so be asked.
    """

    active: bool
    restarts: int
    release: str = ""
    profile: str = ""
    spec: str = ""
    certificate_end: float | None = None
    gpus: Sequence[Gpu] = ()
    gpus_lost: int = 0
    xids: Xids = field(default_factory=Xids)
    alone: bool = True


METRICS: Mapping[str, tuple[str, str]] = {
    "sglang_canary_look_timestamp_seconds": ("gauge", "When the canary looked last, whatever came of it."),
    "sglang_canary_looks_total": ("counter", "Looks of the canary by what came of them."),
    "sglang_canary_asks": ("gauge", "Whether the server is one that can be asked: no further rank, no half of a request."),
    "sglang_canary_verdict_timestamp_seconds": ("gauge", "When the canary made its last verdict of what runs."),
    "sglang_canary_passed": ("gauge", "Whether the last verdict of what runs is good."),
    "sglang_canary_wrong": ("gauge", "Whether the last verdict of what runs is that it answers wrongly."),
    "sglang_canary_check_passed": ("gauge", "Whether a check of the last verdict passed, by its name."),
    "sglang_canary_seconds": ("gauge", "How long the server was asked for the last verdict."),
    "sglang_unit_active": ("gauge", "Whether the unit is active."),
    "sglang_unit_restarts_total": ("counter", "How often systemd has started the crashed server again."),
    "sglang_deployment_info": ("gauge", "Release, profile and launch spec that were accepted last; always 1."),
    "sglang_certificate_end_timestamp_seconds": ("gauge", "When the server's certificate ends."),
    "sglang_gpu_memory_used_bytes": ("gauge", "Memory of a GPU in use, by nvidia-smi."),
    "sglang_gpu_memory_total_bytes": ("gauge", "Memory of a GPU."),
    "sglang_gpus_lost": ("gauge", "GPUs that nvidia-smi lists without numbers."),
    "sglang_xids_total": ("counter", "Errors of the NVIDIA driver in the kernel's log since the boot, by Xid."),
    "sglang_xid_timestamp_seconds": ("gauge", "When the newest error of the NVIDIA driver was logged, by Xid."),
}
"""Type and meaning of each."""


def text(service: str, record: Record, host: Host) -> str:
    """The whole file. A verdict of another launch spec than the accepted one is not told: it is nobody's any more."""
    lines = []
    for name, samples in _samples(record, host):
        if not samples:
            continue
        kind, meaning = METRICS[name]
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{_labels({'service': service, **labels})}}} {_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _samples(record: Record, host: Host) -> Iterator[tuple[str, list[Sample]]]:
    asked = record.asked if record.asked is not None and record.asked.spec == host.spec else None
    yield "sglang_canary_look_timestamp_seconds", [({}, record.looked)]
    outcomes = sorted({*VERDICTS, *record.counts})
    yield "sglang_canary_looks_total", [({"outcome": name}, record.counts.get(name, 0)) for name in outcomes]
    yield "sglang_canary_asks", [({}, host.alone)]
    yield "sglang_canary_verdict_timestamp_seconds", [({}, asked.ended)] if asked else []
    yield "sglang_canary_passed", [({}, asked.outcome == PASSED)] if asked else []
    yield "sglang_canary_wrong", [({}, asked.outcome == WRONG)] if asked else []
    checks = asked.verdict.get("checks", []) if asked else []
    yield (
        "sglang_canary_check_passed",
        [({"check": str(one["name"])}, bool(one["ok"])) for one in checks if one.get("ok") is not None],
    )
    yield "sglang_canary_seconds", [({}, asked.seconds)] if asked else []
    yield "sglang_unit_active", [({}, host.active)]
    yield "sglang_unit_restarts_total", [({}, host.restarts)]
    known = {"release": host.release, "profile": host.profile, "spec": host.spec}
    yield "sglang_deployment_info", [(known, 1)] if host.spec else []
    end = host.certificate_end
    yield "sglang_certificate_end_timestamp_seconds", [] if end is None else [({}, end)]
    yield "sglang_gpu_memory_used_bytes", [({"gpu": gpu.index}, gpu.used) for gpu in host.gpus]
    yield "sglang_gpu_memory_total_bytes", [({"gpu": gpu.index}, gpu.total) for gpu in host.gpus]
    yield "sglang_gpus_lost", [({}, host.gpus_lost)]
    yield "sglang_xids_total", [({"xid": xid}, count) for xid, count in sorted(host.xids.counts.items())]
    yield "sglang_xid_timestamp_seconds", [({"xid": xid}, seen) for xid, seen in sorted(host.xids.newest.items())]


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))
