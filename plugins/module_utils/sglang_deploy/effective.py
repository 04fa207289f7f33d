"""Asked against effective: whether the running server is what the launch spec asked for.

Runs on the managed host beside the decode check, so it needs the standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .dialect import Dialect, text_of


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


# Settings that SGLang itself decides or overrides: the options whose field of the server's arguments tells.
SERVER_FIELDS: dict[str, tuple[str, ...]] = {
    "attention": ("--attention-backend",),
    "prefill_attention": ("--prefill-attention-backend",),
    "decode_attention": ("--decode-attention-backend",),
    "sparse_prefill": ("--dsa-prefill-backend", "--nsa-prefill-backend"),
    "sparse_decode": ("--dsa-decode-backend", "--nsa-decode-backend"),
    "kv_cache_dtype": ("--kv-cache-dtype",),
    "quantization": ("--quantization",),
    "moe_runner": ("--moe-runner-backend",),
    "moe_a2a": ("--moe-a2a-backend",),
    "fp8_gemm": ("--fp8-gemm-backend",),
    "fp4_gemm": ("--fp4-gemm-backend",),
    "sampling_backend": ("--sampling-backend",),
    "grammar_backend": ("--grammar-backend",),
    "page_size": ("--page-size",),
    "mem_fraction_static": ("--mem-fraction-static",),
    "chunked_prefill_size": ("--chunked-prefill-size",),
    "cuda_graph_max_bs": ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"),
    "max_running_requests": ("--max-running-requests",),
    "context_length": ("--context-length",),
    "tp_size": ("--tp-size",),
    "pp_size": ("--pp-size",),
    "ep_size": ("--ep-size",),
    "speculative_algorithm": ("--speculative-algorithm",),
}

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
_SAME = {"bf16": "bfloat16", "nsa": "dsa", "compressed": "dsv4"}
_NOTHING = ("", "none", "null", "auto")


def compare_effective(
    spec: Mapping[str, Any],
    server_info: Mapping[str, Any],
    log_lines: Iterable[str] = (),
    *,
    dialect: Dialect,
) -> list[Difference]:
    """Asked against what the running server says of itself.

    Args:
        spec: the launch spec that was started, in the form of spec.json (`LaunchSpec.as_dict()`).
        server_info: the JSON of `/server_info` (or `/get_server_info`); fields of the server's arguments.
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
    for name in dict.fromkeys([*asked, *SERVER_FIELDS]):
        effective, evidence = from_log.get(name) or _from_server(name, spec, server_info, dialect)
        if effective is None:
            continue
        difference = _difference(name, asked.get(name), effective, evidence)
        if difference is not None:
            differences.append(difference)
    return sorted(differences, key=lambda item: item.severity != "finding")


def _from_server(name: str, spec: Mapping[str, Any], info: Mapping[str, Any], dialect: Dialect) -> tuple[Any, str]:
    """The server's value of a setting in the setting's own terms; None where it tells nothing."""
    choice = spec["settings"].get(name)
    flags = [word for word in choice["options"] if word.startswith("--")] if choice else SERVER_FIELDS.get(name, ())
    for flag in flags:
        option = dialect.find(flag)
        if option is None or option.dest not in info:
            continue
        value = info[option.dest]
        evidence = f"/server_info {option.dest}"
        if choice and isinstance(choice["value"], bool) and isinstance(value, bool):
            # A switch was given to say this value; where the server has the switch on, that is what runs.
            return (choice["value"] if value else not choice["value"]), evidence
        return value, evidence
    return None, ""


def _difference(name: str, asked: Any, effective: Any, evidence: str) -> Difference | None:
    left, right = _plain(asked), _plain(effective)
    if left == right or right in ("", "none", "null"):
        return None
    if left in _NOTHING:
        return None if right == "auto" else Difference(name, shown(asked), shown(effective), "inform", evidence)
    return Difference(name, shown(asked), shown(effective), "finding", evidence)


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
