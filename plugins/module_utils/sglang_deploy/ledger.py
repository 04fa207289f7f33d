"""The ledger of an instance: one JSON line for every deployment and trial on the host, and the last one that was good.

Files under the instance's state directory: ledger.jsonl, last_good.json, verdicts/<time>-<hash>.json and
deployments/<hash>.json, which has what is needed to run a deployment again. Standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .instance import replace, whole
from .jsonfile import dump, parse

HASH_CHARACTERS = 12  # of a launch spec's hash, in names that people read


class LedgerError(Exception):
    """A state file cannot be written; the message names the file and the reason."""


class UnknownDeployment(LedgerError):
    """No deployment of the ledger, or more than one, is meant; the message lists the ones that can be."""


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
        (directory / "deployments").mkdir(mode=0o755, exist_ok=True)
        replace(directory / name, dump(dict(verdict)), 0o644)
        replace(directory / "deployments" / f"{spec_hash}.json", dump(dict(deployment)), 0o600)
        append_line(directory / "ledger.jsonl", line)
        if line["ok"] and kind != "trial":
            replace(
                directory / "last_good.json",
                dump({"time": moment, "deployment": dict(deployment), "verdict": name}),
                0o600,
            )
    except OSError as error:
        raise LedgerError(f"cannot write {error.filename or directory}: {error.strerror}") from error
    return line


def last_good(directory: Path) -> LastGood:
    """The last good deployment. A damaged file is set aside under another name and never trusted."""
    path = directory / "last_good.json"
    try:
        kept = parse(path.read_text(encoding="utf-8"))
        return LastGood(deployment=_whole(kept["deployment"]), time=str(kept.get("time", "")))
    except FileNotFoundError:
        return LastGood(deployment=None)
    except (ValueError, KeyError, TypeError, AttributeError):
        aside = path.with_name(f"last_good.damaged-{int(path.stat().st_mtime)}.json")
        path.replace(aside)
        return LastGood(deployment=None, damaged=str(aside))


def entries(directory: Path) -> tuple[list[dict[str, Any]], int]:
    """The ledger's lines, oldest first, and how many could not be read (a line cut off by a full disk or a power cut)."""
    lines, unreadable = json_lines(directory / "ledger.jsonl")
    found = [line for line in lines if isinstance(line.get("spec"), str)]
    return found, unreadable + len(lines) - len(found)


def json_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The lines of a file of JSON lines, and how many could not be read; none where there is no file."""
    if not path.exists():
        return [], 0
    found, unreadable = [], 0
    for row in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = parse(row)
        except ValueError:
            unreadable += 1
            continue
        if isinstance(entry, dict):
            found.append(entry)
        else:
            unreadable += 1
    return found, unreadable


def deployments(directory: Path) -> dict[str, dict[str, Any]]:
    """The deployments that can be run again, by hash. A damaged file is passed over."""
    found = {}
    for path in sorted((directory / "deployments").glob("*.json")):
        try:
            deployment = _whole(parse(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if deployment["spec"]["hash"] == path.stem:
            found[path.stem] = deployment
    return found


def find(directory: Path, wanted: str = "") -> dict[str, Any]:
    """The deployment whose hash begins with `wanted`; without it the one that was good before the last good one.

    Raises UnknownDeployment for a hash that fits none or several, and where nothing was good before.
    """
    kept, lines = deployments(directory), entries(directory)[0]
    if wanted:
        fitting = [name for name in kept if name.startswith(wanted.lower())]
        if len(fitting) == 1:
            return kept[fitting[0]]
        problem = (
            f"{wanted!r} is the beginning of {len(fitting)} deployments"
            if fitting
            else f"no deployment has the hash {wanted!r}"
        )
        raise UnknownDeployment(f"{problem}. {_choices(kept, lines)}")
    current = last_good(directory).deployment
    now = str(current["spec"]["hash"]) if current else ""
    for line in reversed(lines):
        if line.get("ok") and line.get("kind") != "trial" and line.get("spec") != now and line.get("spec") in kept:
            return kept[str(line["spec"])]
    raise UnknownDeployment(f"no other deployment was good before. {_choices(kept, lines)}")


def _choices(kept: Collection[str], lines: Sequence[Mapping[str, Any]]) -> str:
    known = [line for line in lines if line.get("spec") in kept]
    newest = {str(line["spec"]): line for line in known}
    if not newest:
        return "The ledger has none that could be run again."
    return "\n".join(["The ledger has:", *table(sorted(newest.values(), key=lambda line: str(line.get("time"))))])


def forget(directory: Path, releases: Collection[str]) -> list[str]:
    """Remove the deployments of releases that are gone: they cannot run any more. Returns their hashes.

    The ledger and the verdicts stay: they are history.
    """
    gone = [name for name, kept in deployments(directory).items() if kept["spec"].get("release") in releases]
    for name in gone:
        (directory / "deployments" / f"{name}.json").unlink(missing_ok=True)
    return gone


def verdict(directory: Path, line: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict that a ledger line names; empty where the file is missing, damaged or not beside the ledger."""
    name = str(line.get("verdict", ""))
    if not name.startswith("verdicts/") or ".." in name:
        return {}
    try:
        found = parse((directory / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def last_failure(directory: Path) -> list[str]:
    """What was said of the newest deployment or trial that failed, for people; empty if none has."""
    failed = [line for line in entries(directory)[0] if not line.get("ok")]
    if not failed:
        return []
    line = failed[-1]
    named = (
        f"{line.get('time')}: {line.get('kind')} of launch spec {str(line.get('spec'))[:HASH_CHARACTERS]} was not accepted"
    )
    kept = verdict(directory, line)
    if not kept:
        return [f"{named}; its verdict {directory / str(line.get('verdict'))} is missing or damaged"]
    report = kept.get("report")
    if not report or not isinstance(report, list):
        report = [str(kept.get("reason", "no reason is on record"))]
    return [f"{named} ({kept.get('phase', 'gate')}):", *(str(text) for text in report), ""]


COLUMNS = ("time", "kind", "result", "deployment", "release", "profile", "by")


def table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ledger lines as a table for people, under a line of headings."""
    rows = [COLUMNS, *(_row(line) for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(line: Mapping[str, Any]) -> tuple[str, ...]:
    result = "passed" if line.get("ok") else "failed"
    cells = (line.get("time"), line.get("kind"), result, str(line.get("spec", ""))[:HASH_CHARACTERS])
    return tuple(str(cell or "-") for cell in (*cells, line.get("release"), line.get("profile"), line.get("by")))


def _whole(deployment: Any) -> dict[str, Any]:
    """The deployment, if it has what is needed to run it. Raises TypeError or KeyError."""
    if not whole(deployment["spec"]) or not all(isinstance(deployment[name], str) for name in ("launch", "environment")):
        raise TypeError
    return dict(deployment)


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Add a line of JSON, and return when it is on disk."""
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
