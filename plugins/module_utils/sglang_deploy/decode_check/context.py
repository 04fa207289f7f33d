"""What every check has at hand: the server, the expectations and two ways to ask."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .answers import Answer, dig, from_chat, from_chat_stream, from_generate
from .client import BadAnswer, Client, Deadline
from .judge import count_problems, empty_problems, greedy_problems, logprob_problems, text_problems, top1_mass
from .verdict import Outcome

ServerInfo = Mapping[str, Any]
_SECRET = re.compile(r"key|password|secret|credential|(?:^|_)token$")
THINKING_BUDGET = 1024  # tokens; a thinking model may use most of them before its first word of text
LEAST_MASS = 0.2  # of the likeliest token, mean over an answer; trained models show 0.5 and more
SHORT = 12  # tokens; enough of a random model's answer


@dataclass(frozen=True)
class ExtraCheck:
    """A check from outside: `run` gets the server's own /server_info and returns the outcome."""

    name: str
    run: Callable[[ServerInfo], Outcome]


@dataclass(frozen=True)
class Expectations:
    """What the server should be.

    model: the served name; None takes the first that /v1/models lists.
    real_model: trained weights, judged by sense too. False: random weights, judged by log-probabilities and form alone.
    reasoning_parser, tool_call_parser: as the instance configures them, None if it does not.
    chunked_prefill_size, context_length, vocab_size: tokens; None asks the server for the first two.
    unit: the systemd unit. argv: what its main process should have been started with. restarts: NRestarts that it may have;
    None takes what it has when the check begins, so that only a crash meanwhile counts.
    extra: further checks on /server_info, such as the comparison of asked and effective settings.
    """

    model: str | None = None
    real_model: bool = False
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    chunked_prefill_size: int | None = None
    context_length: int | None = None
    vocab_size: int | None = None
    unit: str | None = None
    argv: tuple[str, ...] | None = None
    restarts: int | None = None
    extra: tuple[ExtraCheck, ...] = ()


@dataclass(frozen=True)
class Context:
    """One run's server, as found at its beginning. `salt` makes prompts new to the server's prefix cache."""

    client: Client
    expect: Expectations
    kind: str
    model: str
    info: ServerInfo
    context_length: int | None
    level: str
    salt: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def native(self) -> bool:
        return self.kind == "sglang"

    @property
    def real(self) -> bool:
        return self.expect.real_model

    @property
    def budget(self) -> int:
        """Tokens that an answer may have."""
        return THINKING_BUDGET if self.real else SHORT

    @property
    def tolerance(self) -> float:
        """How far another batch may move a log-probability: further with FP4 and FP8 kernels than with BF16."""
        return 0.5 if self.real else 0.15

    @property
    def chunk(self) -> int | None:
        """Tokens of a prefill chunk, None where chunking is off or unknown."""
        size = self.expect.chunked_prefill_size or self.info.get("chunked_prefill_size")
        return size if isinstance(size, int) and size > 0 else None

    @property
    def unthinking(self) -> dict[str, Any]:
        """Request fields that ask a thinking model to answer at once. Templates that know no such switch ignore it."""
        return {"chat_template_kwargs": {"enable_thinking": False}} if self.native and self.real else {}

    def chat_payload(self, prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
        """The body of a chat request that wants log-probabilities."""
        payload: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 5,
        }
        if self.native and not self.real:
            payload["ignore_eos"] = True  # a random model may end at once
        return payload | more

    def chat(self, prompt: str, deadline: Deadline, tokens: int, **more: Any) -> Answer:
        return from_chat(self.client.post("/v1/chat/completions", self.chat_payload(prompt, tokens, **more), deadline))

    def chat_stream(self, prompt: str, deadline: Deadline, tokens: int, **more: Any) -> Answer:
        payload = self.chat_payload(prompt, tokens, **more, stream=True, stream_options={"include_usage": True})
        return from_chat_stream(list(self.client.events("/v1/chat/completions", payload, deadline)))

    def generate_payload(
        self, prompt: str, tokens: int, temperature: float = 0.0, *, with_prompt: bool = False
    ) -> dict[str, Any]:
        """The body of a /generate request. with_prompt: log-probabilities of the prompt's tokens too."""
        sampling: dict[str, Any] = {"temperature": temperature, "max_new_tokens": tokens, "ignore_eos": True}
        payload = {"text": prompt, "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 5}
        return payload | {"logprob_start_len": 0} if with_prompt else payload

    def generate(
        self, prompt: str, deadline: Deadline, tokens: int, temperature: float = 0.0, *, with_prompt: bool = False
    ) -> Answer:
        return from_generate(
            self.client.post(
                "/generate", self.generate_payload(prompt, tokens, temperature, with_prompt=with_prompt), deadline
            )
        )

    def complete(self, prompt: str, deadline: Deadline, tokens: int) -> Answer:
        """A greedy answer of fixed length: through /generate where there is one, else through chat."""
        return self.generate(prompt, deadline, tokens) if self.native else self.chat(prompt, deadline, tokens)

    def problems(self, answer: Answer, most: int, *, greedy: bool = True) -> list[str]:
        """Everything that is wrong with one answer to a request of at most `most` tokens."""
        tokens = answer.tokens or ()
        found = logprob_problems(tokens, self.expect.vocab_size)
        found = found or logprob_problems(answer.prompt, self.expect.vocab_size, "the prompt")
        if answer.tokens is None and self.native:
            found.append(f"{answer.endpoint} gave no log-probabilities")
        if found:
            return found  # what follows from NaN need not be said too
        found = empty_problems(answer, self.real) + count_problems(answer, most)
        if greedy:
            found += greedy_problems(tokens, self.tolerance)
        if self.real and answer.endpoint != "/generate":  # a raw continuation may be of any kind
            mass = top1_mass(tokens)
            if mass is not None and len(tokens) >= 4 and mass < LEAST_MASS:
                found.append(f"the likeliest token has only {mass:.1%} of probability on average")
            found += text_problems(answer.text) + text_problems(answer.reasoning)
        return found


def discover_info(client: Client, deadline: Deadline) -> ServerInfo | None:
    """SGLang's /server_info (older: /get_server_info), None where the server is not SGLang."""
    for path in ("/server_info", "/get_server_info"):
        try:
            info = client.get(path, deadline)
        except BadAnswer:
            continue
        if isinstance(info, dict) and "model_path" in info:
            return info
    return None


def effective_settings(info: ServerInfo) -> dict[str, Any]:
    """The plain values of /server_info, without what may be a secret: the server tells its api key there."""
    plain = (str, int, float, bool, type(None))
    return {k: v for k, v in info.items() if isinstance(v, plain) and not _SECRET.search(k)}


@dataclass(frozen=True)
class Requests:
    """Requests of a server at this moment: those that it works on, and those that wait for a place."""

    running: int
    waiting: int


def requests_now(client: Client, deadline: Deadline) -> Requests | None:
    """What runs and waits, None where the server has no endpoint for it (or only stale gauges)."""
    for path, read in (("/v1/loads", _from_loads), ("/get_load", _from_get_load)):
        try:
            return read(client.get(path, deadline))
        except BadAnswer:
            continue
    return None


def running_requests(client: Client, deadline: Deadline) -> int | None:
    """The number of requests that run or wait, None where the server does not tell."""
    found = requests_now(client, deadline)
    return None if found is None else found.running + found.waiting


def _from_loads(data: Any) -> Requests:
    loads = dig(data, "/v1/loads", "loads")
    running, waiting = (
        sum(int(dig(x, "/v1/loads", name)) for x in loads) for name in ("num_running_reqs", "num_waiting_reqs")
    )
    return Requests(running, waiting)


def _from_get_load(data: Any) -> Requests:
    """num_reqs holds those that wait, too."""
    if not isinstance(data, list):
        raise BadAnswer("/get_load: no list")
    waiting = sum(int(x.get("num_waiting_reqs", 0)) if isinstance(x, dict) else 0 for x in data)
    return Requests(sum(int(dig(x, "/get_load", "num_reqs")) for x in data) - waiting, waiting)


def joined(problems: Sequence[str]) -> str:
    """Problems as one line, each once."""
    return "; ".join(dict.fromkeys(problems))
