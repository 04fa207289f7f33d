"""What NVIDIA's tools and the driver's files say, as data. Pure: text in, evidence out; standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

from .host_evidence import Gpu, Holder

CAPABILITIES = ("--query-gpu=index,compute_cap", "--format=csv,noheader")


def parse_gpus(text: str, capabilities: Sequence[str | None] = ()) -> tuple[tuple[Gpu, ...], str | None, str | None]:
    """GPUs, driver version and newest CUDA version in the answer of `nvidia-smi -q -x`.

    `capabilities` are those of `parse_capabilities`, in the same order; -q does not tell them. Nothing where the text is
    no such answer (nvidia-smi prints plain text when it fails).
    """
    start = text.find("<nvidia_smi_log>")
    if start < 0:
        return (), None, None
    try:
        log = ElementTree.fromstring(text[start:])  # noqa: S314 - the driver's own tool wrote it  # nosec B314
    except ElementTree.ParseError:
        return (), None, None
    gpus = log.findall("gpu")
    known = [*capabilities, *[None] * len(gpus)]
    found = tuple(_gpu(gpu, index, known[index]) for index, gpu in enumerate(gpus))
    return found, _version(log.findtext("driver_version")), _version(log.findtext("cuda_version"))


def _gpu(gpu: ElementTree.Element, index: int, capability: str | None) -> Gpu:
    def text(path: str) -> str:
        return (gpu.findtext(path) or "").strip()

    power = "gpu_power_readings" if gpu.find("gpu_power_readings") is not None else "power_readings"
    limit = text(f"{power}/current_power_limit") or text(f"{power}/power_limit")
    errors = [_int(item.text) for item in gpu.iterfind("ecc_errors/volatile/*") if "uncorrectable" in item.tag]
    counted = [count for count in errors if count is not None]
    return Gpu(
        name=text("product_name"),
        index=index,
        bus_id=text("pci/pci_bus_id").lower() or None,
        capability=capability,
        memory_mib=_int(text("fb_memory_usage/total")),
        used_mib=_int(text("fb_memory_usage/used")),
        bar1_mib=_int(text("bar1_memory_usage/total")),
        addressing=_word(text("addressing_mode")),
        persistence=_bool(text("persistence_mode")),
        mig=_bool(text("mig_mode/current_mig")),
        compute_mode=_word(text("compute_mode")),
        state=_word(text("performance_state")),
        link_gen=_int(text("pci/pci_gpu_link_info/pcie_gen/current_link_gen")),
        link_gen_max=_int(text("pci/pci_gpu_link_info/pcie_gen/max_link_gen")),
        link_gen_device=_int(text("pci/pci_gpu_link_info/pcie_gen/max_device_link_gen")),
        link_width=_int(text("pci/pci_gpu_link_info/link_widths/current_link_width")),
        link_width_max=_int(text("pci/pci_gpu_link_info/link_widths/max_link_width")),
        power_limit_w=_float(limit),
        power_default_w=_float(text(f"{power}/default_power_limit")),
        temperature_c=_int(text("temperature/gpu_temp")),
        ecc=_bool(text("ecc_mode/current_ecc")),
        uncorrected=sum(counted) if counted else None,
        remap_pending=_bool(text("remapped_rows/remapped_row_pending")),
        remap_failed=_bool(text("remapped_rows/remapped_row_failure")),
        recovery=_word(text("gpu_recovery_action")),
        processes=tuple(_processes(gpu)),
    )


def _processes(gpu: ElementTree.Element) -> Iterator[Holder]:
    for process in gpu.iterfind("processes/process_info"):
        name = (process.findtext("process_name") or "").strip()
        yield Holder(
            pid=_int(process.findtext("pid")),
            name=name.split(" ")[0].rsplit("/", 1)[-1] or "unknown",  # its arguments are nobody's business here
            memory_mib=_int(process.findtext("used_memory")),
        )


def parse_capabilities(text: str) -> list[str | None]:
    """Compute capabilities in the order of the indices, from `nvidia-smi` with CAPABILITIES."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    listed = {int(row[0]): row[1] for row in rows if len(row) == 2 and row[0].isdigit()}
    return [_version(listed[index]) for index in sorted(listed)]


def parse_matrix(text: str) -> tuple[tuple[str, ...], ...]:
    """The part of an `nvidia-smi topo` matrix that is between GPUs; empty where there is none."""
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    gpus = [row[1:] for row in rows if row and re.fullmatch(r"GPU\d+", row[0]) and "X" in row[1:]]
    return tuple(tuple(row[: len(gpus)]) for row in gpus)


def parse_registry(text: str) -> str:
    """The value of RegistryDwords in /proc/driver/nvidia/params."""
    found = re.search(r'(?m)^RegistryDwords:\s*"([^"]*)"', text)
    return found[1] if found else ""


def _version(text: Any) -> str | None:
    return text.strip() if text and re.fullmatch(r"\d+(\.\d+)+", text.strip()) else None


def _word(text: str) -> str | None:
    return None if text in ("", "None", "N/A", "[N/A]") or "deprecated" in text else text


def _bool(text: str) -> bool | None:
    return {"enabled": True, "yes": True, "disabled": False, "no": False}.get(text.lower())


def _int(text: str | None) -> int | None:
    found = re.match(r"\s*(\d+)", text or "")
    return int(found[1]) if found else None


def _float(text: str) -> float | None:
    found = re.match(r"\s*(\d+(?:\.\d+)?)", text)
    return float(found[1]) if found else None
