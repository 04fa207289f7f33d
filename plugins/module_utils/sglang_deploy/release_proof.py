"""Proofs that SGLang's installed source holds what a stack needs; a version number is not taken as proof.

A patch, a fork or a moving branch may carry a fix under any version, and a version may lack it. Each proof reads the
file that decides, as Python's own syntax tree, and returns the place where it was found.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .release_host import ReleaseError

# The kernel moved in 0.5.16; both paths are under the package's folder.
EXTEND_ATTENTION = (
    "kernels/ops/attention/extend_attention.py",
    "srt/layers/attention/triton_ops/extend_attention.py",
)
EXTEND_FUNCTION = "_get_block_sizes_for_extend_attention"
SM120_FIX = "PR 14311 (https://github.com/sgl-project/sglang/pull/14311) is in 0.5.9 and later: take sglang_ref: v0.5.9"


@dataclass(frozen=True)
class Evidence:
    """Where a proof was found: file under the package's folder, line, the condition, and what it decides."""

    file: str
    line: int
    condition: str
    block_sizes: tuple[str, ...]


def holds(test: ast.expr, major: int) -> bool | None:
    """Whether a condition is true on a CUDA device of that capability; None where it depends on something else."""
    if isinstance(test, ast.BoolOp):
        values = [holds(value, major) for value in test.values]
        decides = isinstance(test.op, ast.Or)
        if decides in values:
            return decides
        return None if None in values else not decides
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        value = holds(test.operand, major)
        return None if value is None else not value
    if isinstance(test, ast.Name):
        return {"_is_cuda": True, "_is_hip": False}.get(test.id)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and ast.unparse(test.left) == "CUDA_CAPABILITY[0]":
        try:
            bound = ast.literal_eval(test.comparators[0])
            return _COMPARE[type(test.ops[0])](major, bound)
        except (KeyError, TypeError, ValueError):
            return None
    return None


_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda left, right: left == right,
    ast.NotEq: lambda left, right: left != right,
    ast.Gt: lambda left, right: left > right,
    ast.GtE: lambda left, right: left >= right,
    ast.Lt: lambda left, right: left < right,
    ast.LtE: lambda left, right: left <= right,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


def _branches(statements: Sequence[ast.stmt]) -> Iterator[tuple[ast.If, list[ast.stmt]]]:
    """Every branch with a condition that a CUDA device can come to, in the order of evaluation."""
    for statement in statements:
        if isinstance(statement, ast.If):
            taken = holds(statement.test, 12)
            if taken is not False:
                yield statement, statement.body
                yield from _branches(statement.body)
            if taken is not True:
                yield from _branches(statement.orelse)


def _block_sizes(statements: Sequence[ast.stmt], when: str = "") -> Iterator[str]:
    """``Lq <= 128: 64 x 128`` for each assignment of constants to BLOCK_M, BLOCK_N."""
    for statement in statements:
        if isinstance(statement, ast.If):
            yield from _block_sizes(statement.body, ast.unparse(statement.test))
            yield from _block_sizes(statement.orelse, "otherwise")
        elif isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]).strip("()") == "BLOCK_M, BLOCK_N":
            sizes = ast.unparse(statement.value).strip("()").replace(", ", " x ")
            yield f"{when}: {sizes}" if when else sizes


def sm120_extend_block_size(package: Path) -> Evidence:
    """That prefill attention has block sizes of its own for compute capability 12, whose shared memory is 100 KiB.

    ``package`` is the folder of the package sglang. The branch must come before the one for capability 9 and later,
    whose sizes need 104 KiB. ReleaseError says what was found instead, and which release has it.
    """
    read = 0
    for file in EXTEND_ATTENTION:
        path = package / file
        if not path.is_file():
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except SyntaxError as error:
            raise ReleaseError(f"{file}, line {error.lineno}: is not Python ({error.msg}).") from error
        for function in tree.body:
            if isinstance(function, ast.FunctionDef) and function.name == EXTEND_FUNCTION:
                read += 1
                for branch, body in _branches(function.body):
                    sizes = tuple(_block_sizes(body))
                    own = not holds(branch.test, 9) and not holds(branch.test, 10)  # data-centre chips have 228 KiB
                    if holds(branch.test, 12) and own and sizes:
                        return Evidence(file, branch.lineno, ast.unparse(branch.test), sizes)
                    if holds(branch.test, 12):
                        raise ReleaseError(
                            f"This SGLang lacks the SM120 fix: in {file}, line {branch.lineno}, "
                            f"{EXTEND_FUNCTION} gives capability 12 the block sizes of `{ast.unparse(branch.test)}`, "
                            f"more shared memory than the chip has. {SM120_FIX} or newer."
                        )
    found = f"no branch of {EXTEND_FUNCTION} is for capability 12" if read else f"{EXTEND_FUNCTION} is in none of its files"
    raise ReleaseError(
        f"This SGLang cannot be shown to have the SM120 fix: {found} ({', '.join(EXTEND_ATTENTION)}). {SM120_FIX}."
    )


PROOFS: dict[str, Callable[[Path], Evidence]] = {"sm120_extend_block_size": sm120_extend_block_size}


def prove(names: Sequence[str], package: Path) -> dict[str, Evidence]:
    """The evidence for each named proof in the package folder. ReleaseError for the first that is not there."""
    unknown = [name for name in names if name not in PROOFS]
    if unknown:
        raise ReleaseError(f"Unknown proof {', '.join(unknown)}; known are {', '.join(PROOFS)}.")
    return {name: PROOFS[name](package) for name in names}
