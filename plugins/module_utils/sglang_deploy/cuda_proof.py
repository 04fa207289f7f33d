"""Proof that a toolkit compiles for the stack's chips, in the service's own search path; kept as a small receipt.

What the server does on its first start, in small: nvcc compiles a kernel for the chip by its specific name, with the
conversion to FP4 that NVFP4 weights need (cuda_fp4.h, since CUDA 12.8), and links it to the CUDA runtime.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from . import cuda
from .cuda import CudaError
from .instance import service_environment
from .jsonfile import dump

_TIMEOUT_S = 600
_FP4_SINCE = 100  # compute capability 10.0: the first chips with FP4
_KERNEL = """\
#include <cuda_runtime.h>
{include}
__global__ void kernel(const float2 *in, {type} *out) {{ out[threadIdx.x] = {expression}; }}
extern "C" int run(const float2 *in, {type} *out) {{ kernel<<<1, 32>>>(in, out); return cudaGetLastError(); }}
"""
_FP4 = {
    "include": "#include <cuda_fp4.h>",
    "type": "__nv_fp4x2_storage_t",
    "expression": "__nv_cvt_float2_to_fp4x2(in[threadIdx.x], __NV_E2M1, cudaRoundNearest)",
}
_PLAIN = {"include": "", "type": "float", "expression": "in[threadIdx.x].x"}
_CURES = (
    (
        r"Unsupported gpu architecture|not defined for option 'gpu-(?:architecture|code)'",
        "This nvcc is too old for the stack's chips (SM120 needs 12.8, SM121 12.9).",
    ),
    (
        r"unsupported GNU version",
        "The host's g++ is newer than this nvcc allows: install the version that it names beside it, and set "
        "NVCC_PREPEND_FLAGS='-ccbin g++-13' (with that version) in sglang_environment.",
    ),
    (r"cuda_fp4\.h", "cuda_fp4.h is missing: a CUDA older than 12.8, or a toolkit without its runtime headers."),
    (r"cuda_runtime\.h", "cuda_runtime.h is missing: this is a compiler without the runtime; install the whole toolkit."),
    (r"cannot find -lcuda(rt|devrt)", "The CUDA runtime library is missing from the toolkit: install the whole toolkit."),
    (r"cc1plus|g\+\+: (?:No such file|not found)|host compiler", "A C++ compiler is missing: apt install g++."),
    (r"No space left on device", "The disk is full, /tmp or the toolkit's."),
)


@dataclass(frozen=True)
class Fingerprint:
    """All that decides whether an earlier proof still holds. Files are known by path, size and time of change."""

    release: str
    home: str
    architectures: list[str]
    nvcc: str
    compiler: str


def search_path(home: str) -> str:
    """The PATH that the unit's server has, but for its release."""
    return service_environment("", "", "", "", home)["PATH"].partition(":")[2]


def fingerprint(release: str, home: str, capabilities: Sequence[str]) -> Fingerprint:
    """The present state. CudaError where a compiler is not on the service's PATH."""
    path = search_path(home)
    # The toolkit's own nvcc: another one further down the PATH is just what must not be taken for it.
    found = {"nvcc": shutil.which("nvcc", path=f"{home}/bin"), "g++": shutil.which("g++", path=path)}
    if missing := [name for name, where in found.items() if where is None]:
        cure = {"nvcc": f"no nvcc stands in {home}/bin", "g++": "apt install g++"}
        raise CudaError(
            f"{' and '.join(missing)} cannot be found on the service's PATH ({path}), and the server compiles kernels: "
            f"{'; '.join(cure[name] for name in missing)}."
        )
    return Fingerprint(release, home, cuda.architectures(capabilities), _known(found["nvcc"]), _known(found["g++"]))


def _known(path: str | None) -> str:
    real = os.path.realpath(path or "")
    stat = Path(real).stat()
    return f"{real} {stat.st_size} {stat.st_mtime_ns}"


def holds(receipt: Path, now: Fingerprint) -> bool:
    """Whether the receipt was written for just this state."""
    try:
        return bool(json.loads(receipt.read_text(encoding="utf-8"))["proved"] == asdict(now))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def prove(release: str, home: str, capabilities: Sequence[str], receipt: Path) -> dict[str, Any]:
    """Compile and link for each of the capabilities, and write the receipt. CudaError with the compiler's own words."""
    now = fingerprint(release, home, capabilities)
    toolkit = cuda.ask(Path(home))
    if toolkit is None or toolkit.release != release:
        seen = toolkit.version if toolkit else "nothing that answers"
        raise CudaError(f"The stack needs CUDA {release}; {home}/bin/nvcc is {seen}.")
    started = monotonic()
    with tempfile.TemporaryDirectory(prefix="sglang-cuda-") as work:
        _compile(home, now.architectures, Path(work))
    path = search_path(home)
    record = {
        "proved": asdict(now),
        "nvcc": toolkit.version,
        "seconds": round(monotonic() - started, 1),
        "ninja": shutil.which("ninja", path=path) or "",
    }
    receipt.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    partial = receipt.with_name(f".{receipt.name}.new")
    partial.write_text(dump(record), encoding="utf-8")
    partial.chmod(0o644)
    partial.replace(receipt)
    return record


def command(home: str, architectures: Sequence[str], source: str, target: str) -> list[str]:
    """The compiler's command line: machine code for each chip, and PTX for what comes after the last one."""
    flags: list[str] = []
    for name in architectures:
        flags += ["-gencode", f"arch=compute_{name},code=sm_{name}"]
    plain = architectures[-1].rstrip("a")
    flags += ["-gencode", f"arch=compute_{plain},code=compute_{plain}"]
    return [f"{home}/bin/nvcc", *flags, "-shared", "-Xcompiler", "-fPIC", "--cudart", "shared", "-o", target, source]


def _compile(home: str, architectures: Sequence[str], work: Path) -> None:
    fp4 = bool(architectures) and all(int(name.rstrip("a")) >= _FP4_SINCE for name in architectures)
    source = work / "proof.cu"
    source.write_text(_KERNEL.format(**(_FP4 if fp4 else _PLAIN)), encoding="utf-8")
    chips = ", ".join(f"sm_{name}" for name in architectures)
    words = command(home, architectures or ["75"], str(source), str(work / "proof.so"))
    environment = {"PATH": search_path(home), "HOME": str(work), "TMPDIR": str(work), "LANG": "C.UTF-8"}
    try:
        done = subprocess.run(
            words,
            env=environment,
            cwd=work,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CudaError(f"{words[0]} did not compile a small kernel: {error}") from error
    if done.returncode != 0:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()][-12:]
        raise CudaError(
            "\n".join(
                [
                    f"The toolkit in {home} does not compile a small kernel for {chips}. It says:",
                    *said,
                    cure("\n".join(said)),
                    f"The command was: {' '.join(words)}",
                ]
            )
        )


def cure(said: str) -> str:
    """What to do about a compiler's words; a general word where nothing is known."""
    known = (advice for pattern, advice in _CURES if re.search(pattern, said))
    return next(known, "Run the command by hand with that PATH to see more.")
