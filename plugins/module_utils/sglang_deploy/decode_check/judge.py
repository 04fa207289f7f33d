"""Criteria that tell a correct decoder from a broken one, on answers alone. Each returns problems, in words.

Seen on real servers (SGLang 0.5.16). NaN logits, greedy: 200, an empty text and `logprob: null`. NaN logits with
SGLANG_SANITIZE_NAN_LOGITS=1: 200, and every token at -ln(vocabulary). A correct server with random weights:
log-probabilities that vary.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .answers import Answer, Token, ToolCall, excerpt

CONSTANT = "the logits are NaN and were sanitised, or constant"
FLAT = 1e-4  # alternatives closer than this are one value
NEVER = -9.0  # a uniform distribution over 8,100 or more; models have larger vocabularies
PADDING = 0.01
SPECIAL = re.compile(
    r"<\|[^<>|\s]{1,40}\|>|</?(?:think|tool_call|arg_key|arg_value|s|pad|unk|eos|bos)>|\[gMASK\]|<sop>|<eop>"
)


def logprob_problems(tokens: Sequence[Token], vocab_size: int | None, where: str = "the answer") -> list[str]:
    """NaN, sanitised NaN and impossible values among the log-probabilities of `tokens`.

    vocab_size: of the model, if known; a uniform distribution then shows in one token without alternatives.
    """
    total = len(tokens)
    if not total:
        return []
    lost = sum(t.logprob is None or math.isnan(t.logprob) or _broken_top(t) for t in tokens)
    if lost:
        return [f"the logits are NaN: {lost} of {total} log-probabilities of {where} are null or NaN"]
    values = [t.logprob for t in tokens if t.logprob is not None]
    if any(math.isinf(v) for v in values):
        return [f"log-probabilities of {where} are infinite"]
    if max(values) > 1e-3:
        return [f"a log-probability of {where} is {max(values):.4f}: above 0, so no probability"]
    flat = sum(_is_flat(t, vocab_size) for t in tokens)
    if flat:
        return [
            f"{CONSTANT}: at {flat} of {total} tokens of {where} "
            f"every choice is equally likely (log-probability {_shown(tokens, vocab_size)})"
        ]
    ties = [_best(t) for t in tokens if _tied(t)]
    if len(ties) >= 2 and 2 * len(ties) > total and max(ties) - min(ties) < FLAT and ties[0] < -0.5:
        return [f"{CONSTANT}: all alternatives of {len(ties)} of {total} tokens of {where} are {ties[0]:.4f}"]
    bare = not any(len(t.top) >= 3 for t in tokens)  # alternatives that differ prove a distribution, even in a loop
    if bare and total >= 4 and max(values) - min(values) < 1e-6 and values[0] < -0.5:
        return [f"{CONSTANT}: all {total} log-probabilities of {where} are {values[0]:.4f}"]
    heavy = max(sum(math.exp(p) for _, p in t.top if p is not None) for t in tokens)
    if heavy > 1.01:
        return [f"the alternatives of a token of {where} have {heavy:.2f} of probability together, more than 1"]
    return []


def _broken_top(token: Token) -> bool:
    return any(p is None or math.isnan(p) for _, p in token.top)


def _is_flat(token: Token, vocab_size: int | None) -> bool:
    """Whether nothing is likelier than anything else at this token.

    Five tied alternatives alone do not say so: with logits of 16 bit and a flat distribution a healthy model has some (seen
    at 1 of about 1,000 tokens of random weights). Over a whole vocabulary each has next to no probability, too.
    """
    if token.logprob is None or token.logprob > -0.5:
        return False
    best = _best(token)
    if not vocab_size:
        return _tied(token) and best < NEVER
    uniform = -math.log(vocab_size)
    if len(token.top) >= 3:
        # The likeliest can't be less likely than in a uniform distribution; padding of the vocabulary moves that a little.
        # One unlikely token of a sampled answer may sit there by chance; its alternatives then do not.
        return best < uniform + PADDING
    return abs(best - uniform) < FLAT


def _tied(token: Token) -> bool:
    tops = [p for _, p in token.top if p is not None]
    return len(tops) >= 3 and max(tops) - min(tops) < FLAT


def _best(token: Token) -> float:
    return max((p for _, p in token.top if p is not None), default=token.logprob or 0.0)


def _shown(tokens: Sequence[Token], vocab_size: int | None) -> str:
    value = next(t.logprob for t in tokens if t.logprob is not None and _is_flat(t, vocab_size))
    if vocab_size and abs(value + math.log(vocab_size)) < FLAT:
        return f"{value:.4f} = -ln({vocab_size})"
    return f"{value:.4f}"


def greedy_problems(tokens: Sequence[Token], tolerance: float) -> list[str]:
    """Tokens of a greedy answer that were less likely than another by more than `tolerance`."""
    wrong = [t for t in tokens if t.logprob is not None and t.top and t.logprob < _best(t) - tolerance]
    if not wrong:
        return []
    pair = f"{wrong[0].logprob:.3f} against {_best(wrong[0]):.3f}"
    return [f"{len(wrong)} of {len(tokens)} greedy tokens were not the likeliest ({pair})"]


def top1_mass(tokens: Sequence[Token]) -> float | None:
    """The mean probability of the likeliest token, 0 to 1. None without log-probabilities."""
    masses = [math.exp(min(0.0, _best(t))) for t in tokens if t.logprob is not None and not math.isnan(t.logprob)]
    return sum(masses) / len(masses) if masses else None


def count_problems(answer: Answer, most: int) -> list[str]:
    """Token counts and finish reason that contradict each other. `most` is the limit that was asked for, in tokens."""
    found = []
    if answer.finish not in ("stop", "length", "tool_calls"):
        found.append(f"finish reason {answer.finish!r}")
    if not answer.prompt_tokens:
        found.append("the prompt is counted as 0 tokens")
    count = answer.completion_tokens
    if count is None or count < 1:
        found.append("no token was decoded")
        return found
    if count > most:
        found.append(f"{count} tokens were decoded, {most} were allowed")
    if answer.finish == "length" and count < most:
        found.append(f"finish reason length after {count} of {most} tokens")
    if answer.tokens and abs(len(answer.tokens) - count) > 1 and not has_gaps(answer):
        found.append(f"{len(answer.tokens)} log-probabilities for {count} tokens")
    return found


def has_gaps(answer: Answer) -> bool:
    """Whether a stream gave fewer log-probabilities than it counts tokens.

    SGLang 0.5.16 sends no chunk for a token that ends inside a character, and drops its log-probability with it
    (entrypoints/openai/serving_chat.py, without parsers; seen with a byte-level tokenizer).
    """
    return answer.streamed and answer.tokens is not None and len(answer.tokens) + 1 < (answer.completion_tokens or 0)


def empty_problems(answer: Answer, real: bool) -> list[str]:
    """An empty answer. Text, reasoning and tool calls count together.

    A random model may choose only special or blank tokens, which are not shown: there an empty text is wrong only
    beside other tokens. /generate names tokens by number, so it cannot tell.
    """
    if answer.said.strip() or answer.tool_calls:
        return []
    if not real and answer.tokens and answer.endpoint == "/generate":
        return []
    if not real and answer.tokens and all(SPECIAL.fullmatch(t.name) or not t.name.strip() for t in answer.tokens):
        return []
    counted = f"{answer.completion_tokens} tokens counted, finish {answer.finish!r}"
    return [f"200 with an empty answer: no text, no reasoning, {counted}"]


def text_problems(text: str) -> list[str]:
    """Signs of garbage in a text of a real model: replacement characters, loops, special tokens."""
    found = []
    broken = text.rstrip("\ufffd").count("\ufffd")  # the last character may be cut by the token limit
    if broken:
        found.append(f"{broken} replacement characters: {excerpt(text)!r}")
    leaked = sorted({m.group() for m in SPECIAL.finditer(text)})
    if leaked:
        found.append(f"special tokens in the text: {', '.join(leaked[:5])}")
    loop = repetition(text)
    if loop:
        found.append(f"the text repeats itself: {loop}")
    return found


def repetition(text: str) -> str | None:
    """How `text` loops, or None: its end repeats a piece, or all of it compresses as prose never does."""
    if len(text) < 80:
        return None
    tail = text[-400:]
    for period in range(1, len(tail) // 4 + 1):
        unit = tail[-period:]
        if tail.endswith(unit * max(4, -(-36 // period))):
            return f"{excerpt(unit, 40)!r} again and again"
    raw = text.encode(errors="replace")
    ratio = len(raw) / len(zlib.compress(raw, 9))
    if len(raw) >= 400 and ratio > 6:
        return f"it compresses {ratio:.0f} to 1"
    return None


@dataclass(frozen=True)
class Comparison:
    """Two greedy answers to one prompt: `same` of `of` tokens are equal up to the first other one.

    delta: the largest difference of their log-probabilities.
    """

    agree: bool
    same: int
    of: int
    delta: float
    why: str = ""


def compare(one: Answer, other: Answer, tolerance: float) -> Comparison:
    """Whether two greedy answers to one prompt come from one decoder.

    Equal tokens may differ by `tolerance` in log-probability. Where the tokens part, both must rate both choices within
    `tolerance` (a near tie, which another batch size may turn); what follows is then not compared.
    """
    if one.tokens is None or other.tokens is None:
        agree = _same_text(one, other)
        return Comparison(
            agree, 0, 0, 0.0, "" if agree else f"{excerpt(one.said, 60)!r} against {excerpt(other.said, 60)!r}"
        )
    of = min(len(one.tokens), len(other.tokens))
    delta = 0.0
    for place, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=False)):
        if a.name != b.name:
            gap = max(_gap(a, b.name), _gap(b, a.name))
            why = "" if gap <= tolerance else f"token {place + 1} is {a.name!r} and {b.name!r}, no near tie ({_width(gap)})"
            return Comparison(gap <= tolerance, place, of, delta, why)
        delta = max(delta, abs((a.logprob or 0.0) - (b.logprob or 0.0)))
        if not delta <= tolerance:
            return Comparison(False, place, of, delta, f"log-probabilities of token {place + 1} differ by {delta:.3f}")
    return Comparison(True, of, of, delta)


def _gap(token: Token, rival: str) -> float:
    known = dict(token.top).get(rival)
    if known is None or token.logprob is None:
        return math.inf
    return abs(token.logprob - known)


def _width(gap: float) -> str:
    return "not among the alternatives" if math.isinf(gap) else f"{gap:.3f} apart"


def _same_text(one: Answer, other: Answer) -> bool:
    return " ".join(one.said.split()) == " ".join(other.said.split())


def stream_text_problems(whole: Answer, streamed: Answer) -> list[str]:
    """Differences of the text between an answer and its stream.

    A stream that ends by length may hold back an unfinished character or tag: up to 16 characters.
    """
    spare = 16 if whole.finish == "length" else 0
    for name, a, b in (("text", whole.text, streamed.text), ("reasoning", whole.reasoning, streamed.reasoning)):
        short, long = sorted((a.strip().rstrip("\ufffd"), b.strip().rstrip("\ufffd")), key=len)
        if not long.startswith(short) or len(long) - len(short) > spare:
            return [f"the {name} is {excerpt(a, 60)!r} whole and {excerpt(b, 60)!r} streamed"]
    return []


def tool_call_problems(call: ToolCall, tool: Mapping[str, Any]) -> list[str]:
    """What is wrong with a call of `tool`, an entry of the request's `tools`: its name, its arguments."""
    function = tool["function"]
    if call.name != function["name"]:
        return [f"a tool {call.name!r} is called that was not offered"]
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return [f"the arguments are not JSON: {excerpt(call.arguments)!r}"]
    return _schema_problems(arguments, function["parameters"], "arguments")


_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
}


def _schema_problems(value: Any, schema: Mapping[str, Any], where: str) -> list[str]:
    if isinstance(value, bool) or not isinstance(value, _TYPES[schema["type"]]):
        return [f"{where} is no {schema['type']}: {excerpt(value)}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where} is {value!r}, not one of {', '.join(schema['enum'])}"]
    found = []
    if isinstance(value, dict):
        known = schema["properties"]
        found += [f"{where} lacks {name!r}" for name in schema["required"] if name not in value]
        found += [f"{where} has {name!r}, which the schema does not know" for name in value if name not in known]
        for name in known.keys() & value.keys():
            found += _schema_problems(value[name], known[name], f"{where}.{name}")
    if isinstance(value, list):
        for place, item in enumerate(value):
            found += _schema_problems(item, schema["items"], f"{where}[{place}]")
    return found
