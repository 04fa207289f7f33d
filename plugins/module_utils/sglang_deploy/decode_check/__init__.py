"""Requests that tell a correct decoder from a broken one. A 200 does not.

    verdict = run(Server("http://127.0.0.1:8000"), "quick", Expectations(model="glm-5", real_model=True))

Nothing here raises for what a server does: each check ends in its time with a line in the verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone

from . import basic, thorough
from .answers import dig
from .client import (
    BadServer,
    Client,
    Deadline,
    DecodeCheckError,
    Limits,
    RequestFailed,
    Server,
)
from .context import Context, Expectations, ExtraCheck, ServerInfo, discover_info, effective_settings
from .process import check_process, from_now
from .verdict import PART, Check, Outcome, Verdict

__all__ = [
    "LEVELS",
    "PART",
    "BadServer",
    "Check",
    "DecodeCheckError",
    "Expectations",
    "ExtraCheck",
    "Limits",
    "Outcome",
    "Server",
    "ServerInfo",
    "UnknownLevel",
    "Verdict",
    "names",
    "run",
]

LEVELS = ("quick", "full", "soak")

CheckFunction = Callable[[Context, Deadline], Outcome]
_QUICK: tuple[tuple[str, CheckFunction], ...] = (
    ("models", basic.check_models),
    ("greedy_chat", basic.check_greedy_chat),
    ("greedy_generate", basic.check_greedy_generate),
    ("logprobs", basic.check_logprobs),  # before sampling, which ends a server whose logits are NaN
    ("sampled_chat", basic.check_sampled_chat),
    ("sampled_generate", basic.check_sampled_generate),
    ("stream", basic.check_stream),
    ("repeat", basic.check_repeat),
    ("known_answers", basic.check_known_answers),
    ("burst", basic.check_burst),
)
_FULL: tuple[tuple[str, CheckFunction], ...] = (
    *_QUICK,
    ("text", thorough.check_text),
    ("prefix_cache", thorough.check_prefix_cache),
    ("long_prompt", thorough.check_long_prompt),
    ("reasoning", thorough.check_reasoning),
    ("tools", thorough.check_tools),
    ("cancel", thorough.check_cancel),
    ("overflow", thorough.check_overflow),
)
_SOAK: tuple[tuple[str, CheckFunction], ...] = (
    *_FULL,
    ("soak", thorough.check_soak),
    ("repeat_late", basic.check_repeat),
    ("prefix_cache_late", thorough.check_prefix_cache),
)
_CHECKS = {"quick": _QUICK, "full": _FULL, "soak": _SOAK, PART: ()}


class UnknownLevel(DecodeCheckError):
    """A level that does not exist."""


def names(level: str) -> tuple[str, ...]:
    """The names of a level's checks, in order, without the extra ones. Raises UnknownLevel."""
    if level not in _CHECKS:
        raise UnknownLevel(f"level {level!r} is unknown; one of {', '.join(LEVELS)}")
    return ("process", "server", *(name for name, _ in _CHECKS[level]), "alive")


def run(server: Server, level: str, expect: Expectations) -> Verdict:
    """Check the server and return the verdict.

    A check that meets a server that is gone or silent ends the run: the rest are recorded as not run, but `alive` is
    tried. Raises BadServer and UnknownLevel for wrong input, nothing for what the server does.
    """
    names(level)
    client = Client(server)
    return _Run(server, client, level, expect).verdict()


def _still_there(ctx: Context, deadline: Deadline) -> Outcome:
    """The instance calls itself healthy: SGLang's own request to itself, which each half answers alone."""
    ctx.client.text("GET", "/health_generate", None, deadline)
    return Outcome(True, "it calls itself healthy; whether both halves decode is for the gate of their router to say")


class _Run:
    def __init__(self, server: Server, client: Client, level: str, expect: Expectations) -> None:
        self._server, self._client, self._level, self._expect = server, client, level, from_now(expect)
        self._limits = server.limits
        self._begun = time.monotonic()
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._checks: list[Check] = []
        self._stopped_by: str | None = None
        self._end = Deadline(self._limits.total + (self._limits.soak if level == "soak" else 0))

    def verdict(self) -> Verdict:
        self._record("process", lambda _: check_process(self._expect))
        found: list[Context] = []
        self._record("server", lambda deadline: self._discover(deadline, found))
        if not found:
            rest = [*(e.name for e in self._expect.extra), *names(self._level)[2:]]
            self._checks += [Check(n, None, "not run: the server is not usable", {}, 0.0) for n in rest]
            return self._close(None, server_kind=self._server.kind)
        ctx = found[0]
        for extra in self._expect.extra:
            self._record(extra.name, lambda _, extra=extra: self._extra(ctx, extra))  # type: ignore[misc]
        for name, function in _CHECKS[self._level]:
            self._record(name, lambda deadline, function=function: function(ctx, deadline))  # type: ignore[misc]
        self._stopped_by = None
        alive = _still_there if self._level == PART else basic.check_alive
        self._record("alive", lambda deadline: alive(ctx, deadline))
        return self._close(ctx, server_kind=ctx.kind)

    def _discover(self, deadline: Deadline, found: list[Context]) -> Outcome:
        info = None if self._server.kind == "openai" else discover_info(self._client, deadline)
        if info is None and self._server.kind == "sglang":
            return Outcome(False, "neither /server_info nor /get_server_info answers as SGLang's does")
        models = dig(self._client.get("/v1/models", deadline), "/v1/models", "data")
        first = dig(models, "/v1/models", 0)
        length = first.get("max_model_len") if isinstance(first, dict) else None
        name = self._expect.model or str(dig(first, "/v1/models", "id"))
        kind = "openai" if info is None else "sglang"
        length = self._expect.context_length or (
            length if isinstance(length, int) and not isinstance(length, bool) else None
        )
        found.append(Context(self._client, self._expect, kind, name, info or {}, length, self._level))
        version = (info or {}).get("version")
        return Outcome(True, f"SGLang {version or ''}".strip() if info else "an OpenAI-compatible server", {"kind": kind})

    @staticmethod
    def _extra(ctx: Context, extra: ExtraCheck) -> Outcome:
        if not ctx.native:
            return Outcome(None, "not applicable: the server does not tell its settings")
        return extra.run(ctx.info)

    def _record(self, name: str, function: Callable[[Deadline], Outcome]) -> None:
        begun = time.monotonic()
        if self._stopped_by is not None:
            self._checks.append(Check(name, None, f"not run: {self._stopped_by} found the server gone or silent", {}, 0.0))
            return
        seconds = self._limits.check + (self._limits.soak if name == "soak" else 0)
        deadline = Deadline(seconds if name == "alive" else min(seconds, self._end.remaining()))
        try:
            outcome = function(deadline)
        except RequestFailed as error:
            outcome = Outcome(False, str(error), {"error": type(error).__name__})
            if error.fatal:
                self._stopped_by = name
        except Exception as error:  # whatever a broken server sends must end as a failed check
            outcome = Outcome(
                False,
                f"the answer could not be judged: {type(error).__name__}: {error}",
                {"error": type(error).__name__},
            )
        self._checks.append(Check(name, outcome.ok, outcome.summary, outcome.evidence, time.monotonic() - begun))

    def _close(self, ctx: Context | None, server_kind: str) -> Verdict:
        shown = next((c.evidence for c in self._checks if c.name == "greedy_chat" and c.ok), None)
        answer = None
        if ctx is not None and shown is not None:
            answer = {"question": basic.QUESTION, "text": shown["text"] or shown["reasoning"]}
        return Verdict(
            self._level,
            self._server.base,
            server_kind,
            self._started,
            time.monotonic() - self._begun,
            tuple(self._checks),
            answer,
            effective_settings(ctx.info) if ctx is not None else {},
        )
