"""Asked against effective, on the answer of a real server and through the module that asks it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sglang_deploy
from ansible.module_utils import basic
from sglang_deploy import catalog as catalogs
from sglang_deploy import effective
from sglang_deploy import plan as planning
from sglang_deploy.launch_spec import Request, resolve
from stubs.honest import CHUNK, Honest

ROOT = Path(__file__).resolve().parents[2]
CATALOG = catalogs.load(ROOT / "catalog")
DIALECT = CATALOG.dialect("0.5.15.post1")
# /server_info of the lab's server, SGLang 0.5.15.post1 on the CPU; without what is null, false or empty.
RECORDED: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "server_info.json").read_text(encoding="utf-8"))
CHOSEN = {
    "attention": "torch_native",
    "sampling_backend": "pytorch",
    "page_size": "1",
    "mem_fraction_static": "0.754",
    "chunked_prefill_size": "2048",
}


def asked(**settings: Any) -> dict[str, Any]:
    """The lab's launch spec as it stands in spec.json."""
    own = {"served_model_name": "glm-5", "host": "0.0.0.0", "port": 18021, **settings}
    request = Request("glm5", "cpu", "cpu-lab-glm4moe", "/srv/models/glm4moe", DIALECT, layers=[("group_vars", own)])
    spec = resolve(CATALOG, request)
    return {"settings": spec.as_dict()["settings"], "server_fields": planning.server_fields(spec, DIALECT)}


def test_the_labs_server_runs_what_was_asked() -> None:
    ok, told, evidence = effective.judge(asked(), RECORDED)
    assert ok, told
    assert evidence["overridden"] == []
    assert {item["setting"]: item["effective"] for item in evidence["chosen"]} == CHOSEN


@pytest.mark.parametrize(
    ("settings", "name", "value", "runs"),
    [
        ({"attention": "triton"}, "attention", "triton", "torch_native"),
        ({"chunked_prefill_size": 512}, "chunked_prefill_size", "512", "2048"),
        ({"max_total_tokens": 4096}, "max_total_tokens", "4096", "8192"),
        ({"mem_fraction_static": 0.9}, "mem_fraction_static", "0.9", "0.754"),
        ({"tool_call_parser": "qwen"}, "tool_call_parser", "qwen", "glm47"),
    ],
)
def test_a_server_that_runs_something_else_fails_with_both_values(
    settings: dict[str, Any], name: str, value: str, runs: str
) -> None:
    ok, told, evidence = effective.judge(asked(**settings), RECORDED)
    assert not ok
    assert [(item["setting"], item["asked"], item["effective"]) for item in evidence["overridden"]] == [(name, value, runs)]
    assert f"{name}: asked {value}, runs {runs} (/server_info " in told


def test_what_was_left_to_sglang_is_told_and_no_fault() -> None:
    line = "[2026-11-30 07:46:35] Setting KV cache dtype to fp8_e4m3 for DeepSeek DSA on SM12 device."
    ok, told, _ = effective.judge(asked(kv_cache_dtype="auto"), RECORDED, [line])
    assert ok
    assert "kv_cache_dtype fp8_e4m3" in told
    ok, told, _ = effective.judge(asked(kv_cache_dtype="bfloat16"), RECORDED, [line])
    assert not ok
    assert "kv_cache_dtype: asked bfloat16, runs fp8_e4m3 ([2026-11-30" in told


def test_a_name_that_the_server_writes_out_is_what_was_asked() -> None:
    parts = {"disaggregation_mode": "decode", "disaggregation_transfer_backend": "mooncake_tcp"}
    runs = {**RECORDED, "disaggregation_mode": "decode", "disaggregation_transfer_backend": "mooncake"}
    assert effective.judge(asked(**parts), runs)[0]
    assert not effective.judge(asked(**parts), {**runs, "disaggregation_transfer_backend": "nixl"})[0]


def test_an_override_that_was_allowed_is_told_and_passes() -> None:
    ok, told, evidence = effective.judge({**asked(attention="triton"), "allowed": ["sglang-overrides"]}, RECORDED)
    assert ok
    assert "attention: asked triton, runs torch_native" in told
    assert len(evidence["overridden"]) == 1


def test_a_unit_without_a_journal_has_no_log() -> None:
    assert effective.start_log("no-such-unit-here.service") == []


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "ansible.module_utils.sglang_deploy", sglang_deploy)
    spec = importlib.util.spec_from_file_location("sglang_decode_check", ROOT / "plugins/modules/sglang_decode_check.py")
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize(("chunk", "ok"), [(CHUNK, True), (CHUNK + 1, False)])
def test_the_gate_has_a_check_of_that_name(
    module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    chunk: int,
    ok: bool,
) -> None:
    with Honest(trained=True) as server:
        spec = {
            "settings": {"chunked_prefill_size": {"value": chunk}},
            "server_fields": {"chunked_prefill_size": {"chunked_prefill_size": str(chunk)}},
        }
        given = {
            "url": server.url,
            "real_model": True,
            "asked": spec,
            "fail": False,
            "check_seconds": 5,
            "total_seconds": 30,
        }
        monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": given}).encode())
        monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        with pytest.raises(SystemExit):
            module.main()
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    [check] = [check for check in verdict["checks"] if check["name"] == "effective"]
    assert (check["ok"], verdict["ok"]) == (ok, ok)
