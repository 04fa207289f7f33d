"""The decode check against a real SGLang on the CPU: healthy weights pass, NaN weights are refused and named.

    SGLANG_TEST_PYTHON=/path/to/venv/bin/python SGLANG_TEST_MODEL=/path/to/model pytest tests/server

The model is any small one with random weights that the CPU can serve. Several, separated by a colon, are all checked;
those with experts are also given one broken expert. SGLANG_TEST_PORT (31010) is the port.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sglang_deploy.decode_check import Expectations, Limits, Server, Verdict, run

PYTHON = os.environ.get("SGLANG_TEST_PYTHON", "")
MODELS = [Path(path) for path in os.environ.get("SGLANG_TEST_MODEL", "").split(":") if path]
PORT = int(os.environ.get("SGLANG_TEST_PORT", "31010"))
URL = f"http://127.0.0.1:{PORT}"
LIMITS = Limits(check=120, total=400)

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not PYTHON or not MODELS, reason="SGLANG_TEST_PYTHON and SGLANG_TEST_MODEL are not set"),
]

POISON = """
import pathlib, re, shutil, sys, torch
from safetensors.torch import load_file, save_file
source, target, pattern = sys.argv[1:]
shutil.copytree(source, target)
file = pathlib.Path(target, "model.safetensors")
tensors = load_file(file)
hit = [name for name in tensors if re.search(pattern, name)]
for name in hit:
    tensors[name] = torch.full_like(tensors[name], float("nan"))
save_file(tensors, file, metadata={"format": "pt"})
print(len(hit))
"""
FINAL_NORM = r"^model\.norm\.weight$"
ONE_EXPERT = r"\.experts\.3\.down_proj\.weight$"


@contextmanager
def serving(model: Path, log: Path, **environment: str) -> Iterator[None]:
    argv = [
        PYTHON,
        "-m",
        "sglang.launch_server",
        "--model-path",
        str(model),
        "--served-model-name",
        "tiny",
        "--device",
        "cpu",
    ]
    argv += ["--max-total-tokens", "8192", "--host", "127.0.0.1", "--port", str(PORT)]
    argv += ["--tool-call-parser", "glm47", "--reasoning-parser", "glm45"]
    env = os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"} | environment
    with log.open("wb") as out:
        process = subprocess.Popen(argv, env=env, stdout=out, stderr=out, start_new_session=True)
        try:
            wait_until_ready(process, log)
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 600
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{URL}/health", timeout=10) as response:
                if response.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"not ready: {log.read_text()[-3000:]}")


def poisoned(model: Path, target: Path, pattern: str) -> int:
    """A copy of `model` with NaN in the tensors that match, and how many those were."""
    argv = [PYTHON, "-c", POISON, str(model), str(target), pattern]
    return int(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


def checked(level: str) -> Verdict:
    expect = Expectations(model="tiny", reasoning_parser="glm45", tool_call_parser="glm47")
    verdict = run(Server(URL, limits=LIMITS), level, expect)
    print(f"\n{level}: {verdict.seconds:.1f} s", *verdict.lines(), sep="\n")
    return verdict


def refused(verdict: Verdict) -> set[str]:
    """The checks that name NaN. Nothing else may be what refuses the server first."""
    assert not verdict.ok
    assert "NaN" in verdict.failed[0].summary, verdict.lines()
    return {check.name for check in verdict.failed if "NaN" in check.summary}


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_healthy_server_passes(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "server.log"):
        for level in ("quick", "full", "quick"):
            verdict = checked(level)
            assert verdict.ok, verdict.lines()


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_nan_in_the_final_norm_is_refused(model: Path, tmp_path: Path) -> None:
    assert poisoned(model, tmp_path / "model", FINAL_NORM) == 1
    with serving(tmp_path / "model", tmp_path / "server.log"):
        assert "greedy_chat" in refused(checked("quick"))


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_sanitised_nan_is_refused(model: Path, tmp_path: Path) -> None:
    assert poisoned(model, tmp_path / "model", FINAL_NORM) == 1
    with serving(tmp_path / "model", tmp_path / "server.log", SGLANG_SANITIZE_NAN_LOGITS="1"):
        assert {"greedy_chat", "sampled_generate"} <= refused(checked("quick"))


@pytest.mark.parametrize("sanitize", ["", "1"], ids=["plain", "sanitised"])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_nan_in_one_expert_is_refused(model: Path, sanitize: str, tmp_path: Path) -> None:
    if not poisoned(model, tmp_path / "model", ONE_EXPERT):
        pytest.skip("the model has no experts")
    environment = {"SGLANG_SANITIZE_NAN_LOGITS": sanitize} if sanitize else {}
    with serving(tmp_path / "model", tmp_path / "server.log", **environment):
        assert "logprobs" in refused(checked("quick"))
