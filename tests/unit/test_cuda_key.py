"""Fingerprints are read from key files as gpg reads them."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import cuda_key

pytestmark = pytest.mark.skipif(shutil.which("gpg") is None, reason="gpg makes the keys")
KINDS = ["rsa2048", "ed25519", "dsa1024"]


def gpg(home: Path, *arguments: str) -> bytes:
    return subprocess.run(["gpg", "--homedir", str(home), "--batch", *arguments], capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def keyring(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    home = tmp_path_factory.mktemp("gnupg")
    home.chmod(0o700)
    for kind in KINDS:
        gpg(home, "--passphrase", "", "--quick-generate-key", f"{kind} <{kind}@example.com>", kind, "default", "never")
    listed = gpg(home, "--with-colons", "--list-keys").decode().splitlines()
    prints = [line.split(":")[9] for before, line in itertools.pairwise(listed) if before.startswith("pub:")]
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)
    return home, dict(zip(KINDS, prints, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("armor", [True, False])
def test_as_gpg_says(keyring: tuple[Path, dict[str, str]], kind: str, armor: bool) -> None:
    home, prints = keyring
    content = gpg(home, *(["--armor"] if armor else []), "--export", prints[kind])
    assert cuda_key.armored(content) is armor
    assert cuda_key.fingerprints(content) == [prints[kind]]
    cuda_key.check(content, prints[kind].lower(), "it")


def test_a_second_key_in_the_file_is_refused(keyring: tuple[Path, dict[str, str]]) -> None:
    home, prints = keyring
    for content in (gpg(home, "--export"), gpg(home, "--armor", "--export")):
        assert set(cuda_key.fingerprints(content)) == set(prints.values())
        with pytest.raises(cuda_key.KeyProblem, match=prints["ed25519"]):
            cuda_key.check(content, prints["rsa2048"], "mirror.pub")


def test_two_armored_blocks_are_both_read(keyring: tuple[Path, dict[str, str]]) -> None:
    home, prints = keyring
    content = b"".join(gpg(home, "--armor", "--export", prints[kind]) for kind in ("rsa2048", "ed25519"))
    assert cuda_key.fingerprints(content) == [prints["rsa2048"], prints["ed25519"]]


@pytest.mark.parametrize(
    "content", [b"", b"<html>blocked by proxy</html>", b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n", b"\x99\x01"]
)
def test_what_is_no_key_is_said_to_be_none(content: bytes) -> None:
    with pytest.raises(cuda_key.KeyProblem, match=r"https://x/key\.pub.*(no OpenPGP key|not an OpenPGP key)"):
        cuda_key.check(content, "A" * 40, "https://x/key.pub")


@given(st.binary(max_size=300))
def test_any_bytes_end_in_fingerprints_or_a_problem(content: bytes) -> None:
    with contextlib.suppress(cuda_key.KeyProblem):
        assert cuda_key.fingerprints(content)


def test_a_key_id_is_no_fingerprint() -> None:
    with pytest.raises(cuda_key.KeyProblem, match="a key id is not enough"):
        cuda_key.normalised("A4B469963BF863CC")
    assert (
        cuda_key.normalised("0xEB69 3B30 35CD 5710 E231  E123 A4B4 6996 3BF8 63CC")
        == "EB693B3035CD5710E231E123A4B469963BF863CC"
    )
