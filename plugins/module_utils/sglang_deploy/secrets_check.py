"""The check `keys` of the gate: the server asks for its key, and tells it nowhere. Standard library only."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from . import journal
from .decode_check import Outcome, Server
from .decode_check.client import Client, Deadline, Refused, RequestFailed
from .host_ports import unit_processes
from .secrets import Secrets

SECONDS = 30.0
BLOCK = 2**20
"""Bytes of a log that are looked at together."""


def judge(keys: Secrets, server: Server, info: Mapping[str, Any], unit: str | None) -> Outcome:
    """Whether strangers are refused, and no key stands in /server_info, the start's log, or its processes' arguments and
    environment. `info` is the answer of /server_info, `unit` the service; without it, only HTTP is looked at.

    The evidence names places, never a key.
    """
    problems = []
    if "api_key" in keys.values:
        problems += [problem for key in (None, "x" * 20) if (problem := _lets_in(server, key))]
    problems += ["/server_info tells a key"] if found(keys, json.dumps(info)) else []
    places = _places(keys, unit) if unit else []
    problems += [f"{name} tells a key" for name, told in places if told]
    names = " and ".join(keys.values)
    if problems:
        return Outcome(False, "; ".join(problems), {"problems": problems})
    looked = list(dict.fromkeys(["/server_info", *(name for name, _ in places)]))
    evidence = {"keys": list(keys.values), "looked": looked}
    return Outcome(True, f"{names}: asked for, and not in {', '.join(looked)}", evidence)


def found(keys: Secrets, text: str) -> bool:
    """Whether a text holds a key."""
    return any(value in text for value in keys.values.values())


def _lets_in(server: Server, key: str | None) -> str:
    """What is wrong with the answer to somebody with no key, or a wrong one; empty where it is a refusal."""
    client = Client(Server(server.url, api_key=key, verify=server.verify, ca_file=server.ca_file, name=server.name))
    who = "without a key" if key is None else "with a wrong key"
    try:
        client.get("/v1/models", Deadline(SECONDS))
    except Refused as refused:
        return "" if refused.status in (401, 403) else f"/v1/models answers {refused.status} {who}, not 401"
    except RequestFailed as error:
        return f"/v1/models cannot be asked {who}: {error}"
    return f"/v1/models answers {who}"


def holds(keys: Secrets, stream: IO[bytes]) -> bool | None:
    """Whether a stream holds a key; None where nothing is in it. Keeps two blocks in memory, however long it is."""
    values = [value.encode() for value in keys.values.values()]
    overlap = max(map(len, values), default=1) - 1  # a key may begin in one block and end in the next
    rest, some = b"", False
    while block := stream.read(BLOCK):
        some, text = True, rest + block
        if any(value in text for value in values):
            return True
        rest = text[len(text) - overlap :] if len(text) > overlap else text
    return False if some else None


def _places(keys: Secrets, unit: str) -> list[tuple[str, bool]]:
    """What others may read of a unit's present start (its log, its processes' arguments and environments), and whether
    it tells a key.

    What cannot be read is left out, so that nobody takes it for looked at.
    """
    told = _log(keys, unit)
    places = [] if told is None else [("the log", told)]
    for pid in sorted(unit_processes(unit)):
        for part, name in (("cmdline", "the argument list"), ("environ", "the environment")):
            try:
                text = Path(f"/proc/{pid}/{part}").read_bytes().decode(errors="replace")
            except OSError:  # it ended meanwhile
                continue
            places.append((f"{name} of a process", found(keys, text)))
    return places


def _log(keys: Secrets, unit: str) -> bool | None:
    """Whether the log of the present start tells a key; None where it is empty or cannot be read to its end."""
    if not (invocation := _invocation(unit)):
        return None
    end = time.monotonic() + SECONDS
    try:
        with journal.lines(unit, invocation, seconds=SECONDS) as stream:
            told = holds(keys, stream)
    except journal.JournalError:
        return None
    return told if told or time.monotonic() < end else None


def _invocation(unit: str) -> str:
    command = ["systemctl", "show", "--property=InvocationID", "--value", "--", unit]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False, env={**os.environ, "LC_ALL": "C"})
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace").strip()
