"""What it takes to run systemd containers on this machine, decided by looking at it.

The lab stands in for real hosts in the demo and the tests: podman containers with systemd as PID 1, made from the machine's
own Debian or Ubuntu archive, since no image registry can be assumed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

IMAGE_PACKAGES = (
    "ca-certificates",
    "dbus",
    "g++",  # torch compiles C++ on a server's first forward pass
    "iproute2",
    "openssh-server",
    "procps",
    "python3",
    "python3-dev",
    "python3-venv",
    "systemd",
    "systemd-sysv",
)
# Without CAP_SYS_RESOURCE a hard limit can only be lowered: podman's defaults may lie above it, and podman itself lowers
# its process limit to the kernel's pid_max before it starts a container.
NOFILE_WANTED = 1048576
NPROC_WANTED = 65536
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu/"
_PROXIES = ("http", "https", "no")


class LabError(Exception):
    """The lab cannot run here; the message says what is missing and how to get it."""


@dataclass(frozen=True)
class Evidence:
    """What was seen on the machine. Limits are hard limits, None where unlimited; pid_max is the kernel's own limit."""

    system: str
    codename: str
    root: bool
    cgroup: str  # "v2", "v1" (hybrid counts as v1: its controllers are v1's)
    tools: Mapping[str, bool]
    nofile: int | None
    nproc: int | None
    pid_max: int
    deb_lines: tuple[str, ...]
    apt_options: tuple[str, ...]


@dataclass(frozen=True)
class LabPlan:
    """What to install and how to start a container here."""

    packages: tuple[str, ...]
    runtime: str
    run_arguments: tuple[str, ...]
    codename: str
    deb_lines: tuple[str, ...]
    apt_options: tuple[str, ...]
    image_packages: tuple[str, ...]
    image_tag: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def decide(evidence: Evidence) -> LabPlan:
    """Turn evidence into a plan, or raise LabError with every problem at once."""
    problems = []
    if evidence.system not in ("debian", "ubuntu"):
        seen = evidence.system or "unknown"
        problems.append(
            f"the lab builds its host image from a Debian or Ubuntu archive, and this is {seen}: "
            "run it on Debian 12+ or Ubuntu 24.04+"
        )
    if not evidence.root:
        problems.append("systemd containers with hardened units need root: run it as root (sudo -i)")
    if evidence.system in ("debian", "ubuntu") and not evidence.deb_lines:
        problems.append("apt knows no archive of this distribution: run `apt-get update`, see /etc/apt/sources.list.d")
    if problems:
        raise LabError("The lab cannot run here:\n" + "\n".join(f"- {problem}" for problem in problems))

    # crun refuses the hybrid layout; with cgroup v2 either works, and crun is what podman brings along.
    if evidence.cgroup == "v2":
        runtime = "crun" if evidence.tools.get("crun") or not evidence.tools.get("runc") else "runc"
    else:
        runtime = "runc"
    wanted = {"podman": "podman", runtime: runtime, "mmdebstrap": "mmdebstrap", "ssh": "openssh-client"}
    packages = tuple(package for tool, package in wanted.items() if not evidence.tools.get(tool))
    arguments = [
        "--systemd=always",
        "--privileged",  # mount namespaces of hardened units end with 226/NAMESPACE otherwise
        f"--ulimit=nofile={_limit(evidence.nofile, NOFILE_WANTED)}",
        f"--ulimit=nproc={_limit(evidence.nproc, min(NPROC_WANTED, evidence.pid_max))}",
    ]
    recipe = json.dumps([evidence.codename, evidence.deb_lines, IMAGE_PACKAGES], sort_keys=True)
    tag = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    return LabPlan(
        packages=packages,
        runtime=runtime,
        run_arguments=tuple(arguments),
        codename=evidence.codename,
        deb_lines=evidence.deb_lines,
        apt_options=evidence.apt_options,
        image_packages=IMAGE_PACKAGES,
        image_tag=f"{evidence.codename}-{tag}",
    )


def _limit(hard: int | None, wanted: int) -> str:
    value = wanted if hard is None else min(hard, wanted)
    return f"{value}:{value}"


def gather(root: Path = Path("/")) -> Evidence:
    """Look at this machine. Reads files under `root`, the process's own limits and what apt knows; changes nothing."""
    release = _os_release(root / "etc/os-release")
    system = release.get("ID", "")
    has_apt = shutil.which("apt-get") is not None
    return Evidence(
        system=system,
        codename=release.get("VERSION_CODENAME", ""),
        root=os.geteuid() == 0,
        cgroup="v2" if (root / "sys/fs/cgroup/cgroup.controllers").exists() else "v1",
        tools={tool: shutil.which(tool) is not None for tool in ("podman", "runc", "crun", "mmdebstrap", "ssh")},
        nofile=_hard_limit(resource.RLIMIT_NOFILE),
        nproc=_hard_limit(resource.RLIMIT_NPROC),
        pid_max=int((root / "proc/sys/kernel/pid_max").read_text(encoding="ascii")),
        deb_lines=deb_lines(_output(["apt-get", "indextargets", "--format", _INDEX_FORMAT]), system) if has_apt else (),
        apt_options=apt_options(_output(["apt-config", "dump", "Acquire"])) if has_apt else (),
    )


_INDEX_FORMAT = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)|$(CREATED_BY)"


def deb_lines(index_targets: str, system: str) -> tuple[str, ...]:
    """The distribution's own archive as one-line sources, from `apt-get indextargets` in the format above.

    Third-party repositories on the machine are left out: a host image is the plain distribution.
    """
    lines: dict[str, None] = {}
    for row in index_targets.splitlines():
        uri, release, component, origin, created_by = (row.split("|") + [""] * 5)[:5]
        if origin.lower() == system and created_by == "Packages":
            lines[f"deb {uri} {release} {component}"] = None
    return tuple(lines)


def apt_options(dump: str) -> tuple[str, ...]:
    """The proxies that apt uses here, as options for mmdebstrap, from `apt-config dump Acquire`."""
    proxies = re.findall(r'^(Acquire::https?::[Pp]roxy(?:::[^ ]+)?) "([^"]*)";$', dump, flags=re.MULTILINE)
    return tuple(f'{name} "{value}";' for name, value in proxies if value)


def index_settings(pip_config: str, environment: Mapping[str, str]) -> dict[str, object]:
    """The controller's package index settings, in the form of the variable `sglang_index`.

    pip_config: output of `pip config list`, which covers its files and PIP_* variables.
    An index that is a folder of this machine is left out: it caches the index for the controller alone.
    """
    settings = dict(re.findall(r"^[^.]+\.([a-z-]+)='(.*)'$", pip_config, flags=re.MULTILINE))
    bundle = settings.get("cert") or environment.get("SSL_CERT_FILE") or environment.get("REQUESTS_CA_BUNDLE")
    found: dict[str, object] = {
        "index_url": settings.get("index-url", ""),
        "extra_index_urls": [url for url in settings.get("extra-index-url", "").split() if not url.startswith("file:")],
        "find_links": settings.get("find-links", "").split(),
        "ca_bundle": bundle or "",
    }
    proxies = {kind: environment.get(f"{kind}_proxy") or environment.get(f"{kind.upper()}_PROXY") for kind in _PROXIES}
    found["proxies"] = {kind: value for kind, value in proxies.items() if value}
    return {name: value for name, value in found.items() if value}


def local_folders(settings: Mapping[str, object]) -> list[str]:
    """The folders of this machine that the index settings name: containers need them mounted at the same path."""
    links = settings.get("find_links", [])
    assert isinstance(links, Sequence)  # noqa: S101 - narrows the type; index_settings() makes it a list
    paths = [str(link).removeprefix("file://") for link in links]
    return sorted({path for path in paths if path.startswith("/") and Path(path).is_dir()})


def controller_index() -> dict[str, object]:
    """index_settings() of the Python that runs this, and a source of CPU builds of torch where it offers none.

    Without one, torch comes as its CUDA build, which runs on the CPU as well and takes 11 GB.
    """
    settings = index_settings(_output([sys.executable, "-m", "pip", "config", "list"]), os.environ)
    has_torch = any(any(Path(folder).glob("torch-*cpu*.whl")) for folder in local_folders(settings))
    if not has_torch and _answers(TORCH_CPU_INDEX):
        extra = settings.get("extra_index_urls", [])
        assert isinstance(extra, list)  # noqa: S101 - narrows the type; index_settings() makes it a list
        settings["extra_index_urls"] = [*extra, TORCH_CPU_INDEX]
    return settings


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - an https constant  # nosec B310
            return bool(answer.status == 200)
    except OSError:
        return False


def _hard_limit(kind: int) -> int | None:
    hard = resource.getrlimit(kind)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def _os_release(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    pairs = (line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines() if "=" in line)
    return {name: value.strip('"') for name, value in pairs}


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
