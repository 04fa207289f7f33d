"""What runs on a host and how it got there, in lines for a person. Standard library only."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import local_http
from .instance import Running
from .jsonfile import parse
from .ledger import HASH_CHARACTERS

_METRIC = re.compile(r"^(sglang:\w+)(?:\{[^}]*\})? ([-+.\deE]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Load:
    """What a server says of itself at this moment; None for what it does not say.

    last_tokens_per_second: the speed when it decoded last, of a server that does not tell the present one.
    """

    tokens_per_second: float | None = None
    running: int | None = None
    queued: int | None = None
    last_tokens_per_second: float | None = None


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


def load_without_metrics(info: str) -> Load:
    """Read the answer of /server_info, which tells the speed of the newest decoding without --enable-metrics too."""
    try:
        states = parse(info)["internal_states"]
        return Load(last_tokens_per_second=sum(float(one["last_gen_throughput"]) for one in states)) if states else Load()
    except (ValueError, KeyError, TypeError):
        return Load()


def ask(url: str, metrics: bool, seconds: float = 5.0, api_key: str = "") -> Load:
    """What the server at `url` says of its load: through /metrics where it has them, else through /server_info, which
    wants the key where there is one.
    """
    if metrics:
        return load(_get(f"{url}/metrics", seconds, ""))
    return load_without_metrics(
        _get(f"{url}/server_info", seconds, api_key) or _get(f"{url}/get_server_info", seconds, api_key)
    )


def _get(url: str, seconds: float, api_key: str) -> str:
    """The text there, or an empty one where the server gives none."""
    return (local_http.get(url, seconds, 8_000_000, api_key) or b"").decode("utf-8", "replace")


def gpu_memory() -> list[str]:
    """`GPU 0: 81 of 96 GB` for each GPU that nvidia-smi lists; empty without one. A GPU that is lost says so."""
    return [_gpu(row) for row in gpu_rows()]


def gpu_rows() -> list[str]:
    """A line of nvidia-smi for each GPU, `index, MiB used, MiB in all`, or its message; empty without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=index,memory.used,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _gpu(row: str) -> str:
    try:
        index, used, total = (float(cell) for cell in row.split(","))
    except ValueError:
        return f"GPU: {row}"  # such as `3, [N/A], [N/A]`, or a message
    return f"GPU {index:.0f}: {used / 1024:.0f} of {total / 1024:.0f} GB"


def lines(
    name: str,
    running: Running,
    deployment: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    now: Load | None = None,
    gpus: Sequence[str] = (),
    edited: Sequence[str] = (),
    more: Sequence[str] = (),
) -> list[str]:
    """One fact a line: what runs, whether it is what the instance's files say, and what the last gate said of it.

    edited: files of the instance that are not what was accepted. more: lines of the canary, or of a router's workers.
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
    said += more
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
    if now.last_tokens_per_second is not None:
        speed = [f"{now.last_tokens_per_second:.1f} tokens/s when it decoded last"]
    return [", ".join(speed + counts)]
