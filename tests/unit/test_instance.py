"""An instance's files and what runs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from loading import answer
from sglang_deploy import instance

GROUP = os.getegid()
DEPLOYMENT = {
    "spec": {
        "hash": "a" * 64,
        "url": "http://127.0.0.1:8000",
        "profile": "p",
        "command": ["python"],
        "argv": [],
        "environment": {},
    },
    "launch": "#!/bin/sh\n",
    "environment": 'A="1"\n',
}
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files of an instance belong to root")


def test_files_are_written_with_their_modes_and_the_second_time_nothing_changes(tmp_path: Path) -> None:
    folder = tmp_path / "glm5"
    assert instance.write(DEPLOYMENT, folder, GROUP).changed
    modes = {path.name: path.stat().st_mode & 0o7777 for path in folder.iterdir()}
    assert modes == {"launch": 0o755, "environment": 0o640, "spec.json": 0o644}
    assert not instance.write(DEPLOYMENT, folder, GROUP).changed
    assert instance.read(folder) == DEPLOYMENT


def test_the_service_enters_every_new_folder_whatever_roots_umask_is(tmp_path: Path, reloads: list[list[str]]) -> None:
    before = os.umask(0o077)
    try:
        instance.stage("glm5", DEPLOYMENT, tmp_path / "glm5", GROUP, tmp_path / "run")
    finally:
        os.umask(before)
    for folder in (tmp_path / "glm5", tmp_path / "glm5" / "candidate"):
        assert folder.stat().st_mode & 0o7777 == 0o755, folder


def test_a_loosened_mode_is_a_change(tmp_path: Path) -> None:
    instance.write(DEPLOYMENT, tmp_path, GROUP)
    (tmp_path / "environment").chmod(0o644)
    assert instance.write(DEPLOYMENT, tmp_path, GROUP).changed
    assert (tmp_path / "environment").stat().st_mode & 0o7777 == 0o640


def test_comparing_writes_nothing_and_shows_the_difference(tmp_path: Path) -> None:
    instance.write(DEPLOYMENT, tmp_path, GROUP)
    written = instance.write({**DEPLOYMENT, "environment": 'A="2"\n'}, tmp_path, GROUP, apply=False)
    assert [(entry["before"], entry["after"]) for entry in written.diff] == [('A="1"\n', 'A="2"\n')]
    assert instance.read(tmp_path) == DEPLOYMENT


def test_an_interruption_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instance.write(DEPLOYMENT, tmp_path, GROUP)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        instance.write({**DEPLOYMENT, "launch": "#!/bin/sh\nexec false\n"}, tmp_path, GROUP)
    assert instance.read(tmp_path) == DEPLOYMENT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environment", "launch", "spec.json"]


@pytest.fixture
def reloads(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What systemctl was told."""
    told: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: told.append(command))
    return told


def test_a_candidate_leaves_the_instances_own_files_alone(tmp_path: Path, reloads: list[list[str]]) -> None:
    folder, units = tmp_path / "glm5", tmp_path / "units"
    instance.write(DEPLOYMENT, folder, GROUP)
    other = {**DEPLOYMENT, "launch": f"#!/bin/sh\n. {folder}/environment\nexec true\n", "environment": 'A="2"\n'}
    instance.stage("glm5", other, folder, GROUP, units)
    assert instance.read(folder) == DEPLOYMENT
    setting = (units / "sglang@glm5.service.d" / "candidate.conf").read_text().splitlines()
    assert setting == [
        "[Service]",
        "EnvironmentFile=",
        f"EnvironmentFile={folder}/candidate/environment",
        "ExecStart=",
        f"ExecStart={folder}/candidate/launch",
        "BindReadOnlyPaths=",
        f"BindReadOnlyPaths={folder}/candidate:{folder}",
    ]
    # The unit sees the candidate's folder under the instance's name: the candidate's own path must be good there, too.
    assert (folder / "candidate" / "candidate" / "launch").read_text() == (folder / "candidate" / "launch").read_text()
    assert f". {folder}/candidate/environment" in (folder / "candidate" / "launch").read_text()
    assert reloads == []

    assert instance.discard("glm5", folder, units)
    assert reloads == [["systemctl", "daemon-reload"]]
    assert not (folder / "candidate").exists()
    assert list((units / "sglang@glm5.service.d").iterdir()) == []
    assert not instance.discard("glm5", folder, units)
    assert instance.read(folder) == DEPLOYMENT


def test_a_look_takes_no_candidate_away(
    tmp_path: Path,
    reloads: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, units = tmp_path / "glm5", tmp_path / "units"
    instance.write(DEPLOYMENT, folder, GROUP)
    instance.stage("glm5", DEPLOYMENT, folder, GROUP, units)
    assert instance.discard("glm5", folder, units, apply=False)
    assert (units / "sglang@glm5.service.d" / "candidate.conf").exists()
    assert (folder / "candidate" / "launch").exists()

    monkeypatch.setattr(instance, "running", lambda *_: instance.Running(False, "inactive", 0, 0, ""))
    given = {"name": "glm5", "config_root": str(tmp_path), "state": "discarded"}
    assert answer(monkeypatch, capsys, "sglang_instance", given, check_mode=True)["changed"] is True
    assert (folder / "candidate" / "launch").exists() and reloads == []
    assert answer(monkeypatch, capsys, "sglang_instance", given)["changed"] is True
    assert not (folder / "candidate").exists() and reloads != []
    for check_mode in (True, False):
        assert answer(monkeypatch, capsys, "sglang_instance", given, check_mode=check_mode)["changed"] is False


def test_systemd_forgets_a_candidate_before_its_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, units = tmp_path / "glm5", tmp_path / "units"
    instance.stage("glm5", DEPLOYMENT, folder, GROUP, units)

    def cut_off(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", cut_off)
    with pytest.raises(KeyboardInterrupt):
        instance.discard("glm5", folder, units)
    assert (folder / "candidate" / "launch").exists()


def test_a_release_that_is_gone_is_named(tmp_path: Path) -> None:
    spec = {"command": [str(tmp_path / "releases/cpu-1/venv/bin/python"), "-m", "sglang.launch_server"]}
    assert "cpu-1 has no receipt.json" in instance.release_problem({"spec": spec})


def test_findings_get_what_the_deployment_tells(tmp_path: Path) -> None:
    spec = {
        "command": [str(tmp_path / "none/venv/bin/python")],
        "argv": ["--model-path", "/m", "--kv-cache-dtype", "fp8_e4m3", "--disable-radix-cache"],
        "environment": {"NCCL_DEBUG": {"value": "INFO", "source": "-e"}},
    }
    assert instance.context({"spec": spec}) == {
        "versions": {},
        "settings": {"model_path": "/m", "kv_cache_dtype": "fp8_e4m3", "disable_radix_cache": "True"},
        "environment": {"NCCL_DEBUG": "INFO"},
    }


@pytest.mark.parametrize("content", ["", "[]", "{", "{}", '{"hash": 1}', "[" * 100_000])
def test_a_damaged_spec_is_no_deployment(tmp_path: Path, content: str) -> None:
    instance.write(DEPLOYMENT, tmp_path, GROUP)
    (tmp_path / "spec.json").write_text(content)
    assert instance.read(tmp_path) == {}


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("10.0.0.5", "http://10.0.0.5:8000"),
    ],
)
def test_the_host_reaches_its_server(host: str, url: str) -> None:
    assert instance.local_url(host, 8000) == url


def test_caches_belong_to_a_release_and_a_profile() -> None:
    def caches(release: str, profile: str) -> set[str]:
        found = instance.service_environment("/c", f"/r/{release}", release, profile, "/cuda")
        return {value for name, value in found.items() if name not in ("HF_HOME", "HOME", "PATH")}

    assert not caches("a", "p") & caches("b", "p")
    assert not caches("a", "p") & caches("a", "q")


def test_a_model_that_the_server_fetched_outlives_releases_and_profiles() -> None:
    found = instance.service_environment("/c", "/r/a", "a", "p", "")
    assert found["HF_HOME"] == instance.service_environment("/c", "/r/b", "b", "q", "")["HF_HOME"]
    assert not found["HF_HOME"].startswith("/c/a/")


def test_the_services_path_holds_the_release_and_nvcc() -> None:
    path = instance.service_environment("/c", "/r/a", "a", "p", "/usr/local/cuda-12.8")["PATH"].split(":")
    assert path[:2] == ["/r/a/venv/bin", "/usr/local/cuda-12.8/bin"]
    assert "/usr/bin" in path


def test_a_unit_file_written_after_the_start_is_noticed(tmp_path: Path) -> None:
    unit = tmp_path / "unit"
    unit.write_text(json.dumps({}))
    now = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
    assert instance._changed_since(str(unit), now - 60_000_000)
    assert not instance._changed_since(str(unit), now + 60_000_000)
    assert not instance._changed_since("", now)
    assert instance._changed_since(str(tmp_path / "taken away"), now)
    os.utime(unit, (4e9, 4e9))  # the clock was set back: it would be newer than each start to come
    assert not instance._changed_since(str(unit), now - 60_000_000)
