"""The ledger of an instance: one JSON line for every deployment and trial on the host, and the last one that was good.

Files under the instance's state directory: ledger.jsonl, last_good.json, verdicts/<time>-<hash>.json. Standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .instance import replace
from .jsonfile import dump

HASH_CHARACTERS = 12  # of a launch spec's hash, in names that people read


class LedgerError(Exception):
    """A state file cannot be written; the message names the file and the reason."""


@dataclass(frozen=True)
class LastGood:
    """The newest deployment that passed its gate here, or None; `damaged` names a file that was set aside."""

    deployment: dict[str, Any] | None
    time: str = ""
    damaged: str = ""


def record(
    directory: Path,
    kind: str,
    deployment: Mapping[str, Any],
    verdict: Mapping[str, Any],
    by: str,
    now: datetime | None = None,
) -> dict[str, Any]:
    """Write the verdict, append the ledger line and, if the verdict is good, make this deployment the last good one.

    kind: deploy, rollback or trial; a trial never becomes the last good. The order makes an interruption harmless: a verdict
    without a ledger line says nothing, and last_good.json comes last.
    """
    moment = (now or datetime.now(timezone.utc)).strftime("%Y-%m-%dT%H:%M:%SZ")
    spec = deployment["spec"]
    spec_hash = str(spec["hash"])
    name = f"verdicts/{moment.replace(':', '')}-{spec_hash[:HASH_CHARACTERS]}.json"
    line = {
        "time": moment,
        "kind": kind,
        "spec": spec_hash,
        "release": spec.get("release"),
        "profile": spec.get("profile"),
        "verdict": name,
        "ok": bool(verdict.get("ok")),
        "by": by,
    }
    try:
        (directory / "verdicts").mkdir(mode=0o755, parents=True, exist_ok=True)
        replace(directory / name, dump(dict(verdict)), 0o644)
        _append(directory / "ledger.jsonl", line)
        if line["ok"] and kind != "trial":
            replace(directory / "last_good.json", dump({"time": moment, "deployment": dict(deployment), "verdict": name}), 0o644)
    except OSError as error:
        raise LedgerError(f"cannot write {error.filename or directory}: {error.strerror}") from error
    return line


def last_good(directory: Path) -> LastGood:
    """The last good deployment. A damaged file is set aside under another name and never trusted."""
    path = directory / "last_good.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        deployment = kept["deployment"]
        if not all(isinstance(text, str) for text in (deployment["spec"]["hash"], deployment["launch"])):
            raise TypeError
        return LastGood(deployment=deployment, time=str(kept.get("time", "")))
    except FileNotFoundError:
        return LastGood(deployment=None)
    except (ValueError, KeyError, TypeError, AttributeError):
        aside = path.with_name(f"last_good.damaged-{int(path.stat().st_mtime)}.json")
        path.replace(aside)
        return LastGood(deployment=None, damaged=str(aside))


def entries(directory: Path) -> tuple[list[dict[str, Any]], int]:
    """The ledger's lines, oldest first, and how many could not be read (a line cut off by a full disk or a power cut)."""
    path = directory / "ledger.jsonl"
    if not path.exists():
        return [], 0
    found, unreadable = [], 0
    for row in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(row)
        except ValueError:
            unreadable += 1
            continue
        if isinstance(entry, dict):
            found.append(entry)
        else:
            unreadable += 1
    return found, unreadable


def _append(path: Path, line: Mapping[str, Any]) -> None:
    text = json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n"
    with path.open("a+b") as stream:
        # After a line that was cut off the next one starts on a line of its own.
        if stream.seek(0, os.SEEK_END) and _last_byte(path) != b"\n":
            text = "\n" + text
        stream.write(text.encode())
        stream.flush()
        os.fsync(stream.fileno())


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1)
