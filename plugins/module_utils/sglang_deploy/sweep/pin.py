"""A pin: what a sweep found best on a host, in a file that a deployment reads, and when it no longer counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..fields import FieldError, build
from ..rules import Remedy, RuleResult

NAME = "pin.yml"
FACTS = {
    "driver": "the driver",
    "gpus": "the GPUs",
    "release": "the release",
    "model": "the model",
    "model_fingerprint": "the model's files",
}


class PinError(ValueError):
    """A pin cannot be used; the message names the file and says what to do."""


@dataclass(frozen=True)
class Pin:
    """What to run, and what it rests on.

    settings and environment are laid over group_vars; null takes one out. evidence names the sweep: sha256 of its
    sweep.json, when, how many trials, the objective and its value. facts: what was there when it was measured.
    """

    profile: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def facts(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same for a measurement to count again, from the arguments of the action sglang_plan."""
    host = (asked["host_facts"] or {}).get("host") or {}
    model = (asked["model_facts"] or {}).get("model") or {}
    return {
        "driver": host.get("driver"),
        "gpus": list(host.get("gpus") or ()),
        "release": (asked["release"] or {}).get("id"),
        "model": str(asked["model"]) + (f"@{asked['model_revision']}" if asked["model_revision"] else ""),
        "model_fingerprint": model.get("fingerprint"),
    }


def path_of(folder: Path, host: str, instance: str) -> Path:
    """Where the results for an instance of a host lie, pin.yml, sweep.json and report.html."""
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in host)
    return folder / f"{safe}-{instance}"


def read(path: Path) -> Pin | None:
    """The pin in a file; None where there is no file. Raises PinError."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        return build(Pin, data, path.name)
    except FileNotFoundError:
        return None
    except (OSError, yaml.YAMLError, FieldError) as error:
        raise PinError(f"{path}: the pin cannot be read: {error}. Correct it, remove it, or run the sweep again") from error


def text(pin: Pin, head: str) -> str:
    """The file's text, with `head` as a comment."""
    lines = [f"# {line}" for line in head.splitlines()]
    data = {
        "profile": pin.profile,
        "settings": dict(pin.settings),
        "environment": dict(pin.environment),
        "facts": dict(pin.facts),
        "evidence": dict(pin.evidence),
    }
    return "\n".join([*lines, "---", yaml.safe_dump(data, sort_keys=False, allow_unicode=True)])


def stale(pin: Pin, now: Mapping[str, Any]) -> list[str]:
    """What has changed since it was measured, in words. A fact that one side does not know says nothing."""
    changed = []
    for name, words in FACTS.items():
        before, after = pin.facts.get(name), now.get(name)
        if before and after and _plain(before) != _plain(after):
            changed.append(f"{words} was {_plain(before)} and is {_plain(after)}")
    return changed


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def notes(pin: Pin, path: str, now: Mapping[str, Any], asked: Mapping[str, Any]) -> list[RuleResult]:
    """What the plan says of a pin: that it counts, that it is stale, and which of group_vars' own settings it wins over.

    asked: settings that group_vars give by themselves.
    """
    value = " ".join(str(pin.evidence[name]) for name in ("value", "unit") if name in pin.evidence)
    told = [
        RuleResult(
            rule="pinned",
            severity="inform",
            topic="performance",
            reason=f"{path} pins what the sweep of {pin.evidence.get('date', 'an unknown date')} found best ({value}).",
            remedy=Remedy(text="remove the file, or set sglang_sweep_dir to nothing, to go by group_vars alone"),
            source=(path,),
            about=tuple(pin.settings),
        )
    ]
    if changed := stale(pin, now):
        told.append(
            RuleResult(
                rule="pin-stale",
                severity="warn",
                topic="performance",
                reason=f"{path} was measured under other conditions: {'; '.join(changed)}.",
                remedy=Remedy(text="run playbooks/sweep.yml again, or remove the file"),
                source=(path,),
                about=tuple(pin.settings),
            )
        )
    beaten = [name for name, chosen in pin.settings.items() if name in asked and asked[name] != chosen]
    if beaten:
        told.append(
            RuleResult(
                rule="pin-over-group-vars",
                severity="warn",
                topic="works",
                reason=f"{path} wins over what group_vars say of {', '.join(beaten)}.",
                remedy=Remedy(text="remove it from one of the two"),
                source=(path,),
                about=tuple(beaten),
            )
        )
    return told
