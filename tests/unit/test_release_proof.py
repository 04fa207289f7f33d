"""The proof of SGLang's SM120 fix, on the forms that the function has had and on forms that only look like it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import release_host, release_proof

OLD = "srt/layers/attention/triton_ops/extend_attention.py"
NEW = "kernels/ops/attention/extend_attention.py"
FUNCTION = """\
def _get_block_sizes_for_extend_attention(Lq, Lv):
    if Lq == 576:
        BLOCK_DMODEL = 512
    else:
        BLOCK_DMODEL = 128
    if _is_hip:
        BLOCK_M, BLOCK_N = (64, 64)
    else:
{branches}
        else:
            BLOCK_M, BLOCK_N = (64, 64) if Lq <= 128 else (32, 32)
    return BLOCK_DMODEL, BLOCK_M, BLOCK_N
"""
SMALL = """if Lq <= 128:
                BLOCK_M, BLOCK_N = (64, 128)
            else:
                BLOCK_M, BLOCK_N = (32, 32)"""
LARGE = "BLOCK_M, BLOCK_N = (128, 64)"


def package(root: Path, *branches: tuple[str, str], file: str = OLD) -> Path:
    """A package folder whose function has these conditions and bodies, in this order."""
    lines = [f"        {'elif' if n else 'if'} {test}:\n            {body}" for n, (test, body) in enumerate(branches)]
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(FUNCTION.format(branches="\n".join(lines)), encoding="utf-8")
    return root


def prove(root: Path) -> release_proof.Evidence:
    return release_proof.prove(["sm120_extend_block_size"], root)["sm120_extend_block_size"]


@pytest.mark.parametrize("file", [OLD, NEW])
@pytest.mark.parametrize(
    "test",
    [
        "_is_cuda and CUDA_CAPABILITY[0] == 12",
        "_is_cuda and CUDA_CAPABILITY[0] >= 12",
        "CUDA_CAPABILITY[0] in (12,)",
        "not _is_hip and CUDA_CAPABILITY[0] > 11",
    ],
)
def test_a_branch_of_its_own_before_hoppers(tmp_path: Path, file: str, test: str) -> None:
    root = package(tmp_path, (test, SMALL), ("_is_cuda and CUDA_CAPABILITY[0] >= 9", LARGE), file=file)
    evidence = prove(root)
    assert evidence == release_proof.Evidence(file, 9, test, ("Lq <= 128: 64 x 128", "otherwise: 32 x 32"))


@pytest.mark.parametrize(
    "branches",
    [
        [("_is_cuda and CUDA_CAPABILITY[0] >= 9", LARGE)],
        [("_is_cuda and CUDA_CAPABILITY[0] >= 9", LARGE), ("_is_cuda and CUDA_CAPABILITY[0] == 12", SMALL)],
        [("CUDA_CAPABILITY[0] in (9, 12)", LARGE)],
        [("CUDA_CAPABILITY[0] >= 10", SMALL), ("CUDA_CAPABILITY[0] >= 9", LARGE)],
        [("CUDA_CAPABILITY[0] == 12", "pass  # BLOCK_M, BLOCK_N = (32, 32)")],
        [("_is_hip and CUDA_CAPABILITY[0] == 12", SMALL), ("CUDA_CAPABILITY[0] >= 9", LARGE)],
        [("CUDA_CAPABILITY[0] != 12", LARGE)],
        [("unknown() and CUDA_CAPABILITY[0] == 12", SMALL), ("CUDA_CAPABILITY[0] >= 9", LARGE)],
    ],
    ids=["none", "after", "shared", "with data-centre chips", "a comment", "for HIP", "negated", "under a condition"],
)
def test_what_only_looks_like_the_fix(tmp_path: Path, branches: list[tuple[str, str]]) -> None:
    with pytest.raises(release_host.ReleaseError, match=r"PR 14311.*0\.5\.9"):
        prove(package(tmp_path, *branches))


def test_the_refusal_names_the_place(tmp_path: Path) -> None:
    with pytest.raises(release_host.ReleaseError, match=rf"{OLD}, line 9, .* of `CUDA_CAPABILITY\[0\] >= 9`"):
        prove(package(tmp_path, ("CUDA_CAPABILITY[0] >= 9", LARGE)))


def test_no_such_function(tmp_path: Path) -> None:
    with pytest.raises(release_host.ReleaseError, match="is in none of its files"):
        prove(tmp_path)
    (tmp_path / NEW).parent.mkdir(parents=True)
    (tmp_path / NEW).write_text("CUDA_CAPABILITY[0] == 12\n", encoding="utf-8")
    with pytest.raises(release_host.ReleaseError, match="is in none of its files"):
        prove(tmp_path)


def test_a_file_that_is_not_python(tmp_path: Path) -> None:
    (tmp_path / NEW).parent.mkdir(parents=True)
    (tmp_path / NEW).write_text("def (:\n", encoding="utf-8")
    with pytest.raises(release_host.ReleaseError, match="line 1: is not Python"):
        prove(tmp_path)


def test_an_unknown_proof(tmp_path: Path) -> None:
    with pytest.raises(release_host.ReleaseError, match="Unknown proof sm121"):
        release_proof.prove(["sm121"], tmp_path)


@given(st.integers(0, 20), st.integers(0, 20), st.sampled_from(["==", "!=", ">", ">=", "<", "<="]))
def test_a_condition_is_what_python_makes_of_it(major: int, bound: int, operator: str) -> None:
    text = f"_is_cuda and not (_is_hip or CUDA_CAPABILITY[0] {operator} {bound})"
    known = {"_is_cuda": True, "_is_hip": False, "CUDA_CAPABILITY": (major, 0)}
    assert release_proof.holds(ast.parse(text, mode="eval").body, major) is eval(text, known)
