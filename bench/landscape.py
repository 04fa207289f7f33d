#!/usr/bin/env python3
"""Measure every combination of a small space with the real server, for bench/sweep.py to search in.

    bench/landscape.py --python RELEASE/venv/bin/python --model DIR [--space FILE] [--out FILE] [--users 4]

Each point is a server of its own on the CPU, measured as a trial of a sweep is; one that does not come up is null. Results
are written after each point, and a point that is there is not measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "plugins" / "module_utils"))

from failing import follow, free_port, rules  # noqa: E402
from sglang_deploy import findings, watch  # noqa: E402
from sglang_deploy.sweep import measure  # noqa: E402

DATA = ROOT / "bench" / "data"
START_S = 300


def point(python: str, model: str, words: list[str], users: int) -> float | None:
    """Output tokens a second of a server with these arguments, None where it does not start."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [python, "-m", "sglang.launch_server", "--model-path", model, "--device", "cpu", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--max-total-tokens", "8192", *words]
    known = rules()
    watched = watch.Watched(tuple(sorted(findings.patterns(known))), frozenset(findings.stopping(known)), total=START_S)
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            outcome, why = follow(watch.Target(path=log.name, pid=server.pid), watched)
            if outcome != "ready":
                print(f"{outcome}: {why}", flush=True)
                return None
            work = measure.Workload((users,), input_tokens=16, output_tokens=12, requests_per_user=2, rounds=1)
            found = measure.run(python, dict(os.environ), work, users, url, model, START_S)
            return round(found.levels[0].output_rate, 2)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="of a release")
    parser.add_argument("--model", required=True)
    parser.add_argument("--space", type=Path, default=DATA / "sweep_cpu.yml")
    parser.add_argument("--out", type=Path, default=DATA / "sweep_cpu.json")
    parser.add_argument("--users", type=int, default=4)
    given = parser.parse_args()
    space: dict[str, dict[str, list[str]]] = yaml.safe_load(given.space.read_text(encoding="utf-8"))
    data: dict[str, Any] = {"dimensions": {name: list(values) for name, values in space.items()}, "points": {}}
    if given.out.exists():
        data["points"] = json.loads(given.out.read_text(encoding="utf-8"))["points"]
    for labels in itertools.product(*space.values()):
        chosen = dict(zip(space, labels, strict=True))
        key = " + ".join(f"{name}={label}" for name, label in chosen.items())
        if key in data["points"]:
            continue
        words = [word for name, label in chosen.items() for word in space[name][label]]
        tries = (point(given.python, given.model, words, given.users) for _ in range(2))  # a start may fail by chance
        data["points"][key] = next((speed for speed in tries if speed is not None), None)
        print(f"{key}: {data['points'][key]}", flush=True)
        given.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
