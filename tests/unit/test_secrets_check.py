"""The gate's look for keys where they must not be, against servers that keep them and servers that do not."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from sglang_deploy import secrets_check
from sglang_deploy.decode_check import Server
from sglang_deploy.secrets import Secrets

KEYS = Secrets({"api_key": "sk-0123456789abcdef", "admin_api_key": "adm-0123456789abcdef"}, "0" * 16)


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
    monkeypatch.setattr(
        secrets_check, "_places", lambda _: [("the log", "api_key='adm-0123456789abcdef'"), ("arguments", "")]
    )
    outcome = secrets_check.judge(KEYS, Server("http://127.0.0.1:1"), {"a": {"b": ["x sk-0123456789abcdef y"]}}, "u.service")
    assert outcome.ok is False
    assert outcome.summary == "/server_info tells a key; the log tells a key"
    assert "0123456789" not in json.dumps(outcome.evidence)


@pytest.mark.parametrize(("log", "looked"), [("a line", ["/server_info", "the log"]), ("", ["/server_info"])])
def test_what_could_not_be_read_is_not_said_to_be_clean(
    monkeypatch: pytest.MonkeyPatch, log: str, looked: list[str]
) -> None:
    monkeypatch.setattr(secrets_check, "_lets_in", lambda *_: "")
    monkeypatch.setattr(secrets_check, "unit_processes", lambda _: set())
    monkeypatch.setattr(secrets_check, "_output", lambda command: "0a1b\n" if command[0] == "systemctl" else log)
    outcome = secrets_check.judge(KEYS, Server("http://127.0.0.1:1"), {}, "u.service")
    assert outcome.ok
    assert outcome.evidence["looked"] == looked
    assert ("the log" in outcome.summary) is bool(log)


def test_the_processes_of_the_unit_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets_check, "unit_processes", lambda _: {os.getpid(), 2**22 + 1})
    monkeypatch.setattr(secrets_check, "_output", lambda _: "")
    places = dict(secrets_check._places("u.service"))
    assert set(places) == {"the argument list of a process", "the environment of a process"}
    assert "python" in places["the argument list of a process"]


def test_nobody_at_the_address_is_a_problem() -> None:
    outcome = secrets_check.judge(KEYS, Server("http://127.0.0.1:1"), {}, None)
    assert outcome.ok is False
