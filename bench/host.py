#!/usr/bin/env python3
"""Time the host check: the look at this machine, the judgement of recorded hosts, and with --inventory the whole play.

    python bench/host.py [--repeat 5] [--inventory inventory/lab]

The last line is JSON: median seconds, and the seconds of the slowest look. With --inventory the play runs twice
beforehand, so that connections are open.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "plugins" / "module_utils"))

from sglang_deploy import fields, host_gather, host_judge  # noqa: E402
from sglang_deploy.host_evidence import Evidence  # noqa: E402
from sglang_deploy.host_needs import Needs  # noqa: E402

RECORDINGS = ROOT / "tests" / "data" / "hosts"
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
NEEDS = Needs(stack="glm5-cuda128", cuda="12.8", driver=">=570", capabilities=("12.0",), gpus=8, shards=8, weights_gib=410)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="times that each is done")
    parser.add_argument("--inventory", help="inventory of hosts for the play; none leaves it out")
    given = parser.parse_args()
    question = host_gather.Question(
        places={
            host_gather.RELEASES: "/opt/sglang",
            host_gather.WEIGHTS: "/srv/models",
            host_gather.CACHES: "/var/cache/sglang",
        },
        ports=(("glm5", "127.0.0.1", 8000),),
        instance="glm5",
    )
    looks = timed(lambda: host_gather.gather(question), given.repeat)
    recorded = [json.loads(path.read_text(encoding="utf-8"))["evidence"] for path in sorted(RECORDINGS.glob("*.json"))]
    hosts = [fields.build(Evidence, data, "recording") for data in recorded]
    judged = timed(lambda: [host_judge.judge(host, NEEDS) for host in hosts], given.repeat)
    result = {
        "look_s": round(statistics.median(looks), 3),
        "slowest_look_s": round(max(looks), 3),
        "judge_s_each": round(statistics.median(judged) / len(hosts), 5),
        "recordings": len(hosts),
    }
    if given.inventory:
        command = [str(PLAYBOOK), "-i", given.inventory, "playbooks/host_check.yml"]
        plays = timed(lambda: subprocess.run(command, cwd=ROOT, capture_output=True, check=True), given.repeat + 2)[2:]
        result["play_s"] = round(statistics.median(plays), 2)
    print(json.dumps(result))
    return 0


def timed(do: Callable[[], object], repeat: int) -> list[float]:
    """Seconds of each of `repeat` runs."""
    seconds = []
    for _ in range(repeat):
        begun = time.monotonic()
        do()
        seconds.append(time.monotonic() - begun)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
