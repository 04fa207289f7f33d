"""What a host shows the canary: the instance, its load, GPUs, the kernel's log, the certificate. Changes nothing."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import instance, ledger, lock, secrets, status, tls
from ..decode_check.client import BadServer, Client, Deadline, Limits, RequestFailed, Server
from ..decode_check.context import Requests, requests_now
from ..local_http import get
from .decide import Seen
from .metrics import Gpu, Host
from .record import Xids

SECONDS = 20.0
"""For a question about load or health. SGLang's own limit for /health is 20 s."""
LIMITS = Limits(check=120.0, total=600.0)
_XID = re.compile(r"^(\d+)\.\d+ .*NVRM: Xid \([^)]*\): (\d+)")
_CURSOR = re.compile(r"^-- cursor: (\S+)$")


@dataclass(frozen=True)
class Look:
    """deployment: the accepted one, empty where there is none; restarts: systemd's count; server: None where unknown."""

    seen: Seen
    deployment: Mapping[str, Any]
    restarts: int
    server: Server | None


def look(name: str, config: Path, state: Path, lock_path: Path = lock.PATH) -> Look:
    """Look at an instance. config, state: its folders. The server is asked for its load only where it could be judged."""
    deployment = ledger.last_good(state).deployment or {}
    spec = deployment.get("spec", {})
    running = instance.running(name)
    seen = Seen(
        accepted=str(spec.get("hash", "")),
        active=running.active,
        state=running.state,
        spec=running.spec_hash,
        invocation=running.invocation,
        active_seconds=_active_seconds(name),
        deploying=deploying(lock_path),
        part=part(spec),
    )
    server = _server(spec, instance.live(name, config)) if spec else None
    if server is None or seen.deploying or not seen.active or seen.part or seen.spec != seen.accepted:
        return Look(seen, deployment, running.restarts, server)
    requests = _requests(server)
    answers = requests is not None or get(f"{server.url}/health", SECONDS) is not None
    return Look(replace(seen, requests=requests, answers=answers), deployment, running.restarts, server)


def part(spec: Mapping[str, Any]) -> str:
    """Why a launch spec's server cannot answer alone, empty where it can."""
    settings = {name: choice.get("value") for name, choice in spec.get("settings", {}).items()}
    if settings.get("node_rank"):
        return f"it is rank {settings['node_rank']} of its instance: rank 0 is asked"
    if settings.get("disaggregation_mode") in ("prefill", "decode"):
        return f"it does the {settings['disaggregation_mode']} half of each request: alone it answers none"
    return ""


def deploying(path: Path = lock.PATH) -> bool:
    """Whether somebody deploys to the host."""
    lease = lock.read(path)
    return lease is not None and lock.counts(lease)


def host(look: Look, xids: Xids) -> Host:
    """The facts that are told beside the verdict."""
    spec = look.deployment.get("spec", {})
    certificate = spec.get("settings", {}).get("tls_certificate", {}).get("value")
    end = tls.end(Path(str(certificate))) if certificate else None
    rows = status.gpu_rows()
    gpus = [gpu for row in rows if (gpu := _gpu(row))]
    return Host(
        look.seen.active,
        look.restarts,
        str(spec.get("release") or ""),
        str(spec.get("profile") or ""),
        look.seen.accepted,
        end.timestamp() if end else None,
        gpus,
        len(rows) - len(gpus),
        xids,
        not look.seen.part,
    )


def xids(before: Xids, boot: Path = Path("/proc/sys/kernel/random/boot_id")) -> Xids:
    """`before`, with what the kernel has logged since; begun anew after a boot."""
    try:
        now = boot.read_text(encoding="utf-8").strip()
    except OSError:
        return before
    known = before if before.boot == now else Xids(boot=now)
    command = ["journalctl", "--dmesg", "--no-pager", "--quiet", "--output=short-unix", "--show-cursor"]
    try:
        done = subprocess.run(
            [*command, *([f"--after-cursor={known.cursor}"] if known.cursor else [])],
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return known
    return counted(known, done.stdout.decode("utf-8", "replace").splitlines())


def counted(known: Xids, lines: Sequence[str]) -> Xids:
    """`known` with the lines of `journalctl --output=short-unix --show-cursor` counted in."""
    counts, newest, cursor = dict(known.counts), dict(known.newest), known.cursor
    for line in lines:
        if found := _XID.match(line):
            counts[found[2]] = counts.get(found[2], 0) + 1
            newest[found[2]] = float(found[1])
        elif found := _CURSOR.match(line):
            cursor = found[1]
    return Xids(known.boot, cursor, counts, newest)


def _server(spec: Mapping[str, Any], live: Path) -> Server | None:
    keys = secrets.read(live)
    proof = spec.get("tls") or {}
    try:
        return Server(
            str(spec["url"]),
            api_key=keys.values.get("api_key") if keys else None,
            ca_file=proof.get("ca") or None,
            name=proof.get("name") or None,
            kind="sglang",
            limits=LIMITS,
        )
    except BadServer:
        return None


def _requests(server: Server) -> Requests | None:
    try:
        return requests_now(Client(replace(server, limits=Limits(silence=SECONDS))), Deadline(SECONDS))
    except (RequestFailed, OSError, ValueError, TypeError):
        return None


def _active_seconds(name: str) -> float:
    command = ["systemctl", "show", "--value", "--property=ActiveEnterTimestampMonotonic", instance.unit_name(name)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        entered = int(done.stdout) / 1e6
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_MONOTONIC) - entered) if entered else 0.0


def _gpu(row: str) -> Gpu | None:
    try:
        index, used, total = (float(cell) for cell in row.split(","))
    except ValueError:
        return None
    return Gpu(f"{index:.0f}", used * 2**20, total * 2**20)
