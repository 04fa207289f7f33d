"""The gate's look for keys where they must not be, against servers that keep them and servers that do not."""

from __future__ import annotations

import io
import json
import os
import threading
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import journal, secrets_check
from sglang_deploy.decode_check import Server
from sglang_deploy.secrets import Secrets

KEYS = Secrets({"api_key": "sk-0123456789abcdef", "admin_api_key": "adm-0123456789abcdef"}, "0" * 16)


def with_journal(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """The journal of the unit's start is what a shell script prints."""
    monkeypatch.setattr(secrets_check, "_invocation", lambda _: "0a1b")
    monkeypatch.setattr(journal, "command", lambda *_: ["sh", "-c", script])


@pytest.fixture(params=["strict", "open", "any key"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "")
            right = {"strict": given == "Bearer sk-0123456789abcdef", "open": True, "any key": bool(given)}[request.param]
            self.send_response(200 if right else 401)
            self.end_headers()
            self.wfile.write(json.dumps({"data": []}).encode())

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield request.param, f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()


def test_who_is_let_in_without_the_key_is_seen(server: tuple[str, str]) -> None:
    kind, url = server
    outcome = secrets_check.judge(KEYS, Server(url, api_key="sk-0123456789abcdef"), {"api_key": "[removed]"}, None)
    assert outcome.ok is (kind == "strict")
    wanted = {"strict": "asked for", "open": "without a key", "any key": "with a wrong key"}[kind]
    assert wanted in outcome.summary


def test_a_key_in_server_info_or_in_a_log_is_seen_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets_check, "_lets_in", lambda *_: "")
    monkeypatch.setattr(secrets_check, "unit_processes", lambda _: set())
    with_journal(monkeypatch, "printf \"api_key='adm-0123456789abcdef'\"")
    outcome = secrets_check.judge(KEYS, Server("http://127.0.0.1:1"), {"a": {"b": ["x sk-0123456789abcdef y"]}}, "u.service")
    assert outcome.ok is False
    assert outcome.summary == "/server_info tells a key; the log tells a key"
    assert "0123456789" not in json.dumps(outcome.evidence)


@pytest.mark.parametrize(
    ("script", "looked"),
    [
        ("echo a line", ["/server_info", "the log"]),
        ("true", ["/server_info"]),
        ("echo a line; exec sleep 60", ["/server_info"]),
    ],
    ids=["read", "empty", "it does not end"],
)
def test_what_could_not_be_read_is_not_said_to_be_clean(
    monkeypatch: pytest.MonkeyPatch, script: str, looked: list[str]
) -> None:
    monkeypatch.setattr(secrets_check, "_lets_in", lambda *_: "")
    monkeypatch.setattr(secrets_check, "unit_processes", lambda _: set())
    monkeypatch.setattr(secrets_check, "SECONDS", 1.0)
    with_journal(monkeypatch, script)
    outcome = secrets_check.judge(KEYS, Server("http://127.0.0.1:1"), {}, "u.service")
    assert outcome.ok
    assert outcome.evidence["looked"] == looked
    assert ("the log" in outcome.summary) is ("the log" in looked)


def test_a_unit_that_never_ran_has_no_log_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    with_journal(monkeypatch, "echo the log of another unit: sk-0123456789abcdef")
    monkeypatch.setattr(secrets_check, "_invocation", lambda _: "")
    assert secrets_check._log(KEYS, "u.service") is None


def test_a_long_log_is_looked_at_to_its_end_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with_journal(monkeypatch, "head --bytes=200M /dev/zero; printf sk-0123456789abcdef; head --bytes=20M /dev/zero")
    tracemalloc.start()
    try:
        assert secrets_check._log(KEYS, "u.service") is True
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


@given(
    before=st.integers(0, 40), cut=st.integers(1, 40), key=st.sampled_from([*KEYS.values.values(), "sk-0123456789abcdeX"])
)
def test_a_key_is_found_wherever_a_block_ends(before: int, cut: int, key: str) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(secrets_check, "BLOCK", cut)
        stream = io.BytesIO(b"." * before + key.encode() + b"...")
        assert secrets_check.holds(KEYS, stream) is (key in KEYS.values.values())


def test_the_processes_of_the_unit_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets_check, "unit_processes", lambda _: {os.getpid(), 2**22 + 1})
    monkeypatch.setattr(secrets_check, "_log", lambda *_: None)
    word = Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode()
    places = secrets_check._places(Secrets({"api_key": word}, "0" * 16), "u.service")
    assert [name for name, _ in places] == ["the argument list of a process", "the environment of a process"]
    assert places[0][1] is True


def test_nobody_at_the_address_is_a_problem() -> None:
    outcome = secrets_check.judge(KEYS, Server("http://127.0.0.1:1"), {}, None)
    assert outcome.ok is False
