"""A server that answers with anything at all: no traceback, no time and no memory without a bound, no key given away."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang_deploy import decode_check, hub, local_http, standing, status, watch

OK = b"HTTP/1.1 200 OK\r\n"
Answer = Callable[[socket.socket], None]


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, list[bytes]]]:
    """A server that does what `answer` does with each connection; its URL, and what it was asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def one(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                connection.settimeout(20)
                asked.append(connection.recv(65536))
                answer(connection)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)


def sends(*parts: bytes, times: int = 1, pause: float = 0.0) -> Answer:
    """Sends the first part once and the others `times` times."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(parts[0])
        for _ in range(times):
            for part in parts[1:]:
                connection.sendall(part)
                time.sleep(pause)

    return answer


HOSTILE = {
    "nothing": sends(b""),
    "noise": sends(bytes(range(256)) * 40),
    "no status": sends(b"HELLO\r\n\r\n"),
    "a status that is none": sends(b"HTTP/1.1 2x0 OK\r\n\r\n"),
    "headers without end": sends(OK, b"X: y\r\n", times=200_000),
    "one header without end": sends(OK + b"X: ", b"y" * 65536, times=200),
    "a body without end": sends(OK + b"\r\n", b"x" * 65536, times=1000),
    "chunks without end": sends(
        OK + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n", times=1000
    ),
    "a chunk that is none": sends(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nxx"),
    "less than announced": sends(OK + b"Content-Length: 100\r\n\r\n{}"),
    "a length of terabytes": sends(OK + b"Content-Length: 99999999999999\r\n\r\n", b"x" * 65536, times=1000),
    "a length below zero": sends(OK + b"Content-Length: -5\r\n\r\n", b"x" * 65536, times=1000),
    "a header that drips": sends(OK, b"X: y\r\n", times=100, pause=0.1),
    "a body that drips": sends(OK + b"Content-Length: 100\r\n\r\n", b"x", times=100, pause=0.1),
    "silence": lambda _: time.sleep(3),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hosts_look_at_its_own_server_is_bounded(name: str) -> None:
    with serving(HOSTILE[name]) as (url, _):
        started = time.monotonic()
        found = local_http.get(url, 1.0)
        took = time.monotonic() - started
    assert took < 2.5, f"{took:.1f} s"
    assert found is None or len(found) <= 65536


@pytest.mark.parametrize("name", ["noise", "no status", "a chunk that is none", "less than announced"])
def test_whoever_looks_gets_no_traceback(name: str) -> None:
    with serving(HOSTILE[name]) as (url, _):
        assert not standing.answers(url, 1.0)
        assert status.ask(url, metrics=True, seconds=1.0) == status.Load()
        assert status.ask(url, metrics=False, seconds=1.0) == status.Load()
        probe = watch.Probe(f"{url}/health_generate", {}, timeout=1.0)
        probe._ask()
        assert not probe.ready
        with pytest.raises(hub.HubError):
            hub.Hub(url, pause=0.001).listing("owner/name", "main")


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_gives_the_key_to_nobody(code: int) -> None:
    with serving(sends(OK + b"Content-Length: 2\r\n\r\n{}")) as (elsewhere, stolen):
        moved = f"HTTP/1.1 {code} Moved\r\nLocation: {elsewhere}/x\r\nContent-Length: 0\r\n\r\n".encode()
        with serving(sends(moved)) as (url, asked):
            assert status.ask(url, metrics=False, seconds=2.0, api_key="secret") == status.Load()
            assert not standing.answers(url)
            probe = watch.Probe(f"{url}/health_generate", {"Authorization": "Bearer secret"}, timeout=2.0)
            probe._ask()
            assert not probe.ready
        assert any(b"secret" in request for request in asked), "the server itself does get it"
    assert stolen == []


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=300),
        st.builds(
            lambda head, body: OK + head + b"\r\n\r\n" + body,
            st.sampled_from(
                [b"", b"Content-Length: 9", b"Transfer-Encoding: chunked", b"Content-Length: 1\r\nContent-Length: 2"]
            ),
            st.binary(max_size=100),
        ),
    )
)
def test_any_bytes_are_an_answer_or_none(content: bytes) -> None:
    with serving(sends(content)) as (url, _):
        assert local_http.get(url, 2.0) is None or content.startswith(b"HTTP/1.")
        limits = decode_check.Limits(connect=1, silence=1, check=2, total=2)
        verdict = decode_check.run(decode_check.Server(url, limits=limits), "quick", decode_check.Expectations())
        assert not verdict.ok


@given(st.text(max_size=2000))
def test_any_metrics_are_read(text: str) -> None:
    assert isinstance(status.load(text), status.Load)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["internal_states", "last_gen_throughput", "x"]), inner)
        ),
        max_leaves=10,
    )
)
def test_any_server_info_is_read(value: object) -> None:
    assert isinstance(status.load_without_metrics(json.dumps(value)), status.Load)


def test_nested_without_end() -> None:
    assert status.load_without_metrics("[" * 200_000) == status.Load()
