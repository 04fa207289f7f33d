"""The text of a diagnosis."""

from __future__ import annotations

import io
from pathlib import Path

import yaml
from sglang_deploy import diagnose, finding_rules, findings

CATALOG = Path(__file__).resolve().parents[2] / "catalog" / "findings.yml"
RULES = findings.parse_catalog(yaml.safe_load(CATALOG.read_text(encoding="utf-8")))


def found(text: str) -> findings.Diagnosis:
    return findings.diagnose(RULES, io.BytesIO(text.encode()))


def test_report_begins_with_the_cause_and_shows_its_line() -> None:
    text = diagnose.report(
        found("start\nRuntimeError: The size of tensor a (3072) must match the size of tensor b (6144)\n")
    )
    assert text.startswith("1. shared-experts-fused: ")
    assert "sglang_backends:" in text
    assert "shared_experts_fusion: false" in text
    assert "line 2: RuntimeError: The size of tensor a" in text


def test_changes_are_yaml_that_means_what_it_says() -> None:
    remedy = finding_rules.Remedy(
        "", (("a", True), ("b", "fp8_e4m3"), ("c", 0.9), ("d", "true")), (("E", "0"), ("F", "12.0a"))
    )
    assert yaml.safe_load("\n".join(diagnose.group_vars(remedy))) == {
        "sglang_backends": {"a": True, "b": "fp8_e4m3", "c": 0.9, "d": "true"},
        "sglang_environment": {"E": "0", "F": "12.0a"},
    }


def test_unknown_failure_says_so_and_what_to_read() -> None:
    text = diagnose.report(found("one\nScheduler hit an exception: Traceback\nOddError: nobody knows\n"))
    assert text.startswith("No known cause was recognised.")
    assert "3: OddError: nobody knows" in text


def test_message_of_a_failed_start_has_findings_first() -> None:
    state = {"outcome": "failed", "reason": "a fatal line was written", "says": "loading weights 37 %"}
    text = diagnose.message(found("CUDA out of memory\n"), state)
    assert text.startswith("1. cuda-out-of-memory")
    assert text.index("cuda-out-of-memory") < text.index("loading weights 37 %")
