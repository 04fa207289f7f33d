"""The builder on SGLang itself: a repository made of the sdist of 0.5.9, built for the CPU with transformers 5.2.0.

Run with SGLANG_TEST_SDIST=/path/to/sglang-0.5.9.tar.gz (`pip download --no-deps --no-binary sglang sglang==0.5.9`);
SGLANG_TEST_FIND_LINKS may name a folder with a torch for the CPU. Takes minutes, 3 GB of disk and a package index.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from sglang_deploy import release

ROOT = Path(__file__).resolve().parents[2]
SDIST = os.environ.get("SGLANG_TEST_SDIST", "")
EXTEND = "python/sglang/srt/layers/attention/triton_ops/extend_attention.py"

pytestmark = pytest.mark.skipif(
    not SDIST, reason="SGLANG_TEST_SDIST names no sdist of sglang 0.5.9; the build takes minutes and 3 GB"
)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository as upstream's is laid out: tag v0.5.9, and a branch that lacks the fix."""
    path = tmp_path_factory.mktemp("origin")
    with tarfile.open(SDIST) as archive:
        archive.extractall(path)
    (unpacked,) = path.iterdir()
    unpacked.rename(path / "python")
    (path / "python" / "PKG-INFO").unlink()

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *arguments], cwd=path, check=True)

    git("init", "--quiet", "--initial-branch", "main")
    git("add", "--all")
    git("commit", "--quiet", "--message", "0.5.9")
    git("tag", "v0.5.9")
    git("checkout", "--quiet", "-b", "without-fix")
    text = (path / EXTEND).read_text(encoding="utf-8")
    begin, end = text.index("        if _is_cuda and CUDA_CAPABILITY[0] == 12"), text.index("        elif _is_cuda and")
    (path / EXTEND).write_text(text[:begin] + text[end:].replace("elif", "if", 1), encoding="utf-8")
    git("commit", "--quiet", "--all", "--message", "without the fix")
    git("checkout", "--quiet", "main")
    return path


def request_for(origin: Path, ref: str, tmp_path: Path) -> release.Request:
    stack: dict[str, Any] = yaml.safe_load((ROOT / "catalog" / "stacks.yml").read_text(encoding="utf-8"))["cpu"]
    changed = {"transformers": "transformers==5.2.0", "xgrammar": "xgrammar==0.1.27"}
    stack |= {
        "name": "cpu-git",
        "sglang": "0.5.9",
        "transformers": "5.2.0",
        "source": {"kind": "git", "url": str(origin), "ref": ref, "subdirectory": "python"},
        "requirements": [changed.get(line.split("==")[0], line) for line in stack["requirements"]],
        "requirements_no_deps": ["sglang==0.5.9", *stack["requirements_no_deps"][1:]],
        "proofs": ["sm120_extend_block_size"],
        "constraints": None,
    }
    links = os.environ.get("SGLANG_TEST_FIND_LINKS")
    index = release.Index(find_links=(links,) if links else (), cache_dir=str(tmp_path / "uv"))
    return release.Request.from_stack(stack, index, git_cache=str(tmp_path / "git"))


def test_sglang_is_built_from_git(origin: Path, tmp_path: Path, uv: str) -> None:
    built = release.build(request_for(origin, "v0.5.9", tmp_path), tmp_path / "root", uv=uv, python=sys.executable)
    assert built.receipt["versions"]["transformers"] == "5.2.0", "over the pin of SGLang 0.5.9, which is 4.57.1"
    assert built.receipt["versions"]["sglang"].startswith("0.5.9+g")
    assert built.receipt["proofs"]["sm120_extend_block_size"] == {
        "file": EXTEND.removeprefix("python/sglang/"),
        "line": 67,
        "condition": "_is_cuda and CUDA_CAPABILITY[0] == 12",
        "block_sizes": ["Lq <= 128: 64 x 128", "Lq <= 256: 64 x 64", "otherwise: 32 x 32"],
    }
    recorded = json.loads((ROOT / "catalog" / "dialects" / "0.5.9.json").read_text(encoding="utf-8"))
    dumped = json.loads((built.path / "options.json").read_text(encoding="utf-8"))
    assert dumped["options"] == recorded["options"]


def test_sglang_without_the_fix_is_refused(origin: Path, tmp_path: Path, uv: str) -> None:
    with pytest.raises(release.ReleaseError, match="lacks the SM120 fix"):
        release.build(request_for(origin, "without-fix", tmp_path), tmp_path / "root", uv=uv, python=sys.executable)
    assert list((tmp_path / "root" / "releases").iterdir()) == []
