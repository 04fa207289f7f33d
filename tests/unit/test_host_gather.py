"""Evidence from a made-up host (files below a folder, tools that answer what real ones did), and from this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from sglang_deploy import host_gather, host_nvidia, host_pci, host_ports, host_probe, release_host
from sglang_deploy.host_evidence import Bridge, Evidence, PythonFound
from sglang_deploy.host_gather import Question, gather
from sglang_deploy.host_probe import Machine

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = ROOT / "tests" / "data" / "hosts" / "answers"
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.107\n"
NVCC = "Cuda compilation tools, release 12.8, V12.8.93\nBuild cuda_12.8.r12.8/compiler.35583870_0\n"
DMESG = """\
[    1.0] Command line: quiet
[   81.2] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[   90.0] usb 1-1: new device
[  733.1] Out of memory: Killed process 5150 (cicc) total-vm:9123456kB
"""
APT = """\
APT::Periodic "";
APT::Periodic::Unattended-Upgrade "1";
Unattended-Upgrade::Package-Blacklist:: "nvidia";
Unattended-Upgrade::Package-Blacklist:: "libnvidia";
"""
DPKG = """\
nvidia-driver-580-open\t580.159.03-0ubuntu1\thold ok installed
libnvidia-compute-570\t570.1\tdeinstall ok config-files
"""
MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (builder@host)\n"


class Made(Machine):
    """A host below a folder whose tools give recorded answers."""

    def __init__(self, root: Path, answers: dict[str, str]) -> None:
        super().__init__(root)
        self.answers = answers

    def which(self, tool: str, path: str | None = None) -> str | None:
        return f"/usr/bin/{tool}" if any(command.split()[0] == tool for command in self.answers) else None

    def run(self, command: Sequence[str], *, failing: bool = False, seconds: float | None = None) -> str:
        return self.answers.get(" ".join(command[:4]), self.answers.get(command[0], ""))


def files(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def config(acs: int) -> bytes:
    """A configuration space with a first extended capability (AER) that leads to ACS."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x200 << 20).to_bytes(4, "little")
    space[0x200:0x204] = (0x000D | 1 << 16).to_bytes(4, "little")
    space[0x206:0x208] = acs.to_bytes(2, "little")
    return bytes(space)


@pytest.fixture(autouse=True)
def one_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking each Python of the machine takes its time; test_release does."""
    monkeypatch.setattr(release_host, "python_paths", lambda: [sys.executable])


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(host_ports, "unit_processes", lambda *_: {4242})
    monkeypatch.setattr(host_gather, "find_nvcc", lambda *_: "nvcc")
    files(
        tmp_path,
        {
            "/proc/1/comm": "systemd\n",
            "/proc/1/limits": "Max open files  1024 524288 files\nMax locked memory         8388608  8388608  bytes\n",
            "/proc/1/status": "Name: systemd\nCapEff:\t00000000fee97fff\n",
            "/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=secret amd_iommu=pt iommu=pt pci=noacs quiet\n",
            "/proc/meminfo": "MemTotal:  1048576 kB\nMemFree: 1 kB\nMemAvailable:   524288 kB\n",
            "/proc/sys/kernel/osrelease": "6.8.0-87-generic\n",
            "/proc/sys/fs/nr_open": "1048576\n",
            "/proc/driver/nvidia/version": MODULE + "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n",
            "/proc/driver/nvidia/params": 'EnableMSI: 1\nRegistryDwords: "ForceP2P=0x11;RMForceP2PType=1"\nRmMsg: ""\n',
            "/proc/self/mountinfo": "22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
            f"40 22 0:33 / {tmp_path}/srv rw,noexec shared:2 - zfs tank/srv rw\n",
            "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "N\n",
            "/sys/devices/system/node/node0/cpulist": "0-31\n",
            "/sys/devices/system/node/node1/cpulist": "32-63\n",
            "/sys/devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
            "/sys/devices/system/cpu/cpu1/topology/physical_package_id": "1\n",
            "/sys/devices/system/cpu/cpufreq/boost": "1\n",
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.178.04": "",
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "",
            "/dev/nvidia0": "",
            "/dev/nvidiactl": "",
            "/etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nID=ubuntu\nVERSION_ID="24.04"\n',
            "/opt/sglang/releases/a/receipt.json": "{}",
            "/srv/models/readme": "",
        },
    )
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    secure = tmp_path / "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    secure.parent.mkdir(parents=True)
    secure.write_bytes(b"\x06\x00\x00\x00\x01")
    tree = tmp_path / "sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0"
    files(tree, {"vendor": "0x10de\n", "class": "0x030200\n", "numa_node": "0\n"})
    (tree.parent / "config").write_bytes(config(0x1D))
    files(tmp_path / "sys/devices/pci0000:00/0000:00:02.0", {"vendor": "0x10de\n", "class": "0x040300\n"})  # its sound
    files(tmp_path, {"/sys/kernel/iommu_groups/7/type": "DMA-FQ\n"})
    (tree / "iommu_group").symlink_to(tmp_path / "sys/kernel/iommu_groups/7")
    (tmp_path / "sys/bus/pci/drivers/nvidia").mkdir(parents=True)
    (tree / "driver").symlink_to(tmp_path / "sys/bus/pci/drivers/nvidia")
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:01:00.0").symlink_to(tree)
    (tmp_path / "sys/bus/pci/devices/0000:00:02.0").symlink_to(tmp_path / "sys/devices/pci0000:00/0000:00:02.0")
    text = {name: (ANSWERS / name).read_text(encoding="utf-8") for name in ("nvidia-smi.xml", "topology.txt", "p2p.txt")}
    return Made(
        tmp_path,
        {
            "nvidia-smi -q -x": text["nvidia-smi.xml"],
            "nvidia-smi --query-gpu=index,compute_cap --format=csv,noheader": "0, 12.0\n1, 12.0\n",
            "nvidia-smi topo -m": text["topology.txt"],
            "nvidia-smi topo -p2p r": text["p2p.txt"],
            "nvidia-smi topo -p2p w": text["p2p.txt"].replace("CNS", "OK"),
            "systemctl is-system-running": "degraded\n",
            "nvcc": NVCC,
            "dmesg": DMESG,
            "apt-config": APT,
            "unattended-upgrade": "",
            "dpkg-query": DPKG,
            "g++": "",
        },
    )


QUESTION = Question(
    places={"releases": "/opt/sglang", "weights": "/srv/models", "kernel caches": "/var/cache/sglang"}, instance="glm5"
)


def test_gpus(box: Made) -> None:
    first, second = gather(QUESTION, box).gpus
    assert (first.name, first.capability, first.memory_mib) == (
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "12.0",
        97887,
    )
    assert (first.bus_id, first.link_gen, first.link_gen_max, first.link_width) == ("00000000:01:00.0", 1, 5, 16)
    assert (first.power_limit_w, first.power_default_w, first.bar1_mib, first.addressing) == (450.0, 600.0, 131072, "HMM")
    assert (first.ecc, first.uncorrected, first.remap_pending, first.recovery, first.mig) == (True, 0, False, None, False)
    assert (second.link_width, second.uncorrected, second.remap_pending, second.recovery) == (8, 2, True, "Reset")
    assert second.addressing is None and second.persistence is True and second.temperature_c == 31


def test_a_process_on_a_gpu_is_named_without_its_arguments(box: Made) -> None:
    evidence = gather(QUESTION, box)
    (holder,) = evidence.gpus[0].processes
    assert (holder.pid, holder.name, holder.memory_mib, holder.own) == (4242, "ollama", 7900, True)
    assert "secret" not in json.dumps(evidence.as_dict())


def test_driver(box: Made) -> None:
    driver = gather(QUESTION, box).driver
    assert (driver.loaded, driver.open, driver.library, driver.cuda) == ("580.159.03", True, "580.178.04", "13.0")
    assert (driver.hmm_off, driver.nouveau, driver.error) == (False, False, None)
    assert driver.registry == "ForceP2P=0x11;RMForceP2PType=1"
    assert driver.devices == ("nvidia0", "nvidiactl")
    assert (driver.packages, driver.held) == ({"nvidia-driver-580-open": "580.159.03-0ubuntu1"}, ("nvidia-driver-580-open",))


def test_what_lies_between_gpus(box: Made) -> None:
    evidence = gather(QUESTION, box)
    assert evidence.topology.paths == (("X", "SYS"), ("SYS", "X"))
    assert evidence.topology.read == (("X", "CNS"), ("CNS", "X"))
    assert evidence.topology.write == (("X", "OK"), ("OK", "X"))
    (gpu,) = evidence.pci
    assert (gpu.address, gpu.driver, gpu.numa, gpu.iommu) == ("0000:01:00.0", "nvidia", 0, "DMA-FQ")
    assert gpu.bridges == (Bridge("0000:00:01.1", 0x1D),)


def test_the_rest_of_the_host(box: Made) -> None:
    evidence = gather(QUESTION, box)
    assert (evidence.init, evidence.systemd, evidence.kernel, evidence.nvcc) == (
        "systemd",
        "degraded",
        "6.8.0-87-generic",
        "12.8",
    )
    assert evidence.distribution == {"id": "ubuntu", "version": "24.04", "name": "Ubuntu 24.04.1 LTS"}
    assert evidence.parameters == ("amd_iommu=pt", "iommu=pt", "pci=noacs")
    assert (evidence.sockets, evidence.numa_nodes, evidence.secure_boot) == (2, 2, True)
    assert (evidence.memory.total_mib, evidence.memory.available_mib) == (1024, 512)
    assert (evidence.limits.memlock_kib, evidence.limits.open_files, evidence.limits.may_raise) == (8192, 1048576, False)
    assert (evidence.upgrades, evidence.upgrades_leave) == (True, ("nvidia", "libnvidia"))
    assert [line.split("] ")[1][:13] for line in evidence.kernel_log] == ["NVRM: Xid (PC", "Out of memory"]
    assert evidence.tools == {"g++": "/usr/bin/g++", "ninja": None, "nvcc": "/usr/bin/nvcc"}


def test_disks(box: Made) -> None:
    releases, weights, caches = gather(QUESTION, box).disks
    assert (releases.mount, releases.kind, releases.inhabited) == ("/", "ext4", True)
    assert (weights.mount, weights.kind, weights.options) == (f"{box.root}/srv", "zfs", ("rw", "noexec"))
    assert weights.inhabited and not caches.inhabited
    assert caches.free_mib and caches.total_mib and caches.total_mib > caches.free_mib


@pytest.mark.parametrize(
    ("answer", "error"), [(NO_DRIVER, "couldn't communicate"), (MISMATCH, "mismatch NVML"), ("", "no answer")]
)
def test_a_driver_that_does_not_answer(box: Made, answer: str, error: str) -> None:
    box.answers = {**box.answers, "nvidia-smi -q -x": answer}
    evidence = gather(QUESTION, box)
    assert evidence.gpus == () and error in (evidence.driver.error or "")
    assert evidence.driver.silent is not bool(answer)


def test_a_bare_host_has_unknowns_and_no_errors(tmp_path: Path) -> None:
    evidence = gather(Question(places={"releases": "/opt/sglang"}), Made(tmp_path, {}))
    assert (evidence.init, evidence.systemd, evidence.gpus, evidence.pci) == ("unknown", "absent", (), ())
    assert evidence.driver.error == "nvidia-smi is not installed"
    assert (evidence.memory.total_mib, evidence.limits.memlock_kib, evidence.sockets, evidence.secure_boot) == (None,) * 4
    assert evidence.upgrades is None and evidence.distribution == {}


@pytest.mark.parametrize(
    ("data", "found"),
    [(config(0x1D), 0x1D), (config(0), 0), (bytes(4096), None), (bytes(64), None), (b"", None), (b"\xff" * 4096, None)],
)
def test_acs_in_a_configuration_space(data: bytes, found: int | None) -> None:
    assert host_pci.acs_control(data) == found


def test_acs_that_cannot_be_read_is_told(box: Made) -> None:
    bridge = box.root / "sys/devices/pci0000:00/0000:00:01.1/config"
    bridge.write_bytes(bridge.read_bytes()[:64])
    assert gather(QUESTION, box).pci[0].bridges == (Bridge("0000:00:01.1", None, readable=False),)


def test_capabilities_follow_the_index() -> None:
    assert host_nvidia.parse_capabilities("1, 9.0\n0, 12.0\n2, [N/A]\n") == ["12.0", "9.0", None]


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
    assert host_probe.find_nvcc(str(named), path) is None
    assert host_probe.find_nvcc(None, path) == other
    mine = compiler(named)
    assert host_probe.find_nvcc(str(named), path) == mine
    assert host_probe.find_nvcc(None, {**path, "CUDA_HOME": str(named)}) == mine


def test_headers_beside_a_python_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = release_host.Python(str(tmp_path / "bin" / "python3.11"), (3, 11, 2), "linux-x86_64")
    monkeypatch.setattr(release_host, "probe_python", lambda path, seconds: python)
    assert gather(Question(), Made(tmp_path, {})).pythons == (PythonFound(python.path, "3.11.2", False),)
    files(tmp_path, {"include/python3.11/Python.h": ""})
    assert gather(Question(), Made(tmp_path, {})).pythons[0].headers


def test_a_tool_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_probe, "LIMIT_S", 0.2)
    machine = Machine()
    begun = time.monotonic()
    assert machine.run(["sleep", "30"]) == ""
    assert time.monotonic() - begun < 5
    assert machine.not_told == ["sleep 30: no answer in 0.2 s"]


def test_a_tool_that_fails_or_is_missing_is_noted() -> None:
    machine = Machine()
    assert machine.run(["sh", "-c", "echo why >&2; exit 3"]) == machine.run(["no-such-tool"]) == ""
    assert machine.not_told == ["sh -c echo why >&2; exit 3: why", "no-such-tool: No such file or directory"]
    assert machine.run(["sh", "-c", "echo why >&2; exit 3"], failing=True) == "why\n"


def test_this_machine_can_be_looked_at() -> None:
    evidence = gather(QUESTION)
    assert isinstance(evidence, Evidence) and evidence.memory.total_mib and evidence.cpus
    assert json.loads(json.dumps(evidence.as_dict()))["kernel"] == os.uname().release
    assert evidence.seconds < 10


def test_what_runs_on_the_host_needs_the_standard_library_alone() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'plugins/module_utils')!r}); import sglang_deploy.host_gather"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
