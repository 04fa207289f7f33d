"""Fingerprints of OpenPGP keys, read from the file itself: a minimal host has apt and no gpg."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

_ARMOR = re.compile(r"-----BEGIN PGP PUBLIC KEY BLOCK-----(\r?\n.*?)-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL)
_PUBLIC_KEY = 6  # the packet of a primary key; subkeys are 14


class KeyProblem(Exception):
    """A file is not the key that is expected. The message says what it is."""


def fingerprints(content: bytes) -> list[str]:
    """The fingerprints of all primary keys in a key file, armored or binary (RFC 4880 12.2, RFC 9580 5.5.4).

    KeyProblem where the file holds no key.
    """
    found = []
    try:
        for block in _blocks(content):
            for tag, body in _packets(block):
                if tag == _PUBLIC_KEY:
                    found.append(_fingerprint(body))
    except (IndexError, ValueError, binascii.Error) as error:
        raise KeyProblem(f"it is not an OpenPGP key ({error})") from error
    if not found:
        raise KeyProblem("it holds no OpenPGP key")
    return found


def check(content: bytes, expected: str, origin: str) -> None:
    """KeyProblem unless the file holds the expected key and no other: apt would trust every key in it."""
    want = normalised(expected)
    try:
        found = fingerprints(content)
    except KeyProblem as error:
        raise KeyProblem(f"{origin}: {error}. A web page or a proxy's error in place of the key looks like that.") from error
    if strangers := [one for one in found if one != want]:
        raise KeyProblem(
            f"{origin} has the fingerprint {', '.join(strangers)}, and {want} is pinned. Nothing signed by it was used. If "
            "the repository has a key of its own, as a mirror may have, set cuda_toolkit_key_fingerprint to its fingerprint."
        )


def normalised(fingerprint: str) -> str:
    """A fingerprint as 40 or 64 capital digits, however it was written. KeyProblem where it is none."""
    text = re.sub(r"[\s:]|^0x", "", fingerprint).upper()
    if not re.fullmatch(r"[0-9A-F]{40}|[0-9A-F]{64}", text):
        raise KeyProblem(
            f"{fingerprint!r} is not a key's fingerprint: it has 40 hexadecimal digits, a key id is not enough."
        )
    return text


def armored(content: bytes) -> bool:
    """Whether a key file is text, which apt wants to be called .asc."""
    return content.lstrip().startswith(b"-----BEGIN")


def _blocks(content: bytes) -> Iterator[bytes]:
    if not armored(content):
        yield content
        return
    for match in _ARMOR.finditer(content.decode("ascii", "replace")):
        body = match[1].replace("\r", "").partition("\n\n")[2]  # headers end with an empty line
        lines = [line for line in body.splitlines() if line and not re.fullmatch(r"=[A-Za-z0-9+/]{4}", line)]  # and the CRC
        yield base64.b64decode("".join(lines), validate=True)


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and body of each packet. Lengths that stream in parts do not occur in keys."""
    at = 0
    while at < len(data):
        head = data[at]
        if not head & 0x80:
            raise ValueError("no packet starts there")
        at += 1
        if head & 0x40:
            tag, (size, at) = head & 0x3F, _new_length(data, at)
        else:
            width = (1, 2, 4, 0)[head & 3]
            tag, size, at = (
                head >> 2 & 0x0F,
                int.from_bytes(data[at : at + width], "big") if width else len(data),
                at + width,
            )
        body = data[at : at + size]
        if len(body) < size and (head & 0x40 or head & 3 != 3):
            raise ValueError("it ends too early")
        yield tag, body
        at += size


def _new_length(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    if first < 192:
        return first, at + 1
    if first < 224:
        return ((first - 192) << 8) + data[at + 1] + 192, at + 2
    if first == 255:
        return int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
    raise ValueError("partial lengths")


def _fingerprint(body: bytes) -> str:
    version = body[0]
    if version == 4:
        return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False).hexdigest().upper()
    if version == 6:
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise ValueError(f"keys of version {version} are not read")
