"""What a server said, read from the JSON of its endpoints into one form.

Every wrong shape is a BadAnswer that names the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .client import BadAnswer


@dataclass(frozen=True)
class Token:
    """One token. `logprob` is None where the server sent null; `top` holds the alternatives, likeliest first."""

    name: str
    logprob: float | None
    top: tuple[tuple[str, float | None], ...] = ()


@dataclass(frozen=True)
class ToolCall:
    """A call as the server gave it: `arguments` is the raw text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    """One decoded answer. `prompt` holds the tokens of the prompt with theirs, where asked for."""

    endpoint: str
    text: str
    reasoning: str = ""
    tokens: tuple[Token, ...] | None = None
    prompt: tuple[Token, ...] = ()
    finish: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def streamed(self) -> bool:
        """Whether it came in chunks."""
        return self.endpoint.endswith("(stream)")

    @property
    def said(self) -> str:
        """Reasoning and text together."""
        return self.reasoning + self.text


def dig(value: Any, what: str, *path: str | int) -> Any:
    """The value at `path` below `value`. Raises BadAnswer naming the place where the path ends."""
    seen = ""
    for step in path:
        if isinstance(step, int):
            if not isinstance(value, list) or len(value) <= step:
                raise BadAnswer(f"{what}: no element {step} in {seen or 'the answer'}: {excerpt(value)}")
        elif not isinstance(value, dict) or step not in value:
            raise BadAnswer(f"{what}: no field {step!r} in {seen or 'the answer'}: {excerpt(value)}")
        value = value[step]
        seen = f"{seen}.{step}".lstrip(".")
    return value


def excerpt(value: Any, most: int = 120) -> str:
    """The beginning of a value's text, for messages; half characters (lone surrogates) are replaced."""
    text = value.encode(errors="replace").decode() if isinstance(value, str) else repr(value)
    return text if len(text) <= most else text[:most] + "..."


def from_chat(data: Any) -> Answer:
    """The answer in the JSON of /v1/chat/completions."""
    what = "/v1/chat/completions"
    choice = dig(data, what, "choices", 0)
    message = dig(choice, what, "message")
    usage = _mapping(dig(data, what, "usage"), what, "usage")
    return Answer(
        what,
        text=_text(message, "content", what),
        reasoning=_text(message, "reasoning_content", what),
        tokens=_chat_tokens(choice, what),
        finish=_text(choice, "finish_reason", what),
        prompt_tokens=_count(usage, "prompt_tokens", what),
        completion_tokens=_count(usage, "completion_tokens", what),
        tool_calls=_tool_calls(message, what),
    )


def from_chat_stream(events: Sequence[Any]) -> Answer:
    """The answer that the chunks of a streamed chat completion add up to."""
    what = "/v1/chat/completions (stream)"
    text, reasoning, finish = "", "", ""
    tokens: list[Token] = []
    usage: Mapping[str, Any] = {}
    for event in events:
        if isinstance(event, dict) and "error" in event:
            raise BadAnswer(f"{what}: an error in the stream: {excerpt(event['error'], 300)}")
        usage = _mapping(event.get("usage") or {}, what, "usage") if isinstance(event, dict) else {}
        for choice in _list(dig(event, what, "choices"), what, "choices"):
            delta = dig(choice, what, "delta")
            text += _text(delta, "content", what)
            reasoning += _text(delta, "reasoning_content", what)
            finish = _text(choice, "finish_reason", what) or finish
            tokens += _chat_tokens(choice, what) or ()
    return Answer(
        what,
        text,
        reasoning,
        tuple(tokens) or None,
        finish=finish,
        prompt_tokens=_count(usage, "prompt_tokens", what),
        completion_tokens=_count(usage, "completion_tokens", what),
    )


def from_generate(data: Any) -> Answer:
    """The answer in the JSON of SGLang's /generate."""
    what = "/generate"
    meta = _mapping(dig(data, what, "meta_info"), what, "meta_info")
    reason = meta.get("finish_reason")
    return Answer(
        what,
        text=_text(data, "text", what),
        tokens=_native_tokens(meta, "output", what),
        prompt=(_native_tokens(meta, "input", what) or ())[1:],  # the first token has no predecessor: null by nature
        finish=_text(reason, "type", what) if isinstance(reason, dict) else "",
        prompt_tokens=_count(meta, "prompt_tokens", what),
        completion_tokens=_count(meta, "completion_tokens", what),
        cached_tokens=_count(meta, "cached_tokens", what),
    )


def _mapping(value: Any, what: str, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadAnswer(f"{what}: {name} is no object: {excerpt(value)}")
    return value


def _list(value: Any, what: str, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadAnswer(f"{what}: {name} is no list: {excerpt(value)}")
    return value


def _text(holder: Any, name: str, what: str) -> str:
    value = _mapping(holder, what, f"the holder of {name}").get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadAnswer(f"{what}: {name} is no text: {excerpt(value)}")
    return value


def _count(holder: Mapping[str, Any], name: str, what: str) -> int | None:
    value = holder.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadAnswer(f"{what}: {name} is no count: {excerpt(value)}")
    return value


def _logprob(value: Any, what: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadAnswer(f"{what}: a log-probability is no number: {excerpt(value)}")
    return float(value)


def _chat_tokens(choice: Any, what: str) -> tuple[Token, ...] | None:
    logprobs = choice.get("logprobs")
    if logprobs is None:
        return None
    content = dig(logprobs, what, "content")
    if content is None:
        return None
    return tuple(
        Token(
            _chat_name(entry, what),
            _logprob(dig(entry, what, "logprob"), what),
            tuple(
                (_chat_name(t, what), _logprob(dig(t, what, "logprob"), what))
                for t in _list(entry.get("top_logprobs") or [], what, "top_logprobs")
            ),
        )
        for entry in _list(content, what, "logprobs.content")
    )


def _chat_name(entry: Any, what: str) -> str:
    name = dig(entry, what, "token")
    if not isinstance(name, str):
        raise BadAnswer(f"{what}: a token is no text: {excerpt(name)}")
    return name


def _native_tokens(meta: Mapping[str, Any], side: str, what: str) -> tuple[Token, ...] | None:
    values = meta.get(f"{side}_token_logprobs")
    if values is None:
        return None
    tops = meta.get(f"{side}_top_logprobs") or []
    values = _list(values, what, f"{side}_token_logprobs")
    tops = _list(tops, what, f"{side}_top_logprobs") + [None] * (len(values) - len(tops))
    return tuple(
        Token(
            str(dig(entry, what, 1)),
            _logprob(dig(entry, what, 0), what),
            tuple(
                (str(dig(t, what, 1)), _logprob(dig(t, what, 0), what))
                for t in _list(top or [], what, f"{side}_top_logprobs")
            ),
        )
        for entry, top in zip(values, tops, strict=False)
    )


def _tool_calls(message: Any, what: str) -> tuple[ToolCall, ...]:
    found = []
    for call in _list(message.get("tool_calls") or [], what, "tool_calls"):
        function = dig(call, what, "function")
        found.append(ToolCall(_text(function, "name", what), _text(function, "arguments", what)))
    return tuple(found)
