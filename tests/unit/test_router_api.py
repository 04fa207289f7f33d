"""Workers out of a router and into it, and the wait for their last request."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from loading import answer
from sglang_deploy import instance, rolling, router_api, secrets
from sglang_deploy.decode_check import Server
from sglang_deploy.router_api import Router, Target

KEY, ADMIN = "k" * 16, "a" * 16


class Fake(ThreadingHTTPServer):
    """Answers as sglang-router 0.3.2 does; `slow` is how many looks a job takes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.workers: dict[str, dict[str, Any]] = {}
        self.jobs: list[tuple[int, str, dict[str, Any]]] = []
        self.slow, self.asked = 0, []
        self.key: str | None = KEY
        self.form: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def has(self, *urls: str, healthy: bool = True, kind: str = "regular") -> Fake:
        for url in urls:
            self.workers[url] = {"id": f"id-{url[-1]}", "url": url, "is_healthy": healthy, "load": 0, "worker_type": kind}
        return self

    def step(self) -> None:
        ready = [job for job in self.jobs if job[0] <= 0]
        self.jobs = [(left - 1, what, body) for left, what, body in self.jobs if left > 0]
        for _, what, body in ready:
            if what == "add":
                self.has(body["url"])
            else:
                self.workers = {url: w for url, w in self.workers.items() if w["id"] != body["id"]}


class Handler(BaseHTTPRequestHandler):
    server: Fake

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def answer(self, status: int, data: Any) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_one(self, what: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        self.server.asked.append((what, self.path, body))
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.answer(401, {})
        elif what == "GET":
            self.server.step()
            listed = {"workers": list(self.server.workers.values())}
            self.answer(200, listed if self.server.form is None else self.server.form)
        else:
            job = ("add", body) if what == "POST" else ("remove", {"id": self.path.rpartition("/")[2]})
            self.server.jobs.append((self.server.slow, *job))
            self.answer(202, {"status": "accepted"})

    def do_GET(self) -> None:
        self.handle_one("GET")

    def do_POST(self) -> None:
        self.handle_one("POST")

    def do_DELETE(self) -> None:
        self.handle_one("DELETE")


@pytest.fixture
def fake() -> Iterator[Fake]:
    server = Fake()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.time = 0.0

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def now(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


A, B = "http://10.0.0.1:1", "http://10.0.0.1:2"


def test_a_worker_that_leaves_is_waited_for(fake: Fake, clock: Clock) -> None:
    fake.has(A, B).slow = 3
    assert router_api.leave(Router(fake.url, KEY), A + "/", 60, sleep=clock.sleep, now=clock.now)
    assert list(fake.workers) == [B]
    assert clock.time > 0


def test_one_that_is_not_in_it_has_left(fake: Fake) -> None:
    fake.has(B)
    assert not router_api.leave(Router(fake.url, KEY), A, 60)
    assert all(what == "GET" for what, _, _ in fake.asked)


@pytest.mark.parametrize("other", ["none", "unhealthy", "decode"])
def test_the_last_healthy_one_stays_unless_that_is_wanted(fake: Fake, clock: Clock, other: str) -> None:
    fake.has(A)
    if other != "none":
        fake.has(B, healthy=other == "decode", kind="decode" if other == "decode" else "regular")
    with pytest.raises(router_api.LastWorker, match="only healthy regular worker"):
        router_api.leave(Router(fake.url, KEY), A, 60)
    assert A in fake.workers
    assert router_api.leave(Router(fake.url, KEY), A, 60, alone=True, sleep=clock.sleep, now=clock.now)


def test_one_that_is_dead_may_leave_although_it_is_the_last(fake: Fake, clock: Clock) -> None:
    fake.has(A, healthy=False)
    assert router_api.leave(Router(fake.url, KEY), A, 60, sleep=clock.sleep, now=clock.now)


def test_one_that_does_not_go_is_told(fake: Fake, clock: Clock) -> None:
    fake.has(A, B).slow = 10**6
    with pytest.raises(router_api.RouterProblem, match="still lists"):
        router_api.leave(Router(fake.url, KEY), A, 5, sleep=clock.sleep, now=clock.now)


def test_a_worker_joins_with_key_kind_and_port_and_is_waited_for(fake: Fake, clock: Clock) -> None:
    fake.slow = 3
    assert router_api.join(Router(fake.url, KEY), Target(A, "prefill", 8998), 60, sleep=clock.sleep, now=clock.now)
    posted = [body for what, _, body in fake.asked if what == "POST"]
    assert posted == [{"url": A, "worker_type": "prefill", "api_key": KEY, "bootstrap_port": 8998}]


def test_one_that_is_in_already_is_not_added_again(fake: Fake) -> None:
    fake.has(A)
    assert not router_api.join(Router(fake.url, KEY), Target(A), 60)


def test_one_that_does_not_get_healthy_is_told(fake: Fake, clock: Clock) -> None:
    fake.has(A, healthy=False)
    with pytest.raises(router_api.RouterProblem, match="sglang_worker_url"):
        router_api.join(Router(fake.url, KEY), Target(A), 5, sleep=clock.sleep, now=clock.now)


def test_the_workers_become_those_that_are_named(fake: Fake) -> None:
    fake.has(A, "http://10.0.0.1:3")
    added, removed = router_api.fill(Router(fake.url, KEY), [Target(A), Target(B)])
    assert (added, removed) == ([B], ["http://10.0.0.1:3"])
    Router(fake.url, KEY).workers()
    assert sorted(fake.workers) == [A, B]
    assert router_api.fill(Router(fake.url, KEY), [Target(A), Target(B)]) == ([], [])


def test_its_administration_is_asked_with_the_key_of_its_own(fake: Fake) -> None:
    fake.key = ADMIN
    assert Router(fake.url, KEY, ADMIN).workers() == ()
    with pytest.raises(router_api.RouterProblem, match="another api key"):
        Router(fake.url, KEY).workers()


def test_a_router_with_a_key_that_does_not_ask_for_it_is_told(fake: Fake) -> None:
    assert router_api.open_to_strangers(Router(fake.url, KEY)) == ""
    fake.key = None
    assert "without a key" in router_api.open_to_strangers(Router(fake.url, KEY))
    assert router_api.open_to_strangers(Router(fake.url)) == ""


def test_nobody_there_is_something_else_than_a_no(fake: Fake) -> None:
    with pytest.raises(router_api.NoRouter):
        Router("http://127.0.0.1:9", KEY).workers()


@pytest.mark.parametrize("form", [[], {}, {"workers": 3}, {"workers": [{}]}, {"workers": [{"id": 1, "url": "a"}]}])
def test_a_list_of_another_form_is_told(fake: Fake, form: Any) -> None:
    fake.form = form
    with pytest.raises(router_api.RouterProblem, match="not known"):
        Router(fake.url, KEY).workers()


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("up", "1 of 2 workers are healthy; not http://b"),
        ("pd", "3 of 4 workers are healthy (1 decode, 1 prefill, 1 regular); not http://b"),
        ("silent", "does not answer"),
        ("stopped", ""),
    ],
)
def test_the_status_of_a_router_tells_its_workers(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, state: str, said: str
) -> None:
    fake.has("http://a").has("http://b", healthy=False)
    if state == "pd":
        fake.has("http://c", kind="prefill").has("http://d", kind="decode")
    spec = {"hash": "a" * 64, "url": "http://127.0.0.1:9" if state == "silent" else fake.url, "profile": "p"}
    spec |= {"release": "router-1", "command": ["start.py"], "argv": [], "environment": {}}
    instance.write({"spec": spec, "launch": "", "environment": ""}, tmp_path / "router", os.getegid())
    (tmp_path / "router" / secrets.FILE).write_text(secrets.Secrets({"api_key": KEY}, "0" * 16).text(), encoding="utf-8")
    asked: list[str] = []

    def running(name: str, template: str) -> instance.Running:
        asked.append(instance.unit_name(name, template))
        return instance.Running(state != "stopped", state, 0, 0, "", spec_hash="a" * 64, argv=("start.py",))

    monkeypatch.setattr(instance, "running", running)
    given = {
        "name": "router",
        "config_root": str(tmp_path),
        "state_root": str(tmp_path / "state"),
        "template": "sglang-router",
    }
    lines = answer(monkeypatch, capsys, "sglang_status", given)["lines"]
    assert asked == ["sglang-router@router.service"]
    assert "release router-1, profile p" in lines[1]
    assert any(said in line for line in lines) and KEY not in str(lines)
    assert ("workers are healthy" in str(lines)) is (state in ("up", "pd"))
    assert fake.asked or state in ("silent", "stopped")


def test_keys_are_not_shown() -> None:
    assert KEY not in repr(Router("http://x:1", KEY, ADMIN))
    assert ADMIN not in repr(Router("http://x:1", KEY, ADMIN))


def counting(*numbers: int | None) -> Any:
    """A server that tells these numbers, the last one for ever."""
    left = list(numbers)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_idle_is_two_seconds_without_a_request(clock: Clock) -> None:
    found = rolling.wait(counting(3, 1, 0), 60, sleep=clock.sleep, now=clock.now)
    assert found.ok
    assert found.left == 0
    assert clock.time >= 2 * rolling.POLL_S + rolling.SETTLE_S


def test_a_request_that_comes_late_begins_the_two_seconds_anew(clock: Clock) -> None:
    assert rolling.wait(counting(0, 0, 1, 0), 60, sleep=clock.sleep, now=clock.now).ok
    assert clock.time >= 3 * rolling.POLL_S + rolling.SETTLE_S


def test_requests_that_do_not_end_are_counted(clock: Clock) -> None:
    found = rolling.wait(counting(2), 30, sleep=clock.sleep, now=clock.now)
    assert (found.ok, found.left, found.summary) == (False, 2, "2 requests still run after 30 s")
    assert rolling.wait(counting(1), 30, sleep=clock.sleep, now=clock.now).summary.startswith("1 request still runs")


def test_a_server_that_nobody_can_ask_has_nothing_to_wait_for(clock: Clock) -> None:
    found = rolling.wait(counting(None), 30, sleep=clock.sleep, now=clock.now)
    assert found.ok
    assert clock.time == 0
    assert rolling.asking(Server("http://127.0.0.1:9"))() is None


def test_a_server_that_does_not_tell_gets_the_whole_time(fake: Fake, clock: Clock) -> None:
    found = rolling.wait(rolling.asking(Server(fake.url, api_key=KEY)), 30, sleep=clock.sleep, now=clock.now)
    assert found.ok
    assert found.left is None
    assert clock.time == 30
