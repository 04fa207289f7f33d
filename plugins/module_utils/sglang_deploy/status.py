"""What runs on a host and how it got there, in lines for a person. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .instance import Running
from .ledger import HASH_CHARACTERS


def lines(name: str, running: Running, deployment: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """One fact a line: what runs, whether it is what the instance's files say, and what the last gate said of it."""
    if not deployment:
        return [f"{name}: not deployed"]
    spec = deployment["spec"]
    said = [
        f"{name}: {running.state}, {spec['url']}",
        f"release {spec['release']}, profile {spec['profile']}, launch spec {str(spec['hash'])[:HASH_CHARACTERS]}",
    ]
    if running.active and running.spec_hash != spec["hash"]:
        seen = str(running.spec_hash or "unknown")[:HASH_CHARACTERS]
        said.append(f"the process runs another launch spec ({seen}): the next deploy restarts it")
    if running.active and running.unit_newer:
        said.append("the unit file changed since the process started: the next deploy restarts it")
    if running.restarts:
        said.append(f"systemd has restarted it {running.restarts} times")
    gates = [entry for entry in entries if entry.get("spec") == spec["hash"]]
    if gates:
        last = gates[-1]
        said.append(f"last gate {last.get('time')} ({last.get('kind')}): {'passed' if last.get('ok') else 'failed'}")
    else:
        said.append("no gate is on record for this launch spec")
    return said
