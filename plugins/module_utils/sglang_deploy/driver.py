"""NVIDIA's driver on a host: what is installed, what is loaded, and what has to happen before the two can serve.

Blackwell chips need the open kernel modules; a module and libraries of different versions refuse to work together
("Failed to initialize NVML: Driver/library version mismatch"), which an unattended upgrade brings about overnight.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_DRIVER_VERSION = re.compile(r"(?:\d+:)?(\d{3}\.\d+(?:\.\d+)*)")
# The library that speaks for all of user space: NVIDIA's and Ubuntu's name, then Debian's.
_LIBRARY = re.compile(r"libnvidia-compute(-\d+(-server)?)?|libcuda1")
_OPEN_LICENCE = re.compile(r"\bMIT\b|\bGPL\b")


class DriverError(Exception):
    """The driver cannot be what is asked for. The message says why and what to do."""


@dataclass(frozen=True)
class Loaded:
    """The module in the running kernel."""

    version: str
    open: bool


@dataclass(frozen=True)
class OnDisk:
    """The module that the next boot of this kernel loads; `signer` is empty where nobody signed it."""

    version: str
    open: bool
    signer: str = ""


@dataclass(frozen=True)
class Package:
    """An installed package of the driver."""

    name: str
    version: str
    held: bool


@dataclass(frozen=True)
class Evidence:
    """What a host shows. What cannot be told is None.

    signatures: whether the kernel takes signed modules only. keys: the text of /proc/keys. files: the present content of
    the files that the role writes, None where there is no such file. parameters: module options in effect, by "module name".
    """

    loaded: Loaded | None = None
    on_disk: OnDisk | None = None
    packages: tuple[Package, ...] = ()
    signatures: bool | None = None
    keys: str = ""
    nouveau: bool = False
    files: Mapping[str, str | None] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def libraries(self) -> str | None:
        """The driver version of the installed user space."""
        names = [package.version for package in self.packages if _LIBRARY.fullmatch(package.name)]
        return max(filter(None, map(driver_version, names)), key=_numbers, default=None)


@dataclass(frozen=True)
class Wanted:
    """floor: the lowest driver, as in ">=570". files: path to content. options: such as "nvidia_uvm uvm_disable_hmm=1"."""

    floor: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """What has to be done, in this order. Texts are empty where nothing has.

    refuse: why nothing may be done. install: why packages have to be installed. hold: installed packages that upgrades
    could still replace. write: files that differ. reboot: why the host has to boot; blocking: nothing can run before it has.
    """

    refuse: str = ""
    install: str = ""
    hold: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    reboot: str = ""
    blocking: bool = False


def driver_version(package_version: str) -> str | None:
    """The driver's version in a package's: "570.195.03" of "1:570.195.03-0ubuntu1"; None for other packages."""
    found = _DRIVER_VERSION.match(package_version)
    return found[1] if found else None


def parse_loaded(text: str) -> Loaded | None:
    """The module in /proc/driver/nvidia/version; None where the text is none of a driver's."""
    found = re.search(r"NVRM version:\s+(.*?Kernel Module.*?)\s{2,}(\d{3}(?:\.\d+)+)", text)
    return Loaded(found[2], "Open Kernel Module" in found[1]) if found else None


def parse_module(text: str) -> OnDisk | None:
    """The module in the answer of `modinfo nvidia`; None where there is none for this kernel."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    if not re.fullmatch(r"\d{3}(\.\d+)+", fields.get("version", "")):
        return None
    return OnDisk(fields["version"], bool(_OPEN_LICENCE.search(fields.get("license", ""))), fields.get("signer", ""))


def parse_packages(text: str) -> tuple[Package, ...]:
    """The driver's packages in `dpkg-query --show` with name, version, wanted state and state, separated by tabs.

    Others of NVIDIA's (container tools, settings with versions of their own) are left out.
    """
    rows = (line.split("\t") for line in text.splitlines())
    return tuple(
        Package(row[0], row[1], row[2] == "hold")
        for row in rows
        if len(row) == 4 and row[3] == "installed" and (driver_version(row[1]) or row[0].startswith("linux-modules-nvidia"))
    )


def parse_secure_boot(variable: bytes | None) -> bool | None:
    """Whether the firmware's variable SecureBoot (four bytes of attributes, then the value) says on; None without one."""
    return bool(variable[4]) if variable and len(variable) >= 5 else None


def floor_of(asked: str) -> tuple[int, ...]:
    """The lowest version that a range such as ">=570" allows. DriverError where it names none."""
    found = re.search(r">=\s*(\d+(?:\.\d+)*)", asked)
    if not found:
        raise DriverError(f"{asked!r} names no lowest driver; write for example '>=570'.")
    return _numbers(found[1])


def packages_for(distribution: str, floor: str, kernel: str, branch: int = 0) -> list[str]:
    """Names of Ubuntu's packages with open modules and no desktop, for a branch or that of the floor.

    They exist in Ubuntu's archive from 570 on (packages.ubuntu.com, noble). The modules are built on the host, with the
    headers of its `kernel` (uname -r).
    DriverError for another distribution, or a branch below the floor.
    """
    lowest = floor_of(floor)[0]
    chosen = branch or lowest
    if chosen < lowest:
        raise DriverError(f"nvidia_driver_branch {chosen} is below the stack's floor, {floor}.")
    if distribution != "ubuntu":
        raise DriverError(
            f"Which packages hold the driver is known here for Ubuntu only, and this is {distribution or 'unknown'}: name "
            "them in nvidia_driver_packages, those with the open kernel modules."
        )
    return [f"linux-headers-{kernel}", f"nvidia-headless-{chosen}-server-open", f"nvidia-utils-{chosen}-server"]


def judge(seen: Evidence, wanted: Wanted) -> Judgement:
    """What a host needs to run the driver that is wanted."""
    hold = tuple(package.name for package in seen.packages if not package.held)
    write = tuple(path for path, content in wanted.files.items() if seen.files.get(path) != content)
    install = _why_install(seen, wanted)
    refuse = _why_not(seen, install)
    if refuse or install:
        return Judgement(refuse, "" if refuse else install, hold, write)
    reboot, blocking = _why_reboot(seen, wanted)
    return Judgement("", "", hold, write, reboot, blocking)


def _why_install(seen: Evidence, wanted: Wanted) -> str:
    have = seen.libraries
    if have is None:
        if seen.loaded and not seen.packages and seen.loaded.open and _reaches(seen.loaded.version, wanted):
            return ""  # from NVIDIA's runfile, and good enough
        return "No driver is installed."
    if not _reaches(have, wanted):
        return f"Driver {have} is installed, and the stack needs {wanted.floor}."
    if seen.on_disk and not seen.on_disk.open:
        return f"Driver {have} is installed with the proprietary modules, which do not know Blackwell chips."
    return ""


def _why_not(seen: Evidence, install: str) -> str:
    have, loaded, on_disk = seen.libraries, seen.loaded, seen.on_disk
    if loaded and not seen.packages and install:
        return (
            f"A driver is loaded ({loaded.version}) that comes from no package, so from NVIDIA's runfile. Packages laid "
            "over it break both: remove it with nvidia-uninstall and boot, then run this again."
        )
    if loaded and have and loaded.version != have and not (on_disk and on_disk.version == have):
        there = f"module {on_disk.version}" if on_disk else "no module"
        return (
            f"The loaded module is {loaded.version}, the installed libraries are {have}, and there is {there} for this "
            "kernel, so booting would not help. Look at `dkms status` and install the kernel's headers, or this kernel's "
            "linux-modules-nvidia, until `modinfo -F version nvidia` says the libraries' version."
        )
    if not install and have and not loaded and not on_disk:
        return (
            f"Driver {have} is installed, and there is no module for the running kernel, so booting would not help. Look at "
            "`dkms status`, and install the kernel's headers or this kernel's linux-modules-nvidia."
        )
    if not install and have and seen.signatures and on_disk and not _trusted(on_disk.signer, seen.keys):
        who = f"is signed by {on_disk.signer!r}, a key that is not enrolled" if on_disk.signer else "is not signed"
        return (
            f"Secure Boot is on, and the driver's module {who}: the kernel will refuse it (Key was rejected by service). "
            "Use Ubuntu's prebuilt modules (linux-modules-nvidia-...), or enrol the key with `mokutil --import "
            "/var/lib/shim-signed/mok/MOK.der` and confirm it on the console at the next boot, or turn Secure Boot off."
        )
    return ""


def _why_reboot(seen: Evidence, wanted: Wanted) -> tuple[str, bool]:
    have, loaded = seen.libraries, seen.loaded
    if loaded is None:
        other = " (nouveau holds the GPUs)" if seen.nouveau else ""
        return f"Driver {have} is installed and not loaded{other}.", True
    if have and loaded.version != have:
        return (
            f"The loaded module is {loaded.version} and the installed libraries are {have}: nothing works until they agree.",
            True,
        )
    if not loaded.open and seen.on_disk and seen.on_disk.open:
        return "The proprietary module is loaded, and the open one is installed.", True
    late = [option for option in wanted.options if not _in_effect(option, seen.parameters)]
    if late:
        return f"Module options are set and not in effect yet: {', '.join(late)}.", False
    return "", False


def _in_effect(option: str, parameters: Mapping[str, str]) -> bool:
    """Whether each parameter of "module name=value ..." has its value; one that the kernel does not show counts as set."""
    module, *settings = option.split()
    for setting in settings:
        name, _, value = setting.partition("=")
        now = parameters.get(f"{module.replace('-', '_')} {name}")
        if now is not None and {"Y": "1", "N": "0"}.get(now, now) != value:
            return False
    return True


def _trusted(signer: str, keys: str) -> bool:
    return bool(signer) and signer in keys


def _reaches(version: str, wanted: Wanted) -> bool:
    return not wanted.floor or _numbers(version) >= floor_of(wanted.floor)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def parameter_names(options: Iterable[str]) -> list[tuple[str, str]]:
    """Module and parameter of each setting in lines such as "nvidia_uvm uvm_disable_hmm=1"."""
    return [
        (words[0].replace("-", "_"), word.partition("=")[0])
        for words in (option.split() for option in options)
        for word in words[1:]
    ]
