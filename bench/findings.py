#!/usr/bin/env python3
"""How often the catalog names the right kind of failure, and how fast a large log is read.

    bench/findings.py [--cases FILE] [--no-context] [--log-mb N] [-v]

FILE is YAML, a list of reports; of each, `id`, `class` and `log_lines` are used, and `flags`, `env` and `versions` as
what is known of the deployment. The summary counts reports with log lines by the class of the first finding: right,
wrong, unknown. The last line is JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "plugins" / "module_utils"))

from sglang_deploy import findings  # noqa: E402


def context_of(case: dict[str, Any]) -> findings.Context:
    """What a deployment would know by itself: options, environment, versions and the GPU's architecture."""
    flags = {name.lstrip("-").replace("-", "_"): str(value) for name, value in (case.get("flags") or {}).items()}
    environment = {name: str(value) for name, value in (case.get("env") or {}).items()}
    versions = {name: str(value) for name, value in (case.get("versions") or {}).items() if re.match(r"v?\d", str(value))}
    host = {"capability": "12.0"} if re.search(r"SM120|RTX PRO 6000|6000D|5090", str(case.get("hardware"))) else {}
    return findings.Context(versions=versions, settings=flags, environment=environment, host=host)


def decode_lines(numbers: range) -> str:
    """What a busy server writes: lines that differ in numbers alone."""
    line = (
        "[2026-11-30 08:{:02d}:{:02d} TP{}] Decode batch, #running-req: {}, #token: {}, token usage: 0.{:02d}, "
        "gen throughput (token/s): {}.{}\n"
    )
    return "".join(
        line.format(n // 60 % 60, n % 60, n % 8, n % 64, n * 7919 % 999983, n % 100, n * 31 % 2000, n % 10) for n in numbers
    )


def request_lines(numbers: range) -> str:
    """What a server writes that logs its requests: no line is like another, and some hold words of failures."""
    line = "[2026-11-30 08:{:02d}:{:02d} TP0] Finish: obj=GenerateReqInput(rid='{}', text='{} {} cache {}')\n"
    chance = random.Random(numbers.start)  # noqa: S311
    words = (
        *("alpha", "batch", "usage", "hit rate", "model", "answer", "layer", "tell me") * 4,
        "exit code",
        "an error",
        "memory",
    )
    return "".join(
        line.format(
            n // 60 % 60, n % 60, f"{chance.getrandbits(128):032x}", *chance.choices(words, k=2), chance.getrandbits(20)
        )
        for n in numbers
    )


def measure_log(rules: tuple[findings.Rule, ...], megabytes: int, write: Callable[[range], str]) -> float:
    """Seconds for a log of the lines that `write` gives, with one failure at its end."""
    with tempfile.TemporaryFile() as log:
        size, number = 0, 0
        while size < megabytes * 1_000_000:
            size += log.write(write(range(number, number + 20000)).encode())
            number += 20000
        log.write(b"[2026-11-30 09:00:00 TP0] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
        log.seek(0)
        before = time.perf_counter()
        found = findings.diagnose(rules, log)
        seconds = time.perf_counter() - before
    if found.cls != "memory_sizing":
        raise SystemExit(f"the failure at the end of the log was not found: {found.cls}")
    return round(seconds, 2)


def measure_logs(rules: tuple[findings.Rule, ...], megabytes: int) -> dict[str, float]:
    """Seconds for both kinds of log, and the peak of memory in MB."""
    seconds = measure_log(rules, megabytes, decode_lines)
    different = measure_log(rules, megabytes, request_lines)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"log_mb": megabytes, "log_seconds": seconds, "log_seconds_different": different, "peak_mb": round(peak)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=Path, default=PROJECT / "tests" / "data" / "reports.yaml")
    parser.add_argument("--no-context", action="store_true", help="judge by the log lines alone")
    parser.add_argument("--log-mb", type=int, default=0, help="also read two made-up logs of this size")
    parser.add_argument("-v", "--verbose", action="store_true", help="show each report that was not named right")
    asked = parser.parse_args()
    catalog = PROJECT / "catalog" / "findings.yml"
    rules = findings.parse_catalog(yaml.safe_load(catalog.read_text(encoding="utf-8")), str(catalog))
    # first, so that the peak of memory is that of reading the log
    speed = measure_logs(rules, asked.log_mb) if asked.log_mb else {}
    counts: Counter[str] = Counter(total=0, right=0, wrong=0, unknown=0)
    for case in yaml.safe_load(asked.cases.read_text(encoding="utf-8")):
        lines = case.get("log_lines") or []
        if not lines:
            continue
        context = findings.Context() if asked.no_context else context_of(case)
        text = "\n".join(str(one) for one in lines).encode()
        found = findings.diagnose(rules, io.BytesIO(text), context)
        verdict = "right" if found.cls == case["class"] else "unknown" if not found.known else "wrong"
        counts["total"] += 1
        counts[verdict] += 1
        if asked.verbose and verdict != "right":
            print(f"{verdict:8} {case['id']}: {case['class']}, said {found.cls} {[one.id for one in found.findings]}")
    total = counts["total"] or 1
    for verdict in ("right", "wrong", "unknown"):
        print(f"{verdict:8} {counts[verdict]:4} of {counts['total']}  {100 * counts[verdict] / total:5.1f} %")
    print(json.dumps({**counts, **speed}))


if __name__ == "__main__":
    main()
