"""The decode check against a real SGLang on the CPU: healthy weights pass, NaN weights are refused and named.

    make servers

Models with experts are also given one broken expert. conftest.py says what is used and what is made.
"""

from __future__ import annotations

import json
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

PORT = int(os.environ.get("SGLANG_TEST_PORT", "31010"))
URL = f"http://127.0.0.1:{PORT}"
LIMITS = Limits(check=300, total=900, soak=30)

pytestmark = pytest.mark.server

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
def serving(python: str, model: Path, log: Path, **environment: str) -> Iterator[None]:
    argv = [
        python,
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


def poisoned(python: str, model: Path, target: Path, pattern: str) -> int:
    """A copy of `model` with NaN in the tensors that match, and how many those were."""
    argv = [python, "-c", POISON, str(model), str(target), pattern]
    return int(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


def checked(level: str, vocab_size: int | None = None) -> Verdict:
    expect = Expectations(model="tiny", reasoning_parser="glm45", tool_call_parser="glm47", vocab_size=vocab_size)
    verdict = run(Server(URL, limits=LIMITS), level, expect)
    print(f"\n{level}: {verdict.seconds:.1f} s", *verdict.lines(), sep="\n")
    return verdict


def refused(verdict: Verdict) -> set[str]:
    """The checks that name NaN. Nothing else may be what refuses the server first."""
    assert not verdict.ok
    assert "NaN" in verdict.failed[0].summary, verdict.lines()
    return {check.name for check in verdict.failed if "NaN" in check.summary}


def test_healthy_server_passes(server_python: str, model: Path, tmp_path: Path) -> None:
    with serving(server_python, model, tmp_path / "server.log"):
        for level in ("quick", "full", "soak", "quick"):
            verdict = checked(level)
            assert verdict.ok, verdict.lines()


def test_nan_in_the_final_norm_is_refused(server_python: str, model: Path, tmp_path: Path) -> None:
    assert poisoned(server_python, model, tmp_path / "model", FINAL_NORM) == 1
    with serving(server_python, tmp_path / "model", tmp_path / "server.log"):
        assert "greedy_chat" in refused(checked("quick"))


def test_sanitised_nan_is_refused(server_python: str, model: Path, tmp_path: Path) -> None:
    assert poisoned(server_python, model, tmp_path / "model", FINAL_NORM) == 1
    with serving(server_python, tmp_path / "model", tmp_path / "server.log", SGLANG_SANITIZE_NAN_LOGITS="1"):
        verdict = checked("quick", vocab_size=json.loads((model / "config.json").read_text())["vocab_size"])
        assert {"greedy_chat", "sampled_generate"} <= refused(verdict)
        assert "= -ln(" in verdict.failed[0].summary


@pytest.mark.parametrize("sanitize", ["", "1"], ids=["plain", "sanitised"])
def test_nan_in_one_expert_is_refused(server_python: str, model: Path, sanitize: str, tmp_path: Path) -> None:
    if not poisoned(server_python, model, tmp_path / "model", ONE_EXPERT):
        pytest.skip("the model has no experts")
    environment = {"SGLANG_SANITIZE_NAN_LOGITS": sanitize} if sanitize else {}
    with serving(server_python, tmp_path / "model", tmp_path / "server.log", **environment):
        assert "logprobs" in refused(checked("quick"))
