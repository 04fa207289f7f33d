"""Judgements on the system: init, Python, ports, disks, memory, limits, tools. Each is id, severity, reason and remedy."""

from __future__ import annotations

from .host_evidence import Disk, Evidence
from .host_gather import CACHES, RELEASES, WEIGHTS
from .host_needs import Needs
from .host_report import INFORM, REFUSE, WARN, Told
from .release_host import in_range

_RUNS = ("running", "degraded", "starting", "initializing")
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs")
_KERNELS_MIB = 64  # those of one profile took 19 MiB on an H200
_SHM_MIB = 8 * 1024
"""What recipes for eight GPUs give /dev/shm at least."""
_JOB_MIB = 8 * 1024
_KEPT_MIB = 16 * 1024
"""A compile job of FlashInfer's SM120 kernels takes 3 to 8 GiB; this much is kept for everything else."""
_LOADER_MIB = 2 * 1024
"""Main memory that one rank takes while it loads: Python, CUDA context and buffers."""
_TURNING_MIB_S = 200
"""What a disk that turns reads at best."""
_OPEN_FILES = 1048576
_PACKAGES = {"g++": "apt install g++", "ninja": "apt install ninja-build", "nvcc": "install the stack's CUDA toolkit"}


def system(evidence: Evidence, needs: Needs) -> Told:
    """Whether the host can build a release and run a service."""
    yield from _systemd(evidence)
    yield from _python(evidence, needs)
    yield from _ports(evidence)
    yield from _disks(evidence, needs)
    yield from _memory(evidence, needs)
    yield from _limits(evidence, needs)
    yield from _tools(evidence)
    if evidence.time_synced is False and needs.cuda:
        reason = "The clock is not kept by a time service; certificates and the times in ledger and logs depend on it."
        yield "time", INFORM, reason, "systemctl enable --now systemd-timesyncd (or chrony)."


def _systemd(evidence: Evidence) -> Told:
    if evidence.systemd == "absent":
        reason = f"This host does not run systemd: process 1 is {evidence.init}. The server is run as a systemd service."
        yield "no-systemd", REFUSE, reason, "Deploy to a machine or container that was started with systemd as its init."
    elif evidence.systemd is not None and evidence.systemd not in _RUNS:
        reason = f"systemd is in the state {evidence.systemd}, so no service can be started."
        yield (
            "systemd-state",
            REFUSE,
            reason,
            "Finish the boot or leave the maintenance mode (systemctl default), then deploy again.",
        )


def _python(evidence: Evidence, needs: Needs) -> Told:
    if needs.python_range is None:
        return
    candidates = [
        found
        for found in evidence.pythons
        if not needs.python or needs.python in (found.path, found.path.rsplit("/", 1)[-1])
    ]
    if needs.python:  # the path that was asked for is told first, as the file that it leads to
        candidates = candidates or list(evidence.pythons[:1])
    fitting = [
        found for found in candidates if in_range([int(part) for part in found.version.split(".")], needs.python_range)
    ]
    if not fitting:
        has = ", ".join(f"{found.path} ({found.version})" for found in candidates) or "no Python at all"
        reason = f"The stack needs Python {needs.python_range}; this host has {has}."
        remedy = (
            "Install a fitting one beside it (Debian and Ubuntu: apt install python3.X python3.X-dev where the distribution "
            "has it), or set sglang_python to its path."
        )
        yield "python", REFUSE, reason, remedy
    elif not fitting[0].headers:
        minor = ".".join(fitting[0].version.split(".")[:2])
        reason = (
            f"Python.h of {fitting[0].path} is missing. Triton and torch compile against it on the first requests, and the "
            "server dies where they do."
        )
        yield "python-headers", WARN, reason, f"apt install python{minor}-dev"


def _ports(evidence: Evidence) -> Told:
    for port in evidence.ports:
        others = sorted({str(holder) for holder in port.holders if not holder.own})
        if others:
            reason = f"Port {port.port}, which instance {port.instance} is to listen on, is taken by {', '.join(others)}."
            yield "port-taken", REFUSE, reason, "Stop that process, or give the instance another port (sglang_port)."


def _disks(evidence: Evidence, needs: Needs) -> Told:
    for disk in evidence.disks:
        if disk.use == RELEASES:
            yield from _release(disk, needs)
        if disk.use == WEIGHTS:
            yield from _weights(disk, needs)
        if disk.use == CACHES and disk.free_mib is not None and disk.free_mib < _KERNELS_MIB:
            yield (
                "disk-caches",
                REFUSE,
                f"{disk.path} has {disk.free_mib} MiB free; a server that cannot write its kernel caches does not start.",
                "Free space there, or put the kernel caches on a larger filesystem (sglang_cache_root).",
            )
        if "noexec" in disk.options and (disk.use == RELEASES or (disk.use == CACHES and needs.cuda)):
            reason = f"{disk.path} is mounted noexec ({disk.mount}), so the {disk.use} there cannot be run or loaded."
            yield (
                "disk-noexec",
                REFUSE,
                reason,
                "Mount it without noexec, or put sglang_root and sglang_cache_root elsewhere.",
            )
    kinds = {disk.kind: disk for disk in evidence.disks if disk.kind in ("zfs", "fuse.zfs")}
    for disk in kinds.values():
        reason = f"{disk.path} is on ZFS; hosts froze under the load of such a server with their weights or system on it."
        yield "filesystem", WARN, reason, "Put weights and releases on ext4 or XFS."


def _release(disk: Disk, needs: Needs) -> Told:
    if disk.free_mib is None or disk.free_mib >= needs.disk_mib:
        return
    reason = f"{disk.path} has {disk.free_mib} MiB free; a release of the stack needs {needs.disk_mib} MiB."
    remedy = "Free space there, or set the release root (sglang_root) to a larger filesystem."
    # With a release there, perhaps none has to be built.
    yield "disk-release", WARN if disk.inhabited else REFUSE, reason, remedy


def _weights(disk: Disk, needs: Needs) -> Told:
    wants = (needs.weights_gib or 0) * 1024
    if not (needs.weights_there or disk.inhabited) and disk.free_mib is not None and disk.free_mib < wants:
        full = disk.total_mib is not None and disk.total_mib < wants
        reason = f"{disk.path} has {disk.free_mib / 1024:.0f} GiB free, and the weights take about {wants / 1024:.0f} GiB."
        remedy = "Free space, mount a larger disk there, or name a local copy with sglang_model."
        yield "disk-weights", REFUSE if full else WARN, reason, remedy
    if needs.cuda and disk.kind in _NETWORK:
        reason = f"The weights are on a network filesystem ({disk.kind}); every start reads them whole."
        yield "filesystem-slow", INFORM, reason, "Keep a copy on a local NVMe disk."
    elif needs.cuda and disk.rotational:
        reason = (
            "The weights are on a disk that turns"
            + (f"; reading {wants / 1024:.0f} GiB takes about {wants / _TURNING_MIB_S / 60:.0f} minutes" if wants else "")
            + "."
        )
        yield "filesystem-slow", WARN, reason, "Put them on NVMe."


def _memory(evidence: Evidence, needs: Needs) -> Told:
    memory = evidence.memory
    if needs.cuda and memory.total_mib is not None:
        weights = (needs.weights_gib or 0) * 1024
        if memory.total_mib < needs.gpus * _LOADER_MIB:
            reason = (
                f"{memory.total_mib / 1024:.0f} GiB of main memory for {needs.gpus} ranks, which load with about 2 GiB each."
            )
            yield (
                "ram-load",
                WARN,
                reason,
                "More memory, or swap for the time of the start; the kernel kills loaders without a word.",
            )
        elif weights and memory.total_mib < weights:
            reason = (
                f"{memory.total_mib / 1024:.0f} GiB of main memory cannot keep {weights / 1024:.0f} GiB of weights, so "
                "ranks that read the same file read it from disk each."
            )
            yield (
                "ram-load",
                INFORM,
                reason,
                "Starts take as long as the disk needs for several passes; nothing else suffers.",
            )
        yield from _jobs(evidence, needs, memory.available_mib)
    killed = [line for line in evidence.kernel_log if "Out of memory: Killed process" in line]
    if killed:
        reason = f"The kernel has killed {len(killed)} processes for want of memory since boot. Last: {killed[-1]}"
        yield "out-of-memory", WARN, reason, "Lower MAX_JOBS and loader threads, or add memory."
    if needs.gpus > 1 and memory.shm_mib is not None and memory.shm_mib < _SHM_MIB:
        reason = f"Shared memory (/dev/shm) has {memory.shm_mib} MiB; NCCL and the ranks exchange data there."
        yield "shm", WARN, reason, f"Mount it with at least {_SHM_MIB // 1024} GiB (a container: --shm-size or --ipc=host)."


def _jobs(evidence: Evidence, needs: Needs, available: int | None) -> Told:
    if available is None or not evidence.cpus:
        return
    fit = max_jobs(available, evidence.cpus)
    asked = needs.environment.get("MAX_JOBS", "")
    jobs = int(asked) if asked.isdigit() else evidence.cpus
    if jobs > fit:
        said = f"MAX_JOBS={asked}" if asked else f"Without MAX_JOBS one job for each of {evidence.cpus} threads"
        reason = (
            f"{said} can take more than the {available / 1024:.0f} GiB free while kernels are compiled (up to 8 GiB a job)."
        )
        yield "max-jobs", WARN, reason, f'Set MAX_JOBS: "{fit}" in sglang_environment.'


def max_jobs(available_mib: int, cpus: int) -> int:
    """Compile jobs that fit main memory, at least one and at most one for each thread."""
    return max(1, min(cpus, (available_mib - _KEPT_MIB) // _JOB_MIB))


def _limits(evidence: Evidence, needs: Needs) -> Told:
    limits = evidence.limits
    if needs.gpus > 1 and limits.memlock_kib not in (None, -1) and limits.may_raise is False:
        reason = (
            f"Locked memory is limited to {limits.memlock_kib} KiB and systemd here may not raise it; NCCL locks buffers."
        )
        yield "memlock", WARN, reason, "Start the container with --ulimit memlock=-1."
    if limits.open_files is not None and limits.open_files < _OPEN_FILES:
        reason = f"The kernel allows {limits.open_files} open files (fs.nr_open); the unit asks for {_OPEN_FILES}."
        yield "open-files", INFORM, reason, f"sysctl -w fs.nr_open={_OPEN_FILES}, and the same in /etc/sysctl.d."


def _tools(evidence: Evidence) -> Told:
    missing = [tool for tool, where in evidence.tools.items() if where is None]
    if missing:
        reason = (
            f"{', '.join(missing)} not on PATH. SGLang compiles kernels when it starts and when it gets its first requests."
        )
        yield "tools", WARN, reason, "; ".join(_PACKAGES.get(tool, f"install {tool}") for tool in missing)
