"""Looks for many patterns in much text: one pass, first occurrence of each, bounded memory.

A pattern is a regular expression that is searched without regard to case and has a run of at least four plain
characters outside of groups. That run is looked for first, so that the expression itself is tried only on the few
lines that can match. Lines that differ only in digits (one `Decode batch` line for each step of a server) are looked
at once. Where many lines differ, grep looks for all runs at a time, which Python cannot do; without grep the same is
found more slowly. Standard library only, since it runs on the managed host as well.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import deque
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
GREP_FROM = 256 * 1024
"""Bytes of different lines from which on grep is quicker than Python."""
TOLD = 4000
"""Lines that `tell` gets of the beginning of a log, and again of its end."""
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

    def _may_hold(self, literals: list[str], text: str) -> list[str]:
        """Those literals of which a pattern, not seen before, may match a line that still has its prefixes."""
        return [
            one
            for one in literals
            if any(
                pattern not in self.hits and ("^" in pattern or "$" in pattern or compiled.search(text))
                for pattern, compiled in self._by_literal[one]
            )
        ]

    def read(
        self, stream: BinaryIO, tell: Callable[[logtext.Line], None] | None = None, words: tuple[str, ...] = ()
    ) -> None:
        """Reads a whole log. `tell` gets, in order, the messages that hold one of `words`, and the last message; of those
        that differ only in digits it gets the first alone, and of many thousands the first and the last ones.
        """
        seen = _Seen(self._by_literal, words if tell else ())
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
                self._block(logtext.strip_bytes(block), seen)
            if not data:
                break
        if len(small) <= UNWRAP_BELOW:
            for line in logtext.unwrapped(list(logtext.lines(logtext.decode(small)))):
                self.feed(line)
        if tell:
            for message in seen.told():
                tell(message)
            if last:
                part = logtext.segments(logtext.decode(logtext.strip_bytes(last)))[-1:]
                tell(logtext.clean(part[0] if part else "", self.line_count))

    def _block(self, block: bytes, seen: _Seen) -> None:
        raw = block.removesuffix(b"\n").split(b"\n")
        folded = block.translate(_FOLD).removesuffix(b"\n")
        for index, line, needles in self._varied(raw, folded, seen) if seen.varied else self._distinct(folded, seen):
            if line in seen.done:
                continue
            literals = [one for one in needles if one in self._by_literal]
            times = seen.count(line)
            if times == 1 and not seen.words.isdisjoint(needles):
                seen.tell(self.line_count + index + 1, raw[index])
            text = logtext.decode(raw[index][: 4 * logtext.MAX_LINE]) if literals else ""
            if literals and (literals := self._may_hold(literals, text)):
                for part in logtext.segments(text):
                    self._try(literals, logtext.clean(part, self.line_count + index + 1))
            if times >= VARIANTS or not needles & self._by_literal.keys():
                seen.finish(line)
        self.line_count += len(raw)

    @staticmethod
    def _distinct(block: bytes, seen: _Seen) -> Iterable[tuple[int, bytes, set[str]]]:
        """Place, folded line and needles of each line of a folded block that holds some: equal lines are searched once."""
        folded = block.split(b"\n")
        distinct = [line for line in dict.fromkeys(folded) if line not in seen.done]
        found = seen.needles.search(b"\n".join(distinct), len(distinct), distinct.__getitem__)
        for place, line in enumerate(distinct):
            if len(seen.done) >= REMEMBERED:
                break
            if place not in found:
                seen.finish(line)
        wanted = {distinct[place]: needles for place, needles in found.items()}
        seen.varied = len(distinct) > len(folded) / 2 and len(block) >= GREP_FROM
        return [(index, line, wanted[line]) for index, line in enumerate(folded) if line in wanted] if wanted else []

    @staticmethod
    def _varied(raw: list[bytes], block: bytes, seen: _Seen) -> Iterable[tuple[int, bytes, set[str]]]:
        """The same where few lines are equal: to take them apart would take longer than to search them all."""

        def folded(place: int) -> bytes:
            return raw[place].translate(_FOLD)

        found = seen.needles.search(block, len(raw), folded)
        return [(place, folded(place), needles) for place, needles in sorted(found.items())]


class _Seen:
    """Lines of a log that need not be looked at again (folded), and those to tell of, within a bounded memory."""

    def __init__(self, literals: Iterable[str], words: tuple[str, ...]) -> None:
        self.needles = _Needles({*literals, *words})
        self.words = set(words)
        self.done: set[bytes] = set()
        self.varied = False
        self._times: dict[bytes, int] = {}
        self._first: list[tuple[int, bytes]] = []
        self._last: deque[tuple[int, bytes]] = deque(maxlen=TOLD)

    def finish(self, line: bytes) -> None:
        if len(self.done) < REMEMBERED and len(line) <= logtext.MAX_LINE:
            self.done.add(line)
            self._times.pop(line, None)

    def count(self, line: bytes) -> int:
        times = self._times.get(line, 0) + 1
        if len(self._times) < REMEMBERED or line in self._times:
            self._times[line] = times
        return times

    def tell(self, number: int, line: bytes) -> None:
        (self._first if len(self._first) < TOLD else self._last).append((number, line[: logtext.MAX_LINE]))

    def told(self) -> Iterable[logtext.Line]:
        for number, line in (*self._first, *self._last):
            for part in logtext.segments(logtext.decode(line)):
                yield logtext.clean(part, number)


class _Needles:
    """Finds which of many short texts stand in which lines."""

    def __init__(self, needles: Iterable[str]) -> None:
        self._bytes = {one.encode(): one for one in sorted(needles)}
        self._near: dict[bytes, frozenset[bytes]] = {}

    def search(self, joined: bytes, count: int, line: Callable[[int], bytes]) -> dict[int, set[str]]:
        """Place -> the needles in that line, of `count` joined lines; those without any are left out."""
        if not self._bytes:
            return {}
        reported = self._grep(joined) if len(joined) >= GREP_FROM else None
        if reported is None:
            present = [one for one in self._bytes if one in joined]
            candidates = dict.fromkeys(range(count if present else 0), present)
        else:
            sets = {frozenset(ones) for ones in reported.values()}
            beside = {ones: frozenset[bytes]().union(*(self._beside(one) for one in ones)) for ones in sets}
            joined = b"\n".join([line(place) for place in reported])
            present = [one for one in frozenset[bytes]().union(*beside.values()) if one in joined]
            by_set = {ones: [one for one in present if one in beside[ones]] for ones in sets}
            candidates = {place: by_set[frozenset(ones)] for place, ones in reported.items()}
        found = {}
        for place, ones in candidates.items():
            text = line(place)
            if here := {self._bytes[one] for one in ones if one in text}:
                found[place] = here
        return found

    def _grep(self, text: bytes) -> dict[int, set[bytes]] | None:
        """Place of a line -> some of the needles there: grep does not tell one that overlaps an earlier one. None
        where there is no grep that can do this.
        """
        options = ("--text", "--fixed-strings", "--only-matching", "--line-number", "--regexp")
        command = ["grep", *options, "\n".join(self._bytes.values())]
        environment = {**os.environ, "LC_ALL": "C"}
        try:
            with tempfile.TemporaryFile() as given:  # through a pipe, Python would hand it over in pieces of 4 KB
                given.write(text)
                given.seek(0)
                done = subprocess.run(command, stdin=given, capture_output=True, env=environment, check=False)
        except OSError:
            return None
        if done.returncode > 1:
            return None
        reported: dict[int, set[bytes]] = {}
        for row in done.stdout.split(b"\n")[:-1]:
            number, _, needle = row.partition(b":")
            reported.setdefault(int(number) - 1, set()).add(needle)
        return reported

    def _beside(self, reported: bytes) -> frozenset[bytes]:
        """The needles that may stand where grep reported one: inside of it, or from its last characters on."""
        if reported not in self._near:
            self._near[reported] = frozenset(
                one
                for one in self._bytes
                if one in reported or any(reported.endswith(one[:size]) for size in range(1, len(one)))
            )
        return self._near[reported]


def _around(text: str, match: re.Match[str], width: int = 400) -> str:
    """The message, cut to `width` characters around the match."""
    if len(text) <= width:
        return text
    start = max(0, min(match.start() - width // 4, len(text) - width))
    return ("..." if start else "") + text[start : start + width] + "..."
