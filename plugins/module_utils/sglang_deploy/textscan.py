"""Looks for many patterns in much text: one pass, first occurrence of each, bounded memory.

A pattern is a regular expression that is searched without regard to case and has a run of at least four plain
characters outside of groups. That run is looked for first with `in`, so that the expression itself is tried only on
the few lines that can match. Lines that differ only in digits (one `Decode batch` line for each step of a server) are
looked at once. Standard library only, since it runs on the managed host as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import BinaryIO

from . import logtext

BLOCK = 4 * 1024 * 1024
"""Bytes read at a time."""
REMEMBERED = 100_000
"""Distinct lines that are known to hold nothing; more are looked at each time."""
UNWRAP_BELOW = 1024 * 1024
"""Only text smaller than this many bytes is searched for wrapped messages: pasted text is, logs are not wrapped."""
VARIANTS = 200
"""How many lines that differ only in digits are tried, before the rest is taken to be no different."""
LITERAL = 4

_FOLD = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ123456789", b"abcdefghijklmnopqrstuvwxyz000000000")
_FOLD_TEXT = {code: _FOLD[code] for code in range(128)}
# SGLang prints all its arguments in one line, and drivers print their configuration: names of options, no event.
_NO_EVENT = re.compile(r"server_args=ServerArgs\(|Ignore import error when loading|non-default args: ")


class BadPattern(ValueError):
    """A pattern cannot be used; the message says which and why."""


@dataclass(frozen=True)
class Hit:
    """Where a pattern was first seen: line number from 1, and the message there without prefixes."""

    number: int
    text: str


def literal(pattern: str) -> str:
    """The longest run of plain characters that every match of `pattern` contains, folded: lower case, digits as 0.

    Groups, classes, optional characters and anything else that may vary end a run. Raises BadPattern without a run of
    four, or when the pattern has an alternative outside of groups.
    """
    runs: list[str] = [""]
    position, depth = 0, 0
    while position < len(pattern):
        char = pattern[position]
        plain = ""
        if char == "\\" and position + 1 < len(pattern):
            position += 1
            plain = pattern[position] if not pattern[position].isalnum() else ""
        elif char == "[":
            position += 1 + pattern[position + 1 :].startswith("^")
            while position + 1 < len(pattern) and pattern[position + 1] != "]":
                position += 1 + (pattern[position + 1] == "\\")
            position += 1
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            raise BadPattern(
                f"pattern {pattern!r}: write alternatives as patterns of their own, not with '|' outside of a group"
            )
        elif char in "?*{":
            runs[-1] = runs[-1][:-1]
            if char == "{":
                position = pattern.index("}", position)
        elif char not in ".^$+|":
            plain = char
        if plain and depth == 0:
            runs[-1] += plain
        else:
            runs.append("")
        position += 1
    longest = max(runs, key=len).translate(_FOLD_TEXT)
    if len(longest) < LITERAL:
        raise BadPattern(f"pattern {pattern!r}: needs {LITERAL} plain characters in a row to be found quickly")
    return longest


class Scanner:
    """Holds the patterns and what was seen of them so far.

    `hits` maps a pattern to its first Hit; `line_count` is the number of physical lines read by `read`.
    """

    def __init__(self, patterns: Iterable[str], hits: dict[str, Hit] | None = None) -> None:
        self.hits: dict[str, Hit] = dict(hits or {})
        self.line_count = 0
        self._by_literal: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
        for pattern in sorted(set(patterns)):
            try:
                compiled = re.compile(pattern, re.IGNORECASE)
            except re.error as error:
                raise BadPattern(f"pattern {pattern!r}: not a regular expression: {error}") from error
            self._by_literal.setdefault(literal(pattern), []).append((pattern, compiled))
        self._literals = list(self._by_literal)
        self._literal_bytes = [one.encode() for one in self._literals]

    def feed(self, line: logtext.Line) -> list[str]:
        """Searches one message; returns the patterns that were seen for the first time here."""
        folded = line.text.translate(_FOLD_TEXT)
        return self._try([one for one in self._literals if one in folded], line)

    def _try(self, literals: list[str], line: logtext.Line) -> list[str]:
        found = []
        if literals and not _NO_EVENT.search(line.text):
            for one in literals:
                for pattern, compiled in self._by_literal[one]:
                    if pattern not in self.hits and (match := compiled.search(line.text)):
                        self.hits[pattern] = Hit(line.number, _around(line.text, match))
                        found.append(pattern)
        return found

    def read(
        self, stream: BinaryIO, tell: Callable[[logtext.Line], None] | None = None, words: tuple[str, ...] = ()
    ) -> None:
        """Reads a whole log. `tell` gets, in order, the messages that hold one of `words`, and the last message; of those
        that differ only in digits it gets the first alone.
        """
        seen = _Seen(words if tell else ())
        rest, small, last = b"", b"", b""
        while True:
            data = stream.read(BLOCK)
            if len(small) <= UNWRAP_BELOW:
                small += data[: UNWRAP_BELOW + 1]
            block = rest + data
            cut = block.rfind(b"\n") + 1
            if data and not cut and len(block) < 4 * BLOCK:
                rest = block
                continue
            if not data or not cut:
                cut = len(block)  # the end, or a line that is longer than anything worth reading
            block, rest = block[:cut], block[cut:]
            last = next((line for line in reversed(block[-BLOCK:].split(b"\n")) if line.strip()), last)
            if block:
                self._block(logtext.strip_bytes(block), seen, tell)
            if not data:
                break
        if len(small) <= UNWRAP_BELOW:
            for line in logtext.unwrapped(list(logtext.lines(logtext.decode(small)))):
                self.feed(line)
        if tell and last:
            part = logtext.segments(logtext.decode(logtext.strip_bytes(last)))[-1:]
            tell(logtext.clean(part[0] if part else "", self.line_count))

    def _block(self, block: bytes, seen: _Seen, tell: Callable[[logtext.Line], None] | None) -> None:
        raw = block.split(b"\n")
        folded = block.translate(_FOLD).split(b"\n")
        if not raw[-1]:
            raw.pop()
            folded.pop()
        distinct = {line for line in folded if line not in seen.done}
        joined = b"\n".join(distinct)
        present = [(one, text) for one, text in zip(self._literal_bytes, self._literals, strict=True) if one in joined]
        hints = [one for one in seen.words if one in joined]
        wanted: dict[bytes, tuple[list[str], bool]] = {}
        for line in distinct:
            literals = [text for one, text in present if one in line]
            hinted = any(one in line for one in hints)
            if literals or hinted:
                wanted[line] = (literals, hinted)
            else:
                seen.finish(line)
        for index, line in enumerate(folded if wanted else ()):
            if line not in wanted or line in seen.done:
                continue
            literals, hinted = wanted[line]
            times = seen.count(line)
            for part in logtext.segments(logtext.decode(raw[index][: 4 * logtext.MAX_LINE])):
                message = logtext.clean(part, self.line_count + index + 1)
                self._try(literals, message)
                if tell and hinted and times == 1:
                    tell(message)
            if times >= VARIANTS or not literals:
                seen.finish(line)
        self.line_count += len(raw)


class _Seen:
    """Lines of a log, folded, that need not be looked at again, within a bounded memory."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = [word.encode() for word in words]
        self.done: set[bytes] = set()
        self._times: dict[bytes, int] = {}

    def finish(self, line: bytes) -> None:
        if len(self.done) < REMEMBERED and len(line) <= logtext.MAX_LINE:
            self.done.add(line)
            self._times.pop(line, None)

    def count(self, line: bytes) -> int:
        times = self._times.get(line, 0) + 1
        if len(self._times) < REMEMBERED or line in self._times:
            self._times[line] = times
        return times


def _around(text: str, match: re.Match[str], width: int = 400) -> str:
    """The message, cut to `width` characters around the match."""
    if len(text) <= width:
        return text
    start = max(0, min(match.start() - width // 4, len(text) - width))
    return ("..." if start else "") + text[start : start + width] + "..."
