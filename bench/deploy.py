#!/usr/bin/env python3
"""Time a first deployment, runs that find nothing to change, a look at the status and a swap, on 1, 2 and 4 containers.

    python bench/deploy.py [--hosts 1 2 4] [--repeat 3]

Each number of hosts starts from bare containers; packages are cached on this machine (.cache/lab/uv) when the lab has run
before, which `packages_cached` tells. The last line is JSON: seconds, and megabytes of memory of one running server.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
FIRST_NUMBER = 31  # lab numbers of the bench, apart from those of the demo and the tests
SWAP = '--extra-vars={"sglang_settings": {"chunked_prefill_size": 512}}'
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4], help="numbers of hosts to measure")
    parser.add_argument("--repeat", type=int, default=3, help="runs that find nothing to change, for each number")
    given = parser.parse_args()
    results = []
    for count in given.hosts:
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(count, given.repeat, Path(folder)))
    print(json.dumps(results))
    return 0


def measure(count: int, repeat: int, folder: Path) -> dict[str, object]:
    """Deploy to `count` bare containers, then `repeat` times again, and take the containers away."""
    hosts = [f"glm5-bench{number}" for number in range(1, count + 1)]
    inventory = folder / "hosts.yml"
    numbered = {host: {"lab_number": FIRST_NUMBER + index} for index, host in enumerate(hosts)}
    lab_dir = str(ROOT / ".cache" / "lab")
    inventory.write_text(
        yaml.safe_dump(
            {"all": {"vars": {"lab_dir": lab_dir}, "children": {"glm5": {"children": {"lab": {"hosts": numbered}}}}}}
        ),
        encoding="utf-8",
    )
    (folder / "group_vars").symlink_to(ROOT / "group_vars")
    cached = any((ROOT / ".cache" / "lab" / "uv").glob("*"))
    try:
        run(inventory, "playbooks/lab.yml")
        first, _ = run(inventory, "deploy-glm5.yml")
        again = [run(inventory, "deploy-glm5.yml") for _ in range(repeat)]
        if any(changed for _, changed in again):
            sys.exit(f"{count} hosts: a second run changed something")
        memory = resident_mb(hosts[0])
        status, _ = run(inventory, "playbooks/status.yml")
        swap, swapped = run(inventory, "deploy-glm5.yml", SWAP)
        if not swapped:
            sys.exit(f"{count} hosts: the swap changed nothing")
    finally:
        subprocess.run(["podman", "rm", "--force", "--ignore", "--time=2", *hosts], check=True, stdout=subprocess.DEVNULL)
    seconds = [duration for duration, _ in again]
    result = {
        "hosts": count,
        "packages_cached": cached,
        "first_s": round(first, 1),
        "again_s": round(statistics.median(seconds), 1),
        "again_all_s": [round(duration, 1) for duration in seconds],
        "status_s": round(status, 1),
        "swap_s": round(swap, 1),
        "server_mb": memory,
    }
    told = f"first {first:.0f} s, again {statistics.median(seconds):.1f} s, status {status:.1f} s, swap {swap:.0f} s"
    print(f"{count} hosts: {told}, server {memory} MB", flush=True)
    return result


def run(inventory: Path, playbook: str, *more: str) -> tuple[float, bool]:
    """Run a play; seconds, and whether a host of the lab was changed. Ends the bench where it fails."""
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    started = time.monotonic()
    done = subprocess.run(
        [str(PLAYBOOK), "-i", str(inventory), playbook, *more],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{playbook} failed:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    changes = re.findall(r"^glm5-bench\d+ +: ok=\d+ +changed=(\d+)", done.stdout, flags=re.MULTILINE)
    return time.monotonic() - started, any(int(count) for count in changes)


def resident_mb(host: str) -> int:
    """Proportional memory of the server's processes in MB: shared pages are counted once."""
    script = (
        "for task in $(pgrep -u sglang); do cat /proc/$task/smaps_rollup; done"
        " | awk '/^Pss:/ {sum += $2} END {print int(sum / 1024)}'"
    )
    done = subprocess.run(["podman", "exec", host, "sh", "-c", script], check=True, capture_output=True, text=True)
    return int(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
