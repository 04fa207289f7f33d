"""What must not leave a host does not, and what is needed to understand a log stays."""

from __future__ import annotations

import pytest
from sglang_deploy import redact

KEY = "Zx9-planted.Secret_42"


@pytest.mark.parametrize(
    "text",
    [
        f"server_args=ServerArgs(model_path='m', api_key='{KEY}', admin_api_key=\"{KEY}\", tp_size=8)",
        f"python -m sglang.launch_server --api-key {KEY} --port 1",
        f"--api-key={KEY}",
        f"['--api-key', '{KEY}', '--port']",
        f"HF_TOKEN={KEY}",
        f"export HUGGING_FACE_HUB_TOKEN={KEY}",
        f"api-key: {KEY}",
        f'{{"token": "{KEY}"}}',
        f"Authorization: Bearer {KEY}",
        f"headers={{'authorization': 'Bearer {KEY}'}}",
        f"curl -H 'Authorization: Bearer {KEY}' http://x",
        f"https://user:{KEY}@index.example/simple",
        f"password='{KEY}'",
        f"AWS_SECRET_ACCESS_KEY={KEY}",
        f"--admin-api-key '{KEY}'",
    ],
)
def test_secrets_go(text: str) -> None:
    assert KEY not in redact.secrets(text)
    assert redact.REMOVED in redact.secrets(text)


@pytest.mark.parametrize("token", ["hf_" + "a1B2" * 8, "sk-" + "x9" * 12, "ghp_" + "q1" * 18, "nvapi-" + "k3" * 12])
def test_tokens_are_known_by_their_form(token: str) -> None:
    assert token not in redact.secrets(f"got {token} somewhere")


@pytest.mark.parametrize(
    "text",
    [
        "Decode batch, #running-req: 1, #token: 64, token usage: 0.00, gen throughput (token/s): 0.26, #queue-req: 0",
        "max_total_num_tokens=8578944, chunked_prefill_size=8192, max_prefill_tokens=16384",
        "api_key=None, num_tokens=3",
        "KeyError: 'model.layers.0.self_attn.k_scale'",
    ],
)
def test_figures_stay(text: str) -> None:
    assert redact.secrets(text) == text


def test_a_bundle_names_nobody() -> None:
    journal = (
        'Nov 30 08:50:28 gpuhost7 python[296]: [2026-11-30 08:50:28] INFO: 10.20.30.40:5122 - "POST /generate"\n'
        "2026-11-30T08:50:28+0000 gpuhost7 python[1]: /home/annabel/models/x loaded from fe80::1ff:fe23:4567:890a\n"
        "Receive: obj=GenerateReqInput(text='what is my diagnosis', rid='1')\n"
        '{"messages": [{"role": "user", "content": "tell me of my divorce"}], "prompt": "my address"}\n'
        "mail annabel@example.org, owner annabel, mac 52:54:00:12:34:56, key planted-key\n"
    )
    text = redact.Redactor(users=["annabel"], hosts=["gpuhost7", "lab"], words=["planted-key"]).text(journal)
    for private in (
        "gpuhost7",
        "10.20.30.40",
        "annabel",
        "fe80",
        "diagnosis",
        "divorce",
        'address"',
        "52:54",
        "planted-key",
    ):
        assert private not in text
    assert text.count("<host-1>") == 2
    assert "POST /generate" in text


def test_local_addresses_and_versions_stay() -> None:
    text = "10:18:23 sglang@glm5.service on http://127.0.0.1:30000, [::1] and 0.0.0.0, driver 580.126.09, c10::Half"
    assert redact.Redactor().text(text) == text


def test_same_name_has_the_same_stand_in() -> None:
    redactor = redact.Redactor()
    assert redactor.text("from 10.0.0.1") == redactor.text("from 10.0.0.1")
    assert redactor.text("10.0.0.2") != redactor.text("10.0.0.1")


@pytest.mark.parametrize(
    "address", ["2001:db8::1", "fe80::1ff:fe23:4567:890a", "2001:db8:1:2:3:4:5:6", "fd00::", "::ffff:9"]
)
def test_every_form_of_an_address_goes(address: str) -> None:
    assert address not in redact.Redactor().text(f"from [{address}] port 22")
