"""The criteria of the decode check on answers alone, and the process check."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_deploy.decode_check import process
from sglang_deploy.decode_check.answers import Answer, Token, ToolCall, from_chat, from_generate
from sglang_deploy.decode_check.client import BadAnswer
from sglang_deploy.decode_check.context import Expectations
from sglang_deploy.decode_check.judge import (
    compare,
    count_problems,
    empty_problems,
    greedy_problems,
    has_gaps,
    logprob_problems,
    repetition,
    stream_text_problems,
    text_problems,
    tool_call_problems,
)
from sglang_deploy.decode_check.thorough import TOOL

examples = settings(max_examples=50)
VOCABULARY = 1024
FLAT = -math.log(VOCABULARY)


def token(name: str, *logprobs: float) -> Token:
    """A token whose alternatives have these log-probabilities, itself first."""
    return Token(name, logprobs[0], tuple((name if i == 0 else f"{name}{i}", p) for i, p in enumerate(logprobs)))


def answer(*tokens: Token, **more: object) -> Answer:
    base = Answer("/v1/chat/completions", "text", tokens=tokens, finish="length", prompt_tokens=3)
    return replace(base, completion_tokens=len(tokens), **more)  # type: ignore[arg-type]


HEALTHY = [token("a", -4.70, -4.9, -5.0), token("b", -5.11, -5.2, -5.3), token("c", -5.14, -5.2, -5.4)]

spread = st.lists(st.floats(-9, -1.7), min_size=5, max_size=5, unique=True).map(lambda v: sorted(v, reverse=True))
healthy_tokens = st.lists(spread.filter(lambda v: v[0] - v[-1] > 0.01), min_size=1, max_size=12).map(
    lambda rows: [token(f"t{i}", *row) for i, row in enumerate(rows)]
)


@examples
@given(healthy_tokens)
def test_varying_logprobs_are_healthy(tokens: list[Token]) -> None:
    assert logprob_problems(tokens, None) == []


@examples
@given(healthy_tokens, st.data(), st.sampled_from([None, math.nan]))
def test_one_null_or_nan_is_found_wherever_it_is(tokens: list[Token], data: st.DataObject, bad: float | None) -> None:
    place = data.draw(st.integers(0, len(tokens) - 1))
    in_top = data.draw(st.booleans())
    hit = tokens[place]
    tokens[place] = replace(hit, top=(*hit.top[:-1], ("z", bad))) if in_top else replace(hit, logprob=bad)
    (problem,) = logprob_problems(tokens, None)
    assert problem.startswith("the logits are NaN: 1 of")


@examples
@given(healthy_tokens, st.data(), st.booleans())
def test_one_uniform_token_is_found_wherever_it_is(tokens: list[Token], data: st.DataObject, known: bool) -> None:
    place = data.draw(st.integers(0, len(tokens) - 1))
    vocabulary = 151552
    padded = data.draw(st.sampled_from([vocabulary, vocabulary + 64]))
    tokens[place] = token("u", *[-math.log(padded)] * 5)
    (problem,) = logprob_problems(tokens, vocabulary if known else None)
    assert "NaN and were sanitised" in problem
    assert ("-ln(151552)" in problem) is (known and padded == vocabulary)


@examples
@given(healthy_tokens.filter(lambda tokens: len(tokens) > 1), st.data(), st.sampled_from([None, 151552]))
def test_a_tie_of_likely_tokens_is_healthy(tokens: list[Token], data: st.DataObject, vocabulary: int | None) -> None:
    # On an H200 random weights had five equal alternatives at 1 of 12 sampled tokens, log-probability -6.2080.
    place = data.draw(st.integers(0, len(tokens) - 1))
    tokens[place] = token("u", *[-6.2080] * 5)
    assert logprob_problems(tokens, vocabulary) == []


@pytest.mark.parametrize("alternatives", [0, 1, 2, 3, 5])
def test_a_uniform_token_is_known_however_many_alternatives_are_told(alternatives: int) -> None:
    flat = Token("u", FLAT, tuple((str(i), FLAT) for i in range(alternatives)))
    unlikely = Token("u", FLAT, tuple((str(i), -1.0 - i) for i in range(alternatives)))
    assert "-ln(1024)" in logprob_problems([*HEALTHY, flat], VOCABULARY)[0]
    assert (logprob_problems([*HEALTHY, unlikely], VOCABULARY) == []) is (alternatives > 0)


@pytest.mark.parametrize("vocabulary", [None, 151552])
def test_the_same_tie_at_every_token_is_a_constant(vocabulary: int | None) -> None:
    (problem,) = logprob_problems([token(str(i), *[FLAT] * 5) for i in range(4)], vocabulary)
    assert "NaN and were sanitised" in problem


def test_uniform_without_alternatives() -> None:
    flat = [Token(str(i), FLAT) for i in range(4)]
    assert "-ln(1024)" in logprob_problems(flat, VOCABULARY)[0]
    assert "constant" in logprob_problems(flat, None)[0]
    assert logprob_problems(flat[:3], None) == []


def test_certain_tokens_are_no_constant() -> None:
    assert logprob_problems([Token(str(i), 0.0) for i in range(8)], VOCABULARY) == []


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([Token("a", 0.5)], "above 0"),
        ([Token("a", -math.inf)], "infinite"),
        ([token("a", -0.1, -0.2)], "more than 1"),
    ],
)
def test_impossible_logprobs(tokens: list[Token], words: str) -> None:
    assert words in logprob_problems(tokens, None)[0]


def test_greedy_must_choose_the_likeliest() -> None:
    assert greedy_problems(HEALTHY, 0.1) == []
    assert greedy_problems([Token("x", -5.0, (("y", -4.0), ("x", -5.0)))], 1.1) == []
    assert "1 of 1 greedy tokens" in greedy_problems([Token("x", -5.0, (("y", -4.0), ("x", -5.0)))], 0.9)[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"finish": "abort"}, "finish reason 'abort'"),
        ({"prompt_tokens": 0}, "prompt is counted as 0"),
        ({"completion_tokens": 0}, "no token was decoded"),
        ({"completion_tokens": None}, "no token was decoded"),
        ({"completion_tokens": 9}, "9 tokens were decoded, 3 were allowed"),
        ({"completion_tokens": 1}, "length after 1 of 3"),
    ],
)
def test_counts(change: dict[str, object], words: str) -> None:
    assert count_problems(answer(*HEALTHY), 3) == []
    assert any(
        words in p for p in count_problems(answer(*HEALTHY, **{}) if not change else replace(answer(*HEALTHY), **change), 3)
    )  # type: ignore[arg-type]


def test_empty_counts_reasoning_and_calls() -> None:
    blank = answer(*HEALTHY, text="")
    assert empty_problems(blank, real=False)
    assert not empty_problems(replace(blank, reasoning="hm"), real=True)
    assert not empty_problems(replace(blank, tool_calls=(ToolCall("f", "{}"),)), real=True)
    special = replace(blank, tokens=(Token("<|endoftext|>", -3.0), Token("\n", -3.0)))
    assert not empty_problems(special, real=False)
    assert empty_problems(special, real=True)


@pytest.mark.parametrize(
    "text",
    [
        "ab " * 60,
        "So the answer is clear. " * 8,
        "!" * 90,
        "\n" * 90,
        "x" * 20 + "The light turns and the light burns. " * 12,
    ],
)
def test_loops_are_found(text: str) -> None:
    assert repetition(text)


@pytest.mark.parametrize(
    "text",
    [
        "Short.",
        "| a | b |\n|---|---|\n" + "\n".join(f"| {n} | {n * n} |" for n in range(40)),
        "The lamp turns. The lens bends. A motor drives it, keepers watch it, and all crews know its rhythm.",
        ", ".join(str(n) for n in range(200)),
    ],
)
def test_prose_tables_and_counting_are_no_loops(text: str) -> None:
    assert repetition(text) is None


@examples
@given(st.text(min_size=1, max_size=30).filter(lambda t: len(t.encode(errors="replace")) > 0), st.integers(40, 60))
def test_any_piece_repeated_is_a_loop(piece: str, times: int) -> None:
    text = piece * times
    if len(text) >= 80:
        assert repetition(text)


def test_text_signs() -> None:
    assert text_problems("Fine, a cut character at the end is fine \ufffd") == []
    assert "2 replacement" in text_problems("a\ufffd\ufffdb")[0]
    assert "<|user|>" in text_problems("Hello <|user|>")[0]
    assert text_problems("if a < b and c > d: print(x | y)") == []


def test_compare() -> None:
    one = answer(*HEALTHY)
    assert compare(one, one, 0.1).same == 3
    moved = answer(token("a", -4.75, -4.9), *HEALTHY[1:])
    assert compare(one, moved, 0.1).agree
    assert not compare(one, moved, 0.01).agree
    tie = answer(Token("a1", -4.8, (("a1", -4.8), ("a", -4.85))), token("q", -1.0))
    assert compare(one, tie, 0.25).agree
    assert not compare(one, tie, 0.05).agree
    other = answer(token("z", -4.7, -4.8))
    assert "not among the alternatives" in compare(one, other, 0.5).why
    assert not compare(answer(text="x", tokens=None), answer(text="y", tokens=None), 0.5).agree


@examples
@given(healthy_tokens, healthy_tokens, st.floats(0, 1))
def test_compare_is_symmetric_and_reflexive(a: list[Token], b: list[Token], tolerance: float) -> None:
    assert compare(answer(*a), answer(*a), tolerance).agree
    assert compare(answer(*a), answer(*b), tolerance).agree == compare(answer(*b), answer(*a), tolerance).agree


def test_stream_may_hold_back_a_tail_only_when_cut_by_length() -> None:
    whole, cut = answer(text="hello wor\ufffd"), answer(text="hello ")
    assert stream_text_problems(whole, cut) == []
    assert stream_text_problems(replace(whole, finish="stop"), cut)
    assert stream_text_problems(answer(text="hello world"), answer(text="hullo world"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"city": "Rome", "unit": "celsius"}', None),
        ('{"city": "Rome", "unit": "celsius", "days": 3}', None),
        ('{"city": "Rome"}', "lacks 'unit'"),
        ('{"city": 3, "unit": "celsius"}', "arguments.city is no string"),
        ('{"city": "Rome", "unit": "kelvin"}', "not one of celsius, fahrenheit"),
        ('{"city": "Rome", "unit": "celsius", "days": true}', "arguments.days is no integer"),
        ('{"city": "Rome", "unit": "celsius", "x": 1}', "has 'x'"),
        ("[]", "arguments is no object"),
        ("{", "not JSON"),
    ],
)
def test_tool_arguments(arguments: str, words: str | None) -> None:
    found = tool_call_problems(ToolCall("get_weather", arguments), TOOL)
    assert found == [] if words is None else any(words in p for p in found)
    assert "not offered" in tool_call_problems(ToolCall("rm", arguments), TOOL)[0]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "usage", "meta_info", "logprobs", "content", "token", "logprob", "text"]),
            inner,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "logprobs",
    [
        {"content": 3},
        {"content": [1]},
        {"content": [{"token": "a", "logprob": 0, "top_logprobs": 7}]},
        {},
        {"content": [{"token": 1}]},
    ],
)
def test_wrong_shapes_name_the_place(logprobs: object) -> None:
    data = {"choices": [{"message": {"content": "x"}, "logprobs": logprobs, "finish_reason": "stop"}], "usage": {}}
    with pytest.raises(BadAnswer, match="/v1/chat/completions: "):
        from_chat(data)
    with pytest.raises(BadAnswer, match=r"/generate: .*is no list"):
        from_generate({"text": "x", "meta_info": {"output_token_logprobs": [[-1.0, 3]], "output_top_logprobs": [5]}})


@examples
@given(json_values)
def test_any_json_is_an_answer_or_a_bad_answer(value: object) -> None:
    for read in (from_chat, from_generate):
        try:
            assert isinstance(read(value), Answer)
        except BadAnswer as error:
            assert str(error)


def systemctl(tmp_path, monkeypatch: pytest.MonkeyPatch, text: str, code: int = 0) -> None:
    script = tmp_path / "systemctl"
    script.write_text(f"#!/bin/sh\ncat <<'E'\n{text}\nE\nexit {code}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_process_of_a_live_unit(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = (sys.executable, "-c", "import time; time.sleep(60)", "--port", "8000")
    child = subprocess.Popen(argv)
    try:
        systemctl(tmp_path, monkeypatch, f"ActiveState=active\nNRestarts=1\nMainPID={child.pid}")
        good = process.check_process(Expectations(unit="sglang@x", argv=argv, restarts=1))
        assert good.ok is True, good.summary
        assert "crashed meanwhile" in process.check_process(Expectations(unit="sglang@x", argv=argv, restarts=0)).summary
        # a crash of last week, which systemd mended, is no fault of what runs; one from now on is
        now = process.from_now(Expectations(unit="sglang@x", argv=argv))
        assert now.restarts == 1
        assert "restarted 1 times before" in process.check_process(now).summary
        systemctl(tmp_path, monkeypatch, f"ActiveState=active\nNRestarts=2\nMainPID={child.pid}")
        assert process.check_process(now).ok is False
        other = process.check_process(Expectations(unit="sglang@x", argv=(*argv, "--tp-size"), restarts=2))
        assert other.ok is False
        assert "missing: --tp-size" in other.summary
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("ActiveState=failed\nNRestarts=0\nMainPID=0", 0, "is failed"),
        ("ActiveState=active\nNRestarts=?\nMainPID=1", 0, "cannot tell"),
        ("", 0, "cannot tell"),
        ("", 1, "cannot tell"),
        ("ActiveState=active\nNRestarts=0\nMainPID=999999999", 0, "cannot be read"),
    ],
)
def test_process_of_a_bad_unit(tmp_path, monkeypatch: pytest.MonkeyPatch, text: str, code: int, words: str) -> None:
    systemctl(tmp_path, monkeypatch, text, code)
    outcome = process.check_process(Expectations(unit="sglang@x", argv=("a",)))
    assert outcome.ok is False
    assert words in outcome.summary


def test_argument_difference_shows_no_values() -> None:
    said = process.argv_difference(("x", "--api-key", "secret", "--a"), ("x", "--api-key", "other", "--a"))
    assert said is not None
    assert "secret" not in said
    assert "after --api-key" in said


def test_a_stream_may_lack_log_probabilities_but_a_whole_answer_may_not() -> None:
    whole = replace(answer(*HEALTHY, *HEALTHY), completion_tokens=3 * len(HEALTHY), finish="length")
    streamed = replace(whole, endpoint="/v1/chat/completions (stream)")
    most = 3 * len(HEALTHY)
    assert any("log-probabilities for" in problem for problem in count_problems(whole, most))
    assert count_problems(streamed, most) == []
    assert has_gaps(streamed) and not has_gaps(whole)
    more = replace(streamed, completion_tokens=1)
    assert any("log-probabilities for" in problem for problem in count_problems(more, 1))
