"""The journal of one start of a unit. Standard library only, since it runs on the managed host."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


class JournalError(Exception):
    """The journal cannot be read; the message says why."""


def command(unit: str, invocation: str = "", output: str = "cat") -> list[str]:
    """What prints the lines of a start: those of the unit's processes and those of systemd about it.

    invocation: systemd's id of the start; empty stands for all starts since the host booted. --all keeps fields over
    4096 bytes, such as SGLang's line of arguments.
    """
    which = (
        [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"]
        if invocation
        else ["--boot", f"--unit={unit}"]
    )
    return ["journalctl", "--no-pager", "--quiet", "--all", f"--output={output}", *which]


def last_start(unit: str) -> str:
    """The id of the unit's newest start in the journal, or an empty text where there is none.

    systemd forgets a unit that ended without a failure, and its id with it; the journal still has it. Raises JournalError.
    """
    fields = "INVOCATION_ID,_SYSTEMD_INVOCATION_ID,_SYSTEMD_UNIT"
    asked = [*command(unit, output="json"), "--reverse", "--lines=100", f"--output-fields={fields}"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise JournalError(f"the journal of {unit} cannot be read: {error}") from error
    for entry in map(json.loads, done.stdout.splitlines()):
        # systemd's own lines about the unit have the first; a core dump's lines have the id of what dumped it
        of = entry.get("INVOCATION_ID") or (entry.get("_SYSTEMD_UNIT") == unit and entry.get("_SYSTEMD_INVOCATION_ID"))
        if of and isinstance(of, str):
            return of
    return ""


@contextmanager
def lines(unit: str, invocation: str = "", output: str = "cat", seconds: float | None = None) -> Iterator[IO[bytes]]:
    """A stream of those lines, which ends after `seconds` at the latest. Raises JournalError where there is no journal."""
    try:
        process = subprocess.Popen(command(unit, invocation, output), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError as error:
        raise JournalError(f"the journal of {unit} cannot be read: {error}") from error
    assert process.stdout is not None  # noqa: S101
    limit = threading.Timer(seconds, process.kill) if seconds is not None else None
    if limit:
        limit.start()
    try:
        yield process.stdout
    finally:
        if limit:
            limit.cancel()
        process.stdout.close()
        process.kill()
        process.wait()
