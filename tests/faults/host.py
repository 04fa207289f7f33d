"""The host of the lab that is broken: commands on it, what it says of itself, and what its server answers."""

from __future__ import annotations

import json
import math
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "glm5-faults"
URL = "http://127.0.0.1:18071"
VARIABLES = {
    "CONFIG": "/etc/sglang/glm5",
    "STATE": "/var/lib/sglang/glm5",
    "RELEASES": "/opt/sglang/releases",
    "MODEL": "/srv/models/glm4moe",
    "LEASE": "python3 /root/lease.py",
}
LOOK = r"""
import glob, json, os, subprocess
def read(path):
    try:
        with open(path) as f: return json.load(f)
    except (OSError, ValueError): return {}
names = "ActiveState,MainPID,InvocationID,UnitFileState"
shown = subprocess.run(["systemctl", "show", "sglang@glm5", "--property=" + names], capture_output=True, text=True).stdout
unit = dict(line.split("=", 1) for line in shown.splitlines())
try:
    with open(f"/proc/{unit['MainPID']}/environ") as f: environ = f.read().split("\0")
except OSError: environ = []
last = read("/var/lib/sglang/glm5/last_good.json")
lines = []
try:
    with open("/var/lib/sglang/glm5/ledger.jsonl", errors="replace") as f: lines = f.read().splitlines()
except OSError: pass
print(json.dumps({
    "active": unit.get("ActiveState") == "active",
    "invocation": unit.get("InvocationID"),
    "enabled": unit.get("UnitFileState") == "enabled",
    "process": next((e.split("=", 1)[1] for e in environ if e.startswith("SGLANG_DEPLOYMENT=")), ""),
    "files": read("/etc/sglang/glm5/spec.json").get("hash", ""),
    "last_good": last.get("deployment", {}).get("spec", {}).get("hash", "") if isinstance(last, dict) else "",
    "candidate": any(
        os.path.exists(path)
        for path in ("/etc/sglang/glm5/candidate", "/run/systemd/system/sglang@glm5.service.d/candidate.conf")
    ),
    "building": glob.glob("/opt/sglang/releases/.building-*"),
    "lines": len(lines),
}))
"""
LEASE = r"""
import json, sys, time
from pathlib import Path
seconds = float(sys.argv[1])
holder = {"controller": "elsewhere boot ns", "pid": 1, "start": "1", "by": "ann@elsewhere"}
path = Path("/run/sglang/deploy.lock")
path.parent.mkdir(exist_ok=True)
until = time.clock_gettime(time.CLOCK_BOOTTIME) + seconds
path.write_text(json.dumps({"holder": holder, "since": "2026-01-01T00:00:00Z", "until": until, "seconds": seconds}))
"""


@dataclass(frozen=True)
class Seen:
    """What the host says of itself, and whether its server decodes."""

    active: bool
    invocation: str
    enabled: bool
    process: str
    files: str
    last_good: str
    candidate: bool
    building: list[str]
    lines: int

    def settled(self) -> list[str]:
        """What is not as it is after a good deployment."""
        problems = []
        if not self.active:
            problems.append("the unit is not active")
        if len({self.process, self.files, self.last_good}) != 1:
            problems.append(
                f"process {self.process[:12]}, files {self.files[:12]} and last good {self.last_good[:12]} differ"
            )
        if not self.enabled:
            problems.append("it does not start at boot")
        if self.candidate:
            problems.append("a candidate is left")
        if self.building:
            problems.append(f"a half-built release is left: {self.building}")
        return problems


def shell(command: str, text: str = "", seconds: float = 300) -> str:
    """Run a command on the host, as root. Raises RuntimeError with its output where it fails."""
    given = [f"--env={name}={value}" for name, value in VARIABLES.items()]
    done = subprocess.run(
        ["podman", "exec", "--interactive", *given, NAME, "bash", "-c", command],
        input=text,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command!r} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def prepare() -> None:
    shell("cat >/root/lease.py", LEASE)


def look() -> Seen:
    return Seen(**json.loads(shell("python3 -", LOOK)))


def decodes() -> str:
    """Why the server does not decode, or an empty text: greedy tokens with log-probabilities that are numbers."""
    body = {"model": "glm-5", "prompt": "One two three", "max_tokens": 4, "temperature": 0, "logprobs": 1}
    request = urllib.request.Request(
        f"{URL}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            choice: dict[str, Any] = json.load(answer)["choices"][0]
        numbers = choice["logprobs"]["token_logprobs"]
        if not numbers or not all(isinstance(one, float) and math.isfinite(one) for one in numbers):
            return f"log-probabilities {numbers}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"no answer: {error}"
    return ""


def boot(killed: bool = False) -> None:
    """Restart the host, and wait until it answers ssh."""
    command = ["start", NAME] if killed else ["restart", "--time=20", NAME]
    subprocess.run(["podman", *command], check=True, capture_output=True)
    wait(lambda: shell("systemctl is-active ssh").strip() == "active", 120, "the host did not boot")


def wait(ready: Any, seconds: float, message: str) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if ready():
                return
        except (RuntimeError, subprocess.TimeoutExpired):
            pass
        time.sleep(1)
    raise RuntimeError(message)


def versions() -> dict[str, str]:
    """Of what the results were got with."""
    receipt = json.loads(shell("cat $RELEASES/cpu-*/receipt.json"))
    kernel = shell("uname -r").split("-")[0].strip()
    system = shell(". /etc/os-release; echo $PRETTY_NAME").strip()
    ansible = subprocess.run(["ansible", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return {"SGLang": str(receipt["versions"]["sglang"]), "host": f"{system}, Linux {kernel}", "controller": ansible}


ROOT = Path(__file__).resolve().parents[2]
