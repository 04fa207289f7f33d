"""A support bundle has what is needed and nothing private: everything private is planted, and looked for."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from sglang_deploy import bundle

KEY = "Zx9-planted.Secret_42"
PRIVATE = (
    KEY,
    "hf_" + "a1B2" * 8,
    "annabel",
    "10.20.30.40",
    "gpuhost7",
    "secret-farm",
    "my divorce",
    "tell me of",
    "52:54:00:12:34:56",
)
JOURNAL = "".join(
    f"2026-11-30T08:50:28+00:00 gpuhost7 launch[296]: {message}\n"
    for message in (
        f"server_args=ServerArgs(model_path='/home/annabel/m', api_key='{KEY}')",
        'INFO:     10.20.30.40:5122 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        "Receive: obj=GenerateReqInput(text='tell me of my divorce', rid='1')",
        f"login with {PRIVATE[1]} at gpu7.secret-farm.example as annabel, MAC 52:54:00:12:34:56",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    )
)


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    config, state = tmp_path / "etc", tmp_path / "lib"
    (config / "glm5").mkdir(parents=True)
    (state / "glm5" / "verdicts").mkdir(parents=True)
    (config / "glm5" / "launch").write_text(
        f"#!/bin/sh\nexec {tmp_path}/r/venv/bin/python -m sglang.launch_server \\\n    --api-key {KEY}\n"
    )
    (config / "glm5" / "environment").write_text(f'HF_TOKEN="{PRIVATE[1]}"\nMY_PASSWORD="{KEY}"\nNCCL_P2P_LEVEL="PHB"\n')
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "receipt.json").write_text('{"versions": {"torch": "2.9.1"}}')
    verdict = {"ok": False, "answer": {"question": "tell me of my divorce", "text": "my divorce"}}
    (state / "glm5" / "verdicts" / "v.json").write_text(json.dumps(verdict))
    line = {"by": "annabel", "ok": False, "spec": "a" * 64, "verdict": "verdicts/v.json"}
    (state / "glm5" / "ledger.jsonl").write_text(json.dumps(line) + "\n{")
    return config, state


@pytest.fixture
def packed(roots: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    def said(command: list[str]) -> str:
        return (
            JOURNAL if command[0] == "journalctl" else "[1.0] NVRM: Xid 31\n[2.0] usb 1\n" if command[0] == "dmesg" else ""
        )

    monkeypatch.setattr(bundle, "_said", said)
    parts = bundle.collect("glm5", *roots)
    path = tmp_path / "b.tar.gz"
    bundle.write(parts, bundle.known_names(parts, ["gpu7.secret-farm.example"]), path)
    assert path.stat().st_mode & 0o7777 == 0o600
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as archive:
        return {member.name: archive.extractfile(member).read().decode() for member in archive}  # type: ignore[union-attr]


@pytest.mark.parametrize("private", PRIVATE)
def test_nothing_private_is_in_it(packed: dict[str, str], private: str) -> None:
    for name, text in packed.items():
        assert private not in text, name


def test_what_is_needed_is_in_it(packed: dict[str, str]) -> None:
    names = {name.removeprefix("sglang-bundle/") for name in packed}
    assert {
        "journal.txt",
        "glm5/launch",
        "glm5/environment",
        "receipt.json",
        "kernel.txt",
        "ledger.jsonl",
        "verdicts/v.json",
    } <= names
    assert "CUDA out of memory. Tried to allocate 2.00 GiB" in packed["sglang-bundle/journal.txt"]
    assert 'NCCL_P2P_LEVEL="PHB"' in packed["sglang-bundle/glm5/environment"]
    assert packed["sglang-bundle/kernel.txt"] == "[1.0] NVRM: Xid 31\n"


def test_a_bare_host_gives_a_bundle_too(tmp_path: Path) -> None:
    assert "versions.txt" in bundle.collect("none", tmp_path, tmp_path)
