"""A real systemd over a copy-on-write view of this machine's own root, on a machine whose PID 1 is something else.

The GPU machine at hand is often a container or a microVM without systemd, and the project deploys systemd units. So:
an overlay over `/` (all that is written goes to memory), Debian's systemd unpacked into it with the libraries that the
machine lacks, namespaces of its own, the machine's NVIDIA devices, and its network. Needs root, cgroup v2, dpkg-deb,
unshare and nsenter; what it leaves is gone with the machine.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

# Several may run beside each other, each with its own root (GPU_TESTS_LANE).
LANE = os.environ.get("GPU_TESTS_LANE", "0")
BASE = Path(f"/ov{LANE}")
ROOT = BASE / "root"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# Nothing here has hardware, seats or a network of its own to manage.
MASKED = """systemd-udevd.service systemd-udev-trigger.service systemd-networkd.service systemd-resolved.service
systemd-timesyncd.service systemd-logind.service systemd-remount-fs.service getty.target console-getty.service
dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-fs-fuse-connections.mount""".split()  # noqa: SIM905
PROGRAMS = ("lib/systemd/systemd", "lib/systemd/systemd-journald", "usr/bin/dbus-daemon", "usr/bin/systemd-run")

# Runs in new namespaces; PID 1 of them becomes systemd.
INSIDE = r"""
set -eu
root=$1; shift
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir -p "$root/dev/pts" "$root/dev/shm"
for node in /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/nvidia*; do
  if [ -c "$node" ]; then touch "$root$node"; mount --bind "$node" "$root$node"; fi
  if [ -d "$node" ]; then mkdir -p "$root$node"; mount --rbind "$node" "$root$node"; fi
done
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s fd/0 "$root/dev/stdin"; ln -s fd/1 "$root/dev/stdout"; ln -s fd/2 "$root/dev/stderr"
touch "$root/dev/console"; mount --bind "$(tty)" "$root/dev/console"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
for folder in "$@"; do mkdir -p "$root$folder"; mount --rbind "$folder" "$root$folder"; done
export container=podman
# Not chroot: a process in one may not make user namespaces, which PrivateUsers= needs.
mkdir -p "$root/.outside"
cd "$root"
pivot_root . .outside
exec chroot . /bin/sh -c 'umount -l /.outside; exec /lib/systemd/systemd --log-target=console --show-status=1'
"""


class BootError(Exception):
    """systemd did not come up; the message ends with what it said."""


def _run(*command: str | Path) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def _overlay(lower: Path, size: str) -> None:
    BASE.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", BASE)
    for folder in ("upper", "work", "root", "libraries"):
        (BASE / folder).mkdir()
    _run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={BASE}/upper,workdir={BASE}/work", ROOT)


def _install_systemd(debs: Path) -> None:
    for deb in sorted(debs.glob("*.deb")):
        if re.match(r"systemd|dbus|libsystemd-shared", deb.name):
            # dpkg -x would replace the link /lib of a merged-/usr system by a folder.
            unpack = f'dpkg-deb --fsys-tarfile "{deb}" | tar -C "{ROOT}" -x --keep-directory-symlink'
            _run("bash", "-o", "pipefail", "-c", unpack)
        if deb.name.startswith("lib"):
            _run("dpkg-deb", "-x", deb, BASE / "libraries")
    for _ in range(3):  # the libraries need each other
        path = f"LD_LIBRARY_PATH=/{LIBRARIES}/systemd"
        for program in PROGRAMS:
            missing = re.findall(r"(\S+) => not found", _run("chroot", ROOT, "env", path, "ldd", f"/{program}"))
            for found in (file for name in missing for file in (BASE / "libraries").rglob(f"{name}*")):
                (ROOT / LIBRARIES / found.name).unlink(missing_ok=True)
                shutil.copy2(found, ROOT / LIBRARIES / found.name, follow_symlinks=False)


def _configure() -> None:
    (ROOT / "etc/machine-id").unlink(missing_ok=True)
    (ROOT / "etc/machine-id").write_text("0123456789abcdef" * 2 + "\n", encoding="ascii")
    units = ROOT / "etc/systemd/system"
    units.mkdir(parents=True, exist_ok=True)
    for name in MASKED:
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to("/dev/null")
    (units / "default.target").unlink(missing_ok=True)
    (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")


def _cgroup() -> Path:
    """A cgroup of its own in the v2 hierarchy."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.split()[0] == "cgroup2":
            box = Path(fields.split()[4]) / f"gpu-tests-{LANE}"
            box.mkdir(exist_ok=True)
            return box
    raise BootError("this machine has no cgroup v2")


def _start(mounts: Sequence[str]) -> int:
    """PID 1 of the new namespaces, as this machine sees it."""
    box = _cgroup()
    flags = "--mount --pid --fork --ipc --uts --cgroup --propagation private".split()  # noqa: SIM905
    child, terminal = pty.fork()
    if child == 0:
        (box / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        os.execvp("unshare", ["unshare", *flags, "bash", "-c", INSIDE, "boot", str(ROOT), *mounts])
    if os.fork() == 0:  # its console is read for as long as it lives
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        with (BASE / "console.log").open("wb", 0) as log:
            while select.select([terminal], [], [])[0]:
                try:
                    log.write(os.read(terminal, 4096))
                except OSError:
                    break
        os._exit(0)
    for _ in range(100):
        below = Path(f"/proc/{child}/task/{child}/children").read_text(encoding="ascii").split()
        if below and Path(f"/proc/{below[0]}/comm").read_text(encoding="ascii").strip() == "systemd":
            return int(below[0])
        time.sleep(0.1)
    raise BootError("systemd did not start:\n" + _console())


def _console() -> str:
    log = BASE / "console.log"
    return log.read_text(encoding="utf-8", errors="replace")[-2000:] if log.exists() else ""


def enter() -> list[str]:
    """The words before a command that is to run inside; empty where nothing has booted."""
    try:
        pid = (BASE / "pid").read_text(encoding="ascii").strip()
        alive = Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip() == "systemd"
    except OSError:
        return []
    return ["nsenter", "-t", pid, "-m", "-p", "-i", "-u", "-C"] if alive else []


def boot(debs: Path, lower: Path = Path("/"), size: str = "40g", wait_s: float = 30) -> list[str]:
    """Boot, unless that was done before; the same words as `enter`. BootError with the console's last lines."""
    if enter():
        return enter()
    stop()  # what an earlier try has left
    _overlay(lower, size)
    _install_systemd(debs)
    _configure()
    mounts = [folder for folder in ("/usr/local/nvidia",) if Path(folder).is_dir()]
    (BASE / "pid").write_text(str(_start(mounts)), encoding="ascii")
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        asked = subprocess.run([*enter(), "systemctl", "is-system-running"], capture_output=True, text=True, check=False)
        if asked.stdout.strip() in ("running", "degraded"):
            return enter()
        time.sleep(0.2)
    raise BootError("systemd did not come up:\n" + _console())


def stop() -> None:
    """End everything inside and take the overlay away."""
    if words := enter():
        os.kill(int(words[2]), 9)  # PID 1 of its namespace: the kernel ends the rest with it
        time.sleep(1)
    for mount in (ROOT, BASE):
        subprocess.run(["umount", "-R", "-l", str(mount)], check=False, capture_output=True)
