"""The proof: with compilers that only speak, and with the real ones where this machine has them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sglang_deploy import cuda, cuda_proof

SPEAKS = """#!/bin/sh
case "$*" in
  --version) echo 'Cuda compilation tools, release {release}, V{release}.93';;
  *) echo run >>"{folder}/runs"; {compile};;
esac
"""
ERRORS = [
    ("nvcc fatal   : Unsupported gpu architecture 'compute_120a'", "too old for the stack's chips"),
    ("nvcc fatal   : Value 'sm_121a' is not defined for option 'gpu-code'", "too old for the stack's chips"),
    (
        "/usr/include/crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later than 14 are not",
        "-ccbin",
    ),
    ("proof.cu:2:10: fatal error: cuda_fp4.h: No such file or directory", "older than 12.8"),
    ("proof.cu:1:10: fatal error: cuda_runtime.h: No such file or directory", "without the runtime"),
    ("/usr/bin/ld: cannot find -lcudart: No such file or directory", "runtime library is missing"),
    ("gcc: fatal error: cannot execute 'cc1plus': execvp: No such file or directory", "apt install g++"),
    ("nvcc error   : 'cicc' died due to signal 11", "Run the command by hand"),
]
needs_compiler = pytest.mark.skipif(shutil.which("g++", path="/usr/bin:/bin") is None, reason="g++ is on the service's PATH")


def toolkit(folder: Path, compile_: str = "true", release: str = "12.8") -> str:
    nvcc = folder / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True, exist_ok=True)
    nvcc.write_text(SPEAKS.format(release=release, folder=folder, compile=compile_), encoding="utf-8")
    nvcc.chmod(0o755)
    return str(folder / "cuda")


@needs_compiler
def test_a_proof_holds_until_something_changes(tmp_path: Path) -> None:
    home, receipt = toolkit(tmp_path), tmp_path / "kept" / "12.8.json"
    assert not cuda_proof.holds(receipt, cuda_proof.fingerprint("12.8", home, ["12.0"]))
    record = cuda_proof.prove("12.8", home, ["12.0"], receipt)
    assert record["nvcc"] == "12.8.93"
    assert cuda_proof.holds(receipt, cuda_proof.fingerprint("12.8", home, ["12.0"]))
    assert not cuda_proof.holds(receipt, cuda_proof.fingerprint("12.8", home, ["12.0", "12.1"]))
    assert not cuda_proof.holds(receipt, cuda_proof.fingerprint("12.9", home, ["12.0"]))
    os.utime(Path(home) / "bin" / "nvcc", ns=(1, 1))
    assert not cuda_proof.holds(receipt, cuda_proof.fingerprint("12.8", home, ["12.0"]))


@needs_compiler
@pytest.mark.parametrize(("said", "advice"), ERRORS)
def test_a_failure_has_the_compilers_words_and_a_cure(tmp_path: Path, said: str, advice: str) -> None:
    (tmp_path / "said").write_text(said, encoding="utf-8")
    home, receipt = toolkit(tmp_path, f"cat '{tmp_path}/said' >&2; exit 1"), tmp_path / "12.8.json"
    with pytest.raises(cuda.CudaError) as error:
        cuda_proof.prove("12.8", home, ["12.0"], receipt)
    assert said in str(error.value) and advice in str(error.value) and "sm_120a" in str(error.value)
    assert "arch=compute_120a,code=sm_120a" in str(error.value)
    assert not receipt.exists()


@needs_compiler
def test_another_release_is_never_proved(tmp_path: Path) -> None:
    home = toolkit(tmp_path, release="12.6")
    with pytest.raises(cuda.CudaError, match=r"needs CUDA 12\.8.*is 12\.6\.93"):
        cuda_proof.prove("12.8", home, ["12.0"], tmp_path / "12.8.json")
    assert not (tmp_path / "runs").exists()


def test_compilers_are_looked_for_where_the_service_looks(tmp_path: Path) -> None:
    with pytest.raises(cuda.CudaError, match=r"nvcc.*the service's PATH \(.*/cuda/bin:/usr/local/sbin.*no nvcc stands in"):
        cuda_proof.fingerprint("12.8", str(tmp_path / "cuda"), ["12.0"])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"proved": 1}', '"x"'])
def test_a_spoilt_receipt_proves_nothing(tmp_path: Path, text: str) -> None:
    receipt = tmp_path / "receipt.json"
    receipt.write_text(text, encoding="utf-8")
    assert not cuda_proof.holds(receipt, cuda_proof.Fingerprint("12.8", "/x", [], "", ""))


def test_the_kernel_is_compiled_for_each_chip_and_for_what_comes_after() -> None:
    words = " ".join(cuda_proof.command("/c", ["120a", "121a"], "x.cu", "x.so"))
    assert "-gencode arch=compute_120a,code=sm_120a -gencode arch=compute_121a,code=sm_121a" in words
    assert "arch=compute_121,code=compute_121" in words


REAL = next(
    (home for home in ("/usr/local/cuda-13.0", "/usr/local/cuda-12.8", "/usr/local/cuda") if cuda.ask(Path(home))), None
)


@needs_compiler
@pytest.mark.skipif(REAL is None, reason="this machine has no CUDA toolkit")
def test_a_real_nvcc_compiles_for_sm120_and_its_refusal_is_shown(tmp_path: Path) -> None:
    toolkit_here = cuda.ask(Path(str(REAL)))
    assert toolkit_here is not None
    complete = Path(str(REAL), "lib64", "libcudart.so").exists()
    if complete:
        record = cuda_proof.prove(toolkit_here.release, str(REAL), ["12.0"], tmp_path / "real.json")
        assert json.loads((tmp_path / "real.json").read_text(encoding="utf-8"))["nvcc"] == record["nvcc"]
    with pytest.raises(cuda.CudaError, match=r"sm_299a(.|\n)*(U|u)nsupported gpu architecture|not defined for option"):
        cuda_proof.prove(toolkit_here.release, str(REAL), ["29.9"], tmp_path / "none.json")


@pytest.mark.slow
def test_the_real_ptxas_of_cuda_12_8_from_pypi_assembles_for_sm120_and_for_nothing_made_up(tmp_path: Path) -> None:
    wanted = ["--no-deps", "--target", str(tmp_path / "packages"), "nvidia-cuda-nvcc-cu12==12.8.93"]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *wanted], check=True)
    assembler = str(tmp_path / "packages" / "nvidia" / "cuda_nvcc" / "bin" / "ptxas")
    assert "V12.8.93" in subprocess.run([assembler, "--version"], check=True, capture_output=True, text=True).stdout
    source = tmp_path / "k.ptx"
    source.write_text(".version 8.7\n.target sm_120a\n.address_size 64\n.visible .entry k() { ret; }\n", encoding="utf-8")
    subprocess.run([assembler, "-arch=sm_120a", str(source), "-o", str(tmp_path / "k.cubin")], check=True)
    assert (tmp_path / "k.cubin").read_bytes()[:4] == b"\x7fELF"
    made_up = subprocess.run([assembler, "-arch=sm_299a", str(source)], check=False, capture_output=True, text=True)
    assert made_up.returncode != 0
    assert "sm_299a" in made_up.stderr
