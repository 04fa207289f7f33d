"""What a long build says while it runs: a file of JSON lines beside it, read by whoever waits.

The first line names the process and when it started, so that a reader knows a dead one from a quiet one, and from another
that was given its number.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import lock


@dataclass(frozen=True)
class Said:
    """What was read from an offset on: pairs of seconds since the begin and text, the next offset, and whether the
    process still runs."""

    lines: tuple[tuple[float, str], ...]
    offset: int
    alive: bool


def writer(path: Path) -> Callable[[str], None]:
    """A new progress file of this process; the returned function appends a line to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"pid": os.getpid(), "start": lock.started(os.getpid())}) + "\n", encoding="utf-8")
    began = time.monotonic()

    def say(text: str) -> None:
        with path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps({"seconds": round(time.monotonic() - began, 1), "text": text}) + "\n")

    return say


def read(path: Path, offset: int = 0) -> Said:
    """What the file holds after byte ``offset``. A file that is not there yet (or no more) belongs to no process."""
    try:
        data = path.read_bytes()
        process = json.loads(data.split(b"\n", 1)[0])
        alive = lock.started(int(process["pid"])) == process["start"] != ""
    except (OSError, ValueError, KeyError, TypeError):
        return Said((), offset, alive=False)
    new = data[offset:]
    whole = new[: new.rfind(b"\n") + 1]  # a line that is being written is read the next time
    entries = [json.loads(line) for line in whole.splitlines()]
    lines = tuple((float(entry["seconds"]), str(entry["text"])) for entry in entries if "text" in entry)
    return Said(lines, offset + len(whole), alive=alive)
