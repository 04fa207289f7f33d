"""Throughput of the deployed service against the same command started by hand, in turns on one GPU."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
import urllib.request
from typing import Any

import boot
from lab import INSTANCE, Lab, expect

PAIRS = 5
LOAD = {"random-input-len": 512, "random-output-len": 128, "num-prompts": 160, "max-concurrency": 16}


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health_generate", timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


def _measure(lab: Lab, python: str, model: str, port: int, seed: int) -> dict[str, float]:
    """One run of SGLang's own bench_serving."""
    target = f"/tmp/bench-{port}-{seed}.jsonl"
    options = [word for name, value in LOAD.items() for word in (f"--{name}", str(value))]
    command = [python, "-m", "sglang.bench_serving", "--backend", "sglang", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dataset-name", "random-ids", "--random-range-ratio", "1", "--model", model, "--seed", str(seed)]
    command += ["--disable-tqdm", "--output-file", target, *options]
    lab.run(*command, timeout=120, env={"HF_HUB_OFFLINE": "1"})
    line = json.loads(lab.run("cat", target).strip().splitlines()[-1])
    names = ("output_throughput", "median_ttft_ms", "median_itl_ms", "completed")
    return {name: round(float(line[name]), 2) for name in names}


def pairs(lab: Lab) -> dict[str, Any]:
    """Both servers run at once and are asked in turns, so that the machine's drift meets both alike."""
    service, hand = lab.port, lab.port + 1
    spec = lab.spec()
    command = [str(word) for word in spec["command"]]
    python, model = command[0], str(spec["model"])
    launch = lab.inside(f"/etc/sglang/{INSTANCE}/launch").read_text(encoding="utf-8")
    expect(f"--port {service}" in launch, "the launch script does not name its port as expected")
    script = lab.inside("/srv/by-hand")
    script.write_text(launch.replace(f"--port {service}", f"--port {hand}"), encoding="utf-8")
    script.chmod(0o755)
    expect(_answers(service), "the service does not answer")
    log = (lab.out / "by-hand.txt").open("wb")
    # As the service's user, since the launch script reads the environment file and the kernel caches; nothing else alike.
    words = [*boot.enter(), "env", "-i", "setpriv", "--reuid=sglang", "--regid=sglang", "--clear-groups", "/srv/by-hand"]
    began = time.monotonic()
    by_hand = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
    found: dict[str, Any] = {"load": LOAD, "runs": []}
    try:
        while not _answers(hand):
            expect(by_hand.poll() is None, "the server started by hand has ended, see by-hand.txt")
            expect(time.monotonic() - began < 200, "the server started by hand is not ready after 200 s")
            time.sleep(1)
        found["by_hand_ready_s"] = round(time.monotonic() - began, 1)
        for port in (service, hand):
            _measure(lab, python, model, port, 0)  # the first run warms up
        for number in range(1, PAIRS + 1):
            order = (service, hand) if number % 2 else (hand, service)
            runs = {port: _measure(lab, python, model, port, number) for port in order}
            found["runs"].append({"service": runs[service], "by_hand": runs[hand]})
            lab.keep("overhead", {"ok": False, **found})
    finally:
        by_hand.terminate()
        lab.run("sh", "-c", f"pkill -f '[-]-port {hand}' || true")  # not this shell
        log.close()
    ratios = [run["service"]["output_throughput"] / run["by_hand"]["output_throughput"] for run in found["runs"]]
    found["ratio"] = {
        "median": round(statistics.median(ratios), 4),
        "lowest": round(min(ratios), 4),
        "highest": round(max(ratios), 4),
    }
    return found
