"""Facts of a host, from recorded answers of its tools."""

from __future__ import annotations

from pathlib import Path

import pytest
from sglang_deploy import host_facts

PRO_6000 = "NVIDIA RTX PRO 6000 Blackwell Server Edition, 12.0, 97887, 580.95.05\n"
H200 = "NVIDIA H200, 9.0, 143771, 580.159.04\n"
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
# eight GPUs under two root complexes, no NVLink
TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tPIX\tSYS\t0-63\t0\t\tN/A
GPU1\tPIX\t X \tSYS\t0-63\t0\t\tN/A
GPU2\tSYS\tSYS\t X \t64-127\t1\t\tN/A

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""
# two H200
NVLINK = """\
\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\t0-31\t0\t\tN/A
GPU1\tNV18\t X \t0-31\t0\t\tN/A

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""
NVCC = """\
nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2025 NVIDIA Corporation
Built on Fri_Feb_21_20:23:50_PST_2025
Cuda compilation tools, release 12.8, V12.8.93
Build cuda_12.8.r12.8/compiler.35583870_0
"""


def test_eight_gpus_of_a_kind() -> None:
    found = host_facts.parse_gpus(PRO_6000 * 8)
    assert found["gpu_count"] == 8
    assert found["capability"] == "12.0"
    assert found["gpu_memory_gib"] == 95.6
    assert found["driver"] == "580.95.05"
    assert found["gpus"][0] == "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def test_a_mixed_host_has_no_single_capability_and_the_smallest_memory() -> None:
    found = host_facts.parse_gpus(H200 + PRO_6000)
    assert (found["capability"], found["gpu_memory_gib"], found["gpu_count"]) == (None, 95.6, 2)


@pytest.mark.parametrize("text", ["", NO_DRIVER, "No devices were found\n"])
def test_what_cannot_be_told_is_unknown_and_never_zero(text: str) -> None:
    assert host_facts.parse_gpus(text) == {}
    assert host_facts.HostFacts(**host_facts.parse_gpus(text)).gpu_count is None


def test_a_chip_that_shares_the_hosts_memory_does_not_tell_its_size() -> None:
    found = host_facts.parse_gpus("NVIDIA GB10, 12.1, [N/A], 580.95.05\n")
    assert (found["capability"], found["gpu_memory_gib"]) == ("12.1", None)


def test_nvlink() -> None:
    assert host_facts.parse_topology(TOPOLOGY) is False
    assert host_facts.parse_topology(NVLINK) is True
    assert host_facts.parse_topology("") is None


def test_the_compilers_release() -> None:
    assert host_facts.parse_nvcc(NVCC) == "12.8"
    assert host_facts.parse_nvcc("command not found") is None


def compiler(folder: Path) -> str:
    (folder / "bin").mkdir(parents=True)
    path = folder / "bin" / "nvcc"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_the_named_toolkit_is_the_only_one_that_counts(tmp_path: Path) -> None:
    """An nvcc of the distribution says nothing of a toolkit that is still to be installed."""
    named, other = tmp_path / "cuda-12.8", compiler(tmp_path / "usr")
    path = {"PATH": str(Path(other).parent)}
    assert host_facts.find_nvcc(str(named), path) is None
    assert host_facts.find_nvcc(None, path) == other
    assert host_facts.find_nvcc(str(named), path) is None
    mine = compiler(named)
    assert host_facts.find_nvcc(str(named), path) == mine
    assert host_facts.find_nvcc(None, {**path, "CUDA_HOME": str(named)}) == mine


@pytest.mark.parametrize(("packages", "sockets"), [(["0", "0", "1", "1"], 2), (["0"], 1), (["-1", "-1"], None), ([], None)])
def test_sockets(tmp_path: Path, packages: list[str], sockets: int | None) -> None:
    for number, package in enumerate(packages):
        (tmp_path / f"cpu{number}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{number}" / "topology" / "physical_package_id").write_text(f"{package}\n")
    assert host_facts.count_sockets(tmp_path) == sockets


def test_this_host_can_be_looked_at() -> None:
    facts = host_facts.look().as_dict()
    assert facts["gpu_count"] is None or facts["gpu_count"] > 0
