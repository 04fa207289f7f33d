"""The checks that the levels `full` and `soak` add: longer, and some of them a danger to a weak server."""

from __future__ import annotations

import secrets
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

from .answers import Answer, excerpt
from .basic import QUESTION, burst, evidence_of
from .client import Deadline, Refused
from .context import Context, joined, running_requests
from .judge import SPECIAL, compare, tool_call_problems
from .verdict import Outcome

TOKENS = 16
PARAGRAPH = "The harbour master wrote the number of every ship into a book, and the wind turned the pages back. "
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in one city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "description": "How many days ahead"},
            },
            "required": ["city", "unit"],
        },
    },
}
TOOL_QUESTION = "What is the weather in Zürich, in celsius, for the next 3 days? Use the tool."


def check_text(ctx: Context, deadline: Deadline) -> Outcome:
    """A longer answer of a trained model is prose: no loop, no replacement characters, no special tokens."""
    if not ctx.real:
        return Outcome(None, "not applicable: the weights are random")
    answer = ctx.chat("Explain in about 150 words how a lighthouse works.", deadline, ctx.budget, **ctx.unthinking)
    problems = ctx.problems(answer, ctx.budget)
    if len(answer.text.split()) < 40 and answer.finish == "stop":
        problems.append(f"150 words were asked for, {len(answer.text.split())} came")
    if problems:
        return Outcome(False, joined(problems), evidence_of(answer))
    return Outcome(True, f"{len(answer.said.split())} words, no loop, no leaked token", evidence_of(answer))


def check_prefix_cache(ctx: Context, deadline: Deadline) -> Outcome:
    """Two prompts with one long new prefix, each asked twice: what comes from the cache equals what was computed."""
    prefix = f"{secrets.token_hex(4)} " + PARAGRAPH * 20
    problems: list[str] = []
    cached, deltas = [], []
    for question in ("The ship that", "In the book"):
        computed = ctx.complete(prefix + question, deadline, TOKENS)
        again = ctx.complete(prefix + question, deadline, TOKENS)
        problems += ctx.problems(computed, TOKENS) + ctx.problems(again, TOKENS)
        same = compare(computed, again, ctx.tolerance)
        problems += [f"cached and uncached answers differ: {same.why}"] if not same.agree else []
        cached += [computed.cached_tokens, again.cached_tokens]
        deltas.append(same.delta)
    evidence = {"cached_tokens": cached, "logprob_delta": round(max(deltas), 4)}
    if problems:
        return Outcome(False, joined(problems), evidence)
    hits = [c for c in cached if c]
    seen = f"{max(hits)} tokens came from the cache" if hits else "the server reported no cache hit"
    return Outcome(True, f"repeated prefix gives the same answer; {seen}", evidence)


def check_long_prompt(ctx: Context, deadline: Deadline) -> Outcome:
    """Prompts just below and just above the prefill chunk, each also from the cache."""
    if ctx.chunk is None:
        return Outcome(None, "not applicable: prefill is not chunked, or the chunk size is not known")
    small, large = ctx.chunk * 15 // 16, ctx.chunk * 17 // 16
    if ctx.context_length is not None and large + ctx.budget + 64 > ctx.context_length:
        return Outcome(None, f"not applicable: a prompt of {large} tokens does not fit into {ctx.context_length}")
    sample = ctx.complete(PARAGRAPH * 20, deadline, 1)
    per_paragraph = (sample.prompt_tokens or 20) / 20
    evidence: dict[str, Any] = {"chunk": ctx.chunk, "prompts": []}
    problems = []
    for target in (small, large):
        text = f"{secrets.token_hex(4)} " + PARAGRAPH * max(1, round(target / per_paragraph))
        computed = ctx.complete(text, deadline, TOKENS)
        again = ctx.complete(text, deadline, TOKENS)
        found = ctx.problems(computed, TOKENS) + ctx.problems(again, TOKENS)
        same = compare(computed, again, ctx.tolerance)
        if not same.agree:
            found.append(f"cached and uncached answers differ: {same.why}")
        if ctx.real:
            found += _needle(ctx, deadline, round(target / per_paragraph))
        problems += [f"at {computed.prompt_tokens} tokens: {problem}" for problem in found]
        evidence["prompts"].append(
            {"tokens": computed.prompt_tokens, "cached": again.cached_tokens, "delta": round(same.delta, 4)}
        )
    if problems:
        return Outcome(False, joined(problems), evidence)
    sizes = " and ".join(str(p["tokens"]) for p in evidence["prompts"])
    return Outcome(True, f"prompts of {sizes} tokens around the chunk of {ctx.chunk} decode well", evidence)


def _needle(ctx: Context, deadline: Deadline, paragraphs: int) -> list[str]:
    code = secrets.token_hex(3)
    before = paragraphs // 4
    text = PARAGRAPH * before + f"The secret code is {code}. " + PARAGRAPH * (paragraphs - before)
    answer = ctx.chat(text + "\nWhat is the secret code? Answer with the code only.", deadline, ctx.budget, **ctx.unthinking)
    if code in answer.said:
        return ctx.problems(answer, ctx.budget)
    return [f"the code {code} in the prompt was asked for, the answer is {excerpt(answer.said, 60)!r}"]


def check_reasoning(ctx: Context, deadline: Deadline) -> Outcome:
    """The reasoning parser splits: thought in one field, answer in the other, no tags in either."""
    if ctx.expect.reasoning_parser is None:
        return Outcome(None, "not applicable: the instance configures no reasoning parser")
    answer = ctx.chat("A bat costs 3 euros, a ball 2. What do two bats and a ball cost?", deadline, 2 * ctx.budget)
    problems = ctx.problems(answer, 2 * ctx.budget)
    if ctx.real:
        problems += [f"a tag was left in the text: {m.group()}" for m in SPECIAL.finditer(answer.said)]
        if not answer.reasoning.strip():
            problems.append("no reasoning came in its own field: the parser or the chat template does not fit the model")
        if not answer.text.strip():
            problems.append(f"no text came after the reasoning (finish {answer.finish!r})")
    if problems:
        return Outcome(False, joined(problems), evidence_of(answer))
    split = f"{len(answer.reasoning)} characters of reasoning, {len(answer.text)} of text"
    return Outcome(True, split if ctx.real else f"{split} (random weights: only the form is judged)", evidence_of(answer))


def check_tools(ctx: Context, deadline: Deadline) -> Outcome:
    """Tool calls validate against their schema and answer the question.

    With random weights only `auto` is asked and a call is optional: a required call needs constrained decoding, which
    ends SGLang 0.5.15 on the CPU.
    """
    if ctx.expect.tool_call_parser is None:
        return Outcome(None, "not applicable: the instance configures no tool call parser")
    named = {"type": "function", "function": {"name": TOOL["function"]["name"]}}
    choices: tuple[Any, ...] = ("auto", "required", named) if ctx.real else ("auto",)
    problems, calls = [], []
    for choice in choices:
        answer = ctx.chat(TOOL_QUESTION, deadline, ctx.budget, tools=[TOOL], tool_choice=choice, **ctx.unthinking)
        word = choice if isinstance(choice, str) else "named"
        problems += [f"tool_choice {word}: {p}" for p in _tool_problems(ctx, answer)]
        calls += [{"choice": word, "name": c.name, "arguments": excerpt(c.arguments, 200)} for c in answer.tool_calls]
    evidence = {"calls": calls}
    if problems:
        return Outcome(False, joined(problems), evidence)
    if not ctx.real:
        return Outcome(True, f"a request with tools is answered in form, {len(calls)} calls (random weights)", evidence)
    return Outcome(True, f"{len(calls)} calls with valid arguments: auto, required and named", evidence)


def _tool_problems(ctx: Context, answer: Answer) -> list[str]:
    problems = ctx.problems(answer, ctx.budget)
    for call in answer.tool_calls:
        problems += tool_call_problems(call, TOOL)
    if not ctx.real or problems:
        return problems
    if not answer.tool_calls:
        return [f"no tool call, but {excerpt(answer.said, 60)!r}"]
    if "rich" not in answer.tool_calls[0].arguments or "celsius" not in answer.tool_calls[0].arguments:
        problems.append(f"the arguments do not answer the question: {excerpt(answer.tool_calls[0].arguments)}")
    return problems


def check_cancel(ctx: Context, deadline: Deadline) -> Outcome:
    """A stream that the client leaves frees its slot: the running count falls back, a next request is answered."""
    room = (ctx.context_length or 4096) - 256
    payload = ctx.chat_payload("Count from one upwards, as far as you can.", max(16, min(2000, room)), stream=True)
    before = running_requests(ctx.client, deadline) if ctx.native else None
    chunks = 0
    with closing(ctx.client.events("/v1/chat/completions", payload, deadline)) as events:
        for _ in events:
            chunks += 1
            if chunks >= 3:
                break
    left_at = time.monotonic()
    limit = deadline.within(ctx.client.limits.freed)
    running = before
    while before is not None:
        running = running_requests(ctx.client, deadline)
        if running is None or running <= before or limit.remaining() <= 0:
            break
        time.sleep(min(0.2, limit.remaining()))
    freed = time.monotonic() - left_at
    evidence = {"chunks_read": chunks, "running_before": before, "running_after": running, "seconds": round(freed, 3)}
    if before is not None and running is not None and running > before:
        return Outcome(
            False,
            f"{running} requests still run {freed:.0f} s after the client left, {before} before: its slot is not freed",
            evidence,
        )
    answer = ctx.complete(f"{ctx.salt} after a cancelled stream", deadline.within(3 * ctx.client.limits.freed), TOKENS)
    problems = ctx.problems(answer, TOKENS)
    if problems:
        return Outcome(False, f"after a cancelled stream: {joined(problems)}", evidence)
    how = (
        f"slot free after {freed:.1f} s"
        if before is not None
        else "the next request was answered (the server does not count its requests)"
    )
    return Outcome(True, f"stream left after {chunks} chunks; {how}", evidence)


def check_overflow(ctx: Context, deadline: Deadline) -> Outcome:
    """A prompt longer than the context is refused with 400, and the server goes on."""
    if ctx.context_length is None:
        return Outcome(None, "not applicable: the context length is not known")
    payload = ctx.chat_payload("fox " * (ctx.context_length + 1), 4)
    evidence: dict[str, Any] = {"context_length": ctx.context_length}
    try:
        ctx.client.post("/v1/chat/completions", payload, deadline)
    except Refused as refusal:
        evidence["status"] = refusal.status
        if refusal.status != 400:
            return Outcome(
                False, f"a prompt longer than the context gets {refusal.status} instead of 400: {refusal}", evidence
            )
    else:
        return Outcome(False, f"a prompt longer than the context of {ctx.context_length} tokens gets 200", evidence)
    after = ctx.chat(QUESTION, deadline, ctx.budget, **ctx.unthinking)
    problems = ctx.problems(after, ctx.budget)
    if problems:
        return Outcome(False, f"after a prompt that was too long: {joined(problems)}", evidence)
    return Outcome(
        True,
        f"a prompt past the {ctx.context_length} tokens of context gets 400, the next request is answered",
        evidence,
    )


def check_soak(ctx: Context, deadline: Deadline) -> Outcome:
    """Bursts of new prompts until the soak time is over."""
    end = deadline.within(ctx.client.limits.soak)
    rounds, requests = 0, 0
    while end.remaining() > 0 or not rounds:
        outcome = burst(replace(ctx, salt=secrets.token_hex(4)), deadline, 16)
        rounds, requests = rounds + 1, requests + 16
        if not outcome.ok:
            return Outcome(
                False,
                f"in round {rounds}: {outcome.summary}",
                {"rounds": rounds, "requests": requests, **outcome.evidence},
            )
    return Outcome(True, f"{requests} requests in {rounds} bursts, all sound", {"rounds": rounds, "requests": requests})
