"""CUDA toolkits: which one a stack needs, which ones a host has, and how one can be put there. Looks, changes nothing."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

WAYS = ("apt", "wheels", "existing")
USUAL = "/usr/local"  # NVIDIA's packages and runfiles put every toolkit in a folder cuda-X.Y of its own there
_FIRST_NVCC_WHEEL = 13  # nvidia-cuda-nvcc on PyPI, read: 13.0.48 and later hold nvcc; nvidia-cuda-nvcc-cu12 holds none
# Chips whose tensor core instructions exist only under the name with an "a" (CUDA C++ programming guide, family- and
# architecture-specific features): Hopper and newer.
_SPECIFIC_SINCE = (9, 0)


class CudaError(Exception):
    """The toolkit is not what is needed. The message says what was found and what to write or install instead."""


@dataclass(frozen=True)
class Toolkit:
    """A toolkit on a host: its folder, its release such as "12.8" and nvcc's full version such as "12.8.93"."""

    home: str
    release: str
    version: str


@dataclass(frozen=True)
class Wanted:
    """What a stack needs: CUDA's release, the folder that the service takes as CUDA_HOME, and the way to get it."""

    release: str
    home: str
    way: str


def home(way: str, release: str, named: str, root: str) -> str:
    """The folder of the toolkit: `named` (the stack's CUDA_HOME), or for wheels one of our own under `root`."""
    return f"{root}/cuda/{release}" if way == "wheels" else named or f"{USUAL}/cuda-{release}"


def package(release: str) -> str:
    """The package of NVIDIA's repository with the toolkit alone. `cuda-12-8` and `cuda` would bring a driver, too."""
    return f"cuda-toolkit-{release.replace('.', '-')}"


def architectures(capabilities: Iterable[str]) -> list[str]:
    """The names that nvcc has for compute capabilities: "12.0" becomes "120a"."""
    found = []
    for text in capabilities:
        if not re.fullmatch(r"\d+\.\d", text):
            raise CudaError(f"{text!r} is not a compute capability; write for example '12.0'.")
        major, minor = (int(part) for part in text.split("."))
        found.append(f"{major}{minor}{'a' if (major, minor) >= _SPECIFIC_SINCE else ''}")
    return found


def parse_version(text: str) -> tuple[str, str] | None:
    """Release and full version in the answer of `nvcc --version`; None where it is no such answer."""
    found = re.search(r"\brelease (\d+\.\d+)(?:, V(\d+(?:\.\d+)+))?", text)
    return (found[1], found[2] or found[1]) if found else None


def ask(folder: Path) -> Toolkit | None:
    """The toolkit in a folder; None where there is no nvcc that answers."""
    try:
        done = subprocess.run(
            [str(folder / "bin" / "nvcc"), "--version"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    said = parse_version(done.stdout)
    return Toolkit(str(folder), *said) if said else None


def installed(usual: Path = Path(USUAL)) -> list[Toolkit]:
    """The toolkits in the usual places, each once (`/usr/local/cuda` is a link to one of them), by version."""
    folders = {path.resolve() for path in [usual / "cuda", *usual.glob("cuda-*")] if path.is_dir()}
    found = [toolkit for folder in folders if (toolkit := ask(folder))]
    return sorted(found, key=lambda toolkit: [int(part) for part in toolkit.version.split(".")])


def judge(wanted: Wanted, there: Toolkit | None, others: Iterable[Toolkit] = ()) -> bool:
    """Whether the toolkit has to be installed.

    there: what stands in the wanted folder. CudaError where it is another one, or cannot be had in the way asked for.
    """
    if there and there.release == wanted.release:
        return False
    if there:
        raise CudaError(
            f"The stack needs CUDA {wanted.release}, and {wanted.home}/bin/nvcc is {there.version}. Nothing is laid over "
            "another toolkit: move it, or point CUDA_HOME (sglang_environment) to the right one."
        )
    if wanted.way == "wheels":
        problem = wheels_problem(wanted.release)
        if problem:
            raise CudaError(problem)
    elif wanted.way == "existing":
        seen = ", ".join(f"{toolkit.home} ({toolkit.version})" for toolkit in others) or "none at all"
        raise CudaError(
            f"The stack needs CUDA {wanted.release} in {wanted.home}, where no nvcc answers. This host has {seen}. Install "
            "it there, name its folder as CUDA_HOME in sglang_environment, or set cuda_toolkit_install: apt."
        )
    elif wanted.home != (usual := f"{USUAL}/cuda-{wanted.release}"):
        raise CudaError(
            f"cuda_toolkit_install: apt installs to {usual}, and CUDA_HOME is {wanted.home}. Take CUDA_HOME out of "
            "sglang_environment, or set cuda_toolkit_install: existing for a toolkit that stands there already."
        )
    return True


def wheels_problem(release: str) -> str:
    """Why PyPI's packages cannot be this toolkit, and what can be done; empty where they can."""
    major = int(release.split(".")[0])
    if major >= _FIRST_NVCC_WHEEL:
        return ""
    holds = (
        "nvidia-cuda-nvcc-cu12 holds ptxas, libnvvm and libdevice, which is all that Triton needs (it brings its own), "
        "but no nvcc, which FlashInfer, DeepGEMM and SGLang's own kernels are compiled with on the host"
        if major == _FIRST_NVCC_WHEEL - 1
        else "for CUDA this old there is nothing to build on"
    )
    return (
        f"cuda_toolkit_install: wheels cannot provide CUDA {release}: on PyPI, {holds}. nvcc is there from CUDA "
        f"{_FIRST_NVCC_WHEEL}.0 on. Set cuda_toolkit_install: apt (cuda_toolkit_repository names a mirror), install "
        f"NVIDIA's runfile to {USUAL}/cuda-{release} and set existing, or take a stack with CUDA {_FIRST_NVCC_WHEEL}."
    )
