"""The release builder with the real uv, on small packages made on the spot: one that calls itself sglang, torch ..."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import dialect, release, release_host, release_lock, release_probe, release_store, release_uv

STACK: dict[str, Any] = {
    "name": "small",
    "sglang": "0.5.9",
    "source": {"kind": "index", "package": "sglang", "version": "0.5.9"},
    "python": ">=3.10",
    "torch": "2.9.1",
    "transformers": "5.2.0",
    "overrides": ["transformers==5.2.0"],
    "constraints": "constraints/small.txt",
}
CONSTRAINTS = "# exact\nnumpy==2.1\n"


def request_for(index: release.Index, **changes: Any) -> release.Request:
    return release.Request.from_stack(STACK | changes, index, CONSTRAINTS)


@pytest.fixture(scope="session")
def first_root(index: release.Index, tmp_path_factory: pytest.TempPathFactory, uv: str) -> Path:
    root = tmp_path_factory.mktemp("first") / "root"
    assert release.build(request_for(index), root, uv=uv, python=sys.executable).changed
    return root


@pytest.fixture
def built(index: release.Index, first_root: Path, tmp_path: Path) -> release.Built:
    """A copy of a built release: an environment may be moved, so it may be copied."""
    shutil.copytree(first_root, tmp_path / "root", symlinks=True)
    return release.build(request_for(index), tmp_path / "root", uv="/no/such/uv", python=sys.executable)


def left_over(root: Path) -> list[str]:
    return [path.name for path in (root / "releases").iterdir()] if (root / "releases").is_dir() else []


# The whole build


def test_a_router_is_built_by_the_same_means_and_asked_for_its_own_options(
    index: release.Index, tmp_path: Path, uv: str
) -> None:
    source = {"kind": "index", "package": "sglang-router", "version": "0.3.2"}
    stack = {"name": "router", "program": "sglang_router", "source": source, "python": ">=3.10"}
    built = release.build(release.Request.from_stack(stack, index), tmp_path, uv=uv, python=sys.executable)
    options = dialect.read(built.path / "options.json")
    assert (options.sglang, options.find("--tp-size") is not None) == ("router 0.3.2", True)
    assert built.receipt["versions"]["sglang"] == "router 0.3.2"


def test_a_program_that_is_not_known_is_refused(index: release.Index) -> None:
    with pytest.raises(release.ReleaseError, match="known are sglang and sglang_router"):
        request_for(index, program="nginx")


def test_a_release_is_built_whole_and_found_again(built: release.Built, index: release.Index, tmp_path: Path) -> None:
    assert built.path == tmp_path / "root" / "releases" / built.release_id
    assert left_over(tmp_path / "root") == [built.release_id]
    receipt = built.receipt
    assert receipt["id"] == built.release_id
    assert receipt["versions"]["transformers"] == "5.2.0", "the override wins over SGLang's own pin"
    assert receipt["versions"]["torch"] == "2.9.1+cpu"
    assert receipt["packages"] == 4
    assert receipt["hashes"] >= 4
    assert receipt["bytes"] > 10_000
    assert set(receipt["seconds"]) == {"venv", "resolve", "install", "verify", "settle", "total"}
    lock = (built.path / "lock.txt").read_text(encoding="utf-8")
    assert "numpy==2.1" in lock and "numpy==2.2" not in lock, "the constraint decides"
    assert receipt["lock_sha256"] == hashlib.sha256(lock.encode()).hexdigest()
    again = release.build(request_for(index), tmp_path / "root", uv="/no/such/uv", python=sys.executable)
    assert not again.changed and again.receipt == receipt


def test_options_are_those_of_the_installed_parser(built: release.Built) -> None:
    options = json.loads((built.path / "options.json").read_text(encoding="utf-8"))
    assert options["schema"] == dialect.SCHEMA and options["sglang"] == "0.5.9"
    by_dest = {option["dest"]: option for option in options["options"]}
    assert by_dest["model_path"] == {
        "flags": ["--model-path", "--model"],
        "dest": "model_path",
        "kind": "StoreAction",
        "type": "str",
    }
    assert by_dest["sampling_backend"]["choices"] == ["ascend", "flashinfer", "pytorch"]
    assert by_dest["disable_cuda_graph"]["deprecated"] is True and by_dest["disable_cuda_graph"]["nargs"] == 0


def test_the_moved_environment_runs(built: release.Built) -> None:
    """Console scripts, modules and tracebacks know the final path, none the hidden one."""
    venv = built.path / "venv" / "bin"
    for command in ([venv / "python", "-m", "sglang.launch_server"], [venv / "sglang"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "RuntimeError: here" in done.stderr
        assert str(built.path) in done.stderr and ".building-" not in done.stderr


def test_modes_do_not_follow_the_umask(index: release.Index, tmp_path: Path, uv: str) -> None:
    old = os.umask(0o077)
    try:
        built = release.build(request_for(index), tmp_path / "root", uv=uv, python=sys.executable)
        assert os.umask(0o077) == 0o077, "the caller's umask is put back"
    finally:
        os.umask(old)
    assert list((built.path / "venv").rglob("__pycache__/*.pyc")), "byte-compiled, since the service cannot write there"
    for path in (built.path, *built.path.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            assert mode & 0o022 == 0, path
            assert mode & (0o005 if path.is_dir() else 0o004) == (0o005 if path.is_dir() else 0o004), path
            if os.geteuid() == 0:
                assert path.stat().st_uid == 0


def test_packages_without_their_dependencies(index: release.Index, tmp_path: Path, uv: str) -> None:
    request = request_for(
        index, overrides=[], requirements=["torch", "transformers==5.2.0"], requirements_no_deps=["sglang==0.5.9"]
    )
    built = release.build(request, tmp_path / "root", uv=uv, python=sys.executable)
    assert built.receipt["versions"]["transformers"] == "5.2.0"
    assert built.receipt["packages"] == 4


def test_a_package_resolved_to_two_versions_is_refused(index: release.Index, tmp_path: Path, uv: str) -> None:
    request = request_for(index, requirements_no_deps=["transformers==4.57.1"])
    with pytest.raises(release.ReleaseError, match=r"transformers==5\.2\.0 and transformers==4\.57\.1"):
        release.build(request, tmp_path / "root", uv=uv, python=sys.executable)
    assert left_over(tmp_path / "root") == []


# What goes wrong


def test_versions_that_are_not_the_stacks(index: release.Index, tmp_path: Path, uv: str) -> None:
    with pytest.raises(release.ReleaseError, match=r"transformers is 4\.57\.1, the stack says 5\.2\.0"):
        release.build(request_for(index, overrides=[]), tmp_path / "root", uv=uv, python=sys.executable)
    assert left_over(tmp_path / "root") == []


def test_a_server_that_cannot_be_imported(index: release.Index, tmp_path: Path, uv: str) -> None:
    request = request_for(index, source={"kind": "index", "package": "sglang", "version": "0.5.10"})
    request = replace(request, requirements=("sglang==0.5.10", "torch"))
    with pytest.raises(release.ReleaseError, match="no_such_module"):
        release.build(request, tmp_path / "root", uv=uv, python=sys.executable)
    assert left_over(tmp_path / "root") == []


def test_a_version_that_no_index_has(index: release.Index, tmp_path: Path, uv: str) -> None:
    request = replace(request_for(index), requirements=("sglang==9.9.9",))
    with pytest.raises(release_uv.UvError, match=r"Resolving the stack's packages failed") as caught:
        release.build(request, tmp_path / "root", uv=uv, python=sys.executable)
    assert "sglang==9.9.9" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert left_over(tmp_path / "root") == []


def test_an_index_that_cannot_be_reached(tmp_path: Path, uv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable = release.Index(index_url="http://user:secret@127.0.0.1:9/simple", cache_dir=str(tmp_path / "cache"))
    plain = release.Index.environment
    monkeypatch.setattr(release.Index, "environment", lambda self, **kw: plain(self, **kw) | {"UV_HTTP_RETRIES": "0"})
    with pytest.raises(release_uv.UvError) as caught:
        release.build(request_for(unreachable), tmp_path / "root", uv=uv, python=sys.executable)
    assert "cannot be reached" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_no_uv(index: release.Index, tmp_path: Path) -> None:
    with pytest.raises(release_uv.UvError, match="Install uv"):
        release.build(request_for(index), tmp_path / "root", uv="/no/such/uv", python=sys.executable)


def test_too_little_disk(index: release.Index, tmp_path: Path, uv: str) -> None:
    request = request_for(index, disk_mib=10**9)
    for act in (release.build, release.plan):
        with pytest.raises(release.ReleaseError, match="the stack needs 1000000000 MiB"):
            act(request, tmp_path / "root", python=sys.executable)
    assert left_over(tmp_path / "root") == []


def test_no_python_in_the_range(index: release.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = release_host.Python("/usr/bin/python3.9", (3, 9, 2), "linux-x86_64")
    monkeypatch.setattr(release_host, "host_pythons", lambda: iter([old]))
    with pytest.raises(release.ReleaseError, match=r"needs Python >=4\.0; this host has /usr/bin/python3\.9 \(3\.9\.2\)"):
        release.build(request_for(index, python=">=4.0"), tmp_path / "root", uv="/no/such/uv")
    with pytest.raises(release.ReleaseError, match=r"no-such-python was asked for"):
        release.build(request_for(index), tmp_path / "root", python="no-such-python")
    assert not (tmp_path / "root").exists()


def test_a_build_that_was_killed_leaves_nothing_the_next_one_minds(index: release.Index, tmp_path: Path, uv: str) -> None:
    root = tmp_path / "root"
    dead = root / "releases" / ".building-small-000000000000-999999" / "venv"
    dead.mkdir(parents=True)
    (root / ".build.lock").write_text("999999\n", encoding="utf-8")
    built = release.build(request_for(index), root, uv=uv, python=sys.executable)
    assert left_over(root) == [built.release_id]


def test_a_kill_in_the_middle(index: release.Index, tmp_path: Path, uv: str) -> None:
    """A builder that dies without a chance to clean up: nothing is visible, and the next build finishes."""
    slow = tmp_path / "uv"
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *"pip install"*) kill -9 $PPID; sleep 1;; esac\nexec {uv} "$@"\n', encoding="utf-8"
    )
    slow.chmod(0o755)
    root = tmp_path / "root"
    pid = os.fork()
    if pid == 0:
        release.build(request_for(index), root, uv=str(slow), python=sys.executable)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    assert [name for name in left_over(root) if not name.startswith(".building-")] == []
    assert left_over(root) != []
    built = release.build(request_for(index), root, uv=uv, python=sys.executable)
    assert left_over(root) == [built.release_id]


def test_two_builds_at_once(index: release.Index, tmp_path: Path, uv: str) -> None:
    root = tmp_path / "root"
    pid = os.fork()
    if pid == 0:
        release.build(request_for(index), root, uv=uv, python=sys.executable)
        os._exit(0)
    release.build(request_for(index), root, uv=uv, python=sys.executable)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(left_over(root)) == 1


def test_a_held_lock_names_its_holder(tmp_path: Path) -> None:
    with (
        release_store.locked(tmp_path, wait_s=0),
        pytest.raises(release_store.StoreError, match=str(os.getpid())),
        release_store.locked(tmp_path, wait_s=0),
    ):
        pass


@pytest.mark.parametrize("damage", ["lock.txt", "options.json", "receipt.json", "venv/bin/python"])
def test_a_damaged_release_is_built_anew(
    built: release.Built, index: release.Index, tmp_path: Path, uv: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (built.path / damage).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(release, "running_releases", lambda _: {built.release_id})
        for act in (release.build, release.plan):
            with pytest.raises(release.ReleaseError, match="in use"):
                act(request_for(index), tmp_path / "root", python=sys.executable)
    assert release.plan(request_for(index), tmp_path / "root", python=sys.executable) == (built.release_id, True)
    again = release.build(request_for(index), tmp_path / "root", uv=uv, python=sys.executable)
    assert again.changed and (again.path / damage).exists()


def test_a_changed_lock_is_damage(built: release.Built) -> None:
    with (built.path / "lock.txt").open("a", encoding="utf-8") as handle:
        handle.write("evil==1\n")
    with pytest.raises(release_store.Damaged, match="changed after"):
        release_store.read_receipt(built.path)


def test_an_option_list_that_is_cut_off_is_damage(built: release.Built) -> None:
    (built.path / "options.json").write_text("{", encoding="utf-8")
    with pytest.raises(release_store.Damaged, match=r"options.json cannot be read"):
        release_store.read_receipt(built.path)


def test_plan_changes_nothing(index: release.Index, tmp_path: Path) -> None:
    release_id, missing = release.plan(request_for(index), tmp_path / "root", python=sys.executable)
    assert missing and release_id.startswith("small-")
    assert list(tmp_path.iterdir()) == []


# Identity


def test_the_id_follows_what_decides_the_build(index: release.Index) -> None:
    base = request_for(index)
    ids = {release.request_id(base, "3.11", "linux-x86_64")}
    assert ids == {release.request_id(request_for(index), "3.11", "linux-x86_64")}
    others = [
        (request_for(index, overrides=["transformers==5.3.0"]), "3.11", "linux-x86_64"),
        (replace(base, constraints=("numpy==2.0",)), "3.11", "linux-x86_64"),
        (replace(base, index=replace(index, index_url="https://mirror.example/simple")), "3.11", "linux-x86_64"),
        (base, "3.12", "linux-x86_64"),
        (base, "3.11", "linux-aarch64"),
    ]
    for request, python, platform in others:
        ids.add(release.request_id(request, python, platform))
    assert len(ids) == len(others) + 1


def test_the_id_does_not_follow_credentials_and_transport() -> None:
    def of(**fields: Any) -> str:
        return release.request_id(request_for(release.Index(**fields)), "3.11", "linux-x86_64")

    one = of(index_url="https://u:old@mirror.example/simple")
    assert one == of(index_url="https://u:new@mirror.example/simple", cache_dir="/x", proxies=(("https", "http://p:1"),))
    assert one != of(index_url="https://other.example/simple")


def test_a_receipt_holds_no_credentials(index: release.Index, tmp_path: Path, uv: str) -> None:
    secret = replace(index, index_url="https://user:hunter2@mirror.example/simple")
    built = release.build(request_for(secret), tmp_path / "root", uv=uv, python=sys.executable)
    for path in built.path.glob("*.*"):
        assert "hunter2" not in path.read_text(encoding="utf-8")


def test_what_a_stack_must_have(index: release.Index) -> None:
    with pytest.raises(release.ReleaseError, match="source kind 'svn' cannot be built"):
        request_for(index, source={"kind": "svn", "url": "https://x.example/y"})
    with pytest.raises(release.ReleaseError, match="its source has no version"):
        request_for(index, source={"kind": "index", "package": "sglang"})
    with pytest.raises(release.ReleaseError, match="cannot be part of a folder name"):
        request_for(index, name="../x")
    with pytest.raises(release.ReleaseError, match="must be a list"):
        request_for(index, requirements="torch")
    with pytest.raises(release.ReleaseError, match="constraints file"):
        release.Request.from_stack(STACK, index, "")


def test_a_git_stack_can_be_taken_from_the_index(index: release.Index) -> None:
    git = STACK | {"source": {"kind": "git", "url": "https://x.example/y.git", "ref": "v0.5.9"}}
    request = release.Request.from_stack(git, index, CONSTRAINTS, source_kind="index")
    assert request.requirements == ("sglang==0.5.9",)
    assert request.source == {"kind": "index", "package": "sglang", "version": "0.5.9"}


def test_expected_versions_come_from_the_stack(index: release.Index) -> None:
    request = request_for(index, kernel="sgl-kernel==0.3.21", flashinfer="0.6.3", cuda="12.8")
    assert request.expected["sgl-kernel"] == "0.3.21"
    assert request.expected["flashinfer-python"] == "0.6.3"
    report = {
        "sglang": "0.5.9",
        "torch": "2.9.1+cu128",
        "cuda": "12.8",
        "packages": {"transformers": "5.2.0", "sgl-kernel": "0.3.21"},
    }
    with pytest.raises(release.ReleaseError, match=r"flashinfer-python is missing, the stack says 0\.6\.3"):
        release.verify_versions(request.expected, report)
    report["packages"]["flashinfer-python"] = "0.6.3"
    release.verify_versions(request.expected, report)


def test_hashes_are_added_where_uv_left_them_out() -> None:
    lock = "a==1 \\\n    --hash=sha256:" + "0" * 64 + "\nb.c==2\n"
    pylock = '[[packages]]\nname = "b-c"\nwheels = [{ hashes = { sha256 = "' + "1" * 64 + '" } }]\n'
    assert release_lock.with_hashes(lock, pylock) == lock.rstrip() + " \\\n    --hash=sha256:" + "1" * 64 + "\n"


# Pythons


@pytest.mark.parametrize(
    ("version", "specifier", "expected"),
    [
        ((3, 11, 2), ">=3.10,<3.13", True),
        ((3, 13, 0), ">=3.10,<3.13", False),
        ((3, 9, 18), ">=3.10", False),
        ((3, 11, 2), "==3.11", True),
        ((3, 11, 2), "!=3.11", False),
        ((3, 12, 0), ">3.11", True),
        ((3, 11, 0), "<=3.11", True),
        ((3, 11, 2), "", True),
    ],
)
def test_python_ranges(version: tuple[int, int, int], specifier: str, expected: bool) -> None:
    assert release_host.in_range(version, specifier) is expected


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_a_range_and_its_opposite(minor: int, patch: int, bound: int) -> None:
    version = (3, minor, patch)
    assert release_host.in_range(version, f">=3.{bound}") is not release_host.in_range(version, f"<3.{bound}")
    assert release_host.in_range(version, f"==3.{bound}") is not release_host.in_range(version, f"!=3.{bound}")


def test_a_range_that_is_none() -> None:
    with pytest.raises(ValueError, match="is not a Python version range"):
        release_host.in_range((3, 11, 0), "3.11")


def test_the_hosts_pythons_are_found_once_each() -> None:
    found = list(release_host.host_pythons())
    assert found and len({python.path for python in found}) == len(found)
    assert all(Path(python.path).is_absolute() and not Path(python.path).is_symlink() for python in found)


# Where packages come from


def test_the_index_becomes_uvs_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://host.example/simple")
    monkeypatch.setenv("https_proxy", "http://old:1")
    index = release.Index(
        extra_index_urls=("https://a.example", "https://b.example"),
        find_links=("/w",),
        proxies=(("https", "http://new:2"), ("no", "localhost")),
    )
    env = index.environment(same_filesystem=False)
    assert replace(index, find_links=("/w", "/v")).environment(same_filesystem=True)["UV_FIND_LINKS"] == "/w,/v"
    assert "UV_DEFAULT_INDEX" not in env, "the caller's environment does not decide what is built"
    assert env["UV_INDEX"] == "https://a.example https://b.example"
    assert env["UV_FIND_LINKS"] == "/w"
    assert env["HTTPS_PROXY"] == "http://new:2" and "https_proxy" not in env
    assert env["NO_PROXY"] == "localhost"
    assert env["UV_LINK_MODE"] == "copy"


def test_what_must_not_be_shown() -> None:
    index = release.Index(
        index_url="https://user:pass%40word@mirror.example/simple",
        extra_index_urls=("https://token@other.example", "https://open.example"),
        proxies=(("https", "http://u:proxypass@p:1"), ("no", "localhost")),
    )
    assert index.secrets() == {"pass%40word", "pass@word", "token", "proxypass"}
    assert release_uv.secrets("ssh://git@host.example/x") == release_uv.secrets("") == set()


@pytest.mark.parametrize(
    ("given_index", "expected"),
    [
        ({"indexurl": "x"}, "unknown key indexurl"),
        ({"find_links": "/opt/wheels"}, "must be a list of strings"),
        ({"find_links": ["/no/such/folder"]}, "does not exist"),
        ({"ca_bundle": "/no/such/file"}, "does not exist"),
        ({"proxies": {"ftp": "x"}}, "proxies must map"),
        ({"index_url": 3}, "must be a string"),
        ({"offline": "yes"}, "must be true or false"),
    ],
)
def test_a_bad_index(given_index: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        release.Index.from_mapping(given_index)


def test_empty_values_of_an_index_are_defaults() -> None:
    assert (
        release.Index.from_mapping({"index_url": "", "find_links": [], "proxies": {}, "ca_bundle": None}) == release.Index()
    )


@pytest.mark.parametrize(
    ("stderr", "cure"),
    [
        ("error: Failed to fetch: `https://x/`\n  Caused by: invalid peer certificate: UnknownIssuer", "ca_bundle"),
        ("error: Failed to fetch\n  Caused by: dns error: failed to lookup address", "cannot be reached"),
        ("error: failed to write\n  Caused by: No space left on device (os error 28)", "disk is full"),
        ("HTTP status client error (401 Unauthorized) for url (https://x/)", "credentials"),
        ("No solution found when resolving dependencies:", "No versions fit"),
    ],
)
def test_cures(stderr: str, cure: str) -> None:
    assert cure in release_uv.cure(stderr)


# The store


def fake(root: Path, name: str, age: int) -> Path:
    path = root / "releases" / name
    path.mkdir(parents=True)
    (path / "receipt.json").write_text("{}", encoding="utf-8")
    os.utime(path / "receipt.json", (10**9 - age, 10**9 - age))
    return path


@pytest.fixture
def five(tmp_path: Path) -> Path:
    for age, name in enumerate(["e", "d", "c", "b", "a"]):
        fake(tmp_path, name, age)
    return tmp_path


def test_pruning_takes_the_oldest_first(five: Path) -> None:
    assert release_store.prunable(five, 3, ()) == ["a", "b"]
    assert release_store.prune(five, 3) == ["a", "b"]
    assert sorted(left_over(five)) == ["c", "d", "e"]
    assert release_store.prune(five, 3) == []


def test_pruning_spares_the_protected(five: Path) -> None:
    assert release_store.prune(five, 1, {"a", "c"}) == ["b", "d"]
    assert sorted(left_over(five)) == ["a", "c", "e"]


def test_pruning_spares_what_runs(five: Path) -> None:
    with subprocess.Popen(["sleep", "60"], cwd=five / "releases" / "a") as running:
        try:
            assert release_store.running_releases(five) == {"a"}
            assert release_store.prune(five, 3) == ["b"]
        finally:
            running.kill()
    assert release_store.running_releases(five) == set()


def test_a_release_runs_where_its_files_are_mapped(five: Path) -> None:
    """A venv's python is a link to the host's, so neither its executable nor its folder tells."""
    library = five / "releases" / "b" / "venv" / "lib.so"
    library.parent.mkdir()
    library.write_bytes(b"\0" * 4096)
    code = (
        "import mmap, sys; file = open(sys.argv[1], 'rb'); kept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ); "
        "print('up', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, library], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
    ) as running:
        assert running.stdout is not None and running.stdout.readline() == b"up\n"
        assert release_store.running_releases(five) == {"b"}
        running.communicate(b"\n")


def test_pruning_clears_leftovers_and_leaves_strangers(five: Path) -> None:
    (five / "releases" / ".building-x-1").mkdir()
    (five / "releases" / ".removing-y").mkdir()
    (five / "releases" / "mine").mkdir()
    assert release_store.prune(five, 5) == [".building-x-1", ".removing-y"]
    assert (five / "releases" / "mine").is_dir()


def test_the_newest_is_never_pruned(five: Path, tmp_path: Path) -> None:
    with pytest.raises(release_store.StoreError, match="at least 1"):
        release_store.prune(five, 0)
    assert release_store.prune(tmp_path / "nothing", 3) == []


# The probe


def test_the_probe_writes_the_catalogs_format() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("positional")
    parser.add_argument("--level", type=int, choices=[0, 1], nargs="+")
    (option,) = release_probe.options(parser)
    assert option == {
        "flags": ["--level"],
        "dest": "level",
        "kind": "StoreAction",
        "nargs": "+",
        "type": "int",
        "choices": [0, 1],
    }


@pytest.mark.parametrize(
    ("text", "deprecated"),
    [
        ("Deprecated alias for --x.", True),
        ("[Deprecated] Use --x instead.", True),
        ("(Deprecated, use --x) The old way.", True),
        ("The kernel. NOTE: This replaces the deprecated environment variable X.", False),
        ("Replaces the deprecated --x.", False),
    ],
)
def test_only_an_option_that_is_itself_deprecated_counts(text: str, deprecated: bool) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", help=text)
    (option,) = release_probe.options(parser)
    assert ("deprecated" in option) is deprecated


def test_settle_makes_a_tree_readable_and_counts_it(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    tree.mkdir(mode=0o700)
    (tree / "program").write_bytes(b"x" * 5000)
    (tree / "program").chmod(0o4770)
    (tree / "data").write_bytes(b"x")
    (tree / "data").chmod(0o666)
    (tree / "link").symlink_to("/etc/passwd")
    assert release._settle(tree) >= 5001
    assert stat.S_IMODE(tree.stat().st_mode) == 0o755
    assert stat.S_IMODE((tree / "program").stat().st_mode) == 0o755
    assert stat.S_IMODE((tree / "data").stat().st_mode) == 0o644
