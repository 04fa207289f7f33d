"""Keys and HTTPS as the action sglang_plan takes them: what it refuses, and that nothing of a key comes back."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest
from ansible.errors import AnsibleActionFail
from loading import plugin
from sglang_deploy import secrets
from test_planning import arguments, variables

KEY, ADMIN = "sk-0123456789abcdef", "adm-0123456789abcdef"
TLS = {"certificate": "/etc/ssl/sglang/a.pem", "key": "/etc/ssl/sglang/a.key", "name": "glm5.example.com", "ca": ""}
CPU = {
    "sglang_stack": "cpu",
    "sglang_model": "/srv/models/tiny",
    "sglang_profile": "cpu-lab-glm4moe",
    "sglang_settings": {},
    "sglang_environment": {},
}
GIVEN = variables("group_vars/glm5.yml")


def run(answers: dict[str, Any] | None = None, **more: Any) -> tuple[dict[str, Any], mock.Mock]:
    """The action's result with these arguments, and the calls of modules that it made on the host."""
    given = GIVEN | more.pop("given", {})
    args = arguments(given, config_root="/etc/sglang", group="sglang", **{"keys": {}, "tls": {}, **more})
    action = plugin("sglang_plan").ActionModule(
        mock.Mock(args=args, async_val=0, check_mode=False), mock.Mock(), mock.Mock(), None, None, None
    )
    action._execute_module = mock.Mock(side_effect=lambda **call: (answers or {})[call["module_name"]])
    action._show = mock.Mock()
    return action.run(task_vars={"inventory_hostname": "gpu1"}), action._execute_module


def test_with_keys_the_server_reads_the_file_and_nothing_that_comes_back_holds_one() -> None:
    result, called = run(
        {"sglang_secrets": {"id": "0123456789abcdef"}}, keys={"api_key": KEY, "admin_api_key": ADMIN}, show=True
    )
    assert called.call_args.kwargs["module_args"]["keys"] == {"api_key": KEY, "admin_api_key": ADMIN}
    told = json.dumps(result)
    assert KEY not in told
    assert ADMIN not in told
    spec = result["deployment"]["spec"]
    at = spec["argv"].index("--config")
    assert spec["argv"][at + 1] == "/etc/sglang/glm5/secrets.yaml"
    assert spec["secrets"] == ["admin_api_key", "api_key"]
    assert spec["environment"]["PYTHONPATH"]["value"] == "/etc/sglang/glm5/guard"


def test_systemd_may_hand_the_keys_over() -> None:
    result, _ = run({"sglang_secrets": {"id": "0123456789abcdef"}}, keys={"api_key": KEY}, credentials=True, show=True)
    spec = result["deployment"]["spec"]
    file = "/run/credentials/sglang@glm5.service/secrets.yaml"
    assert spec["argv"][spec["argv"].index("--config") + 1] == file
    assert secrets.by_credential(spec["environment"])
    assert spec["environment"]["PYTHONPATH"]["value"] == "/etc/sglang/glm5/guard"


def test_other_keys_are_another_deployment_and_the_same_keys_the_same() -> None:
    def hashed(identity: str) -> str:
        result, _ = run({"sglang_secrets": {"id": identity}}, keys={"api_key": KEY}, show=True)
        return str(result["deployment"]["spec"]["hash"])

    assert hashed("0" * 16) == hashed("0" * 16) != hashed("1" * 16)


def test_a_key_opens_the_way_to_a_public_address_and_an_admin_key_alone_does_not() -> None:
    public = {"sglang_host": "0.0.0.0"}
    assert not run(keys={"api_key": KEY}, given=public)[0]["plan"]["refused"]
    for keys in ({}, {"admin_api_key": ADMIN}):
        with pytest.raises(AnsibleActionFail, match="or set sglang_api_key"):
            run(keys=keys, given=public)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"keys": {"api_key": "short"}}, "5 characters"),
        ({"keys": {"api_key": KEY}, "given": {"sglang_settings": {"config_file": "/x.yaml"}}}, "take config_file out"),
        ({"given": {"sglang_environment": {"HF_TOKEN": "hf_x"}}}, "set sglang_hf_token"),
        ({"tls": {**TLS, "key": ""}}, "sglang_tls_key is not"),
        ({"tls": TLS}, "SGLang 0.5.9 cannot answer HTTPS"),
        ({"tls": {**TLS, "name": ""}}, "sglang_tls_name must say"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(AnsibleActionFail, match=said) as refused:
        run(**more)
    assert "hf_x" not in str(refused.value)


def test_https_is_spelled_as_the_release_spells_it_and_the_gate_knows_the_name() -> None:
    answers = {"sglang_tls": {"problems": [], "soon": ["ends soon"]}}
    result, called = run(answers, tls=TLS, show=True, given=CPU)
    spec = result["deployment"]["spec"]
    assert called.call_args.kwargs["module_args"]["name"] == "glm5.example.com"
    assert spec["url"].startswith("https://127.0.0.1:")
    assert spec["tls"] == {"name": "glm5.example.com", "ca": ""}
    assert {"--ssl-certfile", "--ssl-keyfile"} <= set(spec["argv"])
    with pytest.raises(AnsibleActionFail, match="it ended"):
        run({"sglang_tls": {"problems": ["it ended"], "soon": []}}, tls=TLS, show=True, given=CPU)


def test_the_release_is_asked_without_what_the_keys_added() -> None:
    released = {"id": "cpu-0123", "path": "/opt/sglang/releases/cpu-0123", "receipt": {"versions": {}}}
    asked: list[dict[str, Any]] = []
    action = plugin("sglang_plan").ActionModule(mock.Mock(), mock.Mock(), mock.Mock(), None, None, None)
    action._execute_module = lambda **call: asked.append(call["module_args"]) or {"resolution": {}}
    words = ("--config", "/etc/sglang/glm5/secrets.yaml")
    spec = mock.Mock(
        argv=("--model-path", "/m", *words, "--port", "1"),
        variables={"A": "1", **secrets.environment("/etc/sglang/glm5", "x", "/etc/sglang/glm5/secrets.yaml")},
    )
    spec.settings = {"config_file": mock.Mock(options=words)}
    args = {"config_root": "/etc/sglang", "instance": "glm5", "cache_root": "/c", "user": "sglang", "keys": {"api_key": KEY}}
    action._resolution(args, spec, released, {})
    assert asked[0]["argv"] == ["--model-path", "/m", "--port", "1"]
    assert asked[0]["environment"] == {"A": "1"}
