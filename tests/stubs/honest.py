"""A small server that behaves like a correct SGLang with a deterministic decoder. The broken ones derive from it.

It serves on a free port of the loopback interface. With `trained` it answers like a trained model, else like one with
random weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCABULARY = 1000
CONTEXT = 4096
CHUNK = 512
PROSE = (
    "A lighthouse warns ships of rocks and shoals. In its lantern room a bright lamp burns all night, and a lens of "
    "many prisms bends the light into one narrow beam. A motor turns the lens, so that sailors see a flash at fixed "
    "intervals. Each station has its own rhythm and colour, printed on charts, which tells a crew exactly where they "
    "are. Older towers used oil and clockwork; keepers wound the weights by hand. Modern ones switch themselves on at "
    "dusk, check their own bulbs, and report faults by radio to an office far inland."
)


@dataclass(frozen=True)
class Step:
    """One decoded token: its text, number, log-probability and alternatives (itself first)."""

    text: str
    number: int
    logprob: float | None
    top: tuple[tuple[str, int, float | None], ...]


@dataclass(frozen=True)
class Said:
    """What the decoder answers to one request."""

    steps: list[Step]
    finish: str
    prompt_tokens: int
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps)


def count(prompt: str) -> int:
    """Tokens of a prompt: one a word."""
    return max(1, len(prompt.split()))


class Honest:
    """The correct server. Used as a context manager; `url` is its address."""

    token_seconds = 0.0
    tls: ssl.SSLContext | None = None

    def __init__(self, trained: bool = False) -> None:
        self.trained = trained
        self.running = 0
        self.lock = threading.Lock()
        self.requests: list[str] = []
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Honest:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.handle(self, None)

            def do_POST(self) -> None:
                outer.handle(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, *_: Any) -> None:
                pass

        self._server = _Quiet(("127.0.0.1", 0), Handler)
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    @property
    def url(self) -> str:
        assert self._server is not None
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    # What a request gets. Broken servers override from here on.

    def handle(self, handler: BaseHTTPRequestHandler, payload: dict[str, Any] | None) -> None:
        path = handler.path
        self.requests.append(path)
        if path == "/v1/chat/completions" and payload is not None:
            self.chat(handler, payload)
        elif path == "/generate" and payload is not None:
            self.generate(handler, payload)
        elif path == "/v1/models":
            self.reply(handler, {"data": [{"id": "stub", "max_model_len": CONTEXT}]})
        elif path == "/server_info":
            self.reply(handler, {"model_path": "/stub", "chunked_prefill_size": CHUNK, "version": "0.0.0"})
        elif path == "/health_generate":
            self.reply(handler, {})
        elif path == "/get_load":
            self.reply(handler, [{"dp_rank": 0, "num_reqs": self.running}])
        else:
            self.reply(handler, {"error": "not found"}, 404)

    def chat(self, handler: BaseHTTPRequestHandler, payload: dict[str, Any]) -> None:
        prompt = payload["messages"][-1]["content"]
        if count(prompt) + payload["max_tokens"] > CONTEXT:
            self.reply(handler, {"message": "longer than the context length", "code": 400}, 400)
            return
        if payload.get("stream"):
            self.stream(handler, payload)
            return
        with self.slot():
            said = self.say(prompt, payload["max_tokens"], payload["temperature"], payload)
        self.reply(handler, self.chat_body(said))

    def generate(self, handler: BaseHTTPRequestHandler, payload: dict[str, Any]) -> None:
        sampling = payload["sampling_params"]
        with self.slot():
            steps = self.ramble(payload["text"], sampling["max_new_tokens"], sampling["temperature"])
        said = Said(steps, "length", count(payload["text"]))
        self.reply(handler, self.generate_body(said, payload))

    def stream(self, handler: BaseHTTPRequestHandler, payload: dict[str, Any]) -> None:
        said = self.say(payload["messages"][-1]["content"], payload["max_tokens"], payload["temperature"], payload)
        with self.slot():
            self.send_stream(handler, said)

    def send_stream(self, handler: BaseHTTPRequestHandler, said: Said) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        for event in self.stream_events(said):
            handler.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            time.sleep(self.token_seconds or 0.001)
        handler.wfile.write(b"data: [DONE]\n\n")

    def stream_events(self, said: Said) -> Iterator[dict[str, Any]]:
        def event(delta: dict[str, Any], steps: list[Step], finish: str | None) -> dict[str, Any]:
            logprobs = {"content": [self.chat_token(s) for s in steps]} if steps else None
            return {"choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]}

        yield event({"role": "assistant", "content": ""}, [], None)
        if said.reasoning:
            yield event({"reasoning_content": said.reasoning}, [], None)
        for step in said.steps:
            yield event({"content": step.text}, [step], None)
        yield event({}, [], said.finish)
        yield {"choices": [], "usage": self.usage(said)}

    @contextmanager
    def slot(self) -> Iterator[None]:
        with self.lock:
            self.running += 1
        try:
            time.sleep(self.token_seconds)
            yield
        finally:
            with self.lock:
                self.running -= 1

    def say(self, prompt: str, most: int, temperature: float, payload: dict[str, Any]) -> Said:
        """The answer to a chat request."""
        if not self.trained:
            return Said(self.ramble(prompt, most, temperature), "length", count(prompt))
        if "tools" in payload:
            return Said([], "tool_calls", count(prompt), tool_calls=[self.tool_call(payload)])
        text, reasoning = self.know(prompt)
        if not payload.get("chat_template_kwargs", {}).get("enable_thinking", True):
            reasoning = ""
        words = re.findall(r"\S+\s*", text)
        steps = [self.sure(word) for word in words[:most]]
        return Said(steps, "length" if len(words) > most else "stop", count(prompt), reasoning)

    def tool_call(self, payload: dict[str, Any]) -> dict[str, Any]:
        arguments = json.dumps({"city": "Zürich", "unit": "celsius", "days": 3})
        name = payload["tools"][0]["function"]["name"]
        return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}

    def know(self, prompt: str) -> tuple[str, str]:
        """Text and reasoning of a trained model's answer."""
        for part, text in (
            ("17 + 25", "42"),
            ("capital of France", "The capital is Paris."),
            ("planet", "Earth"),
            ("backwards", "tac"),
            ("lighthouse", PROSE),
            ("two bats", "Two bats and a ball cost 8 euros."),
            ("Count from one", " ".join(str(n) for n in range(1, 2000))),
        ):
            if part in prompt:
                return text, "The user asks a simple question."
        code = re.search(r"(?:say nothing else: |secret code is )([0-9a-f-]+)", prompt)
        return (code.group(1) if code else "I see."), ""

    def sure(self, word: str) -> Step:
        """A token of which a trained model is rather sure."""
        number = int(hashlib.sha256(word.encode()).hexdigest()[:6], 16) % VOCABULARY
        logprob = -0.1 - number / VOCABULARY * 0.3
        return Step(word, number, logprob, ((word, number, logprob), ("other", 0, -3.0), ("third", 1, -4.0)))

    def ramble(self, prompt: str, most: int, temperature: float) -> list[Step]:
        """Tokens of random weights: a function of the prompt alone when greedy."""
        seed = hashlib.sha256(prompt.encode()).hexdigest() + (str(random.random()) if temperature else "")
        dice = random.Random(seed)
        return [self.unsure(dice, greedy=not temperature) for _ in range(most)]

    def unsure(self, dice: random.Random, *, greedy: bool) -> Step:
        numbers = dice.sample(range(VOCABULARY), 5)
        logprobs = sorted((-math.log(VOCABULARY) + dice.uniform(0.4, 1.4) for _ in numbers), reverse=True)
        top = tuple((f" w{n}", n, p) for n, p in zip(numbers, logprobs, strict=True))
        text, number, logprob = top[0 if greedy else dice.randrange(5)]
        return Step(text, number, logprob, top)

    def chat_body(self, said: Said) -> dict[str, Any]:
        message = {
            "role": "assistant",
            "content": said.text or None,
            "reasoning_content": said.reasoning or None,
            "tool_calls": said.tool_calls or None,
        }
        logprobs = {"content": [self.chat_token(s) for s in said.steps]}
        choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": said.finish}
        return {"choices": [choice], "usage": self.usage(said)}

    def usage(self, said: Said) -> dict[str, int]:
        return {"prompt_tokens": said.prompt_tokens, "completion_tokens": len(said.steps) or 5}

    def chat_token(self, step: Step) -> dict[str, Any]:
        top = [{"token": text, "logprob": logprob} for text, _, logprob in step.top]
        return {"token": step.text, "logprob": step.logprob, "top_logprobs": top}

    def generate_body(self, said: Said, payload: dict[str, Any]) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "finish_reason": {"type": said.finish},
            "prompt_tokens": said.prompt_tokens,
            "completion_tokens": len(said.steps),
            "cached_tokens": 0,
            "output_token_logprobs": [[s.logprob, s.number, None] for s in said.steps],
            "output_top_logprobs": [[[p, n, None] for _, n, p in s.top] for s in said.steps],
        }
        if "logprob_start_len" in payload:
            steps = self.ramble("prompt " + payload["text"], said.prompt_tokens, 0)
            meta["input_token_logprobs"] = [[None, 1, None]] + [[s.logprob, s.number, None] for s in steps[1:]]
            meta["input_top_logprobs"] = [None] + [[[p, n, None] for _, n, p in s.top] for s in steps[1:]]
        return {"text": said.text, "meta_info": meta}

    def reply(self, handler: BaseHTTPRequestHandler, body: Any, status: int = 200) -> None:
        self.send(handler, status, json.dumps(body).encode())

    def send(self, handler: BaseHTTPRequestHandler, status: int, raw: bytes, length: int | None = None) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(raw) if length is None else length))
        handler.end_headers()
        handler.wfile.write(raw)


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, *_: Any) -> None:
        """A client that leaves is no error here."""
