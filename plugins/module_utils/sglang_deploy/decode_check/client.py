"""HTTP to a server that may be broken in any way, with a bound on time and on bytes.

Written on http.client: a limit on a whole request, one that drips a byte a second included, needs the socket, and
`requests` has limits only between two bytes. Redirects are never followed, proxy variables are not read.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

KINDS = ("auto", "sglang", "openai")


class DecodeCheckError(Exception):
    """Base of the errors of this package."""


class BadServer(DecodeCheckError):
    """The server's description cannot be used: a wrong URL, kind or CA file."""


class RequestFailed(DecodeCheckError):
    """A request brought no usable answer. `fatal`: the next ones would fare no better."""

    fatal = False


class Unreachable(RequestFailed):
    """Nothing answers at the address, or the connection broke off before an answer."""

    fatal = True


class TimedOut(RequestFailed):
    """The answer was not complete when the time was over."""

    fatal = True


class BadAnswer(RequestFailed):
    """An answer came that is no valid one: a redirect, too many bytes, not JSON, a field missing."""


class Refused(BadAnswer):
    """An HTTP status other than 200. `status` holds it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """Bounds, in seconds and bytes.

    connect: for a connection. silence: between two bytes. check: for one check. total: for all checks of a run but the
    soak. freed: until a cancelled request's slot is free. soak: length of the soak. max_bytes: of one answer.
    """

    connect: float = 5.0
    silence: float = 120.0
    check: float = 180.0
    total: float = 1800.0
    freed: float = 10.0
    soak: float = 600.0
    max_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True)
class Server:
    """Where the server is.

    url: `http://host:port` or `https://...`, with or without a path prefix, and without `/v1`.
    api_key: sent as a bearer token; it never appears in a verdict.
    ca_file: a PEM file to trust instead of the system's. verify: False accepts any certificate.
    name: what the certificate must be for, where that is not the address that is asked.
    kind: `sglang`, `openai` (only /v1 endpoints are used) or `auto` (asked of the server).
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    verify: bool = True
    ca_file: str | None = None
    name: str | None = None
    kind: str = "auto"
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError as error:
            raise BadServer(f"server url {self.url!r}: {error}; write http://HOST:PORT") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise BadServer(f"server url {self.url!r} is not one; write http://HOST:PORT or https://HOST:PORT")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise BadServer(
                "the server url holds a user name, a query or a fragment; give host and port, and the key as api_key"
            )
        if self.kind not in KINDS:
            raise BadServer(f"server kind {self.kind!r} is unknown; one of {', '.join(KINDS)}")
        if self.api_key is not None and (not self.api_key.isascii() or not self.api_key.isprintable() or not self.api_key):
            raise BadServer("the api key is empty, or no printable ASCII without line breaks")

    @property
    def base(self) -> str:
        """The URL without a trailing slash and without `/v1`."""
        return self.url.rstrip("/").removesuffix("/v1")


class Deadline:
    """A point in time that a group of requests must not pass."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.seconds = seconds

    def remaining(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def within(self, seconds: float) -> Deadline:
        """A deadline after `seconds`, or this one if it comes first."""
        return Deadline(min(seconds, self.remaining()))


def parse_json(body: bytes, what: str) -> Any:
    """The value in `body`. The literals NaN and Infinity, which are not JSON, are read as floats: a check names them.

    Raises BadAnswer with the first bytes where the text is no JSON.
    """
    try:
        return json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"{what}: the answer is not JSON ({type(error).__name__}); it begins {body[:60]!r}") from None


class _Named(http.client.HTTPSConnection):
    """A connection whose certificate must be for a name that need not be the address."""

    def __init__(self, host: str, port: int | None, timeout: float, context: ssl.SSLContext, name: str) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._tls, self._name = context, name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


class Client:
    """Requests to one server. Holds no connection, so threads may share it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.limits = server.limits
        parts = urlsplit(server.base)
        self._host, self._port, self._prefix = str(parts.hostname), parts.port, parts.path
        self._context: ssl.SSLContext | None = None
        if parts.scheme == "https":
            try:
                self._context = ssl.create_default_context(cafile=server.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise BadServer(f"ca_file {server.ca_file!r} cannot be used: {error}") from None
            if not server.verify:
                self._context.check_hostname = False
                self._context.verify_mode = ssl.CERT_NONE

    def get(self, path: str, deadline: Deadline) -> Any:
        """The JSON of GET `path`."""
        return parse_json(self.text("GET", path, None, deadline), f"GET {path}")

    def post(self, path: str, payload: dict[str, Any], deadline: Deadline) -> Any:
        """The JSON of POST `path`."""
        return parse_json(self.text("POST", path, payload, deadline), f"POST {path}")

    def text(self, method: str, path: str, payload: dict[str, Any] | None, deadline: Deadline) -> bytes:
        """The body of a 200. Raises Refused on another status, and the other RequestFailed errors."""
        with self._exchange(method, path, payload, deadline) as response:
            return b"".join(self._pieces(response, f"{method} {path}", deadline))

    def events(self, path: str, payload: dict[str, Any], deadline: Deadline) -> Generator[Any, None, None]:
        """The JSON of every `data:` line of a stream up to `[DONE]`. Closing the iterator closes the connection."""
        what = f"POST {path} (stream)"
        with self._exchange("POST", path, payload, deadline) as response:
            rest = bytearray()
            for piece in self._pieces(response, what, deadline):
                rest += piece
                if b"\n" not in piece:
                    continue
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    if not line.startswith(b"data:"):
                        continue
                    data = bytes(line[5:]).strip()
                    if data == b"[DONE]":
                        return
                    yield parse_json(data, what)
        raise BadAnswer(f"{what}: the stream ended without [DONE]")

    def _pieces(self, response: http.client.HTTPResponse, what: str, deadline: Deadline) -> Iterator[bytes]:
        announced = response.getheader("Content-Length", "")
        length = int(announced) if announced.isascii() and announced.isdigit() else None
        most = self.limits.max_bytes
        if length is not None and length > most:
            raise BadAnswer(f"{what}: the answer announces {length} bytes, more than the {most} that are read")
        total = 0
        while True:
            piece = response.read1(65536)
            if deadline.remaining() <= 0:  # a connection that the timer cut ends like one that is complete
                raise TimedOut(f"{what}: no complete answer within {deadline.seconds:.1f} s")
            if not piece:
                break
            total += len(piece)
            if total > most:
                raise BadAnswer(f"{what}: the answer is longer than the {most} bytes that are read")
            yield piece
        if length is not None and total < length:
            raise BadAnswer(f"{what}: the answer ended after {total} of {length} bytes")

    @contextmanager
    def _exchange(
        self, method: str, path: str, payload: dict[str, Any] | None, deadline: Deadline
    ) -> Iterator[http.client.HTTPResponse]:
        what = f"{method} {path}"
        if deadline.remaining() <= 0:
            raise TimedOut(f"{what}: the {deadline.seconds:.0f} s of this check were over before it was sent")
        connection = self._connection(min(self.limits.connect, deadline.remaining()))
        sockets: list[socket.socket] = []
        timer = threading.Timer(deadline.remaining(), _cut, (connection, sockets))
        timer.daemon = True
        timer.start()
        try:
            connection.connect()
            sockets.append(connection.sock)  # http.client forgets it once the response is being read
            connection.sock.settimeout(max(0.01, min(self.limits.silence, deadline.remaining())))
            body = None if payload is None else json.dumps(payload).encode()
            connection.request(method, self._prefix + path, body, self._headers(body))
            response = connection.getresponse()
            self._expect_200(response, what)
            yield response
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            # A socket that the timer cut shows as any of these.
            if deadline.remaining() <= 0:
                raise TimedOut(f"{what}: no complete answer within {deadline.seconds:.1f} s") from None
            if isinstance(error, TimeoutError):
                raise TimedOut(f"{what}: nothing came for {self._patience(sockets):.0f} s") from None
            if isinstance(error, ssl.SSLError):
                raise Unreachable(f"{what}: TLS failed: {error}") from None
            if isinstance(error, OSError | http.client.HTTPException):
                raise Unreachable(f"{what}: {type(error).__name__}: {error}") from None
            raise
        finally:
            timer.cancel()
            connection.close()
            for sock in sockets:
                sock.close()

    def _patience(self, sockets: list[socket.socket]) -> float:
        return self.limits.silence if sockets else self.limits.connect

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._context is not None:
            return _Named(self._host, self._port, timeout, self._context, self.server.name or self._host)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _headers(self, body: bytes | None) -> dict[str, str]:
        headers = {"Accept": "*/*", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.server.api_key:
            headers["Authorization"] = f"Bearer {self.server.api_key}"
        return headers

    def _expect_200(self, response: http.client.HTTPResponse, what: str) -> None:
        if response.status == 200:
            return
        if 300 <= response.status < 400:
            target = str(response.getheader("Location", "nowhere"))[:200]
            raise BadAnswer(f"{what}: redirected ({response.status}) to {target}, which is not followed")
        said = response.read1(500).decode("utf-8", "replace").strip()
        hint = "; the server wants another api key" if response.status in (401, 403) else ""
        raise Refused(response.status, f"{what}: HTTP {response.status}{hint}: {said[:300]}")


def _cut(connection: http.client.HTTPConnection, sockets: list[socket.socket]) -> None:
    for sock in sockets or [connection.sock]:
        with suppress(OSError, AttributeError):
            sock.shutdown(socket.SHUT_RDWR)
