"""What a release takes from the host, what it says while it is built, and that it is what was locked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import wheel
from sglang_deploy import release, release_progress, release_store, release_system, release_verify

STACK: dict[str, Any] = {
    "name": "small",
    "sglang": "0.5.9",
    "source": {"kind": "index", "package": "sglang", "version": "0.5.9"},
    "python": ">=3.10",
    "torch": "2.9.1",
    "transformers": "5.2.0",
    "overrides": ["transformers==5.2.0"],
}


# Packages of the host


def host_python(folder: Path, packages: dict[str, str], uv: str) -> str:
    """A Python that stands in for a machine's own, with packages already in its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    links = folder / "links"
    for name, version in packages.items():
        files = {
            f"{name}/__init__.py": f"__version__ = {version!r}\nimport types\nversion = types.SimpleNamespace(cuda=None)\n"
        }
        wheel(links, name, version, files)
    if packages:
        lines = [f"{name}=={version}" for name, version in packages.items()]
        command = [uv, "pip", "install", "--python", str(folder / "bin" / "python"), "--no-index", "--offline"]
        subprocess.run([*command, "--quiet", "--find-links", str(links), *lines], check=True)
    return str(folder / "bin" / "python")


@pytest.fixture
def machine(tmp_path: Path, uv: str) -> str:
    """A Python with torch, which may be a virtual environment's."""
    return host_python(tmp_path / "machine", {"torch": "2.9.1+cu128", "numpy": "1.26"}, uv)


def test_what_the_host_gives_is_seen_and_not_installed(machine: str, index: release.Index, tmp_path: Path, uv: str) -> None:
    request = release.Request.from_stack(STACK | {"system_site_packages": ["torch==2.9.1"]}, index)
    built = release.build(request, tmp_path / "root", uv=uv, python=machine)
    lock = (built.path / "lock.txt").read_text(encoding="utf-8")
    assert "torch" not in lock and "numpy" not in lock, "nor what only it asks for"
    assert "transformers==5.2.0" in lock
    assert built.receipt["versions"]["torch"] == "2.9.1+cu128"
    assert built.receipt["system_site_packages"] == {"torch": "2.9.1+cu128"}
    assert not list(built.path.glob("venv/lib/*/site-packages/torch*"))


def test_another_version_on_the_host_is_another_release(machine: str, index: release.Index, tmp_path: Path) -> None:
    request = release.Request.from_stack(STACK | {"system_site_packages": ["torch"]}, index)
    ids = {
        release.request_id(replace(request, given={"torch": version}), "3.11", "linux-x86_64")
        for version in ("2.9.1+cu128", "2.9.1+cu130")
    }
    ids.add(release.plan(request, tmp_path / "root", python=machine)[0])
    assert len(ids) == (2 if sys.version_info[:2] == (3, 11) and os.uname().machine == "x86_64" else 3)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (["torch==2.11.0"], r"torch is 2\.9\.1\+cu128, the stack says 2\.11\.0"),
        (["torch", "Triton"], "triton is missing"),
    ],
)
def test_what_the_host_does_not_give(
    machine: str, index: release.Index, tmp_path: Path, wanted: list[str], words: str
) -> None:
    request = release.Request.from_stack(STACK | {"system_site_packages": wanted}, index)
    with pytest.raises(release.ReleaseError, match=words):
        release.build(request, tmp_path / "root", python=machine)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'no module named site' >&2; exit 3", "status 3: no module named site"),
        ("exit 1", "status 1: without a word"),
        ("echo no JSON", "Expecting value"),
        (None, "No such file"),
    ],
)
def test_a_python_that_cannot_be_asked_is_named(tmp_path: Path, script: str | None, words: str) -> None:
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        python.chmod(0o755)
    for ask in (lambda: release_system.show_to(str(python), tmp_path), lambda: release_system.given(str(python), ["torch"])):
        with pytest.raises(release.ReleaseError, match=f"{python}, which .* {words}.* set sglang_python to another"):
            ask()
    assert not (tmp_path / release_system.PTH).exists()


def test_excluded_packages_stay_out(index: release.Index, tmp_path: Path, uv: str) -> None:
    request = release.Request.from_stack(STACK | {"excludes": ["numpy"]}, index)
    built = release.build(request, tmp_path / "root", uv=uv, python=sys.executable)
    assert "numpy" not in (built.path / "lock.txt").read_text(encoding="utf-8")
    plain = release.Request.from_stack(STACK, index)
    assert release.plan(plain, tmp_path / "root", python=sys.executable)[0] != built.release_id


def test_exact_requirements() -> None:
    lines = ["Torch==2.9.1+cu128", "a[x]==1", "b>=2", "c==1; python_version < '3.12'", "d == 2"]
    assert release_system.exact(lines) == {"torch": "2.9.1+cu128", "a": "1", "d": "2"}


# What was locked is what is there


LOCK = "a==1.0 \\\n    --hash=sha256:0\nb-c==2026.10.post1 \\\n    --hash=sha256:0\n"


@pytest.mark.parametrize(
    ("packages", "words"),
    [
        ({"a": "1.0", "b-c": "2026.10.post1"}, None),
        ({"a": "1.0", "b-c": "2026.10.post01"}, None),
        ({"a": "0.9", "b-c": "2026.10.post1"}, r"a is 0\.9, locked as 1\.0"),
        ({"b-c": "2026.10.post1"}, "a is missing"),
        ({"a": "1.0", "b-c": "2026.10.post1", "d": "3"}, "d 3 is not locked"),
    ],
)
def test_an_environment_is_what_was_locked(packages: dict[str, str], words: str | None) -> None:
    if words is None:
        release_verify.verify_lock(LOCK, {"packages": packages}, {})
    else:
        with pytest.raises(release.ReleaseError, match=words):
            release_verify.verify_lock(LOCK, {"packages": packages}, {})


def test_packages_of_the_host_are_held_to_what_was_found() -> None:
    packages = {"a": "1.0", "b-c": "2026.10.post1", "torch": "2.12", "more": "1"}
    with pytest.raises(release.ReleaseError, match=r"torch is 2\.12, the host's Python has 2\.11"):
        release_verify.verify_lock(LOCK, {"packages": packages}, {"torch": "2.11"})
    release_verify.verify_lock(LOCK, {"packages": packages}, {"torch": "2.12"})


def test_a_silent_downgrade_ends_the_build(index: release.Index, tmp_path: Path, uv: str) -> None:
    """An installer that puts another version there than was locked: nothing of it stays."""
    changed = tmp_path / "uv"
    script = 'case "$*" in *"pip install"*) sed -i "s/numpy==2.2/numpy==2.1/; /numpy/,$ d" "${@: -1}";; esac'
    changed.write_text(f'#!/bin/bash\n{script}\nexec {uv} "$@"\n', encoding="utf-8")
    changed.chmod(0o755)
    request = release.Request.from_stack(STACK, index)
    with pytest.raises(release.ReleaseError, match=r"is not what was locked: .*is missing, locked as|cannot be imported"):
        release.build(request, tmp_path / "root", uv=str(changed), python=sys.executable)
    assert list((tmp_path / "root" / "releases").iterdir()) == []


def test_overrides_are_verified(index: release.Index) -> None:
    request = release.Request.from_stack(STACK | {"overrides": ["numpy==2.0", "absent==1"]}, index)
    release_verify.verify_overrides(request, {"packages": {"numpy": "2.0"}})
    with pytest.raises(release.ReleaseError, match=r"numpy is 2\.1, overridden to 2\.0"):
        release_verify.verify_overrides(request, {"packages": {"numpy": "2.1"}})


# What is said meanwhile


def test_progress_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "said"
    assert release_progress.read(path) == release_progress.Said((), 0, alive=False)
    say = release_progress.writer(path)
    say("one")
    first = release_progress.read(path)
    assert [text for _, text in first.lines] == ["one"] and first.alive
    say("two")
    with path.open("a", encoding="utf-8") as handle:
        handle.write('{"seconds": 1, "te')  # a line that is being written
    second = release_progress.read(path, first.offset)
    assert [text for _, text in second.lines] == ["two"]
    assert release_progress.read(path, second.offset).lines == ()


def test_a_dead_process_is_known(tmp_path: Path) -> None:
    path = tmp_path / "said"
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    path.write_text(f'{{"pid": {done.stdout.strip()}, "start": ""}}\n{{"seconds": 1, "text": "one"}}\n', encoding="utf-8")
    said = release_progress.read(path)
    assert [text for _, text in said.lines] == ["one"] and not said.alive


def test_a_process_that_was_given_the_number_of_a_dead_one_is_another(tmp_path: Path) -> None:
    path = tmp_path / "said"
    release_progress.writer(path)("one")
    first = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    assert release_progress.read(path).alive
    for other in ({**first, "start": str(int(first["start"]) - 1)}, {"pid": first["pid"]}, [], {**first, "pid": None}):
        path.write_text(json.dumps(other) + "\n", encoding="utf-8")
        assert not release_progress.read(path).alive


def test_a_build_says_what_it_does(index: release.Index, tmp_path: Path, uv: str) -> None:
    said: list[str] = []
    request = release.Request.from_stack(STACK, index)
    release.build(request, tmp_path / "root", uv=uv, python=sys.executable, progress=said.append)
    assert said[0].startswith("making the environment with")
    assert "installing 4 packages" in said
    assert any(text.startswith("Installed 4 packages in") for text in said), "uv's own words, as they come"


def test_old_words_are_cleared(tmp_path: Path) -> None:
    old, new = tmp_path / ".progress-old", tmp_path / ".progress-new"
    for path in (old, new):
        path.touch()
    os.utime(old, (1, 1))
    release_store.clear_leftovers(release_store.Store(tmp_path))
    assert not old.exists() and new.exists()
