"""The checks of the level `quick`: one answer at a time, and a small burst."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .answers import Answer, dig, excerpt
from .client import Deadline, RequestFailed
from .context import Context, joined, running_requests
from .judge import CONSTANT, Comparison, compare, has_gaps, logprob_problems, stream_text_problems, top1_mass
from .process import check_process
from .verdict import Outcome

QUESTION = "What is the capital of France? Answer in one short sentence."

# Different scripts, symbols and shapes, so that many experts of a mixture are hit.
PROMPTS = (
    "The quick brown fox jumps over the lazy dog, and the dog does not care at all.",
    "def fibonacci(n: int) -> int:\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n",
    '{"name": "sensor-7", "values": [3.14, 2.71, -1], "ok": true, "note": null}',
    "Die Würde des Menschen ist unantastbar. Sie zu achten und zu schützen ist Verpflichtung aller staatlichen Gewalt.",
    "敏捷的棕色狐狸跳过了懒狗。今天天气很好,我们去公园散步吧。",
    "SELECT city, COUNT(*) FROM visits WHERE year = 2024 GROUP BY city HAVING COUNT(*) > 10 ORDER BY 2 DESC;",
    "1 + 1 = 2, 2 + 2 = 4, 4 + 4 = 8, 8 + 8 = 16, 16 + 16 =",
    "Съешь же ещё этих мягких французских булок да выпей чаю. Être ou ne pas être, ¿qué pasa? 🙂",
)

KNOWN = (
    ("What is the capital of France? Answer with one word.", "paris"),
    ("What is 17 + 25? Answer with the number only.", "42"),
    ("Which planet do we live on? Answer with one word.", "earth"),
    ("Spell the word 'cat' backwards. Answer with the three letters only.", "tac"),
)


def check_models(ctx: Context, deadline: Deadline) -> Outcome:
    """The server lists the model under the name that is expected."""
    listed = dig(ctx.client.get("/v1/models", deadline), "/v1/models", "data")
    names = [str(dig(entry, "/v1/models", "id")) for entry in listed]
    evidence = {"models": names, "context_length": ctx.context_length, "kind": ctx.kind}
    if ctx.model not in names:
        return Outcome(False, f"the server serves {', '.join(names) or 'nothing'}, not {ctx.model}", evidence)
    return Outcome(True, f"serves {ctx.model}", evidence)


def evidence_of(answer: Answer) -> dict[str, Any]:
    """The parts of an answer that a person wants to see."""
    tokens = answer.tokens or ()
    mass = top1_mass(tokens)
    return {
        "text": excerpt(answer.text, 300),
        "reasoning": excerpt(answer.reasoning, 300),
        "finish": answer.finish,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "logprobs": [None if t.logprob is None or t.logprob != t.logprob else round(t.logprob, 4) for t in tokens[:8]],
        "top1_mass": None if mass is None else round(mass, 4),
    }


def _judged(ctx: Context, answer: Answer, most: int, *, greedy: bool = True) -> Outcome:
    problems = ctx.problems(answer, most, greedy=greedy)
    if problems:
        return Outcome(False, joined(problems), evidence_of(answer))
    mass = top1_mass(answer.tokens or ())
    shown = "no log-probabilities offered" if mass is None else f"likeliest token {mass:.1%} on average"
    return Outcome(True, f"{answer.completion_tokens} tokens, finish {answer.finish}, {shown}", evidence_of(answer))


def check_greedy_chat(ctx: Context, deadline: Deadline) -> Outcome:
    """Greedy decoding through /v1/chat/completions."""
    return _judged(ctx, ctx.chat(QUESTION, deadline, ctx.budget), ctx.budget)


def check_sampled_chat(ctx: Context, deadline: Deadline) -> Outcome:
    """Sampling through /v1/chat/completions: the sampler asserts on NaN where greedy decoding does not."""
    answer = ctx.chat(QUESTION, deadline, ctx.budget, temperature=0.8, top_p=0.95, **ctx.unthinking)
    return _judged(ctx, answer, ctx.budget, greedy=False)


def check_greedy_generate(ctx: Context, deadline: Deadline) -> Outcome:
    """Greedy decoding through /generate."""
    if not ctx.native:
        return Outcome(None, "not applicable: the server has no /generate")
    return _judged(ctx, ctx.generate(PROMPTS[0], deadline, SHORT_RAW), SHORT_RAW)


def check_sampled_generate(ctx: Context, deadline: Deadline) -> Outcome:
    """Sampling through /generate."""
    if not ctx.native:
        return Outcome(None, "not applicable: the server has no /generate")
    return _judged(ctx, ctx.generate(PROMPTS[0], deadline, SHORT_RAW, temperature=0.8), SHORT_RAW, greedy=False)


SHORT_RAW = 16


def check_logprobs(ctx: Context, deadline: Deadline) -> Outcome:
    """Log-probabilities over diverse prompts, of the prompts' own tokens too. Finds NaN that only some tokens hit."""
    problems, tokens, constant = [], 0, set()
    for prompt in PROMPTS:
        if ctx.native:
            answer = ctx.generate(prompt, deadline, SHORT_RAW // 2, with_prompt=True)
        else:
            answer = ctx.chat(prompt, deadline, SHORT_RAW // 2)
        if answer.tokens is None:
            if ctx.native:
                return Outcome(False, f"{answer.endpoint} gave no log-probabilities")
            return Outcome(None, "not applicable: the server gives no log-probabilities")
        for part, where in ((answer.tokens, "the answer"), (answer.prompt, "the prompt")):
            problems += logprob_problems(part, ctx.expect.vocab_size, f"{where} {excerpt(prompt, 20)!r}")
            tokens += len(part)
            constant |= {round(t.logprob, 6) for t in part if t.logprob is not None}
    evidence = {"prompts": len(PROMPTS), "tokens": tokens, "distinct": len(constant), "problems": problems}
    if problems:
        return Outcome(
            False,
            f"{problems[0]}; {len(problems)} of {2 * len(PROMPTS) if ctx.native else len(PROMPTS)} texts",
            evidence,
        )
    if tokens >= 8 and len(constant) < 3 and min(constant) < -0.5:
        return Outcome(
            False,
            f"{CONSTANT}: {tokens} tokens have {len(constant)} values",
            evidence,
        )
    return Outcome(
        True, f"{tokens} tokens over {len(PROMPTS)} prompts: all finite, {len(constant)} different values", evidence
    )


def check_stream(ctx: Context, deadline: Deadline) -> Outcome:
    """A streamed greedy answer equals the unstreamed one."""
    tokens = ctx.budget
    more = ctx.unthinking if ctx.level == "quick" else {}
    whole = ctx.chat(QUESTION, deadline, tokens, **more)
    streamed = ctx.chat_stream(QUESTION, deadline, tokens, **more)
    evidence = {"whole": evidence_of(whole), "streamed": evidence_of(streamed)}
    # SGLang 0.5.15 sometimes streams a token beside the alternatives of another, so they are not set against each other.
    problems = ctx.problems(streamed, tokens, greedy=False)
    if problems:
        return Outcome(False, joined(problems), evidence)
    # Where log-probabilities are missing, the places of the others are not known: the texts are compared alone.
    same = Comparison(True, 0, 0, 0.0) if has_gaps(streamed) else compare(whole, streamed, ctx.tolerance)
    if not same.agree:
        return Outcome(False, f"the stream differs from the unstreamed answer: {same.why}", evidence)
    if same.same == same.of:  # after a near tie the texts may part
        problems = stream_text_problems(whole, streamed)
        if whole.finish != streamed.finish:
            problems.append(f"finish reason {streamed.finish!r} streamed, {whole.finish!r} whole")
    if problems:
        return Outcome(False, f"the stream differs from the unstreamed answer: {joined(problems)}", evidence)
    return Outcome(
        True,
        f"{streamed.completion_tokens} tokens streamed, as unstreamed ({same.same} of {same.of} compared equal)",
        evidence,
    )


def check_repeat(ctx: Context, deadline: Deadline) -> Outcome:
    """The same greedy prompt three times gives the same tokens, near ties aside."""
    prompt = f"{ctx.salt} {PROMPTS[3]}"
    first, *others = [ctx.complete(prompt, deadline, SHORT_RAW) for _ in range(3)]
    pairs = [compare(first, other, ctx.tolerance) for other in others]
    delta = max(p.delta for p in pairs)
    same, of = sum(p.same for p in pairs), sum(p.of for p in pairs)
    evidence = {"same": same, "of": of, "logprob_delta": round(delta, 4)}
    problems = ctx.problems(first, SHORT_RAW) + [p.why for p in pairs if not p.agree]
    if problems:
        return Outcome(False, f"three times the same prompt: {joined(problems)}", evidence)
    return Outcome(
        True,
        f"three greedy answers agree in {same} of {of} tokens, log-probabilities within {delta:.4f}",
        evidence,
    )


def check_known_answers(ctx: Context, deadline: Deadline) -> Outcome:
    """A trained model knows these."""
    if not ctx.real:
        return Outcome(None, "not applicable: the weights are random")
    wrong, problems, given = [], [], {}
    for question, expected in KNOWN:
        answer = ctx.chat(question, deadline, ctx.budget, **ctx.unthinking)
        given[question] = excerpt(answer.text or answer.reasoning, 200)
        problems += ctx.problems(answer, ctx.budget)
        if expected not in (answer.text or answer.reasoning).lower():
            wrong.append(f"{question!r} got {excerpt(answer.text or answer.reasoning, 60)!r}")
    evidence = {"answers": given}
    if problems or wrong:
        return Outcome(False, joined([*wrong, *problems]), evidence)
    return Outcome(True, f"{len(KNOWN)} of {len(KNOWN)} known answers right", evidence)


def burst(ctx: Context, deadline: Deadline, size: int) -> Outcome:
    """`size` different prompts at once. Each answer must be sound, and the one that its prompt gets alone."""
    salt = ctx.salt
    tokens = ctx.budget if ctx.real else SHORT_RAW // 2
    marks = [f"{salt}-{place:02d}" for place in range(size)]
    prompts = [
        f"Repeat this code exactly and say nothing else: {mark}" if ctx.real else f"{mark} {PROMPTS[place % len(PROMPTS)]}"
        for place, mark in enumerate(marks)
    ]

    def ask(prompt: str) -> Answer:
        if ctx.real:
            return ctx.chat(prompt, deadline, tokens, **ctx.unthinking)
        return ctx.complete(prompt, deadline, tokens)

    begun = time.monotonic()
    with ThreadPoolExecutor(size) as pool:
        together = list(pool.map(ask, prompts))
    seconds = time.monotonic() - begun
    problems = [p for answer in together for p in ctx.problems(answer, tokens)]
    mixed, apart = [], []
    alone = 8 if ctx.real else size  # a real model is slow alone, and its codes tell already
    for place, answer in enumerate(together):
        if ctx.real:
            others = [m for m in marks if m != marks[place] and m in answer.said]
            if others or marks[place] not in answer.said:
                mixed.append(f"answer {place + 1} holds {', '.join(others) or 'not its own code'}")
        if not problems and not mixed and place < alone:
            same = compare(ask(prompts[place]), answer, ctx.tolerance)
            if not same.agree:
                apart.append(f"answer {place + 1}: {same.why}")
    total = sum(a.completion_tokens or 0 for a in together)
    evidence = {
        "requests": size,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(total / max(seconds, 1e-6), 1),
        "mixed": mixed,
        "differs_from_alone": apart,
        "problems": problems,
    }
    if problems:
        return Outcome(False, f"{len(problems)} problems in {size} concurrent answers: {joined(problems[:3])}", evidence)
    if mixed:
        return Outcome(False, f"answers are mixed up under concurrency: {joined(mixed[:3])}", evidence)
    if len(apart) > (alone // 4 if ctx.real else 0):
        share = f"{len(apart)} of {min(alone, size)}"
        return Outcome(False, f"{share} concurrent answers differ from the same prompt alone: {joined(apart[:3])}", evidence)
    return Outcome(
        True, f"{size} concurrent answers, each its own, {evidence['tokens_per_second']} tokens/s together", evidence
    )


def check_burst(ctx: Context, deadline: Deadline) -> Outcome:
    """Concurrent requests: 8, or 32 above the level quick."""
    return burst(ctx, deadline, 8 if ctx.level == "quick" else 32)


def check_alive(ctx: Context, deadline: Deadline) -> Outcome:
    """After everything else, the server still answers and was not restarted."""
    process = check_process(ctx.expect)
    if process.ok is False:
        return Outcome(False, f"after the requests: {process.summary}", process.evidence)
    try:
        answer = ctx.chat(QUESTION, deadline, ctx.budget, **ctx.unthinking)
    except RequestFailed as error:
        return Outcome(False, f"the server no longer answers after the requests: {error}")
    problems = ctx.problems(answer, ctx.budget)
    if problems:
        return Outcome(False, f"after the requests: {joined(problems)}", evidence_of(answer))
    left = running_requests(ctx.client, deadline) if ctx.native else None
    return Outcome(True, "still answers after the requests", {"requests_left": left})
