#!/usr/bin/env python3
"""The greedy tokens of a server, asked in three ways: ask.py URL. Prints JSON: for each prompt, lists of ids and a text.

An answer counts only when it is complete: status 200, all tokens, and of a stream its end, too.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

TOKENS = 32
PROMPTS = (
    "Say something",
    "The quick brown fox jumps over the lazy dog. " * 20,
    "Zahlen: 1, 2, 3, 5, 8, 13, 21, 34",
    "def first(list):\n    return",
)
GREEDY = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
url = sys.argv[1]


def post(path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310
    return urllib.request.urlopen(request, timeout=120)  # noqa: S310  # nosec B310


def ids(answer: dict[str, Any]) -> list[int]:
    found: list[int] = answer["output_ids"]
    if len(found) != TOKENS:
        raise SystemExit(f"{len(found)} tokens instead of {TOKENS}: {answer}")
    return found


def plain(prompt: str) -> list[int]:
    with post("/generate", {"text": prompt, "sampling_params": GREEDY}) as answer:
        return ids(json.load(answer))


def streamed(prompt: str) -> list[int]:
    with post("/generate", {"text": prompt, "sampling_params": GREEDY, "stream": True}) as answer:
        events = [line[5:].strip() for line in answer if line.startswith(b"data:")]
    if events[-1] != b"[DONE]":
        raise SystemExit(f"the stream broke off after {len(events)} events")
    return ids(json.loads(events[-2]))


def chat(prompt: str) -> dict[str, Any]:
    body = {"model": "glm-5", "messages": [{"role": "user", "content": prompt}], "max_tokens": TOKENS, "ignore_eos": True}
    with post("/v1/chat/completions", {**body, "temperature": 0}) as answer:
        got = json.load(answer)
    if got["usage"]["completion_tokens"] != TOKENS:
        raise SystemExit(f"{got['usage']} instead of {TOKENS} tokens")
    message: dict[str, Any] = got["choices"][0]["message"]
    return message


print(json.dumps([[plain(prompt), streamed(prompt), chat(prompt)] for prompt in PROMPTS]))
