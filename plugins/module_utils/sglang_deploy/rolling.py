"""Waiting until an instance has nothing left to do, before it is changed. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from .decode_check.client import Client, Deadline, Limits, RequestFailed, Server, Unreachable
from .decode_check.context import running_requests

ASK_S = 10.0
"""Seconds for one answer of the server."""
SETTLE_S = 2.0
"""Seconds without a request after which none is on its way any more: a router may have chosen the worker just before."""
POLL_S = 0.5


@dataclass(frozen=True)
class Idle:
    """How the wait ended: requests that were left (None where the server does not tell), seconds, and why in words."""

    ok: bool
    left: int | None
    seconds: float
    summary: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Unknown(Exception):
    """The server does not say how many requests it works on."""


def asking(server: Server) -> Callable[[], int | None]:
    """A function that asks for the number of requests: None where nobody answers, Unknown where the server does not tell."""
    client = Client(Server(server.url, api_key=server.api_key, verify=False, limits=Limits(connect=ASK_S)))

    def ask() -> int | None:
        try:
            found = running_requests(client, Deadline(ASK_S))
        except Unreachable:
            return None
        except RequestFailed:  # it is there, and too busy to answer in time
            return 1
        if found is None:
            raise Unknown
        return found

    return ask


def wait(
    ask: Callable[[], int | None],
    seconds: float,
    settle: float = SETTLE_S,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Idle:
    """Wait until the server had no request for `settle` seconds, at most `seconds`.

    A server that nobody can ask has no requests that could be waited for. One that does not tell gets the whole time.
    """
    begun = now()
    quiet: float | None = None
    left: int | None = None
    while True:
        passed = now() - begun
        try:
            left = ask()
        except Unknown:
            sleep(max(0.0, seconds - passed))
            return Idle(
                True, None, now() - begun, f"the server does not tell its requests, and had {seconds:.0f} s for them"
            )
        if left is None:
            return Idle(True, None, passed, "nobody answers there, so nothing is waited for")
        if left:
            quiet = None
        elif quiet is None:
            quiet = now()
        if quiet is not None and now() - quiet >= settle:
            return Idle(True, 0, now() - begun, f"no request for {settle:.0f} s, after {now() - begun:.0f} s")
        if passed >= seconds and left:
            requests = "1 request still runs" if left == 1 else f"{left} requests still run"
            return Idle(False, left, passed, f"{requests} after {seconds:.0f} s")
        sleep(POLL_S)
