"""The Ansible module sglang_decode_check: its documentation and its exits."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import sglang_deploy
import yaml
from ansible.module_utils import basic
from sglang_deploy import decode_check
from stubs import broken
from stubs.honest import Honest

FILE = Path(__file__).parents[2] / "plugins/modules/sglang_decode_check.py"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "ansible.module_utils.sglang_deploy", sglang_deploy)
    monkeypatch.setattr(sglang_deploy, "decode_check", decode_check)
    spec = importlib.util.spec_from_file_location("sglang_decode_check", FILE)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def result(module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **given: object):
    arguments = {"ANSIBLE_MODULE_ARGS": {"check_seconds": 5, "total_seconds": 30, **given}}
    monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps(arguments).encode())
    monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
    with pytest.raises(SystemExit) as ended:
        module.main()
    return ended.value.code, json.loads(capsys.readouterr().out)


def test_documentation_and_specification_have_the_same_options(module: ModuleType) -> None:
    options = yaml.safe_load(module.DOCUMENTATION)["options"]
    assert options.keys() == module.SPEC.keys()
    for name, spec in module.SPEC.items():
        for key in ("type", "default", "required", "choices", "elements"):
            assert options[name].get(key) == spec.get(key), (name, key)


def test_passes_and_returns_the_verdict(module, monkeypatch, capsys, tmp_path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-from-file\n")
    with Honest(trained=True) as server:
        code, said = result(module, monkeypatch, capsys, url=server.url, real_model=True, api_key_file=str(key))
    assert code == 0
    assert said["changed"] is False
    assert said["verdict"]["ok"] is True
    assert "Paris" in said["verdict"]["answer"]["text"]


@pytest.mark.parametrize("fail", [True, False])
def test_a_failed_check_fails_the_task_if_wanted(module, monkeypatch, capsys, fail: bool) -> None:
    with broken.NullLogprobs() as server:
        code, said = result(module, monkeypatch, capsys, url=server.url, fail=fail)
    assert (code, said["verdict"]["ok"]) == (int(fail), False)
    assert said["lines"][0].startswith("FAILED")
    if fail:
        assert "does not decode correctly. greedy_chat: the logits are NaN" in said["msg"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"url": "host:8000"}, "write http://HOST:PORT"),
        ({"url": "http://127.0.0.1:1", "level": "deep"}, "value of level must be one of"),
        ({"url": "http://127.0.0.1:1", "api_key_file": "/nowhere/key"}, "/nowhere/key"),
        ({"url": "http://127.0.0.1:1", "api_key_file": "/dev/null"}, "the api key is empty"),
        ({"url": "https://127.0.0.1:1", "ca_file": "/nowhere/ca"}, "/nowhere/ca"),
    ],
)
def test_bad_input_is_one_clear_message(module, monkeypatch, capsys, given: dict[str, str], words: str) -> None:
    code, said = result(module, monkeypatch, capsys, **given)
    assert code == 1
    assert words in said["msg"]
    assert "Traceback" not in json.dumps(said)
