"""One kernel of Triton, for cuda.py."""

import torch
import triton
import triton.language as tl


@triton.jit
def _add_one(x, size: tl.constexpr):
    place = tl.arange(0, size)
    tl.store(x + place, tl.load(x + place) + 1)


def run(value: torch.Tensor) -> torch.Tensor:
    """`value` plus one; its length is a power of two."""
    _add_one[(1,)](value, size=value.numel())
    torch.cuda.synchronize()
    return value
