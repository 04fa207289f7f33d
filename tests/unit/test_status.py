"""What status says of an instance."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sglang_deploy import status
from sglang_deploy.instance import Running

SPEC = {"hash": "a" * 64, "url": "http://127.0.0.1:1", "release": "cpu-1", "profile": "p", "command": ["python"]}
GOOD = {"time": "2026-11-30T09:00:00Z", "kind": "deploy", "spec": "a" * 64, "ok": True}
METRICS = """# HELP sglang:num_running_reqs The number of running requests.
sglang:num_running_reqs{engine_type="unified",model_name="glm-5",tp_rank="0"} 3.0
sglang:num_queue_reqs{model_name="glm-5"} 1.0
sglang:gen_throughput{model_name="glm-5",dp_rank="0"} 12.5
sglang:gen_throughput{model_name="glm-5",dp_rank="1"} 7.5
sglang:token_usage{model_name="glm-5"} 0.1
"""


def running(**changes: Any) -> Running:
    values: dict[str, Any] = {
        "active": True,
        "state": "active (running)",
        "main_pid": 7,
        "restarts": 0,
        "invocation": "i",
        "spec_hash": "a" * 64,
        "argv": ("python",),
        "since": "Mon 2026-11-30 09:00:00 UTC",
    }
    return Running(**{**values, **changes})


def said(unit: Running, **more: Any) -> str:
    return "\n".join(status.lines("glm5", unit, {"spec": SPEC}, more.pop("entries", [GOOD]), **more))


def test_a_healthy_instance_has_no_drift() -> None:
    text = said(running(), now=status.load(METRICS), gpus=["GPU 0: 81 of 96 GB"])
    assert "active (running) since Mon 2026-11-30 09:00:00 UTC" in text
    assert "20.0 tokens/s, 3 requests running, 1 requests queued" in text
    assert "GPU 0: 81 of 96 GB" in text
    assert "last gate 2026-11-30T09:00:00Z (deploy): passed" in text
    assert "DRIFT" not in text


def test_what_the_canary_said_comes_before_the_gates() -> None:
    text = said(running(), more=["canary passed at 2026-11-30T10:00:00Z"]).splitlines()
    assert text[-2:] == ["canary passed at 2026-11-30T10:00:00Z", "last gate 2026-11-30T09:00:00Z (deploy): passed"]


@pytest.mark.parametrize(
    ("unit", "more", "word"),
    [
        (running(spec_hash="b" * 64), {}, "another launch spec (bbbbbbbbbbbb)"),
        (running(argv=("python", "--tp", "8")), {}, "other arguments"),
        (running(unit_newer=True), {}, "unit file changed"),
        (running(), {"edited": ["/etc/sglang/glm5/launch"]}, "/etc/sglang/glm5/launch was edited"),
    ],
)
def test_each_drift_is_named(unit: Running, more: dict[str, Any], word: str) -> None:
    lines = [line for line in said(unit, **more).splitlines() if line.startswith("DRIFT")]
    assert len(lines) == 1
    assert word in lines[0]


def test_a_failure_after_the_last_good_one_is_told() -> None:
    failed = {"time": "2026-11-30T10:00:00Z", "kind": "deploy", "spec": "c" * 64, "ok": False}
    assert "after it, launch spec cccccccccccc: 2026-11-30T10:00:00Z (deploy): failed" in said(
        running(), entries=[GOOD, failed]
    )


def test_what_is_not_there_is_not_deployed_or_a_candidate() -> None:
    stopped = running(active=False, state="inactive (dead)")
    assert status.lines("glm5", stopped, {}, []) == ["glm5: not deployed"]
    assert "no gate has accepted" in status.lines("glm5", running(), {}, [])[0]


@pytest.mark.parametrize("text", ["", "<html>", 'sglang:num_running_reqs{a="b"} 1.2.3\n'])
def test_metrics_that_are_none_say_nothing(text: str) -> None:
    assert status.load(text) == status.Load()
    assert "tokens/s" not in said(running(), now=status.load(text))


def test_a_server_that_says_nothing_is_no_error() -> None:
    assert status.ask("http://127.0.0.1:9", metrics=True, seconds=1) == status.Load()
    assert status.ask("http://127.0.0.1:9", metrics=False, seconds=1) == status.Load()


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, str]]]:
    """Its URL, and path -> text that it answers with."""
    texts: dict[str, str] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in texts else 404)
            self.end_headers()
            self.wfile.write(texts.get(self.path, "").encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}", texts
        listening.shutdown()


def test_the_speed_is_known_with_metrics_and_without(server: tuple[str, dict[str, str]]) -> None:
    url, texts = server
    texts["/metrics"] = METRICS
    assert status.ask(url, metrics=True) == status.Load(20.0, 3, 1)
    assert status.ask(url, metrics=False) == status.Load()
    texts["/get_server_info"] = '{"internal_states": [{"last_gen_throughput": 12.5}, {"last_gen_throughput": 3}]}'
    assert status.ask(url, metrics=False) == status.Load(last_tokens_per_second=15.5)
    texts["/server_info"] = '{"internal_states": [{"last_gen_throughput": 8.25}]}'
    assert status.ask(url, metrics=False) == status.Load(last_tokens_per_second=8.25)
    assert "8.2 tokens/s when it decoded last" in said(running(), now=status.ask(url, metrics=False))


@pytest.mark.parametrize(
    "info", ["", "[]", "{", '{"internal_states": []}', '{"internal_states": [{}]}', '{"internal_states": 3}']
)
def test_an_answer_without_a_speed_says_nothing(info: str) -> None:
    assert status.load_without_metrics(info) == status.Load()


# nvidia-smi 580, 8x RTX PRO 6000 (two rows), one GPU that has no such numbers, one that has fallen off the bus
SMI = """0, 89411, 97887
1, 4, 97887
2, [N/A], [N/A]
Unable to determine the device handle for GPU3: 0000:C1:00.0: Unknown Error
"""


def test_memory_of_each_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert status.gpu_memory() == []
    (tmp_path / "smi").write_text(SMI)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ncat {tmp_path}/smi\nexit 15\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert status.gpu_memory() == [
        "GPU 0: 87 of 96 GB",
        "GPU 1: 0 of 96 GB",
        "GPU: 2, [N/A], [N/A]",
        "GPU: Unable to determine the device handle for GPU3: 0000:C1:00.0: Unknown Error",
    ]
