"""One look decides what a deployment still has to do; a wrong yes would leave a host as it is."""

from __future__ import annotations

import grp
import os
import pwd
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from sglang_deploy import instance, ledger, standing

ME, GROUP = pwd.getpwuid(os.getuid()), grp.getgrgid(os.getgid()).gr_name
RUNNING = instance.Running(True, "active (running)", 7, 0, "abc", "f" * 64, ("python",), enabled=True)


@pytest.fixture
def wanted(tmp_path: Path) -> standing.Wanted:
    unit = tmp_path / "sglang@.service"
    unit.write_text("[Service]\n", encoding="utf-8")
    unit.chmod(0o644)
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o755)
    return standing.Wanted("[Service]\n", ME.pw_name, GROUP, (folder,))


def test_a_host_that_has_everything_is_installed(wanted: standing.Wanted, tmp_path: Path) -> None:
    assert standing.installed(wanted, tmp_path / "sglang@.service")


@pytest.mark.parametrize(
    "other",
    [
        {"unit": "[Service]\nNice=1\n"},
        {"user": "nobody-here"},
        {"group": "no-such-group"},
        {"folders": (Path("/nonexistent"),)},
    ],
)
def test_one_thing_that_differs_is_enough(wanted: standing.Wanted, tmp_path: Path, other: dict[str, Any]) -> None:
    changed = standing.Wanted(**{**wanted.__dict__, **other})
    assert not standing.installed(changed, tmp_path / "sglang@.service")


def test_modes_count(wanted: standing.Wanted, tmp_path: Path) -> None:
    unit = tmp_path / "sglang@.service"
    unit.chmod(0o666)
    assert not standing.installed(wanted, unit)
    unit.chmod(0o644)
    wanted.folders[0].chmod(0o777)
    assert not standing.installed(wanted, unit)


def test_a_missing_unit_is_not_installed(wanted: standing.Wanted, tmp_path: Path) -> None:
    assert not standing.installed(wanted, tmp_path / "absent")


@pytest.fixture
def deployment(tmp_path: Path) -> dict[str, Any]:
    spec = {"instance": "glm5", "hash": "f" * 64, "url": "http://127.0.0.1:8000", "profile": "p"}
    spec |= {"command": ["python"], "argv": [], "environment": {}}
    return {"spec": spec, "launch": "#!/bin/sh\n", "environment": "A=1\n"}


@pytest.mark.skipif(os.geteuid() != 0, reason="the instance's files belong to root")
def test_settled_means_files_boot_and_ledger(deployment: dict[str, Any], tmp_path: Path) -> None:
    directory = tmp_path / "glm5"
    good = ledger.LastGood(deployment, "2026-11-30T00:00:00Z")
    assert not standing.settled(deployment, directory, GROUP, RUNNING, good), "no file is there yet"
    instance.write(deployment, directory, os.getgid())
    assert standing.settled(deployment, directory, GROUP, RUNNING, good)
    off = instance.Running(**{**RUNNING.__dict__, "enabled": False})
    assert not standing.settled(deployment, directory, GROUP, off, good)
    assert not standing.settled(deployment, directory, GROUP, RUNNING, ledger.LastGood(None))
    other = {**deployment, "spec": {**deployment["spec"], "hash": "0" * 64}}
    assert not standing.settled(deployment, directory, GROUP, RUNNING, ledger.LastGood(other))
    (directory / "launch").write_text("#!/bin/sh\nexec edited\n", encoding="utf-8")
    assert not standing.settled(deployment, directory, GROUP, RUNNING, good), "an edit by hand is undone"
    instance.write(deployment, directory, os.getgid())
    (directory / "candidate").mkdir()
    assert not standing.settled(deployment, directory, GROUP, RUNNING, good), "what is left of a run is taken away"


@pytest.mark.skipif(os.geteuid() != 0, reason="the instance's files belong to root")
def test_an_edit_by_hand_is_seen(deployment: dict[str, Any], tmp_path: Path) -> None:
    directory, state = tmp_path / "glm5", tmp_path / "state"
    nothing = ledger.LastGood(None)
    assert standing.edited(directory, state, nothing) == []
    instance.write(deployment, directory, os.getgid())
    assert standing.edited(directory, state, nothing) == [], "nothing was accepted, so there is nothing to compare with"
    ledger.record(state, "deploy", deployment, {"ok": True}, "ann")
    good = ledger.last_good(state)
    assert standing.edited(directory, state, good) == []
    for name, text in {"launch": "#!/bin/sh\nexec edited\n", "environment": "A=2\n", "spec.json": "{}"}.items():
        before = (directory / name).read_text(encoding="utf-8")
        (directory / name).write_text(text, encoding="utf-8")
        assert standing.edited(directory, state, good) == [str(directory / name)]
        (directory / name).write_bytes(b"\xff\xfe")
        assert standing.edited(directory, state, good) == [str(directory / name)]
        (directory / name).unlink()
        assert standing.edited(directory, state, good) == [str(directory / name)]
        (directory / name).write_text(before, encoding="utf-8")
    assert standing.edited(directory, state, good) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="the instance's files belong to root")
def test_another_deployment_of_the_ledger_is_no_edit(deployment: dict[str, Any], tmp_path: Path) -> None:
    directory, state = tmp_path / "glm5", tmp_path / "state"
    other = {**deployment, "spec": {**deployment["spec"], "hash": "0" * 64}, "launch": "#!/bin/sh\nother\n"}
    ledger.record(state, "deploy", deployment, {"ok": True}, "ann")
    ledger.record(state, "trial", other, {"ok": False}, "ann")
    instance.write(other, directory, os.getgid())
    assert standing.edited(directory, state, ledger.last_good(state)) == []


def test_what_runs_is_compared_whole(deployment: dict[str, Any]) -> None:
    assert instance.runs(RUNNING, deployment)
    for field, value in {"active": False, "spec_hash": None, "argv": ("python", "-x"), "unit_newer": True}.items():
        assert not instance.runs(instance.Running(**{**RUNNING.__dict__, field: value}), deployment)


class _Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    made = HTTPServer(("127.0.0.1", 0), _Health)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def test_only_200_is_up(server: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    assert standing.answers(url)
    monkeypatch.setattr(_Health, "status", 503)
    assert not standing.answers(url)
    assert not standing.answers("http://127.0.0.1:1")
