"""What status says of an instance."""

from __future__ import annotations

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


def test_a_server_without_metrics_is_no_error() -> None:
    assert status.fetch_metrics("http://127.0.0.1:9", seconds=1) == ""
