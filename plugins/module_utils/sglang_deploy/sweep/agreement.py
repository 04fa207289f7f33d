"""Agreement with a reference trial: whether another launch of the same model gives the same probabilities.

A decode check tells a broken model from a working one. Quiet corruption (a KV cache read with the wrong scale, a kernel that
rounds where it should not) leaves text that reads well. Here both launches are given the same tokens, those that the
reference chose, and their log-probabilities are compared token by token. Runs on the managed host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..decode_check.client import BadAnswer, Client, Deadline

PROMPTS = (
    "The capital of France is Paris. The capital of Italy is",
    "Count: one, two, three, four, five,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    '{"name": "Ada", "born": 1815, "known for": "',
    "Water boils at one hundred degrees Celsius at sea level. On a high mountain it boils at",
    "SELECT name, SUM(amount) FROM orders GROUP BY",
    "La traduction anglaise de « bonjour » est",
    "In 1969 two people walked on the moon for the first time. Their names were",
)
TOKENS = 32
TOP = 5


@dataclass(frozen=True)
class Step:
    """One token: the one that was forced, its log-probability, and the likeliest ones with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]

    @property
    def best(self) -> int:
        """The likeliest token."""
        return max(self.top, key=lambda pair: pair[1])[0] if self.top else self.token

    @property
    def lead(self) -> float:
        """By how much the likeliest token leads the next one, in nats."""
        ordered = sorted((value for _, value in self.top), reverse=True)
        return ordered[0] - ordered[1] if len(ordered) > 1 else math.inf


@dataclass(frozen=True)
class Sample:
    """One prompt: its tokens, and a step for each token of the continuation. The first step is the first token."""

    prompt: tuple[int, ...]
    steps: tuple[Step, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


@dataclass(frozen=True)
class Agreement:
    """How well two launches agree over all tokens.

    argmax: share of tokens where both find the same one likeliest; where the reference is undecided (its lead is below
    `undecided`) any of its leading two counts. gap: mean distance of the forced token's log-probabilities, in nats.
    worst: the largest of them. first: argmax of the first tokens alone, which come from prefill.
    """

    tokens: int
    argmax: float
    first: float
    gap: float
    worst: float

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)

    def problems(self, argmax: float, gap: float) -> list[str]:
        """What is wrong with it by the given limits, in words; empty where it agrees."""
        found = []
        if not self.tokens:
            found.append("no token could be compared")
        if self.argmax < argmax:
            found.append(f"{self.argmax:.1%} of {self.tokens} tokens agree with the reference, {argmax:.1%} are needed")
        if not self.gap <= gap:
            found.append(f"log-probabilities are {self.gap:.3f} nats from the reference's on average, {gap:.3f} are allowed")
        return found


def take(client: Client, deadline: Deadline, prompts: Sequence[str] = PROMPTS, tokens: int = TOKENS) -> list[Sample]:
    """What the reference says: its own greedy continuation of each prompt. Raises decode_check.RequestFailed."""
    samples = []
    for prompt in prompts:
        answer = client.post(
            "/generate",
            {
                "text": prompt,
                "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
                "return_logprob": True,
                "logprob_start_len": 0,
                "top_logprobs_num": TOP,
            },
            deadline,
        )
        meta = _meta(answer)
        chosen = [int(entry[1]) for entry in meta["output_token_logprobs"]]
        given = [int(entry[1]) for entry in meta["input_token_logprobs"]]
        samples.append(_forced(client, deadline, tuple(given), chosen))
    return samples


def compare(client: Client, deadline: Deadline, reference: Sequence[Sample], undecided: float = 0.05) -> Agreement:
    """The running server against the reference, given the reference's tokens. Raises decode_check.RequestFailed."""
    found = [_forced(client, deadline, each.prompt, [step.token for step in each.steps]) for each in reference]
    return judge(reference, found, undecided)


def _forced(client: Client, deadline: Deadline, prompt: tuple[int, ...], continuation: Sequence[int]) -> Sample:
    """Log-probabilities of a given continuation: the server reads it, and writes one token that does not count."""
    answer = client.post(
        "/generate",
        {
            "input_ids": [*prompt, *continuation],
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": max(0, len(prompt) - 1),
            "top_logprobs_num": TOP,
        },
        deadline,
    )
    meta = _meta(answer)
    count = len(continuation)
    entries, tops = meta["input_token_logprobs"][-count:], meta["input_top_logprobs"][-count:]
    steps = [_step(entry, top) for entry, top in zip(entries, tops, strict=True)]
    # SGLang 0.5.15 reports the last token of the vocabulary as 0 (logprob_result_processor.py).
    if len(steps) != count or any(step.token not in (sent, 0) for step, sent in zip(steps, continuation, strict=True)):
        raise BadAnswer("POST /generate: the log-probabilities are not those of the tokens that were sent")
    return Sample(prompt, tuple(replace(step, token=sent) for step, sent in zip(steps, continuation, strict=True)))


def _meta(answer: Any) -> Mapping[str, Any]:
    meta = answer.get("meta_info") if isinstance(answer, Mapping) else None
    if not isinstance(meta, Mapping) or not meta.get("input_token_logprobs"):
        raise BadAnswer("POST /generate: the answer has no log-probabilities of its input")
    return meta


def _step(entry: Any, top: Any) -> Step:
    try:
        pairs = tuple((int(token), _number(value)) for value, token, *_ in top or ())
        return Step(int(entry[1]), _number(entry[0]), pairs)
    except (TypeError, ValueError, IndexError):
        raise BadAnswer(f"POST /generate: a log-probability is none: {str(entry)[:80]}") from None


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def judge(reference: Sequence[Sample], found: Sequence[Sample], undecided: float) -> Agreement:
    """The agreement of two launches. A log-probability that is no number agrees with nothing."""
    agreed, firsts, gaps = 0, [], []
    for one, other in zip(reference, found, strict=True):
        for place, (left, right) in enumerate(zip(one.steps, other.steps, strict=True)):
            leading = {
                token for token, _ in sorted(left.top, key=lambda pair: -pair[1])[: 2 if left.lead < undecided else 1]
            }
            same = right.best in leading and not math.isnan(right.logprob)
            agreed += same
            if place == 0:
                firsts.append(same)
            gap = abs(left.logprob - right.logprob)
            gaps.append(math.inf if math.isnan(gap) else gap)
    count = len(gaps)
    if not count:
        return Agreement(0, 0.0, 0.0, math.inf, math.inf)
    return Agreement(count, agreed / count, sum(firsts) / len(firsts), sum(gaps) / count, max(gaps))


def samples_from(data: Any) -> list[Sample]:
    """The samples in JSON that `Sample.as_dict` made. Raises TypeError, KeyError or ValueError for anything else."""
    return [
        Sample(
            tuple(int(token) for token in each["prompt"]),
            tuple(
                Step(int(s["token"]), float(s["logprob"]), tuple((int(t), float(v)) for t, v in s["top"]))
                for s in each["steps"]
            ),
        )
        for each in data
    ]
