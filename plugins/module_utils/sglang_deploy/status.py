"""What runs on a host and how it got there, in lines for a person. Standard library only."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .instance import Running
from .ledger import HASH_CHARACTERS

_METRIC = re.compile(r"^(sglang:\w+)(?:\{[^}]*\})? ([-+.\deE]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Load:
    """What a server says of itself at this moment; None for what it does not say."""

    tokens_per_second: float | None = None
    running: int | None = None
    queued: int | None = None


def load(metrics: str) -> Load:
    """Read SGLang's Prometheus text. Ranks and replicas are added up.

    Names as SGLang 0.5.9 to 0.5.20 spell them: sglang:gen_throughput, sglang:num_running_reqs, sglang:num_queue_reqs.
    """
    sums: dict[str, float] = {}
    for name, value in _METRIC.findall(metrics):
        try:
            sums[name] = sums.get(name, 0.0) + float(value)
        except ValueError:
            continue
    running, queued = sums.get("sglang:num_running_reqs"), sums.get("sglang:num_queue_reqs")
    return Load(
        sums.get("sglang:gen_throughput"),
        None if running is None else int(running),
        None if queued is None else int(queued),
    )


def fetch_metrics(url: str, seconds: float = 5.0) -> str:
    """The text of URL/metrics, or an empty text where the server gives none."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/metrics", timeout=seconds) as answer:
            return str(answer.read(8_000_000).decode("utf-8", "replace"))
    except (OSError, ValueError):
        return ""


def gpu_memory() -> list[str]:
    """`GPU 0: 81 of 96 GB` for each GPU that nvidia-smi lists; empty without one."""
    command = ["nvidia-smi", "--query-gpu=index,memory.used,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=True)
        rows = [[float(cell) for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
        return [f"GPU {index:.0f}: {used / 1024:.0f} of {total / 1024:.0f} GB" for index, used, total in rows]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []


def lines(
    name: str,
    running: Running,
    deployment: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    now: Load | None = None,
    gpus: Sequence[str] = (),
    edited: Sequence[str] = (),
) -> list[str]:
    """One fact a line: what runs, whether it is what the instance's files say, and what the last gate said of it.

    edited: files of the instance that are not what was accepted.
    """
    if not deployment:
        if running.active:
            return [f"{name}: {running.state}, a candidate that no gate has accepted: the next deploy decides"]
        return [f"{name}: not deployed"]
    spec = deployment["spec"]
    since = f" since {running.since}" if running.active and running.since else ""
    said = [
        f"{name}: {running.state}{since}, {spec['url']}",
        f"release {spec['release']}, profile {spec['profile']}, launch spec {str(spec['hash'])[:HASH_CHARACTERS]}",
        *_load(now),
        *gpus,
    ]
    if running.active and running.spec_hash != spec["hash"]:
        seen = str(running.spec_hash or "unknown")[:HASH_CHARACTERS]
        said.append(
            f"DRIFT the process runs another launch spec ({seen}), which no gate has accepted: the next deploy decides"
        )
    elif running.active and list(running.argv) != list(spec["command"]):
        said.append("DRIFT the process has other arguments than the launch spec: the next deploy restarts it")
    if running.active and running.unit_newer:
        said.append("DRIFT the unit file changed since the process started: the next deploy restarts it")
    said += [f"DRIFT {path} was edited by hand: the next deploy puts it back" for path in edited]
    if running.restarts:
        said.append(f"systemd has restarted it {running.restarts} times")
    gates = [entry for entry in entries if entry.get("spec") == spec["hash"]]
    if gates:
        said.append(f"last gate {_gate(gates[-1])}")
    else:
        said.append("no gate is on record for this launch spec")
    other = entries[-1] if entries else {}
    if gates and other is not gates[-1]:
        said.append(f"after it, launch spec {str(other.get('spec'))[:HASH_CHARACTERS]}: {_gate(other)}")
    return said


def _gate(entry: Mapping[str, Any]) -> str:
    return f"{entry.get('time')} ({entry.get('kind')}): {'passed' if entry.get('ok') else 'failed'}"


def _load(now: Load | None) -> list[str]:
    if now is None or now == Load():
        return []
    counts = [
        f"{count} requests {word}" for count, word in ((now.running, "running"), (now.queued, "queued")) if count is not None
    ]
    speed = [f"{now.tokens_per_second:.1f} tokens/s"] if now.tokens_per_second is not None else []
    return [", ".join(speed + counts)]
