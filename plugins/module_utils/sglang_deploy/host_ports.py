"""Who listens where an instance would, by what the kernel shows. Read-only; standard library only."""

from __future__ import annotations

import ipaddress
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from .host_evidence import Holder, Port
from .host_probe import unit_of

_LISTEN = "0A"  # the state of a listening socket in /proc/net/tcp


def look_at_port(instance: str, address: str, port: int, proc: Path = Path("/proc")) -> Port:
    """The port of an instance and its holders, each told whether it is of the instance's own service."""
    holders = port_holders(address, port, proc)
    own = unit_processes(f"sglang@{instance}.service", proc) if holders else set()
    marked = tuple(
        Holder(holder.pid, holder.name, holder.unit, own=holder.pid in own, address=holder.address) for holder in holders
    )
    return Port(instance, address, port, marked)


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


def port_holders(address: str, port: int, proc: Path = Path("/proc")) -> list[Holder]:
    """Who listens where a server on `address`:`port` would."""
    sockets = {inode: where for inode, where in listening(port, proc).items() if _overlap(address, where)}
    if not sockets:
        return []
    holders, told = [], set()
    for inode, pid in _owners(list(sockets), proc):
        told.add(inode)
        holders.append(process(pid, proc, address=sockets[inode]))
    holders += [Holder(None, "unknown", address=where) for inode, where in sockets.items() if inode not in told]
    return holders


def process(pid: int, proc: Path = Path("/proc"), address: str | None = None) -> Holder:
    """A process by its id: name and unit."""
    return Holder(
        pid,
        _read(proc / str(pid) / "comm").strip() or "unknown",
        unit_of(_read(proc / str(pid) / "cgroup")),
        address=address,
    )


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
    for entry in proc.iterdir() if group else ():
        if not entry.name.isdigit():
            continue
        lines = _read(entry / "cgroup").splitlines()
        # In a container the path that systemd knows is the end of the one that the kernel shows.
        if any((where := line.split(":", 2)[2]).endswith(group) or f"{group}/" in where for line in lines):
            found.add(int(entry.name))
    return found


def _address(raw: str) -> str:
    """The IP address in a line of /proc/net/tcp: words of four bytes, each in the machine's (little endian) order."""
    words = [bytes.fromhex(raw[start : start + 8])[::-1] for start in range(0, len(raw), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


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
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            for descriptor in (entry / "fd").iterdir():
                try:
                    target = str(descriptor.readlink())
                except OSError:
                    continue
                if target in wanted:
                    yield wanted[target], int(entry.name)
        except OSError:
            continue


def _systemctl(*arguments: str) -> str:
    try:
        done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
