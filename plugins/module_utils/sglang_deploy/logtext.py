"""Log text as servers, systemd, containers and terminals leave it, turned into plain lines.

Input is bytes or text of any kind: colour codes, progress bars that rewrite one line with carriage returns, NUL
bytes, invalid UTF-8, prefixes of journald and of container tools, SGLang's own timestamps and rank marks. Output is
the message alone. Standard library only, since it runs on the managed host as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_LINE = 64 * 1024
"""Characters kept of one line. SGLang's `server_args=` line has about 15,000; a longer one is cut."""

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_ANSI_BYTES = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")

_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_RANK = r"(?:(?:DP|TP|PP|EP|CP|PD|ATTN_?[A-Z]*|MOE_?[A-Z]*)\d+)"
_PREFIXES = (
    # journalctl -o short, short-precise, short-iso, short-full: time, host, program[pid]:
    re.compile(
        r"(?:(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|"
        + _STAMP
        + r") \S+ [\w.@/()-]+(?:\[\d+\])?: ?"
    ),
    # docker compose, kubectl logs --prefix: `name-1  | `
    re.compile(r"[\w.-]+\s*\| "),
    # Ray, multiprocessing and vLLM style: `(TP3 EP1) `, `(EngineCore_0 pid=12) `
    re.compile(rf"\((?:[\w./-]+ pid=\d+[^)]*|{_RANK}(?:[ ,]+{_RANK})*)\) ?"),
    # `[rank0]:[W1130 08:06:26.62 File.cpp:1575] `
    re.compile(r"\[rank\d+\]: ?"),
    re.compile(r"\[[WIEF]\d{4} \d\d:\d\d:\d\d\.\d+ (?=[^\]]*\])"),
)
_SGLANG = re.compile(rf"\[{_STAMP}(?P<ranks>(?: {_RANK})*)\] ?")
_BARE_STAMP = re.compile(rf"{_STAMP}[ \t]+")
_PAREN_RANK = re.compile(rf"\((?P<ranks>{_RANK}(?:[ ,]+{_RANK})*)\) ?")


@dataclass(frozen=True)
class Line:
    """One message: its line number in the source (from 1), the text without prefixes, and the rank marks (`TP3 EP1`,
    or empty).
    """

    number: int
    text: str
    rank: str = ""


def decode(raw: bytes) -> str:
    """Bytes as text: invalid UTF-8 becomes U+FFFD, NUL bytes vanish."""
    return raw.replace(b"\0", b"").decode("utf-8", "replace")


def strip_bytes(block: bytes) -> bytes:
    """A block of raw log without colour codes and NUL bytes; line feeds stay, so line numbers hold."""
    if b"\0" in block:
        block = block.replace(b"\0", b"")
    if b"\x1b" in block:
        block = _ANSI_BYTES.sub(b"", block)
    return block


def segments(text: str) -> list[str]:
    """What one physical line showed over time: a progress bar rewrites itself with carriage returns, each rewriting
    is one segment.
    """
    return [part for part in text.split("\r") if part.strip()] if "\r" in text else [text]


def clean(text: str, number: int = 0) -> Line:
    """One segment without colours and prefixes. Text that is only a prefix becomes an empty message."""
    text = _ANSI.sub("", text[:MAX_LINE]).replace("\0", "").rstrip()
    rank = ""
    for _ in range(6):  # prefixes nest: container, journald, SGLang
        if found := _SGLANG.match(text) or _PAREN_RANK.match(text):
            rank = found["ranks"].strip() or rank
        else:
            found = next((hit for hit in (prefix.match(text) for prefix in _PREFIXES) if hit), None) or _BARE_STAMP.match(
                text
            )
        if not found:
            break
        text = text[found.end() :]
    return Line(number, text, rank)


def lines(text: str) -> Iterator[Line]:
    """All messages of a text, in order; a progress bar gives one for each rewriting, with the same number."""
    for number, physical in enumerate(text.split("\n"), 1):
        for part in segments(physical):
            yield clean(part, number)


def unwrapped(plain: list[Line], width: int = 3) -> Iterator[Line]:
    """Messages joined over up to `width` neighbouring lines, for text that a terminal or a mail program has wrapped.

    Each join is given with and without a space, because wrapping happens between words and inside them.
    """
    for start in range(len(plain) - 1):
        if not plain[start].text:
            continue
        joined = [plain[start].text.strip()]
        for line in plain[start + 1 : start + width]:
            text = line.text.strip()
            if not text:
                break
            joined = [before + space + text for before in joined for space in ("", " ")]
            for message in joined:
                yield Line(plain[start].number, message, plain[start].rank)


class Splitter:
    """Cuts a growing byte stream into records at line feeds and carriage returns; what has no end yet is kept for the
    next call.
    """

    def __init__(self, rest: bytes = b"") -> None:
        self.rest = rest

    def feed(self, data: bytes) -> list[bytes]:
        """Complete records of `data` and what was left before; empty ones are dropped."""
        parts = re.split(rb"[\r\n]", self.rest + data)
        self.rest = parts.pop()
        return [part for part in parts if part.strip()]
