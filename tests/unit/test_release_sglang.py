"""The builder on SGLang itself: repositories made of the sdists of 0.5.9 and 0.5.10.post1, built for the CPU with
transformers 5.2.0 over SGLang's own pin. `make slow` runs them: minutes, 3 GB of disk and a package index each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from sglang_deploy import lab, release

ROOT = Path(__file__).resolve().parents[2]
SDISTS = ROOT / ".cache" / "sdists"
LAB_INDEX = ROOT / ".cache" / "lab" / "index.json"
EXTEND = "python/sglang/srt/layers/attention/triton_ops/extend_attention.py"
VERSIONS = ("0.5.9", "0.5.10.post1")

pytestmark = pytest.mark.slow


def sdist(version: str) -> Path:
    path = SDISTS / f"sglang-{version}.tar.gz"
    if not path.is_file():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "sglang"]
        subprocess.run([*command, "--dest", str(SDISTS), f"sglang=={version}"], check=True)
    return path


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def origin(version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository as upstream's is laid out: the version's tag, and a branch that lacks the fix."""
    path = tmp_path_factory.mktemp("origin")
    with tarfile.open(sdist(version)) as archive:
        archive.extractall(path)
    (unpacked,) = path.iterdir()
    unpacked.rename(path / "python")
    (path / "python" / "PKG-INFO").unlink()

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *arguments], cwd=path, check=True)

    git("init", "--quiet", "--initial-branch", "main")
    git("add", "--all")
    git("commit", "--quiet", "--message", version)
    git("tag", f"v{version}")
    git("checkout", "--quiet", "-b", "without-fix")
    text = (path / EXTEND).read_text(encoding="utf-8")
    begin, end = text.index("        if _is_cuda and CUDA_CAPABILITY[0] == 12"), text.index("        elif _is_cuda and")
    (path / EXTEND).write_text(text[:begin] + text[end:].replace("elif", "if", 1), encoding="utf-8")
    git("commit", "--quiet", "--all", "--message", "without the fix")
    git("checkout", "--quiet", "main")
    return path


def index_for(cache: Path) -> release.Index:
    """The lab's, where it was started; its certificates' path is the containers'."""
    given = (
        json.loads(LAB_INDEX.read_text(encoding="utf-8"))
        if LAB_INDEX.is_file()
        else {"extra_index_urls": [lab.TORCH_CPU_INDEX]}
    )
    given.pop("ca_bundle", None)
    return release.Index.from_mapping({**given, "cache_dir": str(cache)})


def request_for(origin: Path, version: str, ref: str, tmp_path: Path) -> release.Request:
    stack: dict[str, Any] = yaml.safe_load((ROOT / "catalog" / "stacks.yml").read_text(encoding="utf-8"))["cpu"]
    changed = {"transformers": "transformers==5.2.0", "xgrammar": "xgrammar==0.1.27"}
    stack |= {
        "name": "cpu-git",
        "sglang": version,
        "transformers": "5.2.0",
        "source": {"kind": "git", "url": str(origin), "ref": ref, "subdirectory": "python"},
        "requirements": [changed.get(line.split("==")[0], line) for line in stack["requirements"]],
        "requirements_no_deps": [f"sglang=={version}", *stack["requirements_no_deps"][1:]],
        "proofs": ["sm120_extend_block_size"],
        "constraints": None,
    }
    index = index_for(tmp_path / "uv")
    return release.Request.from_stack(stack, index, git_cache=str(tmp_path / "git"))


def test_sglang_is_built_from_git(origin: Path, version: str, tmp_path: Path, uv: str) -> None:
    built = release.build(
        request_for(origin, version, f"v{version}", tmp_path), tmp_path / "root", uv=uv, python=sys.executable
    )
    assert built.receipt["versions"]["transformers"] == "5.2.0", "over SGLang's own pin"
    assert built.receipt["versions"]["sglang"].startswith(f"{version}+g")
    assert built.receipt["proofs"]["sm120_extend_block_size"] == {
        "file": EXTEND.removeprefix("python/sglang/"),
        "line": 67,
        "condition": "_is_cuda and CUDA_CAPABILITY[0] == 12",
        "block_sizes": ["Lq <= 128: 64 x 128", "Lq <= 256: 64 x 64", "otherwise: 32 x 32"],
    }
    recorded = json.loads((ROOT / "catalog" / "dialects" / f"{version}.json").read_text(encoding="utf-8"))
    dumped = json.loads((built.path / "options.json").read_text(encoding="utf-8"))
    assert dumped["options"] == recorded["options"]


def test_sglang_without_the_fix_is_refused(origin: Path, version: str, tmp_path: Path, uv: str) -> None:
    with pytest.raises(release.ReleaseError, match="lacks the SM120 fix"):
        release.build(request_for(origin, version, "without-fix", tmp_path), tmp_path / "root", uv=uv, python=sys.executable)
    assert list((tmp_path / "root" / "releases").iterdir()) == []
