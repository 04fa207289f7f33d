"""Asked against effective: whether the running server is what the launch spec asked for.

Runs on the managed host beside the decode check, so it needs the standard library alone.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .dialect import text_of


@dataclass(frozen=True)
class Difference:
    """Asked against effective; severity is `inform` where SGLang chose, `finding` where it overrode what was asked."""

    setting: str
    asked: str
    effective: str
    severity: str
    evidence: str

    def as_dict(self) -> dict[str, str]:
        """JSON-able form."""
        return dict(vars(self))

    def __str__(self) -> str:
        return f"{self.setting}: asked {self.asked}, runs {self.effective} ({self.evidence})"


OVERRIDES = "sglang-overrides"
"""The id under which a user may allow that SGLang overrides what was asked."""

# Lines in which SGLang says what it made of the arguments.
_LOG_FACTS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"Setting KV cache dtype to (\w+)"), ("kv_cache_dtype",)),
    (
        re.compile(r"Set (?:DSA|NSA) backends for .*?: prefill=(\w+), decode=(\w+)"),
        ("sparse_prefill", "sparse_decode"),
    ),
    (re.compile(r"Set (?:DSA|NSA) prefill backend to:? (\w+)"), ("sparse_prefill",)),
    (re.compile(r"Set (?:DSA|NSA) decode backend to:? (\w+)"), ("sparse_decode",)),
    (re.compile(r"Attention backend not (?:explicitly )?specified\. Use (\w+) backend"), ("attention",)),
    (re.compile(r"Use (\w+) as (?:the )?attention backend"), ("attention",)),
)
_SAME = {"bf16": "bfloat16", "nsa": "dsa", "compressed": "dsv4", "nextn": "eagle", "mooncake_tcp": "mooncake"}
_NOTHING = ("", "none", "null", "auto")


def compare_effective(
    spec: Mapping[str, Any],
    server_info: Mapping[str, Any],
    log_lines: Iterable[str] = (),
    where: str = "/server_info",
) -> list[Difference]:
    """Asked against what the running server says of itself.

    Args:
        spec: the launch spec that was started, in the form of spec.json: `settings` (of `LaunchSpec.as_dict()`) and
            `server_fields` (what `plan.server_fields` makes of it).
        server_info: the JSON of `/server_info` (or `/get_server_info`); fields of the server's arguments.
        where: what to call `server_info` in the differences' evidence.
        log_lines: the server's log; the lines where it says what it made of the arguments count, and the last one wins.

    Returns: differences, findings first.
    """
    asked = {name: choice["value"] for name, choice in spec["settings"].items()}
    from_log: dict[str, tuple[str, str]] = {}
    for line in log_lines:
        for pattern, names in _LOG_FACTS:
            if found := pattern.search(line):
                from_log.update({name: (value, line.strip()) for name, value in zip(names, found.groups(), strict=True)})
    differences: list[Difference] = []
    for name, fields in spec["server_fields"].items():
        if name in from_log:
            effective, evidence = from_log[name]
            differences += _difference(name, asked.get(name), asked.get(name), effective, evidence)
            continue
        for field, expected in fields.items():
            if field in server_info:
                evidence = f"{where} {field}"
                differences += _difference(name, asked.get(name), expected, server_info[field], evidence)
    return sorted(differences, key=lambda item: item.severity != "finding")


def judge(
    spec: Mapping[str, Any], server_info: Mapping[str, Any], log_lines: Iterable[str] = ()
) -> tuple[bool, str, dict[str, Any]]:
    """Whether the server runs what was asked for, a sentence for a person, and the differences.

    Arguments as for `compare_effective`; `allowed` of the spec may name OVERRIDES. Where SGLang chose what nobody asked
    for, that is told and no fault.
    """
    found = compare_effective(spec, server_info, log_lines)
    overridden = [item for item in found if item.severity == "finding"]
    chosen = [item for item in found if item.severity != "finding"]
    evidence = {"overridden": [item.as_dict() for item in overridden], "chosen": [item.as_dict() for item in chosen]}
    if overridden:
        told = "SGLang overrode what was asked: " + "; ".join(map(str, overridden))
        return OVERRIDES in spec.get("allowed", ()), told, evidence
    more = f"; SGLang chose {', '.join(f'{item.setting} {item.effective}' for item in chosen)}" if chosen else ""
    return True, f"all {len(spec['settings'])} settings run as asked{more}", evidence


def start_log(unit: str, lines: int = 20_000) -> list[str]:
    """The first lines that a unit's present run wrote to the journal; empty where they cannot be read.

    SGLang says what it makes of its arguments while it starts, so the first lines are enough, however long it has run.
    """
    shown_id = ["systemctl", "show", "--property=InvocationID", "--value", "--", unit]
    try:
        run = subprocess.run(shown_id, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
        # --all: without it lines over 4096 bytes are left out
        command = ["journalctl", "--quiet", "--no-pager", "--all", "--output=cat", f"_SYSTEMD_INVOCATION_ID={run}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            found = [line.decode(errors="replace") for line in islice(child.stdout or (), lines)] if run else []
            child.kill()
    except (OSError, subprocess.SubprocessError):
        return []
    return found


def _difference(name: str, asked: Any, expected: Any, effective: Any, evidence: str) -> list[Difference]:
    """`asked` is the setting's value; `expected` is what it becomes in the place that `effective` was read from."""
    left, right = _plain(expected), _plain(effective)
    if left == right or right in ("", "none", "null"):
        return []
    if left in _NOTHING:
        return [] if right == "auto" else [Difference(name, shown(asked), shown(effective), "inform", evidence)]
    return [Difference(name, shown(asked), shown(in_words(asked, expected, effective)), "finding", evidence)]


def in_words(asked: Any, expected: Any, found: Any) -> Any:
    """What a server's field says in the setting's own terms: a switch that is not as expected means the opposite."""
    if _plain(expected) == _plain(found):
        return asked
    return not asked if isinstance(asked, bool) and isinstance(found, bool) else found


def _plain(value: Any) -> str:
    """One form for values that mean the same: 0.9 and "0.90", True and "true", bf16 and bfloat16, {} and "{}"."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = shown(value).strip()
    try:
        return repr(float(text))
    except ValueError:
        compact = re.sub(r"\s+", "", text) if text.startswith(("{", "[")) else text.lower()
        return _SAME.get(compact, compact)


def shown(value: Any) -> str:
    """A value for a person."""
    return "(unset)" if value is None else text_of(value)
