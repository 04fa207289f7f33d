"""A file system that fails is a message of the module and no traceback; a build that is gone ends the wait for it."""

from __future__ import annotations

import errno
import importlib
import os
from typing import Any, NoReturn
from unittest import mock

import pytest
from loading import answer, plugin
from sglang_deploy import instance

DEPLOYMENT = {"spec": {"instance": "glm5"}}


def full(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/srv/there")


@pytest.mark.parametrize(
    ("name", "place", "given"),
    [
        ("sglang_weights", "hub_fetch.step", {"repo": "a/b", "revision": "0" * 40, "python": "/x"}),
        ("sglang_model_dir", "hub_store.inspect_once", {"path": "/srv/m"}),
        ("sglang_release", "release_store.prune", {"state": "pruned"}),
        ("sglang_release", "release_wheelhouse.located", {"state": "received", "wheelhouse_manifest": {}, "received": "/x"}),
        ("sglang_cuda", "cuda_proof.prove", {"state": "proved", "release": "12.8", "home": "/x", "receipt": "/x/r"}),
        ("sglang_cuda_source", "cuda_apt.parse_os_release", {}),
        ("sglang_service_info", "standing.installed", {"deployment": DEPLOYMENT, "unit": ""}),
        ("sglang_status", "ledger.entries", {"name": "glm5"}),
    ],
)
def test_a_full_disk_is_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, place: str, given: dict[str, Any]
) -> None:
    part, function = place.split(".")
    monkeypatch.setattr(importlib.import_module(f"sglang_deploy.{part}"), function, full)
    monkeypatch.setattr(instance, "running", lambda *_: instance.Running(False, "inactive", 0, 0, ""))
    said = answer(monkeypatch, capsys, name, given)
    assert said["failed"]
    assert "No space left on device: '/srv/there'" in said["msg"]


def test_the_wait_for_a_build_ends_when_all_of_it_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    sglang_release = plugin("sglang_release")
    action = sglang_release.ActionModule(mock.Mock(args={}, async_val=0), mock.Mock(), mock.Mock(), None, None, None)
    action._vars = {"inventory_hostname": "gpu1"}
    monkeypatch.setattr(sglang_release.time, "sleep", lambda _: None)
    monkeypatch.setattr(sglang_release, "GONE_S", 0.0)
    monkeypatch.setattr(action, "_execute_module", lambda **_: {"ansible_job_id": "1"})
    monkeypatch.setattr(action, "get_shell_option", lambda *_, **__: "/async")

    def call(arguments: dict[str, Any], name: str = "sglang_release") -> dict[str, Any]:
        if name == "sglang_release":
            return {"offset": 9, "lines": [[1.0, "installing"]] if arguments["offset"] == 0 else [], "alive": False}
        return {"ansible_job_id": "1", "started": 1, "finished": 0}

    monkeypatch.setattr(action, "_call", call)
    ended = action._in_sight({}, "/opt/sglang")
    assert ended["failed"]
    assert "killed after `installing`" in ended["msg"]
