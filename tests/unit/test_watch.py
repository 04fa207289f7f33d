"""Following a start: phases, progress, ends of every kind, and going on from plain data."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sglang_deploy import startup, watch
from sglang_deploy.logtext import clean

LOGS = Path(__file__).resolve().parents[1] / "data" / "logs"
FATAL = "CUDA out of memory"
WATCHED = watch.Watched(patterns=(FATAL, "Scheduler hit an exception"), stop=frozenset({FATAL}))
START = """[2026-11-30 08:02:29] server_args=ServerArgs(model_path='m', api_key='very-secret')
[2026-11-30 08:02:51 TP0] Init torch distributed begin.
[2026-11-30 08:02:54 TP0] Load weight begin. avail mem=139.09 GB
"""


def follow(
    target: watch.Target, watched: watch.Watched = WATCHED, calls: int = 1, until: float = 0.5
) -> tuple[list[str], dict[str, Any]]:
    """Several calls, the state going through JSON as it does between controller and host."""
    state: dict[str, Any] = {}
    events: list[str] = []
    for _ in range(calls):
        new, state = watch.step(target, watched, json.loads(json.dumps(state)), until)
        events += new
        if state["outcome"]:
            break
    return events, state


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, Any]]]:
    """A server whose answer can be set: its URL, and {status, key}."""
    answer: dict[str, Any] = {"status": 503, "asked": []}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer["asked"].append(self.headers.get("Authorization"))
            self.send_response(answer["status"])
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}/health", answer
        listening.shutdown()


def test_phases_of_a_real_start() -> None:
    _, state = follow(watch.Target(path=str(LOGS / "healthy.log")), calls=3)
    assert state["outcome"] == "ready"
    assert list(state["tracker"]["spent"]) == [
        "starting",
        "importing",
        "arguments",
        "distributed",
        "weights",
        "memory",
        "warmup",
    ]


def test_start_that_stands_in_graph_capture() -> None:
    events, state = follow(watch.Target(path=str(LOGS / "stuck-in-graph-capture-killed.log")))
    assert state["outcome"] == ""
    assert events == ["capturing graphs 0/4"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("Loading safetensors checkpoint shards:  37% Completed | 22/60 [01:10<02:00,  3.2s/it]", "loading weights 37 %"),
        ("Multi-thread loading shards: 100% Completed | 1/1 [00:00<00:00, 48.39it/s]", "loading weights 100 %"),
        ("Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1, 2]", "capturing graphs"),
        ("Capture cuda graph begin. This can take up to several minutes. avail mem=3.66 GB", "capturing graphs"),
        ("Capturing batches (bs=8 avail_mem=96.95 GB):  25%|##5   | 3/12 [00:01<?, ?it/s]", "capturing graphs 3/12"),
        ("Entering DeepGEMM JIT Pre-Compile session. It may take a long time (typically 10-20 mins)", "compiling kernels"),
        ("DeepGEMM warmup:  50%|#####     | 8/16 [00:10<00:10]", "compiling kernels 8/16"),
        ("2026-01-01 10:00:00,000 - INFO - flashinfer.jit: Loading JIT ops: cascade", "compiling kernels"),
        ("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 8578944, KV size: 41.04 GB", "allocating KV cache"),
        ("INFO:     Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)", "warming up"),
    ],
)
def test_lines_that_tell_a_phase(line: str, says: str) -> None:
    tracker = startup.Tracker(0.0)
    for number, text in enumerate([*START.split("\n"), f"[2026-11-30 08:02:54 TP0] {line}"]):
        tracker.feed(clean(text, number), float(number))
    assert tracker.says() == says


def test_only_the_first_rank_tells_the_phase() -> None:
    tracker = startup.Tracker(0.0)
    tracker.feed(clean("[2026-11-30 08:02:54 TP3] Load weight end. x"), 1.0)
    tracker.feed(clean("[2026-11-30 08:02:54 TP0] Load weight begin. x"), 2.0)
    assert tracker.phase == "memory"
    assert tracker.leader == "TP3"


def test_compiling_ends_where_it_interrupted() -> None:
    tracker = startup.Tracker(0.0)
    for second, text in enumerate(
        ["Application startup complete.", "flashinfer.jit: Loading JIT ops: x", "Prefill batch, #new-seq: 1"]
    ):
        tracker.feed(clean(text), 10.0 * second)
    assert tracker.phase == "warmup"
    assert tracker.spent["compiling"] == 10.0


def test_fatal_line_ends_the_wait_within_a_second(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(START)
    written: list[float] = []

    def die() -> None:
        time.sleep(0.7)
        with log.open("a") as stream:
            stream.write(
                f"[2026 TP0] Scheduler hit an exception: Traceback\ntorch.OutOfMemoryError: {FATAL}. Tried\nmore of it\n"
            )
        written.append(time.monotonic())

    threading.Thread(target=die).start()
    events, state = follow(watch.Target(path=str(log)), calls=3, until=5.0)
    assert time.monotonic() - written[0] < 1.0
    assert state["outcome"] == "failed"
    assert events[-1].startswith("failed")
    assert state["hits"][FATAL] == [5, f"torch.OutOfMemoryError: {FATAL}. Tried"]
    assert state["tail"][-1] == "more of it"


def test_silence_alone_ends_nothing_and_a_hang_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(START)
    _, state = follow(watch.Target(path=str(log)), calls=3, until=0.3)
    assert state["outcome"] == ""
    _, state = follow(watch.Target(path=str(log)), watch.Watched(limits={"weights": 0}), calls=3, until=0.5)
    assert state["outcome"] == "hung"
    assert "loading weights" in state["reason"]


def test_whole_start_has_a_limit(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(START)
    _, state = follow(watch.Target(path=str(log)), watch.Watched(total=0), calls=3)
    assert state["outcome"] == "timeout"


def test_process_that_ends_is_noticed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(START)
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        time.sleep(0.3)  # a zombie until it is waited for
        _, state = follow(watch.Target(path=str(log), pid=process.pid), calls=3, until=2.0)
    assert (state["outcome"], str(process.pid) in state["reason"]) == ("failed", True)


def test_going_on_reads_nothing_twice(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(START + "half of a li")
    _, state = watch.step(watch.Target(path=str(log)), WATCHED, {}, 0.3)
    assert state["lines"] == 3
    with log.open("a") as stream:
        stream.write("ne\n\xff\n")
    _, state = watch.step(watch.Target(path=str(log)), WATCHED, json.loads(json.dumps(state)), 0.3)
    assert state["lines"] == 5
    assert state["tail"][-2] == "half of a line"
    log.write_text("new file\n")  # shorter: it was replaced
    _, state = watch.step(watch.Target(path=str(log)), WATCHED, state, 0.3)
    assert state["tail"][-1] == "new file"


def test_file_that_appears_later(tmp_path: Path) -> None:
    _, state = follow(watch.Target(path=str(tmp_path / "none")), until=0.2)
    assert (state["outcome"], state["lines"]) == ("", 0)


def test_secrets_are_not_in_the_state(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(START + f"{FATAL} --api-key very-secret\n")
    _, state = follow(watch.Target(path=str(log)), calls=2)
    assert state["outcome"] == "failed"
    assert "very-secret" not in json.dumps(state)


def test_ready_needs_the_answer_200(tmp_path: Path, server: tuple[str, dict[str, Any]]) -> None:
    url, answer = server
    log = tmp_path / "log"
    log.write_text(START + "The server is fired up and ready to roll!\nINFO:     Uvicorn running on http://127.0.0.1:8000\n")
    target = watch.Target(path=str(log), url=url, headers={"Authorization": "Bearer k"})
    _, state = watch.step(target, WATCHED, {}, 1.0)
    assert state["outcome"] == ""
    answer["status"] = 200
    _, state = watch.step(target, WATCHED, state, 3.0)
    _, state = watch.step(target, WATCHED, state, 3.0)
    assert state["outcome"] == "ready"
    assert set(answer["asked"]) == {"Bearer k"}


def test_a_rank_above_0_is_ready_when_its_stand_in_server_answers(
    tmp_path: Path, server: tuple[str, dict[str, Any]]
) -> None:
    url, answer = server
    log = tmp_path / "log"
    end = "[2026-11-30 08:02:56] Dummy health check server started in background thread at 0.0.0.0:8000\n"
    log.write_text(START + "[2026-11-30 08:02:54 TP1] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 8192\n" + end)
    answer["status"] = 200
    _, state = watch.step(watch.Target(path=str(log), url=url), WATCHED, {}, 5.0)
    _, state = watch.step(watch.Target(path=str(log), url=url), WATCHED, state, 5.0)
    assert state["outcome"] == "ready"


@pytest.mark.parametrize(
    ("show", "says"),
    [
        ({"LoadState": "not-found"}, "no unit"),
        ({"ActiveState": "failed", "ExecMainCode": "1", "ExecMainStatus": "3", "Result": "exit-code"}, "with status 3"),
        ({"ActiveState": "failed", "ExecMainCode": "2", "ExecMainStatus": "9", "Result": "oom-kill"}, "SIGKILL (oom-kill)"),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, "start it again"),
        ({"ActiveState": "active", "NRestarts": "1", "InvocationID": "a"}, "started again"),
        ({"ActiveState": "active", "NRestarts": "0", "InvocationID": "b"}, "started again"),
        ({"ActiveState": "inactive", "InvocationID": "a"}, "was stopped"),
        ({"ActiveState": "active", "NRestarts": "0", "InvocationID": "a"}, ""),
        ({"ActiveState": "activating", "SubState": "start", "InvocationID": "a"}, ""),
    ],
)
def test_units_that_do_not_run(show: dict[str, str], says: str) -> None:
    reason, _ = watch.describe_unit("sglang@x.service", show, {"invocation": "a", "restarts": 0}, 100.0)
    assert says in reason
    assert bool(reason) == bool(says)


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with `journal` and `show`, which stand-ins of journalctl and systemctl give out."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "journal").touch()
    for name, script in (
        ("systemctl", f"cat {tmp_path}/show"),
        ("journalctl", f'echo "$@" >> {tmp_path}/asked; exec tail -n +1 -F {tmp_path}/journal'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (tmp_path / "show").write_text("LoadState=loaded\nActiveState=active\nSubState=running\nNRestarts=0\nInvocationID=aa\n")
    return tmp_path


def entry(cursor: int, message: str | list[int] | None, invocation: str = "aa", **more: str) -> str:
    fields = {
        "__CURSOR": f"c{cursor}",
        "__REALTIME_TIMESTAMP": str((int(time.time()) + cursor) * 1_000_000),
        "_SYSTEMD_INVOCATION_ID": invocation,
    }
    return json.dumps({**fields, "MESSAGE": message, **more}) + "\n"


def test_journal_of_this_invocation_alone(systemd: Path) -> None:
    bars = [f"\rLoading pt checkpoint shards:  {percent}% Completed | {percent // 25}/4" for percent in (0, 50)]
    bar = list("".join(bars).encode())
    journal = [
        entry(1, f"{FATAL} of the start before", "old"),
        entry(2, "[2026-11-30 08:02:54 TP0] Load weight begin. avail mem=139.09 GB"),
        entry(3, bar),
        entry(4, None),
        "not json\n",
    ]
    (systemd / "journal").write_text("".join(journal))
    target = watch.Target(unit="sglang@x.service")
    events, state = watch.step(target, WATCHED, {}, 2.0)
    assert events == ["loading weights 50 %"]
    assert (state["outcome"], state["hits"], state["place"]) == ("", {}, {"cursor": "c4"})
    assert "--all" in (systemd / "asked").read_text()
    watch.step(target, WATCHED, state, 0.3)
    assert "--after-cursor c4" in (systemd / "asked").read_text()


def test_unit_that_fails_while_it_is_watched(systemd: Path) -> None:
    (systemd / "journal").write_text(entry(1, "Load weight begin."))
    target = watch.Target(unit="sglang@x.service")
    _, state = watch.step(target, WATCHED, {}, 1.0)
    show = ["ActiveState=failed", "Result=exit-code", "ExecMainCode=1", "ExecMainStatus=1", "NRestarts=0", "InvocationID=aa"]
    (systemd / "show").write_text("\n".join(show))
    with (systemd / "journal").open("a") as stream:
        stream.write(entry(2, "StrangeError: the last words"))
    _, state = watch.step(target, WATCHED, state, 3.0)
    assert (state["outcome"], state["exit"]) == ("failed", {"status": 1})
    assert "StrangeError: the last words" in state["tail"]


def test_no_systemd_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(watch.WatchError, match="systemd cannot be asked"):
        watch.step(watch.Target(unit="x"), WATCHED, {}, 0.1)


@pytest.mark.parametrize("target", [watch.Target(), watch.Target(unit="x", path="y")])
def test_one_thing_is_watched(target: watch.Target) -> None:
    with pytest.raises(watch.WatchError, match="either"):
        watch.step(target, WATCHED, {}, 0.1)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (45, "45 s"), (370, "6 min 10 s"), (1800, "30 min"), (3900, "1 h 5 min")]
)
def test_times_in_words(seconds: float, text: str) -> None:
    assert watch.spell(seconds) == text


def test_a_server_that_runs_for_long_is_asked_at_once(
    tmp_path: Path, server: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, answer = server
    answer["status"] = 200
    log = tmp_path / "log"
    log.write_text(START)  # what tells of readiness has been rotated away
    monkeypatch.setattr(watch, "_started", lambda _: time.time() - 3600)
    _, state = follow(watch.Target(path=str(log), url=url), until=5)
    assert state["outcome"] == "ready"


def test_a_failure_right_after_a_phase_ends_the_same_call(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(START)

    def fail() -> None:
        time.sleep(0.6)
        with log.open("a") as stream:
            stream.write(f"{FATAL}\n")

    threading.Thread(target=fail).start()
    begun = time.monotonic()
    events, state = follow(watch.Target(path=str(log)), until=10)
    assert state["outcome"] == "failed"
    assert events[0].startswith("loading weights")
    assert time.monotonic() - begun < 3
