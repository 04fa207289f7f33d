#!/usr/bin/env python3
"""What a failing trial costs: ended at its fatal line, at the server's own exit, or at a fixed time limit.

    bench/failing.py --python RELEASE/venv/bin/python --model DIR [--timeout 600] [--cases molecule/sweep/files/failing.yml]

Each case starts the real server once; both moments are read from that one start, by the sweep's own watch. A case that comes
up is asked for one sampled answer, as the gate does first. A server that has not ended by itself when the limit is reached
counts as the limit. The limit is what a script without either would wait. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "plugins" / "module_utils"))

from sglang_deploy import findings, watch  # noqa: E402

CASES = ROOT / "molecule" / "sweep" / "files" / "failing.yml"


def rules() -> tuple[findings.Rule, ...]:
    path = ROOT / "catalog" / "findings.yml"
    return findings.parse_catalog(yaml.safe_load(path.read_text(encoding="utf-8")), str(path))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def ask(url: str) -> None:
    """One sampled answer; what comes of it is in the log."""
    body = {"text": "One two three", "sampling_params": {"temperature": 1.0, "max_new_tokens": 8}}
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/generate", data, kind)  # noqa: S310 - the server that was just started
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310  # nosec B310
        answer.read()


def seen(command: Sequence[str], port: int, timeout: float) -> tuple[float | None, float, str]:
    """Seconds to the fatal line (None without one), to the server's own end or the limit, and what ended the watch."""
    known = rules()
    watched = watch.Watched(
        patterns=tuple(sorted(findings.patterns(known))), stop=frozenset(findings.stopping(known)), total=int(timeout)
    )
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        began = time.monotonic()
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            target = watch.Target(path=log.name, pid=server.pid)
            outcome, reason = follow(target, watched)
            if outcome == "ready":
                url = f"http://127.0.0.1:{port}"
                ask(url)
                # Without the ready line counting again: what is looked for now is the line that ends it.
                outcome, reason = follow(watch.Target(path=log.name, pid=server.pid, url=f"{url}/never"), watched)
            fatal = time.monotonic() - began if outcome == "failed" and "fatal line" in reason else None
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(max(1.0, timeout - (time.monotonic() - began)))
            return fatal, min(time.monotonic() - began, timeout), reason
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def follow(target: watch.Target, watched: watch.Watched) -> tuple[str, str]:
    state: dict[str, object] = {}
    while not state.get("outcome"):
        _, state = watch.step(target, watched, state, 10.0)
    return str(state["outcome"]), str(state["reason"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="of a release")
    parser.add_argument("--model", required=True)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds of a fixed limit")
    parser.add_argument("--cases", type=Path, default=CASES)
    given = parser.parse_args()
    told: dict[str, dict[str, float | None]] = {}
    for case in yaml.safe_load(given.cases.read_text(encoding="utf-8")):
        port = free_port()
        command = [given.python, "-m", "sglang.launch_server", "--model-path", given.model, "--host", "127.0.0.1"]
        command += ["--port", str(port), *case["arguments"]]
        fatal, end, reason = seen(command, port, given.timeout)
        told[case["name"]] = {"fatal_line_s": fatal and round(fatal, 1), "own_exit_s": round(end, 1)}
        at = f"{fatal:.1f} s" if fatal else f"no fatal line ({reason})"
        print(f"{case['name']}: fatal line at {at}, ended by itself at {end:.1f} s, limit {given.timeout:.0f} s", flush=True)
    lost = {
        "fatal_line": sum(one["fatal_line_s"] or one["own_exit_s"] or 0 for one in told.values()),
        "own_exit": sum(one["own_exit_s"] or 0 for one in told.values()),
        "fixed_limit": given.timeout * len(told),
    }
    print(json.dumps({"cases": told, "seconds_lost": {name: round(value, 1) for name, value in lost.items()}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
