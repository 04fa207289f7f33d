"""One turn of the canary: look, decide, perhaps ask, remember, tell. Its timer starts it; see docs/monitoring.md."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import decode_check, instance
from ..jsonfile import parse
from . import look as looking
from . import metrics, record
from .decide import ASK, Decision, Settings, decide
from .record import PASSED, SILENT, WRONG, Asked, Record

SETTINGS = "canary.json"
"""In the instance's folder of configuration."""
INTERRUPTED = "interrupted"
UNHEARD = ("Unreachable", "TimedOut")
"""Errors of the decode check that say that no answer came, and not that it was wrong."""

Ask = Callable[[looking.Look], Mapping[str, Any]]


def main(arguments: Sequence[str]) -> int:
    """`canary.pyz CONFIG STATE`: the folders of an instance. Prints a line for the journal.

    A bad verdict is no fault of the canary: 0, too.
    """
    config, state = (Path(word) for word in arguments)
    try:
        settings = Settings.of(parse((config / SETTINGS).read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        print(f"{config / SETTINGS}: {error}", file=sys.stderr)
        return 1
    print(turn(config.name, config, state, settings))
    return 0


def turn(name: str, config: Path, state: Path, settings: Settings, ask: Ask | None = None) -> str:
    """One turn; returns what came of it, for people. Raises OSError where the record cannot be written."""
    kept = record.read(state)
    found = looking.look(name, config, state)
    xids = looking.xids(kept.xids)
    now = time.time()
    decision = decide(now, found.seen, kept, settings)
    asked = kept.asked
    if decision.outcome == SILENT:
        asked = Asked(now, now, 0.0, SILENT, decision.reason, found.seen.accepted, found.seen.invocation)
    elif decision.outcome == ASK:
        decision, asked = _answer(name, found, now, (ask or _ask)(found), kept.asked)
    kept = Record(now, decision.outcome, decision.reason, kept.counted(decision.outcome), asked, xids)
    record.write(state, kept)
    if decision.outcome == WRONG and settings.wrong == "stop":
        _stop(name)
        found = replace(found, seen=replace(found.seen, active=False))
    _tell(name, metrics.text(name, kept, looking.host(found, xids)), Path(settings.textfile_dir))
    return f"{decision.outcome}: {decision.reason}"


def judged(verdict: Mapping[str, Any]) -> Decision:
    """What a record of the decode check says of the server."""
    if verdict["ok"]:
        return Decision(PASSED, "it decodes")
    failed = [check for check in verdict["checks"] if check["ok"] is False]
    said = "; ".join(f"{check['name']}: {check['summary']}" for check in failed[:3]) or "no answer was decoded"
    heard = [check for check in failed if check["name"] != "process" and check["evidence"].get("error") not in UNHEARD]
    return Decision(WRONG if heard or not failed else SILENT, said)


def _answer(
    name: str, found: looking.Look, begun: float, verdict: Mapping[str, Any], before: Asked | None
) -> tuple[Decision, Asked | None]:
    """The decision after the question, and the verdict that counts from now on.

    An answer that somebody cut off by stopping or deploying says nothing of the server.
    """
    decision, ended, seen = judged(verdict), time.time(), found.seen
    if decision.outcome != PASSED and _cut_off(name, found, decision.outcome):
        return Decision(INTERRUPTED, "the server was stopped or deployed meanwhile"), before
    seconds = float(verdict["seconds"])
    return decision, Asked(begun, ended, seconds, decision.outcome, decision.reason, seen.accepted, seen.invocation, verdict)


def _cut_off(name: str, found: looking.Look, outcome: str) -> bool:
    if looking.deploying():
        return True
    if outcome == WRONG:
        return False
    now = instance.running(name)
    if now.state.startswith(("inactive", "deactivating")):
        return True
    return now.invocation != found.seen.invocation and now.restarts <= found.restarts  # a crash would count one more


def _ask(found: looking.Look) -> dict[str, Any]:
    """The quick decode check, without what the gate judged for good: the settings that the server started with."""
    spec = found.deployment["spec"]

    def setting(name: str) -> Any:
        return spec.get("settings", {}).get(name, {}).get("value")

    assert found.server is not None  # noqa: S101 - a spec without an address is never asked
    vocabulary = found.deployment.get("vocabulary")
    expect = decode_check.Expectations(
        model=setting("served_model_name"),
        real_model=bool(found.deployment.get("real_model", True)),
        reasoning_parser=setting("reasoning_parser"),
        tool_call_parser=setting("tool_call_parser"),
        chunked_prefill_size=setting("chunked_prefill_size"),
        context_length=setting("context_length"),
        vocab_size=int(vocabulary) if vocabulary else None,
        unit=instance.unit_name(str(spec["instance"])),
        argv=tuple(spec["command"]),
        restarts=found.restarts,
    )
    return decode_check.run(found.server, "quick", expect).as_dict()


def _stop(name: str) -> None:
    """A server that answers wrongly is worse than none: a router sees that it is gone. A deployment or a boot starts it."""
    print(f"{instance.unit_name(name)} is stopped, since it answers wrongly (sglang_canary_wrong)", file=sys.stderr)
    subprocess.run(["systemctl", "stop", instance.unit_name(name)], check=False, capture_output=True)


def _tell(name: str, text: str, folder: Path) -> None:
    if folder.is_dir():
        instance.replace(folder / file_name(name), text, 0o644)


def file_name(name: str) -> str:
    """Of an instance's file for the node exporter."""
    return f"sglang-{name}.prom"
