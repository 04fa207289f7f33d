"""NVIDIA's apt repository on a host: its address, its key, and what the host's own sources already say about it.

Sources have two forms, one line (`*.list`) and stanzas (`*.sources`); see sources.list(5). apt refuses to work at all
when two of them name one repository with different keys ("Conflicting values set for option Signed-By"; NVIDIA's own
notes on it: https://github.com/NVIDIA/cuda-repo-management/issues/4).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import cuda_key
from .cuda import CudaError

BASE = "https://developer.download.nvidia.com/compute/cuda/repos"
OWN_SOURCE = "/etc/apt/sources.list.d/sglang-cuda.sources"
OWN_KEY = "/etc/apt/keyrings/sglang-cuda"  # and .asc or .gpg

# Fingerprints of the keys that sign NVIDIA's repositories: 3bf863cc since the rotation of April 2022
# (https://developer.nvidia.com/blog/updating-the-cuda-linux-gpg-repository-key/ names the file; the whole fingerprint
# stands in many pinned installations, such as Google's compute-gpu-installation). Debian 13 has one of its own.
_CUDATOOLS = ("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC")
_DEBIAN13 = ("8793F200.pub", "02182E60104FCDC26EAE1B8597A5D4CB8793F200")
_KEYS = {
    "ubuntu2004": _CUDATOOLS,
    "ubuntu2204": _CUDATOOLS,
    "ubuntu2404": _CUDATOOLS,
    "debian11": _CUDATOOLS,
    "debian12": _CUDATOOLS,
    "debian13": _DEBIAN13,
}
_FOLDERS = {"amd64": "x86_64", "arm64": "sbsa"}  # dpkg's name and the repository's
_DRIVERS = re.compile(r"^(cuda-drivers|nvidia-(driver|open|headless|dkms|kernel)|libnvidia-|linux-modules-nvidia)")


@dataclass(frozen=True)
class Repository:
    """A flat repository: its URL with a slash at the end, the URL of its key and the fingerprint that is expected."""

    url: str
    key_url: str
    fingerprint: str


@dataclass(frozen=True)
class Source:
    """One repository in a source file. `lines` are its first and last line, counted from 0.

    signed_by is as written, empty without one; a key that stands in the stanza itself is "(inline)".
    """

    file: str
    lines: tuple[int, int]
    url: str
    signed_by: str
    trusted: bool = False

    def __str__(self) -> str:
        key = f"signed by {self.signed_by}" if self.signed_by else "without Signed-By"
        return f"{self.file}:{self.lines[0] + 1} ({key}{', trusted without any check' if self.trusted else ''})"


@dataclass(frozen=True)
class Plan:
    """What to do about the sources: `add` one of our own, after `conflicts` are gone. Neither: what is there serves."""

    add: bool
    conflicts: tuple[Source, ...] = ()


def repository(os_release: Mapping[str, str], architecture: str, url: str = "", fingerprint: str = "") -> Repository:
    """The repository for a distribution (/etc/os-release) and dpkg's architecture, or the one at `url` in its place.

    CudaError where NVIDIA has none for it, or none with a key that is known here.
    """
    name = os_release.get("ID", "") + os_release.get("VERSION_ID", "").replace(".", "")
    if not url and (name not in _KEYS or architecture not in _FOLDERS):
        raise CudaError(
            f"No repository of NVIDIA's is known for {name or 'this distribution'} on {architecture}; known are "
            f"{', '.join(_KEYS)} on {' and '.join(_FOLDERS)}. Set cuda_toolkit_repository and cuda_toolkit_key_fingerprint, "
            "or cuda_toolkit_install: existing."
        )
    key, pinned = _KEYS.get(name, ("", ""))
    if not (fingerprint or pinned):
        raise CudaError(
            f"The key of {url} is not known here for {name or 'this distribution'}: set cuda_toolkit_key_fingerprint to "
            "its 40 digits."
        )
    where = (url or f"{BASE}/{name}/{_FOLDERS[architecture]}").rstrip("/") + "/"
    return Repository(where, where + (key or _CUDATOOLS[0]), cuda_key.normalised(fingerprint or pinned))


def parse_os_release(text: str) -> dict[str, str]:
    """The fields of /etc/os-release."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}


def parse_sources(file: str, text: str) -> list[Source]:
    """The binary repositories that a source file enables, by its form (`.list` or `.sources`)."""
    return list(_stanzas(file, text) if file.endswith(".sources") else _lines(file, text))


def _lines(file: str, text: str) -> Iterable[Source]:
    for number, line in enumerate(text.splitlines()):
        found = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+\S", line)
        if found:
            options = dict(re.findall(r"([\w-]+)\+?=(\S+)", found[1] or ""))
            trusted = options.get("trusted", "").lower() in ("yes", "true", "1")
            yield Source(file, (number, number), found[2], options.get("signed-by", ""), trusted)


def _stanzas(file: str, text: str) -> Iterable[Source]:
    lines = text.splitlines()
    start = 0
    for end in range(len(lines) + 1):
        if end < len(lines) and lines[end].strip():
            continue
        fields: dict[str, str] = {}
        last = ""
        for line in lines[start:end]:
            if line.startswith("#"):
                continue
            if line[:1].isspace():
                fields[last] = f"{fields.get(last, '')} {line.strip()}"
            else:
                last, _, value = line.partition(":")
                last = last.strip().lower()
                fields[last] = value.strip()
        enabled = fields.get("enabled", "yes").lower() not in ("no", "false", "0")
        if enabled and "deb" in fields.get("types", "").split():
            key = fields.get("signed-by", "").strip()
            trusted = fields.get("trusted", "").lower() in ("yes", "true", "1")
            for url in fields.get("uris", "").split():
                yield Source(file, (start, end - 1), url, "(inline)" if "BEGIN PGP" in key else key, trusted)
        start = end + 1


def decide(sources: Iterable[Source], url: str, pinned: Iterable[str], own: str = OWN_SOURCE) -> Plan:
    """What the host's sources need for the repository at `url`.

    pinned: the key files on the host that hold the expected key and no other. A source that names one of them serves as it
    is, so a host that NVIDIA's own keyring package was installed on stays as it is.
    """
    good = set(pinned)
    named = [source for source in sources if source.url.rstrip("/") == url.rstrip("/")]
    ours = [source for source in named if source.file == own]
    others = [source for source in named if source.file != own]
    present = ours or others
    agree = len({source.signed_by for source in present}) == 1 and not (ours and others)
    if agree and all(source.signed_by in good and not source.trusted for source in present):
        return Plan(add=False)
    return Plan(add=True, conflicts=tuple(others))


def conflict_text(conflicts: Iterable[Source], url: str) -> str:
    """What is in the way, for a person who has to decide."""
    return (
        f"Sources for {url} are there already, with another key than the one that is pinned, or none:\n"
        + "\n".join(f"- {source}" for source in conflicts)
        + "\napt refuses two sources for one repository that differ in Signed-By. Take them out, or set "
        "cuda_toolkit_conflicts: remove (copies are kept)."
    )


def without(text: str, sources: Iterable[Source]) -> str:
    """The text of a source file without these sources; empty where nothing but comments is left.

    A stanza that names other repositories too loses the one address and keeps the rest.
    """
    urls: dict[tuple[int, int], set[str]] = {}
    for source in sources:
        urls.setdefault(source.lines, set()).add(source.url)
    lines = text.splitlines()
    for first, last in sorted(urls, reverse=True):  # from the end, so that the numbers before it stay right
        lines[first : last + 1] = _without_urls(lines[first : last + 1], urls[first, last])
    return "\n".join(lines).strip("\n") + "\n" if any(line.strip() and not line.startswith("#") for line in lines) else ""


def _without_urls(stanza: list[str], urls: set[str]) -> list[str]:
    """A stanza without these words of its field URIs; nothing where the field has no others, as for a source of one line."""
    kept, others, within = [], False, False
    for line in stanza:
        continued = line[:1].isspace()
        name, colon, value = ("", "", line) if continued else line.partition(":")
        if not (continued or line.startswith("#")):
            within = name.strip().lower() == "uris"
        words = value.split()
        left = [word for word in words if word not in urls]
        if not within or line.startswith("#") or left == words:
            kept.append(line)
        elif left or colon:
            kept.append(" ".join([name + colon, *left]))
        others = others or (within and not line.startswith("#") and bool(left))
    return kept if others else []


def read_all(etc: Path = Path("/etc/apt")) -> list[Source]:
    """Every enabled source of a host."""
    files = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]
    files += sorted((etc / "sources.list.d").glob("*.sources"))
    found: list[Source] = []
    for file in files:
        if file.is_file():
            found += parse_sources(str(file), file.read_text(encoding="utf-8", errors="replace"))
    return found


def pinned_keys(sources: Iterable[Source], fingerprint: str) -> list[str]:
    """Those key files of the sources that hold the expected key and no other."""
    good = []
    for path in {source.signed_by for source in sources if source.signed_by.startswith("/")}:
        try:
            if set(cuda_key.fingerprints(Path(path).read_bytes())) == {fingerprint}:
                good.append(path)
        except (OSError, cuda_key.KeyProblem):
            continue
    return good


def simulated_problem(package: str, said: str, status: int, known: Iterable[str], url: str) -> str:
    """Why `apt-get --simulate install` of the toolkit is no good; empty where it is.

    said: its output. known: names of toolkit packages that apt has.
    """
    coming = re.findall(r"^Inst (\S+)", said, re.MULTILINE)
    drivers = [name for name in coming if _DRIVERS.match(name)]
    if drivers:
        return (
            f"{package} would bring a driver ({', '.join(drivers)}), which this role never installs: the host would run "
            "another driver after its next boot. Look at what asks for it with `apt-get --simulate install`, or set "
            "nvidia_driver_install."
        )
    if re.search(rf"Unable to locate package {re.escape(package)}|Package '?{re.escape(package)}'? has no", said):
        others = ", ".join(sorted(known)) or "none"
        return f"{url} has no {package}. Toolkits that apt knows on this host: {others}."
    if status:
        last = [line for line in said.splitlines() if line.strip()][-8:]
        return "\n".join([f"apt cannot install {package}. It says:", *last])
    return ""
