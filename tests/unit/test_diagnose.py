"""The text of a diagnosis."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml
from sglang_deploy import diagnose, finding_rules, findings
from sglang_deploy.decode_check import judge
from sglang_deploy.decode_check.answers import Token

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
    state = {
        "outcome": "failed",
        "reason": "a fatal line was written",
        "says": "loading weights 37 %",
        "tail": ["x", "the end"],
    }
    text = diagnose.message(found("CUDA out of memory\n"), state)
    assert text.startswith("1. cuda-out-of-memory")
    assert text.index("cuda-out-of-memory") < text.index("loading weights 37 %") < text.index("the end")


def gate(summary: str) -> dict[str, object]:
    checks = [{"name": "models", "ok": True, "summary": "fine"}, {"name": "logprobs", "ok": False, "summary": summary}]
    return {"schema": 1, "ok": False, "level": "quick", "checks": checks}


@pytest.mark.parametrize(
    ("summary", "fact"),
    [
        ("the logits are NaN: 3 of 8 log-probabilities of greedy_chat are null or NaN", "null_logprobs"),
        ("x: at 3 of 8 tokens of y every choice is equally likely (log-probability -6.2)", "uniform_logprobs"),
        ("200 with an empty answer: no text, no reasoning, 0 tokens", "empty_content"),
        ("the text repeats itself: 'ab' 30 times", "repetition_loop"),
    ],
)
def test_failed_checks_are_facts_for_findings(summary: str, fact: str) -> None:
    assert diagnose.answers(gate(summary)) == {fact}


def test_words_of_the_checks_are_those_of_the_decode_check() -> None:
    nan = Token("a", None)
    assert any("the logits are NaN" in text for text in judge.logprob_problems((nan,), None))


def test_a_verdict_of_a_start_says_where_it_ended() -> None:
    start = {"outcome": "failed", "exit": {"status": 1}, "last_lines": ["boom"], "phases": {"importing": 3.0}}
    record = diagnose.verdict([{"id": "x"}], {}, start, "a fatal line was written", "1. x: y")
    assert (record["ok"], record["phase"], record["exit"], record["report"]) == (False, "start", {"status": 1}, ["1. x: y"])


def test_a_verdict_of_a_gate_keeps_its_checks() -> None:
    record = diagnose.verdict([], gate("bad"), {}, "bad")
    assert (record["phase"], record["level"], len(record["checks"])) == ("gate", "quick", 2)


def test_the_summary_is_the_first_cause_or_the_reason() -> None:
    causes = [finding.as_dict() for finding in found("CUDA out of memory\n").findings]
    assert diagnose.summary(causes, "it died").startswith("cuda-out-of-memory: ")
    assert diagnose.summary([], "it died") == "it died"


def test_a_verdict_is_never_good() -> None:
    assert diagnose.verdict([], {"ok": True}, {}, "the unit died")["ok"] is False


def test_secrets_in_quoted_lines_go() -> None:
    found_with = diagnose.without_secrets(found("CUDA out of memory, api_key='abcdefgh12345'\n"))
    assert "abcdefgh12345" not in diagnose.report(found_with)


def test_only_a_cause_counts_as_one() -> None:
    cause = {"id": "x", "cause": "y", "severity": "fatal", "class": "driver"}
    assert diagnose.names_cause([{**cause, "class": "unknown"}, cause])
    assert not diagnose.names_cause([{**cause, "class": "unknown"}, {**cause, "severity": "info"}])
