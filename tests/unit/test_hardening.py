"""The directives that confine the unit."""

from __future__ import annotations

from pathlib import Path

import pytest
from sglang_deploy import hardening

ROOT = Path(__file__).resolve().parents[2]


def test_without_changes_every_directive_is_there_once_or_a_line_for_each_entry() -> None:
    lines = hardening.lines({})
    assert "ProtectSystem=strict" in lines
    assert "CapabilityBoundingSet=" in lines
    assert sum(line.startswith("DeviceAllow=") for line in lines) == len(hardening.DIRECTIVES["DeviceAllow"])


def test_a_directive_can_be_taken_out_or_replaced() -> None:
    lines = hardening.lines({"ProtectProc": None, "PrivateUsers": False, "SystemCallFilter": ["@system-service", "bpf"]})
    assert not any(line.startswith("ProtectProc") for line in lines)
    assert "PrivateUsers=false" in lines
    assert [line for line in lines if line.startswith("SystemCallFilter")] == [
        "SystemCallFilter=@system-service",
        "SystemCallFilter=bpf",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ExecStartPre": "/bin/sh"}, "no directive"),
        ({"ProtectProcs": None}, "did you mean ProtectProc"),
        ({"ProtectProc": "x\nExecStartPre=/bin/sh"}, "line break"),
        ({"ProtectProc": {"a": 1}}, "write text"),
        (["ProtectProc"], "write directives"),
    ],
)
def test_what_loosens_nothing_is_refused(changes: object, said: str) -> None:
    with pytest.raises(hardening.HardeningError, match=said):
        hardening.lines(changes)  # type: ignore[arg-type]


HOMES, TEMPORARY = ("/home", "/root", "/run/user"), ("/tmp", "/var/tmp")


@pytest.mark.parametrize(
    ("changes", "unseen"),
    [
        ({}, HOMES + TEMPORARY),
        ({"ProtectHome": None}, TEMPORARY),
        ({"ProtectHome": False, "PrivateTmp": "no"}, ()),
        ({"ProtectHome": "read-only"}, TEMPORARY),
        ({"ProtectHome": "tmpfs"}, HOMES + TEMPORARY),
        ({"PrivateTmp": "disconnected", "ProtectHome": 0}, TEMPORARY),
        ({"ProtectHome": ["yes", "read-only"], "PrivateTmp": []}, ()),
        ({"ProtectProc": None}, HOMES + TEMPORARY),
    ],
)
def test_what_the_service_does_not_see_follows_what_is_loosened(changes: dict[str, object], unseen: tuple[str, ...]) -> None:
    assert hardening.unseen(changes) == unseen


def test_what_is_no_directive_says_nothing_of_what_is_seen() -> None:
    with pytest.raises(hardening.HardeningError, match="did you mean ProtectHome"):
        hardening.unseen({"ProtectHom": False})


def test_every_directive_is_explained() -> None:
    text = (ROOT / "docs" / "hardening.md").read_text(encoding="utf-8")
    assert [name for name in hardening.DIRECTIVES if f"`{name}" not in text] == []
