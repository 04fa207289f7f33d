"""What CUDA can still do in this process: cuda.py WORK_FOLDER [NAME...]; one JSON object, a line a capability.

Run under a set of hardening directives, by hardening.py. Each is tried alone; a failure is its exception's last line.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

KERNEL = r"""
extern "C" __global__ void add(float *x) { x[threadIdx.x] += 1.f; }
extern "C" int probe() {
  float *x, y = 0; int e = cudaMalloc(&x, 128);
  if (e) return e;
  cudaMemset(x, 0, 128); add<<<1, 32>>>(x); e = cudaDeviceSynchronize();
  if (e) return e;
  cudaMemcpy(&y, x, 4, cudaMemcpyDeviceToHost); cudaFree(x); return y == 1.f ? 0 : 9999;
}
"""


def tensor(work: Path) -> None:
    """Memory, a matrix product, pinned memory."""
    import torch

    value = torch.ones(256, 256, device="cuda", dtype=torch.bfloat16)
    assert float((value @ value)[0, 0]) == 256
    assert torch.ones(4).pin_memory().is_pinned()


def nvcc(work: Path) -> None:
    """A kernel compiled by nvcc and loaded, as FlashInfer's and SGLang's own JIT do."""
    (work / "probe.cu").write_text(KERNEL, encoding="ascii")
    command = [f"{os.environ['CUDA_HOME']}/bin/nvcc", "-shared", "-Xcompiler", "-fPIC", "-arch=native"]
    built = subprocess.run(
        [*command, "-o", f"{work}/probe.so", f"{work}/probe.cu"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr or built.stdout
    assert ctypes.CDLL(f"{work}/probe.so").probe() == 0


def triton(work: Path) -> None:
    """A kernel of Triton, which compiles C for its launcher too."""
    import torch
    from triton_kernel import run  # beside this file: Triton wants its kernels in a file

    assert float(run(torch.zeros(64, device="cuda")).sum()) == 64


def inductor(work: Path) -> None:
    """torch.compile."""
    import torch

    compiled = torch.compile(lambda x: (x * 2 + 1).sin().sum())
    assert compiled(torch.ones(1024, device="cuda")).isfinite()


def graph(work: Path) -> None:
    """A CUDA graph captured and replayed."""
    import torch

    value = torch.zeros(16, device="cuda")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        value += 1
    captured.replay()
    torch.cuda.synchronize()
    assert float(value[0]) == 1


def nccl(work: Path) -> None:
    """NCCL over every GPU that is there, one process each."""
    import torch

    count = torch.cuda.device_count()
    port = str(20000 + os.getpid() % 20000)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("nccl_rank.py")), str(rank), str(count), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        said = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), said[0]


def flashinfer(work: Path) -> None:
    """FlashInfer's JIT: ninja, nvcc, tvm-ffi."""
    import flashinfer
    import torch

    value = torch.ones(4, 128, device="cuda", dtype=torch.bfloat16)
    assert flashinfer.rmsnorm(value, torch.ones(128, device="cuda", dtype=torch.bfloat16)).isfinite().all()


PROBES: dict[str, Callable[[Path], None]] = {
    one.__name__: one for one in (tensor, nvcc, triton, inductor, graph, nccl, flashinfer)
}


def main() -> None:
    """Try them."""
    work = Path(sys.argv[1])
    work.mkdir(parents=True, exist_ok=True)
    os.environ |= {
        "HOME": str(work),
        "TRITON_CACHE_DIR": f"{work}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{work}/inductor",
        "FLASHINFER_WORKSPACE_BASE": str(work),
        "CUDA_CACHE_PATH": f"{work}/cuda",
    }
    for name in sys.argv[2:] or PROBES:
        began = time.monotonic()
        try:
            PROBES[name](work)
            problem = ""
        except BaseException as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            problem = f"{type(error).__name__}: {(lines or ['without a word'])[-1][:300]}"
        answer = {"probe": name, "ok": not problem, "problem": problem, "seconds": round(time.monotonic() - began, 1)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
