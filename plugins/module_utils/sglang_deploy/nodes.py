"""One instance over several hosts: who has which rank, what may differ between them, and whether the whole of it runs.

SGLang's own distribution does the work (`--nnodes`, `--node-rank`, `--dist-init-addr`). A deployment is one of all ranks or
of none: all are started, accepted and put back together. Runs on the controller; standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .problems import Problems
from .secrets import ID_VARIABLE

OWN = ("node_rank", "host", "port")
"""Settings in which the ranks of an instance may differ; everything else decides for all."""
INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""How NCCL and Gloo are told the network interface between hosts (their documentation)."""


class NodesError(Problems):
    """The hosts cannot be one instance. `problems` lists everything, each with what to write instead."""

    mark = "- "


@dataclass(frozen=True)
class Group:
    """The hosts of an instance in the order of their ranks, and which of them this one is.

    address and port: where they meet, on rank 0. interface: of the network between them, empty to leave that to NCCL.
    """

    hosts: tuple[str, ...]
    rank: int
    address: str
    port: int
    interface: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """What SGLang is told."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return {"nnodes": len(self.hosts), "node_rank": self.rank, "dist_init_addr": f"{address}:{self.port}"}

    @property
    def environment(self) -> dict[str, str]:
        """What NCCL and Gloo are told."""
        return dict.fromkeys(INTERFACE_VARIABLES, self.interface) if self.interface else {}


def group_of(hosts: Sequence[str], host: str, address: str, port: object, interface: str = "") -> Group | None:
    """The group that a host belongs to, None where `hosts` is empty: an instance on one host. Raises NodesError."""
    if isinstance(hosts, str) or not all(isinstance(name, str) for name in hosts):
        raise NodesError([f"sglang_nodes is {hosts!r}: write a list of inventory hosts, rank 0 first"])
    if not hosts:
        return None
    problems = []
    twice = sorted({name for name in hosts if list(hosts).count(name) > 1})
    if twice:
        problems.append(f"sglang_nodes has {', '.join(twice)} more than once: a host has one rank")
    if len(hosts) == 1:
        problems.append("sglang_nodes has one host: leave it empty for an instance on one host")
    if host not in hosts:
        problems.append(f"{host} is not in sglang_nodes ({', '.join(hosts)}): add it, or set sglang_nodes: [] for this host")
    if not str(port).isdigit() or not 0 < int(str(port)) < 65536:
        problems.append(f"sglang_nodes_port {port!r} is no port: write one from 1 to 65535")
    if problems:
        raise NodesError(problems)
    return Group(tuple(hosts), list(hosts).index(host), address or hosts[0], int(str(port)), interface)


def layout_problems(settings: Mapping[str, Any], nodes: int) -> list[str]:
    """Why tensor, pipeline and data parallel sizes do not divide among `nodes` hosts; settings: plain values.

    SGLang gives each host tp_size * pp_size / nnodes processes, whole pipeline stages or whole parts of one stage
    (server_args.py `check_server_args`, engine.py `_launch_scheduler_processes` of 0.5.15.post1).
    """
    tp, pp, dp = (int(settings.get(name) or 1) for name in ("tp_size", "pp_size", "dp_size"))
    problems = []
    if tp * pp % nodes:
        problems.append(
            f"tp_size {tp} times pp_size {pp} does not divide among {nodes} hosts: make the product a multiple of {nodes}"
        )
    if pp % nodes and nodes % pp:
        problems.append(
            f"pp_size {pp} neither divides {nodes} hosts nor is divided by them, so a stage would be cut: "
            f"take 1 or {nodes}, or another divisor"
        )
    if dp > 1 and not settings.get("dp_attention"):
        problems.append(
            f"dp_size {dp} over {nodes} hosts: SGLang does that with DP attention only; set dp_attention, or run an "
            "instance on each host behind the router"
        )
    return problems


def shared_hash(spec: Mapping[str, Any]) -> str:
    """SHA-256 over what all ranks have to have alike: release, arguments and environment, without those of OWN.

    spec: a launch spec as its as_dict() gives it. The launch spec's own hash names what runs on one host, rank included.
    """
    return hashlib.sha256(json.dumps(_deciding(spec), sort_keys=True).encode()).hexdigest()


def _deciding(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "release": spec["release"],
        "settings": {name: choice["options"] for name, choice in spec["settings"].items() if name not in OWN},
        "extra_args": spec["extra_args"],
        "environment": {n: v["value"] for n, v in spec["environment"].items() if n != ID_VARIABLE},  # random on each host
    }


def differences(specs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the hosts' launch specs do not have alike, a line each with every host's value; specs: host -> as_dict()."""
    flat = {}
    for host, spec in specs.items():
        deciding = _deciding(spec)
        words = {name: " ".join(options) for name, options in deciding.pop("settings").items()}
        flat[host] = {**words, **deciding.pop("environment"), **deciding, "extra_args": " ".join(deciding["extra_args"])}
    names = dict.fromkeys(name for values in flat.values() for name in values)
    return [
        f"{name}: " + ", ".join(f"{host} {values.get(name, 'nothing') or 'nothing'}" for host, values in flat.items())
        for name in names
        if len({values.get(name) for values in flat.values()}) > 1
    ]


@dataclass(frozen=True)
class Standing:
    """How far a rank is what is wanted of it: hash of what all share, whether it runs, is accepted, and was good last.

    last_good: the shared hash of the last good deployment, empty where there is none or it cannot run.
    """

    shared: str
    current: bool
    settled: bool
    last_good: str = ""


def agreed(hosts: Sequence[str], standings: Mapping[str, Standing], specs: Mapping[str, Mapping[str, Any]]) -> Standing:
    """How far the instance is, as one: what one rank lacks, all lack. Raises NodesError where they would not fit.

    specs: host -> its launch spec, to name what differs.
    """
    missing = [host for host in hosts if host not in standings]
    if missing:
        raise NodesError(
            [
                f"{', '.join(missing)} is not part of this run, and an instance is changed on all of its hosts or on none: "
                "look at its own error, or leave --limit away"
            ]
        )
    found = [standings[host] for host in hosts]
    if len({one.shared for one in found}) > 1:
        raise NodesError(
            [
                "the hosts would not run the same. Release, arguments and environment have to be alike; look for host_vars, "
                "pins of a sweep and another Python on one of them",
                *differences(specs),
            ]
        )
    good = {one.last_good for one in found}
    return Standing(
        found[0].shared,
        all(one.current for one in found),
        all(one.settled for one in found),
        good.pop() if len(good) == 1 else "",
    )


@dataclass(frozen=True)
class Ended:
    """How a rank's start ended: `outcome` of the watch (ready where nothing was started), what went wrong, its verdict."""

    outcome: str
    reason: str = ""
    verdict: Mapping[str, Any] | None = None


def verdict(hosts: Sequence[str], ended: Mapping[str, Ended], host: str) -> dict[str, Any]:
    """The verdict on the instance, for the ledger of one of its hosts: that of rank 0's gate, if every rank is ready.

    A rank that failed is named, first one first; on its own host the reason is left to its own log.
    """
    failed = []
    for rank, name in enumerate(hosts):
        found = ended.get(name)
        if found is None:
            failed.append(f"rank {rank} ({name}) gave no answer")
        elif found.outcome != "ready" or found.reason:
            failed.append(f"rank {rank} ({name}): {found.reason or found.outcome}")
    first = ended.get(hosts[0])
    gate = dict(first.verdict) if first and first.verdict else {}
    if failed:
        return {"ok": False, "phase": "start", "reason": "; ".join(failed), "checks": list(gate.get("checks", []))}
    if host == hosts[0]:
        return gate or {"ok": False, "phase": "gate", "reason": f"rank 0 ({host}) was not asked", "checks": []}
    if not gate:
        return {"ok": False, "phase": "gate", "reason": f"rank 0 ({hosts[0]}) was not asked", "checks": []}
    said = "; ".join(str(check["summary"]) for check in gate.get("checks", []) if check.get("ok") is False)
    return {**gate, "asked": hosts[0], **({} if gate.get("ok") else {"reason": f"rank 0 ({hosts[0]}): {said}"})}
