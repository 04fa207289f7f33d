#!/usr/bin/env python3
"""Measure what a number of hosts costs the controller, with recorded answers in place of the hosts.

    python bench/scale.py [--hosts 1 10 100 1000] [--only list plan watch]

Each measurement is a real ansible-playbook with the project's ansible.cfg and an inventory of that many hosts:
`list` reads the inventory and the plays of deploy-glm5.yml, `plan` makes every host's launch spec and judges it with the
recorded facts of a host with eight GPUs, `watch` makes what Prometheus needs for all of them. No host is reached.

Seconds of the processor and the largest process are judged: from one number to the next, neither may grow faster than the
hosts (a quarter more is measured noise). Exit code 1 where one does; the last line is JSON. bench/deploy.py measures the
rest, on containers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "plugins" / "module_utils"))

from sglang_deploy import fields, host_facts  # noqa: E402
from sglang_deploy.host_evidence import Evidence  # noqa: E402

PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
RECORDED = ROOT / "tests" / "data" / "hosts" / "pro6000x8-two-sockets.json"
NOISE = 1.25
LEAST = {"cpu_s": 0.01, "mb": 0.1}
KINDS = ("list", "plan", "watch")


@dataclass(frozen=True)
class Cost:
    """Of one run: seconds by the clock and of the processor, MB of the largest process."""

    kind: str
    hosts: int
    wall_s: float
    cpu_s: float
    mb: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 10, 100, 1000], help="numbers of hosts, ascending")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, help="what to measure")
    given = parser.parse_args()
    costs = []
    for kind in given.only:
        for count in given.hosts:
            with tempfile.TemporaryDirectory() as folder:
                costs.append(measure(kind, count, Path(folder)))
            print(
                f"{kind:6}{costs[-1].hosts:6} hosts  {costs[-1].cpu_s:8.1f} s of the processor, {costs[-1].mb:6.0f} MB",
                flush=True,
            )
    problems = [problem for kind in given.only for problem in faster([cost for cost in costs if cost.kind == kind])]
    for problem in problems:
        print(problem)
    print(json.dumps([asdict(cost) for cost in costs]))
    return 1 if problems else 0


def faster(costs: Sequence[Cost]) -> list[str]:
    """Where seconds or memory grow faster than the hosts, in words.

    What each further host costs is compared with what one of them cost in the step before. What the start costs anyway is
    in neither; less than LEAST each is lost in it and not judged.
    """
    problems = []
    for name, least in LEAST.items():
        steps = [
            (after.hosts, (getattr(after, name) - getattr(before, name)) / (after.hosts - before.hosts))
            for before, after in pairwise(costs)
        ]
        for (_, before), (hosts, each) in pairwise(steps):
            if each > NOISE * max(before, least):
                problems.append(
                    f"{costs[0].kind}: {name} grows faster than the hosts: {each:.3f} each to {hosts}, before {before:.3f}"
                )
    return problems


def measure(kind: str, count: int, folder: Path) -> Cost:
    """Run one play for `count` hosts."""
    (folder / "hosts.yml").write_text(json.dumps(inventory(count)), encoding="utf-8")
    (folder / "group_vars").symlink_to(ROOT / "group_vars")
    (folder / "play.yml").write_text(yaml.safe_dump(play(kind, folder)), encoding="utf-8")
    words = ["deploy-glm5.yml", "--list-hosts", "--list-tasks"] if kind == "list" else [str(folder / "play.yml")]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_LOCALHOST_WARNING": "False"}
    begun = time.monotonic()
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [str(PLAYBOOK), "-i", str(folder / "hosts.yml"), *words], cwd=ROOT, env=environment, stdout=said, stderr=said
        )
        _, status, used = os.wait4(process.pid, 0)
    text = (folder / "said").read_text(encoding="utf-8", errors="replace")
    if status:
        sys.exit(f"{kind} with {count} hosts failed:\n{text[-3000:]}")
    if kind == "plan" and text.count("failed=0") < count:
        sys.exit(f"{kind}: not every one of {count} hosts was planned:\n{text[-3000:]}")
    return Cost(
        kind,
        count,
        round(time.monotonic() - begun, 2),
        round(used.ru_utime + used.ru_stime, 2),
        round(used.ru_maxrss / 1024, 1),
    )


def inventory(count: int) -> dict[str, Any]:
    """Hosts that nobody has to reach, with metrics, and the recorded facts of one with eight GPUs for each."""
    evidence = fields.build(Evidence, json.loads(RECORDED.read_text(encoding="utf-8"))["evidence"], RECORDED.name)
    facts = {"host": host_facts.facts(evidence).as_dict()}
    own = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "sglang_host_facts": facts,
        "sglang_host": "0.0.0.0",  # noqa: S104 - in an inventory
        "sglang_allow": ["open-bind"],
        "sglang_settings": {"enable_metrics": True, "reasoning_parser": "glm45", "tool_call_parser": "glm47"},
    }
    hosts = {f"gpu{number}": {**own, "ansible_host": f"10.0.{number // 250}.{number % 250 + 1}"} for number in range(count)}
    return {"all": {"children": {"glm5": {"hosts": hosts}}}}


def play(kind: str, folder: Path) -> list[dict[str, Any]]:
    """The play that measures `kind`."""
    if kind == "plan":
        task: dict[str, Any] = {
            "name": "Plan",
            "ansible.builtin.import_role": {"name": "sglang_plan", "tasks_from": "request"},
        }
        return [{"name": "Plan", "hosts": "glm5", "gather_facts": False, "tasks": [task]}]
    watched = {
        "folder": str(folder),
        "servers": "{{ groups['glm5'] }}",
        "routers": [],
        "limits": {},
        "ca_file": "",
        "alertmanagers": [],
        "exporter_port": 9100,
        "interval": 15,
        "configuration": f"{folder}/prometheus.yml",
        "grafana_dir": "",
    }
    return [
        {
            "name": "Watch",
            "hosts": "localhost",
            "connection": "local",
            "gather_facts": False,
            "tasks": [{"name": "Watch", "sglang_monitoring": watched}],
        }
    ]


if __name__ == "__main__":
    sys.exit(main())
