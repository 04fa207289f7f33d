"""The search for many patterns: what it may skip, and that it skips nothing else."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import textscan

PATTERNS = ["CUDA out of memory", r"Xid \(PCI", r"code=137\b", "NaN in the logits", r"size of tensor a \(\d+\) must"]
PIECES = ["cuda out of memory", "CUDA  out", "Xid (PCI:1)", "code=137", "code=138", "nan in the logits", "x", "12", " "]


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        ("CUDA out of memory", "cuda out of memory"),
        (r"attention\.hpp:\d+\)?: Unsupported arch", ": unsupported arch"),
        (r"code=137\b", "code=000"),
        (r"(?:foo|bar) supported on [A-Z]+x", " supported on "),
        (r"colou?rful words{2}", "rful word"),
        (r"Xid \(PCI:.{1,20}\): 79", "xid (pci:"),
    ],
)
def test_literal_of_a_pattern(pattern: str, literal: str) -> None:
    assert textscan.literal(pattern) == literal


@pytest.mark.parametrize("pattern", [r"\d+ \w+", "(?:long|words)", "one word|another word", "a.b.c"])
def test_pattern_that_cannot_be_found_quickly_is_refused(pattern: str) -> None:
    with pytest.raises(textscan.BadPattern, match="pattern "):
        textscan.literal(pattern)


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=6).map("".join), max_size=30))
def test_finds_what_a_plain_search_finds(lines: list[str]) -> None:
    scanner = textscan.Scanner(PATTERNS)
    scanner.read(io.BytesIO("\n".join([*lines, "end of log"] * 1).encode()))
    for pattern in PATTERNS:
        plain = next((n for n, line in enumerate(lines, 1) if re.search(pattern, line, re.IGNORECASE)), None)
        # a message that is joined from wrapped lines may be found where no single line has it
        if plain is not None:
            assert scanner.hits[pattern].number <= plain
        elif pattern in scanner.hits:
            start = scanner.hits[pattern].number - 1
            joined = "".join(line.strip() for line in lines[start : start + 3])
            spaced = " ".join(line.strip() for line in lines[start : start + 3])
            assert re.search(pattern, joined, re.IGNORECASE) or re.search(pattern, spaced, re.IGNORECASE)


OVERLAPPING = ["cuda out of memory", "out of memory", "memory is full", "memory", "yes", "is fu"]
WORDS = ["cuda ", "out of ", "memory", " is full", "yes", "is fu", "of memory is", "y", " "]


@pytest.mark.skipif(not shutil.which("grep"), reason="there is no grep")
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=8).map("".join), max_size=20))
def test_grep_finds_what_python_finds(lines: list[str]) -> None:
    raw = [line.encode() for line in dict.fromkeys(lines)]
    joined = b"\n".join(raw)
    needles = textscan._Needles(OVERLAPPING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(textscan, "GREP_FROM", 0)
        by_grep = needles.search(joined, len(raw), raw.__getitem__)
        patch.setattr(textscan._Needles, "_grep", lambda *_: None)
        assert needles.search(joined, len(raw), raw.__getitem__) == by_grep
    assert by_grep == {
        place: here for place, line in enumerate(raw) if (here := {one for one in OVERLAPPING if one.encode() in line})
    }


@pytest.mark.parametrize("grep", ["", "#!/bin/sh\nexit 2\n"], ids=["none", "another one"])
def test_large_text_is_searched_without_grep_too(grep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if grep:
        (tmp_path / "grep").write_text(grep)
        (tmp_path / "grep").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(textscan, "GREP_FROM", 0)
    scanner = textscan.Scanner(PATTERNS)
    scanner.read(io.BytesIO(b"one\nCUDA out of memory\n"))
    assert scanner.hits["CUDA out of memory"].number == 2


@pytest.mark.parametrize("grep_from", [0, 10**9], ids=["grep", "python"])
def test_every_line_different_and_one_that_counts(grep_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textscan, "GREP_FROM", grep_from)
    monkeypatch.setattr(textscan, "TOLD", 3)
    told: list[int] = []
    scanner = textscan.Scanner(PATTERNS)
    lines = [f"{'abcdefghij'[n % 10]}{'klmnopqrst'[n // 10]} error of a request" for n in range(100)]
    text = "\n".join([*lines, "[2026-11-30 08:02:26 TP3] CUDA out of memory"]).encode()
    scanner.read(io.BytesIO(text), lambda line: told.append(line.number), ("error",))
    assert scanner.hits["CUDA out of memory"] == textscan.Hit(101, "CUDA out of memory")
    assert told == [1, 2, 3, 98, 99, 100, 101]


def test_lines_that_differ_in_digits_are_all_looked_at() -> None:
    scanner = textscan.Scanner([r"exit code 137\b"])
    scanner.read(io.BytesIO(b"exit code 136\nexit code 138\nexit code 137\n"))
    assert scanner.hits[r"exit code 137\b"].number == 3


def test_block_borders_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textscan, "BLOCK", 16)
    monkeypatch.setattr(textscan, "UNWRAP_BELOW", 0)
    scanner = textscan.Scanner(PATTERNS)
    scanner.read(io.BytesIO(b"aaaaaaaaaaaa\nbbb\nsome CUDA out of memory here\n" + b"c" * 10))
    assert scanner.hits["CUDA out of memory"].number == 3
    assert scanner.line_count == 4


def test_line_of_arguments_is_no_event() -> None:
    scanner = textscan.Scanner(PATTERNS)
    scanner.read(
        io.BytesIO(b"server_args=ServerArgs(note='CUDA out of memory')\nIgnore import error when loading x: code=137")
    )
    assert not scanner.hits


def test_long_line_without_end_is_bounded() -> None:
    scanner = textscan.Scanner(PATTERNS)
    scanner.read(io.BytesIO(b"x" * (textscan.BLOCK * 6) + b"\nCUDA out of memory"))
    assert "CUDA out of memory" in scanner.hits
