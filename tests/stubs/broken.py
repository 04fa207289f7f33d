"""Servers that are broken in one way each. Every one must be refused by the check that looks for it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import Any

from .honest import VOCABULARY, Honest, Said, Step


class NullLogprobs(Honest):
    """NaN logits as SGLang shows them: one end token, null, no text."""

    def say(self, prompt: str, most: int, temperature: float, payload: dict[str, Any]) -> Said:
        said = super().say(prompt, most, temperature, payload)
        return replace(said, steps=[Step("<|endoftext|>", 0, None, ())], finish="stop")

    def chat_body(self, said: Said) -> dict[str, Any]:
        body = super().chat_body(said)
        body["choices"][0]["message"]["content"] = ""
        return body


class NanLiteral(Honest):
    """NaN written into the JSON as the word NaN."""

    def unsure(self, dice: Any, *, greedy: bool) -> Step:
        return replace(super().unsure(dice, greedy=greedy), logprob=math.nan)


class Uniform(Honest):
    """NaN logits behind SGLANG_SANITIZE_NAN_LOGITS: every token equally likely."""

    def unsure(self, dice: Any, *, greedy: bool) -> Step:
        step = super().unsure(dice, greedy=greedy)
        flat = -math.log(VOCABULARY)
        return replace(step, logprob=flat, top=tuple((text, number, flat) for text, number, _ in step.top))


class UniformWithoutAlternatives(Uniform):
    """The same from a server that gives no alternatives."""

    def unsure(self, dice: Any, *, greedy: bool) -> Step:
        return replace(super().unsure(dice, greedy=greedy), top=())


class OneBadExpert(Honest):
    """NaN for the tokens of one script only, and only in the prompt."""

    def generate_body(self, said: Said, payload: dict[str, Any]) -> dict[str, Any]:
        body = super().generate_body(said, payload)
        if "Съешь" in payload["text"] and "logprob_start_len" in payload:
            body["meta_info"]["input_token_logprobs"][2][0] = None
        return body


class OneBadExpertSanitised(Honest):
    """The same with the sanitiser: one position of one prompt is uniform."""

    def generate_body(self, said: Said, payload: dict[str, Any]) -> dict[str, Any]:
        body = super().generate_body(said, payload)
        if "Съешь" in payload["text"] and "logprob_start_len" in payload:
            flat = -math.log(VOCABULARY)
            body["meta_info"]["input_token_logprobs"][2][0] = flat
            body["meta_info"]["input_top_logprobs"][2] = [[flat, n, None] for n in range(5)]
        return body


class Looping(Honest):
    """A trained model that repeats itself."""

    def know(self, prompt: str) -> tuple[str, str]:
        text, reasoning = super().know(prompt)
        return ("and the light and the light " * 20 if "lighthouse" in prompt else text), reasoning


class Mojibake(Honest):
    """Replacement characters in the text."""

    def know(self, prompt: str) -> tuple[str, str]:
        text, reasoning = super().know(prompt)
        return text.replace("a", "\ufffd") + ".", reasoning


class Leaking(Honest):
    """Special tokens in the text."""

    def know(self, prompt: str) -> tuple[str, str]:
        text, reasoning = super().know(prompt)
        return text + " <|user|>", reasoning


class Ignorant(Honest):
    """Fluent and wrong."""

    def know(self, prompt: str) -> tuple[str, str]:
        return "I like the sea and all of its many ships.", ""


class Unsplit(Honest):
    """A reasoning parser that does not fit: the tags stay in the text."""

    def say(self, prompt: str, most: int, temperature: float, payload: dict[str, Any]) -> Said:
        said = super().say(prompt, most, temperature, payload)
        if not said.reasoning or "bats" not in prompt:
            return said
        return replace(said, reasoning="", steps=[self.sure(f"{said.reasoning} </think>"), *said.steps])


class Empty(Honest):
    """200 with tokens counted and no text."""

    def chat_body(self, said: Said) -> dict[str, Any]:
        body = super().chat_body(said)
        body["choices"][0]["message"].update(content="", reasoning_content=None)
        return body


class WrongToolArguments(Honest):
    """A tool call whose arguments break the schema."""

    def tool_call(self, payload: dict[str, Any]) -> dict[str, Any]:
        call = super().tool_call(payload)
        call["function"]["arguments"] = json.dumps({"town": "Zürich", "unit": "kelvin"})
        return call


class WrongToolArgumentsAtRandom(WrongToolArguments):
    """The same from random weights, which need not call at all."""

    def say(self, prompt: str, most: int, temperature: float, payload: dict[str, Any]) -> Said:
        said = super().say(prompt, most, temperature, payload)
        return replace(said, tool_calls=[self.tool_call(payload)]) if "tools" in payload else said


class OtherCity(WrongToolArguments):
    """Arguments that fit the schema and not the question."""

    def tool_call(self, payload: dict[str, Any]) -> dict[str, Any]:
        call = super().tool_call(payload)
        call["function"]["arguments"] = json.dumps({"city": "Oslo", "unit": "celsius"})
        return call


class MixedUp(Honest):
    """Under concurrency an answer goes to another request."""

    token_seconds = 0.01

    def __init__(self, trained: bool = False) -> None:
        super().__init__(trained)
        self.last = "nothing"

    def say(self, prompt: str, most: int, temperature: float, payload: dict[str, Any]) -> Said:
        return super().say(self.swap(prompt), most, temperature, payload)

    def ramble(self, prompt: str, most: int, temperature: float) -> list[Step]:
        return super().ramble(prompt if self.trained else self.swap(prompt), most, temperature)

    def swap(self, prompt: str) -> str:
        with self.lock:
            other, self.last = self.last, prompt
            return other if self.running >= 4 else prompt


class Unsteady(Honest):
    """Greedy decoding that is not deterministic."""

    def ramble(self, prompt: str, most: int, temperature: float) -> list[Step]:
        return super().ramble(prompt + str(len(self.requests)), most, temperature)


class StaleCache(Honest):
    """A prompt that was seen before is answered from a wrong cache, if it is long."""

    def __init__(self, trained: bool = False) -> None:
        super().__init__(trained)
        self.seen: set[str] = set()

    def ramble(self, prompt: str, most: int, temperature: float) -> list[Step]:
        wrong = len(prompt) > 1000 and prompt in self.seen
        self.seen.add(prompt)
        return super().ramble(prompt + " " * wrong, most, temperature)


class ChunkBug(StaleCache):
    """The same for prompts longer than a prefill chunk only."""

    def ramble(self, prompt: str, most: int, temperature: float) -> list[Step]:
        return super().ramble(prompt if len(prompt.split()) > 512 else prompt[:900], most, temperature)


class OtherStream(Honest):
    """A stream that says something else than the whole answer."""

    def stream_events(self, said: Said) -> Iterator[dict[str, Any]]:
        return super().stream_events(replace(said, steps=said.steps[::-1]))


class LostText(Honest):
    """A stream with the right tokens that loses a piece of the text."""

    def stream_events(self, said: Said) -> Iterator[dict[str, Any]]:
        for place, event in enumerate(super().stream_events(said)):
            if place == 2:
                event["choices"][0]["delta"]["content"] = ""
            yield event


class StreamWithoutEnd(Honest):
    """A stream that never stops."""

    def stream_events(self, said: Said) -> Iterator[dict[str, Any]]:
        while True:
            yield from list(super().stream_events(said))[:-1]


class SlotKept(Honest):
    """A request that the client left goes on being counted."""

    @contextmanager
    def slot(self) -> Iterator[None]:
        self.running += 1
        yield
        self.running -= 1


class OneSlotKept(Honest):
    """The same without any count: the only slot is never freed, so the next request waits."""

    blocked = False

    def handle(self, handler: BaseHTTPRequestHandler, payload: dict[str, Any] | None) -> None:
        if handler.path == "/get_load":
            self.reply(handler, {}, 404)
            return
        while self.blocked and payload is not None:
            time.sleep(0.05)
        super().handle(handler, payload)

    def send_stream(self, handler: BaseHTTPRequestHandler, said: Said) -> None:
        self.blocked = True
        super().send_stream(handler, said)
        self.blocked = False


class OverflowAccepted(Honest):
    """A prompt past the context is answered."""

    def chat(self, handler: BaseHTTPRequestHandler, payload: dict[str, Any]) -> None:
        words = payload["messages"][-1]["content"].split()
        payload["messages"][-1]["content"] = " ".join(words[:500])
        super().chat(handler, payload)


class OverflowFails(Honest):
    """A prompt past the context is an internal error."""

    def reply(self, handler: BaseHTTPRequestHandler, body: Any, status: int = 200) -> None:
        super().reply(handler, body, 500 if status == 400 else status)


class Dying(Honest):
    """The base of servers that end: connections are then closed without a byte."""

    dead = False

    def handle(self, handler: BaseHTTPRequestHandler, payload: dict[str, Any] | None) -> None:
        if not self.dead:
            super().handle(handler, payload)


class DiesAfterFirst(Dying):
    """One good answer, then no more."""

    def chat(self, handler: BaseHTTPRequestHandler, payload: dict[str, Any]) -> None:
        self.dead = True
        super().chat(handler, payload)


class DiesOfOverflow(Dying):
    """A prompt past the context gets its 400 and ends the server."""

    def reply(self, handler: BaseHTTPRequestHandler, body: Any, status: int = 200) -> None:
        self.dead = self.dead or status == 400
        super().reply(handler, body, status)


class Failing(Honest):
    """Every decode is an internal error."""

    def chat(self, handler: BaseHTTPRequestHandler, payload: dict[str, Any]) -> None:
        self.reply(handler, {"message": "internal"}, 500)


class Denying(Honest):
    """Another key is wanted."""

    def chat(self, handler: BaseHTTPRequestHandler, payload: dict[str, Any]) -> None:
        self.reply(handler, {"message": "unauthorized"}, 401)


class RawChat(Honest):
    """The base of servers whose chat answer is no proper HTTP or JSON."""

    def chat(self, handler: BaseHTTPRequestHandler, payload: dict[str, Any]) -> None:
        try:
            self.raw(handler)
        except OSError:
            return

    def raw(self, handler: BaseHTTPRequestHandler) -> None:
        raise NotImplementedError


class SlowDrip(RawChat):
    """A byte now and then, for ever."""

    def raw(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b" ")
            time.sleep(0.05)


class SlowHeaders(RawChat):
    """The same before the headers end."""

    def raw(self, handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.0 200 OK\r\nX-Slow: ")
        while True:
            handler.wfile.write(b"x")
            time.sleep(0.05)


class Silent(RawChat):
    """No byte at all."""

    def raw(self, handler: BaseHTTPRequestHandler) -> None:
        time.sleep(20)


class MalformedJson(RawChat):
    def raw(self, handler: BaseHTTPRequestHandler) -> None:
        self.send(handler, 200, b'{"choices": [')


class NotUtf8(RawChat):
    def raw(self, handler: BaseHTTPRequestHandler) -> None:
        self.send(handler, 200, b'{"choices": "\xff\xfe"}')


class DeepJson(RawChat):
    """Brackets deeper than any parser's stack."""

    def raw(self, handler: BaseHTTPRequestHandler) -> None:
        self.send(handler, 200, b"[" * 200_000)


class OtherShape(RawChat):
    """JSON of another kind than an answer."""

    def raw(self, handler: BaseHTTPRequestHandler) -> None:
        self.send(handler, 200, b'{"choices": [{"message": ["hello"]}], "usage": {}}')


class TextLogprob(Honest):
    """A log-probability that is a text."""

    def chat_token(self, step: Step) -> dict[str, Any]:
        return super().chat_token(step) | {"logprob": "-1.0"}


class HugeAnnounced(RawChat):
    """100 MB, announced."""

    def raw(self, handler: BaseHTTPRequestHandler) -> None:
        self.send(handler, 200, b" " * 1000, length=100_000_000)


class HugeUnannounced(RawChat):
    """100 MB without a length."""

    def raw(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(100):
            handler.wfile.write(b" " * 1_000_000)


class ShortBody(RawChat):
    """Fewer bytes than announced."""

    def raw(self, handler: BaseHTTPRequestHandler) -> None:
        self.send(handler, 200, b'{"choices": []}', length=5000)


class NotHttp(RawChat):
    def raw(self, handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")


class Redirecting(RawChat):
    """A redirect to `elsewhere`, which must never be asked."""

    elsewhere = ""

    def raw(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", self.elsewhere + "/v1/chat/completions")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
