"""Look at a host: everything at once, read-only, each probe with a time limit. Standard library only.

The probes run side by side, since nvidia-smi takes seconds on eight GPUs whose driver is not kept loaded.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import sysconfig
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from . import cuda, driver, host_nvidia, host_pci, host_ports, release_host
from .host_evidence import Disk, Driver, Evidence, Gpu, Limits, Memory, PythonFound, Topology
from .host_probe import LIMIT_S, NVIDIA_LIMIT_S, Machine, find_nvcc

RELEASES, WEIGHTS, CACHES = "releases", "weights", "kernel caches"
"""What a folder is used for."""
_LOG = re.compile(
    r"\bXid\b|AER: |PCIe Bus Error|IO_PAGE_FAULT|DMAR: .*fault|NVRM: API mismatch|RmInitAdapter failed|fallen off the bus"
    r"|Surprise Link Down|Key was rejected by service|Out of memory: Killed process"
)
_LOG_LINES = 40
_SILENT = f"nvidia-smi gave no answer in {NVIDIA_LIMIT_S:g} s"
_PARAMETERS = re.compile(r"(amd_|intel_)?iommu|pcie?_|pci=|nvidia|nouveau|modprobe\.blacklist|module_blacklist")
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64")
_PACKAGES = ("nvidia-driver-*", "nvidia-open*", "nvidia-dkms-*", "linux-modules-nvidia-*", "libnvidia-compute-*")
_CAP_SYS_RESOURCE = 24


@dataclass(frozen=True)
class Question:
    """What to look for. `places` maps a use (RELEASES, WEIGHTS, CACHES) to a folder; `ports` are instance, address, port.

    `python` is a path or name that is asked about beside the usual ones; `cuda_home` the toolkit that the server uses;
    `instance` the one whose own processes may hold GPUs.
    """

    places: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[tuple[str, str, int], ...] = ()
    tools: tuple[str, ...] = ("g++", "ninja", "nvcc")
    user: str = "sglang"
    python: str | None = None
    cuda_home: str | None = None
    instance: str = ""


def gather(question: Question, machine: Machine | None = None) -> Evidence:
    """The evidence of this host."""
    begun = time.monotonic()
    host = machine or Machine()
    probes: dict[str, Callable[[], Any]] = {
        "gpus": lambda: _gpus(host, question.instance),
        "paths": lambda: host_nvidia.parse_matrix(_smi(host, "topo", "-m")),
        "read": lambda: host_nvidia.parse_matrix(_smi(host, "topo", "-p2p", "r")),
        "write": lambda: host_nvidia.parse_matrix(_smi(host, "topo", "-p2p", "w")),
        "driver": lambda: _driver(host),
        "systemd": lambda: _systemd(host),
        "nvcc": lambda: _nvcc(host, question.cuda_home),
        "pythons": lambda: tuple(_pythons(question.python)),
        "upgrades": lambda: _upgrades(host),
        "kernel_log": lambda: _kernel_log(host),
        "disks": lambda: tuple(_disk(host, use, path) for use, path in question.places.items()),
        "ports": lambda: tuple(host_ports.look_at_port(*port) for port in question.ports),
    }
    with ThreadPoolExecutor(max_workers=len(probes)) as pool:
        asked = {name: pool.submit(probe) for name, probe in probes.items()}
        found = {name: future.result() for name, future in asked.items()}
    gpus, version, cuda, error = found["gpus"]
    init, state = found["systemd"]
    told: Driver = found["driver"]
    unattended, left = found["upgrades"]
    return Evidence(
        init=init,
        systemd=state,
        distribution=distribution(host),
        kernel=host.word("/proc/sys/kernel/osrelease"),
        parameters=tuple(word for word in host.read("/proc/cmdline").split() if _PARAMETERS.match(word)),
        cpus=os.cpu_count(),
        sockets=count_sockets(host),
        numa_nodes=sum(bool(re.fullmatch(r"node\d+", name)) for name in host.names("/sys/devices/system/node")) or None,
        gpus=gpus,
        pci=host_pci.gpus(host),
        driver=replace(told, loaded=told.loaded or version, cuda=cuda, error=error, silent=error == _SILENT),
        topology=Topology(found["paths"], found["read"], found["write"]),
        nvcc=found["nvcc"],
        memory=_memory(host),
        disks=found["disks"],
        limits=_limits(host),
        ports=found["ports"],
        kernel_log=found["kernel_log"],
        secure_boot=_secure_boot(host),
        upgrades=unattended,
        upgrades_leave=left,
        time_synced=_time_synced(),
        pythons=found["pythons"],
        tools=_tools(host, question),
        user=_user(question.user),
        not_told=tuple(sorted(set(host.not_told))),
        seconds=round(time.monotonic() - begun, 2),
    )


def _smi(host: Machine, *arguments: str) -> str:
    return host.run(["nvidia-smi", *arguments], seconds=NVIDIA_LIMIT_S) if host.which("nvidia-smi") else ""


def _gpus(host: Machine, instance: str) -> tuple[tuple[Gpu, ...], str | None, str | None, str | None]:
    """GPUs, driver version, CUDA version, and what nvidia-smi said where it lists none."""
    if not host.which("nvidia-smi"):
        return (), None, None, "nvidia-smi is not installed"
    text = host.run(["nvidia-smi", "-q", "-x"], failing=True, seconds=NVIDIA_LIMIT_S)
    capabilities = host_nvidia.parse_capabilities(_smi(host, *host_nvidia.CAPABILITIES))
    gpus, version, cuda = host_nvidia.parse_gpus(text, capabilities)
    if not gpus:
        return (), version, cuda, " ".join(text.split())[:300] or _SILENT
    holders = any(gpu.processes for gpu in gpus)
    own = host_ports.unit_processes(f"sglang@{instance}.service") if instance and holders else set()
    return tuple(replace(gpu, processes=_holders(gpu, own)) for gpu in gpus), version, cuda, None


def _holders(gpu: Gpu, own: set[int]) -> tuple[Any, ...]:
    """The processes on a GPU with their units."""
    return tuple(
        replace(held, unit=host_ports.process(held.pid).unit if held.pid else None, own=held.pid in own)
        for held in gpu.processes
    )


def _driver(host: Machine) -> Driver:
    loaded = driver.parse_loaded(host.read("/proc/driver/nvidia/version"))
    hmm_off = host.word("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
    libraries = [name for folder in _LIBRARIES for name in host.names(folder)]
    versions = [found[1] for name in libraries if (found := re.fullmatch(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)", name))]
    packages: dict[str, str] = {}
    held = []
    if host.which("dpkg-query"):
        form = "${Package}\t${Version}\t${Status}\n"
        listed = host.run(["dpkg-query", "--show", f"--showformat={form}", *_PACKAGES], failing=True)
        for line in listed.splitlines():
            name, _, rest = line.partition("\t")
            version, _, status = rest.partition("\t")
            if status.endswith(" installed"):
                packages[name] = version
                held += [name] if status.startswith("hold ") else []
    return Driver(
        loaded=loaded.version if loaded else None,
        open=loaded.open if loaded else None,
        library=versions[0] if versions else None,
        nouveau=host.path("/sys/module/nouveau").exists(),
        hmm_off={"Y": True, "N": False}.get(hmm_off or ""),
        registry=host_nvidia.parse_registry(host.read("/proc/driver/nvidia/params")),
        devices=tuple(name for name in host.names("/dev") if name.startswith("nvidia")),
        packages=packages,
        held=tuple(held),
    )


def _systemd(host: Machine) -> tuple[str, str]:
    """The name of process 1, and the state of systemd: `absent` where it is not the init."""
    init = host.word("/proc/1/comm") or "unknown"
    if init != "systemd" or not host.path("/run/systemd/system").is_dir():  # what sd_booted(3) looks for
        return init, "absent"
    return init, host.run(["systemctl", "is-system-running"], failing=True).strip() or "unknown"


def _nvcc(host: Machine, cuda_home: str | None) -> str | None:
    compiler = find_nvcc(cuda_home, os.environ)
    found = cuda.parse_version(host.run([compiler, "--version"])) if compiler else None
    return found[0] if found else None


def _pythons(asked: str | None) -> list[PythonFound]:
    paths = [*([asked] if asked else []), *release_host.python_paths()]
    with ThreadPoolExecutor(max_workers=len(paths) or 1) as pool:
        pythons = [python for python in pool.map(partial(release_host.probe_python, seconds=LIMIT_S), paths) if python]
    return [
        PythonFound(it.path, ".".join(map(str, it.version)), (headers(it) / "Python.h").is_file())
        for it in dict.fromkeys(pythons)
    ]


def headers(python: release_host.Python) -> Path:
    """Where this Python's C headers are if its -dev package is installed."""
    prefix = Path(python.path).resolve().parent.parent
    include = Path(sysconfig.get_path("include"))
    if Path("/usr") == prefix and include.name == f"python{python.minor}":
        return include
    return prefix / "include" / f"python{python.minor}"


def _upgrades(host: Machine) -> tuple[bool | None, tuple[str, ...]]:
    """Whether packages are upgraded unattended, and the expressions of those that are left alone."""
    if not host.which("apt-config"):
        return None, ()
    dump = host.run(["apt-config", "dump"])
    on = re.search(r'(?m)^APT::Periodic::Unattended-Upgrade "([1-9]\d*|always)";', dump) is not None
    left = re.findall(r'(?m)^Unattended-Upgrade::Package-Blacklist:: "([^"]+)";', dump)
    return on and host.which("unattended-upgrade") is not None, tuple(left)


def _kernel_log(host: Machine) -> tuple[str, ...]:
    lines = [line.strip() for line in host.run(["dmesg"]).splitlines() if _LOG.search(line)]
    return tuple(lines[-_LOG_LINES:])


def _disk(host: Machine, use: str, path: str) -> Disk:
    place = host.path(path)
    while not place.exists() and place != place.parent:
        place = place.parent
    stat = os.statvfs(place)
    mounts = [found for line in host.read("/proc/self/mountinfo").splitlines() if (found := _mount(line))]
    real = str(place.resolve())
    over = [found for found in mounts if real == found[0] or real.startswith(f"{found[0].rstrip('/')}/")]
    below = max(over, key=lambda found: len(found[0]), default=None)
    receipts = host.path(path).glob("releases/*/receipt.json") if use == RELEASES else host.path(path).glob("*")
    return Disk(
        use=use,
        path=path,
        mount=below[0] if below else None,
        kind=below[2] if below else None,
        options=below[1] if below else (),
        free_mib=stat.f_bavail * stat.f_frsize // 2**20,
        total_mib=stat.f_blocks * stat.f_frsize // 2**20,
        rotational=_rotational(host, below[3]) if below else None,
        inhabited=any(receipts),
    )


def _mount(line: str) -> tuple[str, tuple[str, ...], str, str] | None:
    """Mount point, options, type and device number in a line of mountinfo (proc(5))."""
    left, separator, right = line.partition(" - ")
    fields, after = left.split(), right.split()
    if not separator or len(fields) < 6 or not after:
        return None
    return fields[4].replace("\\040", " "), tuple(fields[5].split(",")), after[0], fields[2]


def _rotational(host: Machine, device: str) -> bool | None:
    """Whether a block device, or the disk that it is a partition of, turns. None where there is no such device, and for a
    virtual one, which always says yes."""
    if not device or not host.path(f"/sys/dev/block/{device}").exists():
        return None
    real = host.path(f"/sys/dev/block/{device}").resolve()
    if real.name.startswith("vd"):
        return None
    for folder in (real, real.parent):
        if (folder / "queue" / "rotational").is_file():
            return (folder / "queue" / "rotational").read_text(encoding="ascii").strip() == "1"
    return None


def _memory(host: Machine) -> Memory:
    told = dict(re.findall(r"(?m)^(\w+):\s+(\d+) kB", host.read("/proc/meminfo")))
    shm = host.path("/dev/shm")  # noqa: S108 - its size is what is asked
    stat = os.statvfs(shm) if shm.is_mount() else None
    return Memory(
        total_mib=int(told["MemTotal"]) // 1024 if "MemTotal" in told else None,
        available_mib=int(told["MemAvailable"]) // 1024 if "MemAvailable" in told else None,
        shm_mib=stat.f_blocks * stat.f_frsize // 2**20 if stat else None,
        shm_free_mib=stat.f_bavail * stat.f_frsize // 2**20 if stat else None,
    )


def _limits(host: Machine) -> Limits:
    locked = re.search(r"(?m)^Max locked memory\s+\S+\s+(\S+)", host.read("/proc/1/limits"))
    rights = re.search(r"(?m)^CapEff:\s+([0-9a-f]+)", host.read("/proc/1/status"))
    files = host.word("/proc/sys/fs/nr_open")
    memlock = None
    if locked:
        memlock = -1 if locked[1] == "unlimited" else int(locked[1]) // 1024
    return Limits(
        memlock_kib=memlock,
        open_files=int(files) if files and files.isdigit() else None,
        may_raise=bool(int(rights[1], 16) >> _CAP_SYS_RESOURCE & 1) if rights else None,
    )


def _secure_boot(host: Machine) -> bool | None:
    """The last byte of the EFI variable; None where the host did not boot with EFI."""
    variable = host.path("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")
    try:
        return variable.read_bytes()[-1:] == b"\x01"
    except OSError:
        return None


def _time_synced() -> bool | None:
    """Whether the kernel's clock is kept by some time service, by adjtimex(2), which all of them set."""
    try:
        asked = ctypes.create_string_buffer(512)  # struct timex is smaller; zero modes only read
        return bool(ctypes.CDLL(None).adjtimex(asked) != 5)  # TIME_ERROR
    except (OSError, AttributeError):
        return None


def _tools(host: Machine, question: Question) -> dict[str, str | None]:
    home = f"{question.cuda_home}/bin" if question.cuda_home else "/usr/local/cuda/bin"
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/bin", "/usr/bin", home])
    return {tool: host.which(tool, path) for tool in question.tools}


def _user(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def distribution(host: Machine) -> dict[str, str]:
    """`id`, `version` and `name` of the distribution; empty where it does not say."""
    found = dict(re.findall(r'(?m)^([A-Z_]+)="?([^"\n]*)"?$', host.read("/etc/os-release")))
    if not found:
        return {}
    return {"id": found.get("ID", ""), "version": found.get("VERSION_ID", ""), "name": found.get("PRETTY_NAME", "")}


def count_sockets(host: Machine) -> int | None:
    """The number of CPU sockets; None where the kernel does not tell."""
    cpus = "/sys/devices/system/cpu"
    names = [name for name in host.names(cpus) if re.fullmatch(r"cpu\d+", name)]
    packages = {host.word(f"{cpus}/{name}/topology/physical_package_id") for name in names}
    return len({package for package in packages if package and package.isdigit()}) or None  # -1: not told
