"""The functional P2P test, with a made-up torch: sound, corrupting, hanging and dying GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "roles" / "host_check" / "files" / "p2p_test.py"
TORCH = '''
import os, time, types

__version__ = "2.9.1+made.up"
int32 = "int32"
fault, count = os.environ.get("FAULT", ""), int(os.environ.get("GPUS", "3"))


class Generator:
    def manual_seed(self, seed):
        self.seed = seed
        return self


class Tensor:
    """A few words on a device."""

    def __init__(self, words, device="cpu"):
        self.words, self.device = list(words), device

    def to(self, device):
        return Tensor(self.words, device)

    def cpu(self):
        return Tensor(self.words)

    def numel(self):
        return len(self.words)

    def copy_(self, other):
        if (other.device, self.device) == ("cuda:1", "cuda:2"):
            if fault == "hang":
                time.sleep(600)
            if fault == "die":
                os._exit(139)
            if fault == "raise":
                raise RuntimeError("peer mapping resources exhausted")
        self.words = list(other.words)
        if fault == "corrupt" and (other.device, self.device) == ("cuda:1", "cuda:2"):
            self.words[0] ^= 1

    def __ne__(self, other):
        return Tensor(a != b for a, b in zip(self.words, other.words))

    def __eq__(self, other):
        return Tensor(word == other for word in self.words)

    def sum(self):
        return sum(self.words)

    def all(self):
        return all(self.words)


def randint(low, high, shape, dtype, generator):
    return Tensor(range(generator.seed, generator.seed + 8))


def zeros_like(tensor, device):
    return Tensor([0] * len(tensor.words), device)


def full(shape, value, dtype, device):
    return Tensor([value] * 8, device)


def all_reduce(parts):
    if fault == "nccl":
        time.sleep(600)
    total = sum(part.words[0] for part in parts)
    for part in parts:
        part.words = [total] * 8


cuda = types.SimpleNamespace(
    device_count=lambda: count,
    get_device_name=lambda number: "Made up",
    can_device_access_peer=lambda a, b: True,
    synchronize=lambda device: None,
    nccl=types.SimpleNamespace(is_available=lambda parts: True, all_reduce=all_reduce),
)
'''


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    (tmp_path / "torch.py").write_text(TORCH, encoding="utf-8")
    return tmp_path


def run(torch: Path, **environment: str) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, str(SCRIPT), "--seconds", "1", "--mib", "1"]
    variables = {**os.environ, "PYTHONPATH": str(torch), **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=60)
    found = json.loads(done.stdout)
    assert done.stderr.splitlines() == found["told"]
    return done.returncode, found, done.stderr


def test_sound_gpus(torch: Path) -> None:
    code, found, told = run(torch)
    assert (code, found["ok"], len(found["pairs"]), found["nccl"]["ok"]) == (0, True, 6, True)
    assert "6 pairs of 3 GPUs copy without a fault (6 with P2P)" in told
    assert {(pair["from"], pair["to"]) for pair in found["pairs"]} == {(a, b) for a in range(3) for b in range(3) if a != b}


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("corrupt", "1 of 8 words arrived wrong"),
        ("hang", "no answer in 1 s"),
        ("die", "the process ended: exit 139"),
        ("raise", "peer mapping resources exhausted"),
    ],
)
def test_a_pair_that_fails_is_named_and_the_others_are_tried(torch: Path, fault: str, problem: str) -> None:
    code, found, told = run(torch, FAULT=fault)
    bad = [pair for pair in found["pairs"] if not pair["ok"]]
    assert (code, found["ok"], len(found["pairs"])) == (1, False, 6)
    assert [(pair["from"], pair["to"]) for pair in bad] == [(1, 2)] and problem in bad[0]["problem"]
    assert found["nccl"]["ok"] and found["torch"] == "2.9.1+made.up"
    assert f"GPU 1 to GPU 2: {bad[0]['problem']}" in told and "NCCL_P2P_DISABLE" in told


def test_nccl_that_hangs(torch: Path) -> None:
    code, found, told = run(torch, FAULT="nccl")
    assert code == 1 and all(pair["ok"] for pair in found["pairs"])
    assert found["nccl"] == {"ok": False, "problem": "no answer in 1 s"}
    assert "NCCL over 3 GPUs: no answer" in told


@pytest.mark.parametrize("gpus", ["0", "1"])
def test_too_few_gpus(torch: Path, gpus: str) -> None:
    code, found, told = run(torch, GPUS=gpus)
    assert (code, found["ok"]) == (2, None)
    assert "it takes two" in told


def test_without_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12')\n", encoding="utf-8")
    code, found, _ = run(tmp_path)
    assert code == 2 and "libcudart.so.12" in found["problem"]
