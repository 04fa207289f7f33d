"""Keeps an instance's keys out of its log and out of /server_info. Installed as `sitecustomize.py` beside the keys.

SGLang prints all of its arguments when it starts, keys included, and answers /server_info with them: whoever has the API
key reads the admin key there (read in 0.5.9, 0.5.10.post1, 0.5.15.post1 and 0.5.23). Neither can be switched off, and
`SGLANG_LOGGING_CONFIG_PATH` covers only what is logged, after it is configured. So every Python process of the unit runs
this before anything else: what is written to stdout and stderr and what the two paths answer have the keys' values
replaced. It looks for the values themselves, so that it does not matter how a release spells them. Standard library only.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import io
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from types import ModuleType
from typing import Any, TextIO

HIDDEN = "[removed]"
KEPT: list[TextIO] = []  # the first streams: their end would close the files
Message = dict[str, Any]


def values(path: str) -> tuple[str, ...]:
    """The keys in the file for `--config`, longest first. Raises OSError and ValueError."""
    with open(path, encoding="utf-8") as stream:  # noqa: PTH123 - runs at each start of Python
        found = re.findall(r'^[a-z-]+: (".*")$', stream.read(), re.MULTILINE)
    return tuple(sorted(map(json.loads, found), key=len, reverse=True))


def hidden(text: str, keys: Sequence[str]) -> str:
    """The text without the keys."""
    for key in keys:
        if key in text:
            text = text.replace(key, HIDDEN)
    return text


class Stream(io.TextIOWrapper):
    """A text stream that writes no key."""

    keys: tuple[str, ...] = ()

    @classmethod
    def over(cls, stream: TextIO, keys: tuple[str, ...]) -> Stream:
        """In place of `stream`, which must stay alive: its end would close the file."""
        made = cls(stream.buffer, stream.encoding, stream.errors, line_buffering=True)
        made.keys = keys
        return made

    def write(self, text: str) -> int:
        super().write(hidden(text, self.keys))
        return len(text)


def answering(call: Callable[..., Awaitable[None]], keys: tuple[str, ...]) -> Callable[..., Awaitable[None]]:
    """Starlette's `__call__`, with the keys taken out of what /server_info and /get_server_info answer."""

    async def guarded(self: Any, scope: Message, receive: Any, send: Callable[[Message], Awaitable[None]]) -> None:
        if scope["type"] != "http" or not str(scope.get("path", "")).rstrip("/").endswith("server_info"):
            await call(self, scope, receive, send)
            return
        start: Message = {}
        body = b""

        async def whole(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                start = message
                return
            body += message.get("body", b"")
            if message.get("more_body"):
                return
            for key in keys:
                body = body.replace(key.encode(), HIDDEN.encode())
            headers = [(name, value) for name, value in start.get("headers", ()) if name.lower() != b"content-length"]
            await send({**start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
            await send({"type": "http.response.body", "body": body})

        await call(self, scope, receive, whole)

    return guarded


class Finder(importlib.abc.MetaPathFinder):
    """Guards Starlette, SGLang's web framework, as soon as a process imports it."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = keys
        self._looking = False

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> Any:
        if name != "starlette.applications" or self._looking:
            return None
        self._looking = True  # the others are asked; taking this one away would leave a second look unguarded
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def guarded(module: ModuleType) -> None:
            load(module)
            module.Starlette.__call__ = answering(module.Starlette.__call__, self._keys)

        spec.loader.exec_module = guarded  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Guard this process. One that cannot be guarded ends: its log would tell the keys."""
    try:
        keys = values(os.environ["SGLANG_SECRETS_FILE"])
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None:
                KEPT.append(stream)
                guarded = Stream.over(stream, keys)
                setattr(sys, name, guarded)
                setattr(sys, f"__{name}__", guarded)
        sys.meta_path.insert(0, Finder(keys))
    except (OSError, ValueError, KeyError) as error:
        os.write(2, f"The keys of this instance cannot be kept out of its log: {error}\n".encode())
        os._exit(78)


if __name__ == "sitecustomize":
    install()
