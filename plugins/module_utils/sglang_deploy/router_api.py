"""The workers of a running router: out of it, back into it, and which there are. Runs on the router's host.

Paths and answers are those of sglang-router 0.3.2 (`GET`, `POST /workers`, `DELETE /workers/ID`). Adding and removing are
jobs that the router works off by itself, so each is waited for. A request that runs on a worker when it is taken out goes on
to its end. Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import instance, secrets
from .decode_check.client import BadAnswer, Client, Deadline, Limits, Refused, RequestFailed, Server, parse_json

TEMPLATE = "sglang-router"
"""Name of the routers' template unit."""
ASK_S = 10.0
"""Seconds for one answer of the router."""
POLL_S = 0.5


class RouterProblem(Exception):
    """A worker could not be taken out or in; the message says why and what to do."""


class NoRouter(RouterProblem):
    """Nobody answers at the router's address, so no request goes through it either."""


class LastWorker(RouterProblem):
    """No other worker is healthy: without this one every request would fail."""


@dataclass(frozen=True)
class Target:
    """A worker to take in: its address, its kind, the bootstrap port of a prefill worker."""

    url: str
    kind: str = "regular"
    bootstrap_port: int | None = None


@dataclass(frozen=True)
class Listed:
    """A worker as the router lists it. load: requests that it works on for this router."""

    id: str
    url: str
    healthy: bool
    load: int
    kind: str = "regular"


@dataclass(frozen=True)
class Router:
    """A router's address and keys. admin_key: for its administration, where that has a key of its own."""

    url: str
    api_key: str = field(default="", repr=False)
    admin_key: str = field(default="", repr=False)

    def ask(self, method: str, path: str, payload: dict[str, Any] | None = None) -> bytes:
        """An answer that says yes. Raises NoRouter where nobody answers, RouterProblem for any other answer."""
        server = Server(self.url, api_key=self.admin_key or self.api_key or None, verify=False, limits=Limits(connect=ASK_S))
        try:
            return Client(server).text(method, path, payload, Deadline(ASK_S))
        except Refused as refused:
            if refused.status in (202, 204):
                return b""
            raise RouterProblem(f"the router at {self.url} says no: {refused}") from refused
        except RequestFailed as error:
            raise NoRouter(f"the router at {self.url} does not answer: {error}") from error

    def workers(self) -> tuple[Listed, ...]:
        """The workers that it has. One that it could not reach yet is not among them."""
        try:
            data = parse_json(self.ask("GET", "/workers"), "GET /workers")
            return tuple(
                Listed(
                    str(entry["id"]),
                    str(entry["url"]).rstrip("/"),
                    bool(entry["is_healthy"]),
                    int(entry.get("load") or 0),
                    str(entry.get("worker_type") or "regular"),
                )
                for entry in data["workers"]
            )
        except (BadAnswer, KeyError, TypeError, ValueError) as error:
            raise RouterProblem(
                f"the router at {self.url} lists its workers in a form that is not known: {error}"
            ) from error


def of_instance(name: str, directory: Path, deployment: Mapping[str, Any]) -> Router:
    """The router that the unit of an instance runs: its address, and the keys on the host. directory: the instance's own."""
    keys = secrets.read(instance.live(name, directory, template=TEMPLATE))
    values = keys.values if keys else {}
    return Router(str(deployment["spec"]["url"]), str(values.get("api_key") or ""), str(values.get("admin_api_key") or ""))


def in_words(workers: Sequence[Listed]) -> str:
    """The workers that a router lists, for a person: how many are healthy, and which are not."""
    ill = [worker.url for worker in workers if not worker.healthy]
    kinds = {worker.kind for worker in workers}
    counts = [f"{sum(one.healthy for one in workers if one.kind == kind)} {kind}" for kind in sorted(kinds)]
    told = f"{len(workers) - len(ill)} of {len(workers)} workers are healthy"
    told += f" ({', '.join(counts)})" if kinds - {"regular"} else ""
    return f"{told}; not {', '.join(ill)}" if ill else told


Sleep = Callable[[float], None]


def leave(
    router: Router,
    url: str,
    seconds: float,
    *,
    alone: bool = False,
    sleep: Sleep = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> bool:
    """Take a worker out, so that it gets no further request. Returns whether it was in.

    seconds: until it has to be gone. alone: also where no other healthy worker of its kind is left. Raises LastWorker where
    that is not allowed, NoRouter and RouterProblem.
    """
    there = [worker for worker in router.workers() if worker.url == url.rstrip("/")]
    if not there:
        return False
    kinds = {worker.kind for worker in there}
    others = [w for w in router.workers() if w.healthy and w.url != url.rstrip("/") and w.kind in kinds]
    if not others and not alone and any(worker.healthy for worker in there):
        raise LastWorker(
            f"{url} is the only healthy {' and '.join(sorted(kinds))} worker of the router at {router.url}: without it "
            "every request would fail. Bring another one up first, change workers one at a time (playbooks/rolling.yml), or "
            "set sglang_drain: false to go on all the same."
        )
    for worker in there:
        router.ask("DELETE", f"/workers/{worker.id}")
    end = now() + seconds
    while any(worker.url == url.rstrip("/") for worker in router.workers()):
        if now() >= end:
            raise RouterProblem(f"the router at {router.url} still lists {url} after {seconds:.0f} s; its log says why")
        sleep(POLL_S)
    return True


def join(
    router: Router, target: Target, seconds: float, *, sleep: Sleep = time.sleep, now: Callable[[], float] = time.monotonic
) -> bool:
    """Take a worker in, and wait until the router calls it healthy. Returns whether it was missing.

    seconds: until then. Raises NoRouter and RouterProblem.
    """
    added = _add(router, [target])
    end = now() + seconds
    while not any(worker.url == target.url.rstrip("/") and worker.healthy for worker in router.workers()):
        if now() >= end:
            raise RouterProblem(
                f"the router at {router.url} does not call {target.url} healthy after {seconds:.0f} s: look whether it "
                "reaches that address (sglang_worker_url), and into its log"
            )
        sleep(POLL_S)
    return bool(added)


def fill(router: Router, targets: Sequence[Target]) -> tuple[list[str], list[str]]:
    """Make the router's workers those that are named: add what is missing, take out what is not named.

    Returns what was added and what was taken out; waits for neither, since the router itself tries one again that does not
    answer yet.
    """
    wanted = {target.url.rstrip("/") for target in targets}
    strangers = [worker for worker in router.workers() if worker.url not in wanted]
    added = _add(router, targets)
    for worker in strangers:
        router.ask("DELETE", f"/workers/{worker.id}")
    return added, sorted({worker.url for worker in strangers})


def open_to_strangers(router: Router) -> str:
    """What is wrong where a router that has a key answers without one; empty where it asks for it."""
    if not router.api_key:
        return ""
    for key in ("", "x" * 20):
        try:
            Router(router.url, key).workers()
        except NoRouter:
            raise
        except RouterProblem:
            continue
        return (
            f"the router at {router.url} answers {'with a wrong key' if key else 'without a key'}, although it was given one"
        )
    return ""


def _add(router: Router, targets: Sequence[Target]) -> list[str]:
    there = {worker.url for worker in router.workers()}
    added = []
    for target in targets:
        if target.url.rstrip("/") in there:
            continue
        body: dict[str, Any] = {"url": target.url, "worker_type": target.kind}
        if router.api_key:
            body["api_key"] = router.api_key
        if target.bootstrap_port is not None:
            body["bootstrap_port"] = target.bootstrap_port
        router.ask("POST", "/workers", body)
        added.append(target.url)
    return added
