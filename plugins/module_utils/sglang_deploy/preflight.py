"""What a host must have before anything on it is changed: systemd, Python, a free port, disk, a user, build tools.

Read-only and quick: looks into ``/proc``, asks ``systemctl`` once for each thing, starts nothing.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import release_host

_SYSTEMD_RUNS = Path("/run/systemd/system")  # what sd_booted(3) looks for
_LISTEN = "0A"  # the state of a listening socket in /proc/net/tcp


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it must be (``refuse``) or may come to hurt (``warn``), and what to do about it."""

    id: str
    severity: str
    message: str
    remedy: str


@dataclass(frozen=True)
class Holder:
    """A process that listens on a port, and the systemd unit it belongs to, if any.

    ``pid`` is None where it cannot be told (another user's process, seen without root).
    """

    pid: int | None
    name: str
    address: str
    unit: str | None = None

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid or '?'}{f', {self.unit}' if self.unit else ''}, on {self.address})"


@dataclass(frozen=True)
class Wanted:
    """What the host is checked for.

    ``ports`` maps an instance's name to the address and port that it will listen on. ``python_range`` and ``disk_mib``
    come from the stack. ``user`` runs the service; it need not exist yet. ``tools`` are commands of which the absence
    is only a warning.
    """

    ports: tuple[tuple[str, str, int], ...] = ()
    python_range: str | None = None
    python: str | None = None
    root: Path = Path("/opt/sglang")
    disk_mib: int = 0
    user: str = "sglang"
    tools: tuple[str, ...] = ("g++", "ninja")


@dataclass(frozen=True)
class Report:
    """What was found: facts by name, and the problems, refusals first."""

    facts: dict[str, Any]
    problems: tuple[Problem, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {"facts": self.facts, "problems": [asdict(problem) for problem in self.problems]}


def _address(raw: str) -> str:
    """The IP address in a line of /proc/net/tcp: words of four bytes, each in the machine's (little endian) order."""
    words = [bytes.fromhex(raw[start : start + 8])[::-1] for start in range(0, len(raw), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def listening(port: int, proc: Path = Path("/proc")) -> dict[str, str]:
    """Sockets that listen on a TCP port: inode to address."""
    found: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            address, _, number = columns[1].rpartition(":")
            if columns[3] == _LISTEN and int(number, 16) == port:
                found[columns[9]] = _address(address)
    return found


def _overlap(first: str, second: str) -> bool:
    """Whether two listeners on the same port would meet; an unspecified address meets every one."""
    try:
        one, two = ipaddress.ip_address(first), ipaddress.ip_address(second)
    except ValueError:  # a host name: assume the worst
        return True
    mapped = [getattr(address, "ipv4_mapped", None) or address for address in (one, two)]
    return mapped[0] == mapped[1] or any(address.is_unspecified for address in mapped)


def _owners(inodes: Sequence[str], proc: Path) -> Iterator[tuple[str, int]]:
    """Pairs of inode and process id for sockets."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            for descriptor in (process / "fd").iterdir():
                try:
                    target = str(descriptor.readlink())
                except OSError:
                    continue
                if target in wanted:
                    yield wanted[target], int(process.name)
        except OSError:
            continue


def _unit(process: Path) -> str | None:
    """The service unit that a process belongs to, from its control group."""
    try:
        group = (process / "cgroup").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"/([^/\n]+\.service)(?:/|$)", group, re.MULTILINE)
    return found[1] if found else None


def port_holders(address: str, port: int, proc: Path = Path("/proc")) -> list[Holder]:
    """Who listens where a server on ``address``:``port`` would."""
    sockets = {inode: where for inode, where in listening(port, proc).items() if _overlap(address, where)}
    if not sockets:
        return []
    holders, told = [], set()
    for inode, pid in _owners(list(sockets), proc):
        told.add(inode)
        try:
            name = (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            name = "unknown"
        holders.append(Holder(pid, name, sockets[inode], _unit(proc / str(pid))))
    holders += [Holder(None, "unknown", where) for inode, where in sockets.items() if inode not in told]
    return holders


def _systemctl(*arguments: str) -> str:
    try:
        done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def unit_processes(unit: str, proc: Path = Path("/proc")) -> set[int]:
    """Ids of the processes of a systemd unit, by its control group; empty where it does not run."""
    shown = dict(
        line.partition("=")[::2] for line in _systemctl("show", unit, "-p", "MainPID", "-p", "ControlGroup").splitlines()
    )
    main = int(shown.get("MainPID") or 0)
    if not main:
        return set()
    found = {main}
    group = shown.get("ControlGroup", "")
    for process in proc.iterdir() if group else ():
        if not process.name.isdigit():
            continue
        try:
            lines = (process / "cgroup").read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        # In a container the path that systemd knows is the end of the one that the kernel shows.
        if any((where := line.split(":", 2)[2]).endswith(group) or f"{group}/" in where for line in lines):
            found.add(int(process.name))
    return found


def check_port(instance: str, address: str, port: int) -> Problem | None:
    """A refusal where another process than the instance's own service listens on its port."""
    holders = port_holders(address, port)
    if not holders:
        return None
    own = unit_processes(f"sglang@{instance}.service")
    others = [holder for holder in holders if holder.pid not in own]
    if not others:
        return None
    who = ", ".join(sorted({str(holder) for holder in others}))
    return Problem(
        "port-taken",
        "refuse",
        f"Port {port}, which instance {instance} is to listen on, is taken by {who}.",
        "Stop that process, or give the instance another port.",
    )


def check_systemd(proc: Path = Path("/proc")) -> tuple[str, Problem | None]:
    """The state of systemd as ``systemctl is-system-running`` says it, and a refusal where it is not the init."""
    try:
        init = (proc / "1" / "comm").read_text(encoding="utf-8").strip()
    except OSError:
        init = "unknown"
    if init != "systemd" or not _SYSTEMD_RUNS.is_dir():
        return "absent", Problem(
            "no-systemd",
            "refuse",
            f"This host does not run systemd: process 1 is {init}. The server is run as a systemd service.",
            "Deploy to a machine or container that was started with systemd as its init.",
        )
    state = _systemctl("is-system-running") or "unknown"
    if state in ("running", "degraded", "starting", "initializing"):
        return state, None
    return state, Problem(
        "systemd-state",
        "refuse",
        f"systemd is in the state {state}, so no service can be started.",
        "Finish the boot or leave the maintenance mode (systemctl default), then deploy again.",
    )


def distribution(os_release: Path = Path("/etc/os-release")) -> dict[str, str]:
    """``id``, ``version`` and ``name`` of the distribution; empty where it does not say."""
    try:
        text = os_release.read_text(encoding="utf-8")
    except OSError:
        return {}
    found = dict(re.findall(r'(?m)^([A-Z_]+)="?([^"\n]*)"?$', text))
    return {"id": found.get("ID", ""), "version": found.get("VERSION_ID", ""), "name": found.get("PRETTY_NAME", "")}


def _headers(python: release_host.Python) -> Path:
    """Where this Python's C headers are if its -dev package is installed."""
    prefix = Path(python.path).resolve().parent.parent
    if Path("/usr") == prefix and Path(sysconfig.get_path("include")).name == f"python{python.minor}":
        return Path(sysconfig.get_path("include"))
    return prefix / "include" / f"python{python.minor}"


def check_python(wanted: Wanted, facts: dict[str, Any]) -> Iterator[Problem]:
    """A refusal where no Python fits the stack; a warning where it has no C headers."""
    facts["pythons"] = {python.path: ".".join(map(str, python.version)) for python in release_host.host_pythons()}
    if wanted.python_range is None:
        return
    try:
        python = release_host.choose_python(wanted.python_range, wanted.python)
    except (release_host.ReleaseError, ValueError) as error:
        message, _, remedy = str(error).partition(" Install ")
        yield Problem("python", "refuse", message, f"Install {remedy}" if remedy else "Correct the setting.")
        return
    facts["python"] = python.path
    if not (_headers(python) / "Python.h").is_file():
        yield Problem(
            "python-headers",
            "warn",
            f"Python.h of {python.path} is missing. Triton and torch compile against it on the first requests, and "
            f"the server dies "
            "where they do.",
            f"apt install python{python.minor}-dev",
        )


def check_disk(wanted: Wanted, facts: dict[str, Any]) -> Problem | None:
    """A refusal where the release root has less than the stack needs."""
    place = wanted.root
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free // 2**20
    facts["disk_free_mib"] = free
    if free >= wanted.disk_mib:
        return None
    return Problem(
        "disk",
        "refuse",
        f"{wanted.root} has {free} MiB free; a release of the stack needs {wanted.disk_mib} MiB.",
        "Free space there, or set the release root to a larger filesystem.",
    )


def check_tools(wanted: Wanted, facts: dict[str, Any]) -> Iterator[Problem]:
    """Warnings for build tools that are not on root's PATH or in the usual places of CUDA."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/bin", "/usr/bin", "/usr/local/cuda/bin"])
    facts["tools"] = {tool: shutil.which(tool, path=path) for tool in wanted.tools}
    packages = {
        "g++": "apt install g++",
        "ninja": "apt install ninja-build",
        "nvcc": "install the stack's CUDA toolkit",
    }
    for tool, where in facts["tools"].items():
        if where is None:
            yield Problem(
                f"tool-{tool}",
                "warn",
                f"{tool} is not on PATH. SGLang compiles kernels when it starts and when it gets its first requests.",
                packages.get(tool, f"Install {tool}."),
            )


def check(wanted: Wanted) -> Report:
    """Everything that ``wanted`` asks for, looked at on this host."""
    facts: dict[str, Any] = {"distribution": distribution()}
    facts["systemd"], systemd = check_systemd()
    problems = [systemd] if systemd else []
    problems += check_python(wanted, facts)
    problems += [problem for port in wanted.ports if (problem := check_port(*port))]
    if disk := check_disk(wanted, facts):
        problems.append(disk)
    problems += check_tools(wanted, facts)
    try:
        facts["user"] = pwd.getpwnam(wanted.user).pw_uid
    except KeyError:
        facts["user"] = None
    return Report(facts, tuple(sorted(problems, key=lambda problem: problem.severity != "refuse")))
