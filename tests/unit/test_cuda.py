"""Which toolkit a host needs, by the texts that real nvcc's print and by small compilers that only speak."""

from __future__ import annotations

from pathlib import Path

import pytest
from sglang_deploy import cuda

NVCC = """nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2025 NVIDIA Corporation
Built on {built}
Cuda compilation tools, release {release}, V{version}
Build cuda_{release}.r{release}/compiler.{number}_0
"""
TEXTS = [
    (
        NVCC.format(built="Tue_May_27_02:21:03_PDT_2025", release="12.9", version="12.9.86", number="36037853"),
        "12.9",
        "12.9.86",
    ),
    (
        NVCC.format(built="Fri_Feb_21_20:23:50_PST_2025", release="12.8", version="12.8.93", number="35583870"),
        "12.8",
        "12.8.93",
    ),
    (
        NVCC.format(built="Wed_Aug_20_01:58:59_PM_PDT_2025", release="13.0", version="13.0.88", number="36424714"),
        "13.0",
        "13.0.88",
    ),
    # Ubuntu's own package, which is in the way on many hosts
    ("Cuda compilation tools, release 12.0, V12.0.140\nBuild cuda_12.0.r12.0/compiler.32267302_0\n", "12.0", "12.0.140"),
    ("Cuda compilation tools, release 11.5, V11.5.119\n", "11.5", "11.5.119"),
    ("Cuda compilation tools, release 9.1\n", "9.1", "9.1"),
]


@pytest.mark.parametrize(("text", "release", "version"), TEXTS)
def test_versions_are_read(text: str, release: str, version: str) -> None:
    assert cuda.parse_version(text) == (release, version)


@pytest.mark.parametrize("text", ["", "bash: nvcc: command not found", "nvcc fatal   : No input files specified"])
def test_what_is_no_version_is_none(text: str) -> None:
    assert cuda.parse_version(text) is None


def toolkit(folder: Path, release: str, version: str) -> Path:
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{version}'\n", encoding="utf-8")
    nvcc.chmod(0o755)
    return folder


def test_several_toolkits_stand_side_by_side_and_a_link_is_none_of_its_own(tmp_path: Path) -> None:
    toolkit(tmp_path / "cuda-12.8", "12.8", "12.8.93")
    toolkit(tmp_path / "cuda-13.0", "13.0", "13.0.88")
    toolkit(tmp_path / "cuda-9.1", "9.1", "9.1.85")
    (tmp_path / "cuda").symlink_to("cuda-13.0")
    (tmp_path / "cuda-12").symlink_to("cuda-12.8")
    (tmp_path / "cuda-11.8" / "lib64").mkdir(parents=True)  # left by a removed toolkit
    assert [found.release for found in cuda.installed(tmp_path)] == ["9.1", "12.8", "13.0"]


def test_an_nvcc_that_does_not_run_is_no_toolkit(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("not a program", encoding="utf-8")
    assert cuda.ask(tmp_path) is None


@pytest.mark.parametrize(
    ("capabilities", "names"),
    [(["12.0"], ["120a"]), (["12.0", "12.1"], ["120a", "121a"]), (["9.0"], ["90a"]), (["8.9"], ["89"]), ([], [])],
)
def test_architectures_by_nvccs_names(capabilities: list[str], names: list[str]) -> None:
    assert cuda.architectures(capabilities) == names


def test_an_architecture_in_place_of_a_capability_is_refused() -> None:
    with pytest.raises(cuda.CudaError, match=r"write for example '12\.0'"):
        cuda.architectures(["sm_120"])


def test_the_package_is_the_toolkit_alone() -> None:
    assert cuda.package("12.8") == "cuda-toolkit-12-8"


def test_wheels_have_a_folder_of_their_own() -> None:
    assert cuda.home("wheels", "13.0", "/usr/local/cuda-13.0", "/opt/sglang") == "/opt/sglang/cuda/13.0"
    assert cuda.home("apt", "12.8", "", "/opt/sglang") == "/usr/local/cuda-12.8"
    assert cuda.home("existing", "12.8", "/opt/cuda", "/opt/sglang") == "/opt/cuda"


RIGHT = cuda.Toolkit("/usr/local/cuda-12.8", "12.8", "12.8.93")


def wanted(way: str = "apt", release: str = "12.8", home: str | None = None) -> cuda.Wanted:
    return cuda.Wanted(release, home or f"/usr/local/cuda-{release}", way)


@pytest.mark.parametrize("way", cuda.WAYS)
def test_the_right_toolkit_is_left_alone_whatever_the_way(way: str) -> None:
    assert cuda.judge(wanted(way), RIGHT) is False


def test_a_missing_one_is_installed() -> None:
    assert cuda.judge(wanted("apt"), None) is True
    assert cuda.judge(wanted("wheels", "13.0", "/opt/sglang/cuda/13.0"), None) is True


def test_nothing_is_laid_over_another_toolkit() -> None:
    with pytest.raises(cuda.CudaError, match=r"needs CUDA 12\.8, and /usr/local/cuda-12\.8/bin/nvcc is 12\.6\.85"):
        cuda.judge(wanted(), cuda.Toolkit("/usr/local/cuda-12.8", "12.6", "12.6.85"))


def test_existing_says_what_there_is() -> None:
    others = [cuda.Toolkit("/usr/local/cuda-12.4", "12.4", "12.4.131")]
    with pytest.raises(cuda.CudaError, match=r"/usr/local/cuda-12\.4 \(12\.4\.131\).*cuda_toolkit_install: apt"):
        cuda.judge(wanted("existing"), None, others)
    with pytest.raises(cuda.CudaError, match="none at all"):
        cuda.judge(wanted("existing"), None)


def test_apt_cannot_serve_a_folder_of_somebodys_own() -> None:
    with pytest.raises(cuda.CudaError, match="CUDA_HOME is /opt/cuda"):
        cuda.judge(wanted("apt", home="/opt/cuda"), None)


def test_wheels_say_what_they_can_and_cannot_do() -> None:
    with pytest.raises(cuda.CudaError, match=r"ptxas, libnvvm and libdevice.*no nvcc.*cuda_toolkit_install: apt.*CUDA 13"):
        cuda.judge(wanted("wheels"), None)
    assert "nothing to build on" in cuda.wheels_problem("11.8")
    assert cuda.wheels_problem("13.0") == cuda.wheels_problem("14.0") == ""
