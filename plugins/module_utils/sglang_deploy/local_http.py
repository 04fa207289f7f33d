"""A request of a host to its own server, which may be broken in any way. Standard library only."""

from __future__ import annotations

from urllib.parse import urlsplit

from .decode_check.client import Client, Deadline, DecodeCheckError, Limits, Server


def get(url: str, seconds: float, most: int = 65536, api_key: str = "") -> bytes | None:
    """The body of a 200, or None for every other answer and for none.

    seconds: for all of it, however it drips. most: bytes of the body. No proxy is used, no redirect followed (the key would
    go along), and any certificate does, since nobody stands between; the gate is what judges the certificate.
    """
    parts = urlsplit(url)
    limits = Limits(connect=seconds, silence=seconds, max_bytes=most)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    try:
        server = Server(f"{parts.scheme}://{parts.netloc}", api_key=api_key or None, verify=False, limits=limits)
        return Client(server).text("GET", path or "/", None, Deadline(seconds))
    except (DecodeCheckError, OSError, ValueError, AttributeError):
        return None
