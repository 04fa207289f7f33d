"""A toolkit out of wheels: laid out as a CUDA_HOME, whole or not there at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import wheel
from sglang_deploy import cuda, cuda_wheels, release_uv

NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"


def packages(folder: Path, files: dict[str, str]) -> release_uv.Index:
    """An index with a cuda-toolkit that is made of these files."""
    wheel(folder, "nvidia_cuda_nvcc", "13.0.88", files)
    meta = ('nvidia-cuda-nvcc==13.0.88; extra == "nvcc"',)
    wheel(folder, "cuda_toolkit", "13.0.3", {}, meta)
    return release_uv.Index(find_links=(str(folder),), offline=True, cache_dir=str(folder / "cache"))


@pytest.fixture
def uv_folder(uv: str, tmp_path: Path) -> Path:
    folder = tmp_path / "uv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "uv").symlink_to(Path(uv).absolute())
    return folder


def install(index: release_uv.Index, home: Path, uv_folder: Path, release: str = "13.0") -> str:
    version = release_uv.version(str(uv_folder / "bin" / "uv"))
    return cuda_wheels.install(release, home, ["nvcc"], index, uv_folder, version)


def test_packages_become_a_cuda_home(tmp_path: Path, uv_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"nvidia/cu13/bin/nvcc": NVCC, "nvidia/cu13/lib/libcudart.so.13": "", "nvidia/cu13/include/cuda.h": ""}
    index = packages(tmp_path / "wheels", files)
    said = cuda.Toolkit("", "13.0", "13.0.88")  # wheels that are made here have no executable files
    monkeypatch.setattr(cuda_wheels, "ask", lambda folder: said if (folder / "bin" / "nvcc").is_file() else None)
    home = tmp_path / "cuda" / "13.0"
    assert install(index, home, uv_folder) == "13.0.88"
    assert (home / "lib64" / "libcudart.so").resolve() == home / "lib" / "libcudart.so.13"
    assert (home / "include" / "cuda.h").is_file()
    assert [path.name for path in home.parent.iterdir()] == ["13.0"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"nvidia/cu13/include/cuda.h": "", "nvidia/cu13/lib/x": ""}, "hold no nvcc of CUDA 13.0"),
        ({"nvidia/cuda_nvcc/bin/ptxas": ""}, "have no folder cu13 any more"),
    ],
)
def test_nothing_is_left_of_what_is_no_toolkit(tmp_path: Path, uv_folder: Path, files: dict[str, str], words: str) -> None:
    home = tmp_path / "cuda" / "13.0"
    with pytest.raises(cuda.CudaError, match=words):
        install(packages(tmp_path / "wheels", files), home, uv_folder)
    assert list(home.parent.iterdir()) == []


def test_a_release_that_the_index_has_not_is_said(tmp_path: Path, uv_folder: Path) -> None:
    with pytest.raises(release_uv.UvError, match=r"cuda-toolkit\[nvcc\]==13\.1\.\*"):
        install(packages(tmp_path / "wheels", {}), tmp_path / "cuda" / "13.1", uv_folder, "13.1")


def test_a_release_without_nvcc_on_pypi_downloads_nothing(tmp_path: Path) -> None:
    with pytest.raises(cuda.CudaError, match="holds ptxas"):
        cuda_wheels.install("12.8", tmp_path / "x", ["nvcc"], release_uv.Index(), tmp_path / "uv", "0.0.0")
    assert list(tmp_path.iterdir()) == []
