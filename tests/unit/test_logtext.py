"""Log lines in every wrapping that they are met in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import logtext

MESSAGE = "KeyError: 'glm_moe_dsa'"


@pytest.mark.parametrize(
    ("raw", "rank"),
    [
        (MESSAGE, ""),
        (f"[2026-11-30 08:02:26] {MESSAGE}", ""),
        (f"[2026-11-30 08:02:26 TP3 EP1] {MESSAGE}", "TP3 EP1"),
        (f"[2026-11-30 08:02:26 DP0 TP0 EP0] {MESSAGE}", "DP0 TP0 EP0"),
        (f"2026-11-30 08:02:26,123 {MESSAGE}", ""),
        (f"Nov 30 08:50:28 host1 python[296]: [2026-11-30 08:50:28 TP1] {MESSAGE}", "TP1"),
        (f"Nov 30 08:50:28.123456 host1 python[296]: {MESSAGE}", ""),
        (f"2026-11-30T08:50:28+0000 host1 python[296]: {MESSAGE}", ""),
        (f"sglang-1  | [2026-11-30 08:02:26 TP0] {MESSAGE}", "TP0"),
        (f"(TP3 EP1) {MESSAGE}", "TP3 EP1"),
        (f"(EngineCore_DP0 pid=12) {MESSAGE}", ""),
        (f"[rank0]:{MESSAGE}", ""),
        (f"\x1b[1;31m{MESSAGE}\x1b[0m", ""),
        (f"\x1b[32m[2026-11-30 08:02:26 TP2]\x1b[0m {MESSAGE}\r", "TP2"),
        ("KeyError: '\x1b[1mglm_moe_dsa\x1b[0m'\0", ""),
    ],
)
def test_prefixes_go(raw: str, rank: str) -> None:
    line = logtext.clean(raw)
    assert (line.text, line.rank) == (MESSAGE, rank)


def test_progress_bar_is_one_message_a_rewriting() -> None:
    text = "\r  0%|   | 0/4\r 25%|#  | 1/4\nnext"
    assert [(line.number, line.text) for line in logtext.lines(text)] == [
        (1, "  0%|   | 0/4"),
        (1, " 25%|#  | 1/4"),
        (2, "next"),
    ]


def test_wrapped_message_is_joined() -> None:
    plain = list(logtext.lines("one probability tensor contains\neither nan or el\nement < 0"))
    joined = {line.text for line in logtext.unwrapped(plain)}
    assert "one probability tensor contains either nan or el" in joined
    assert "either nan or element < 0" in joined


def test_broken_bytes_are_read() -> None:
    assert logtext.decode(b"a\0b\xff\xfec") == "ab\ufffd\ufffdc"


@given(st.binary(max_size=400), st.integers(min_value=1, max_value=17))
def test_splitter_gives_the_same_for_any_cutting(data: bytes, size: int) -> None:
    whole = logtext.Splitter()
    expected = whole.feed(data)
    cut = logtext.Splitter()
    found = [record for start in range(0, len(data), size) for record in cut.feed(data[start : start + size])]
    assert found == expected
    assert cut.rest == whole.rest


@given(st.text(max_size=200))
def test_any_text_can_be_cleaned(text: str) -> None:
    assert "\x00" not in logtext.clean(text).text
