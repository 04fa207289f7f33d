"""Keys: what may be one, the file that carries them, and what tells one set from another."""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import instance, launch_spec, secrets

KEY, ADMIN = "sk-0123456789./+abc=~", "adm-0123456789abcdef"
GROUP = os.getegid()
FILE = secrets.path("/etc/sglang/glm5")
USABLE = st.from_regex(r"[A-Za-z0-9._~+/=][A-Za-z0-9._~+/=-]{15,80}", fullmatch=True)
rooted = pytest.mark.skipif(os.geteuid() != 0, reason="files of an instance belong to root")


@given(USABLE, USABLE)
def test_every_usable_key_survives_the_file_as_sglang_and_as_this_project_read_it(key: str, admin: str) -> None:
    if key == admin:
        return
    made = secrets.identified(secrets.checked({"api_key": key, "admin_api_key": admin}), None)
    read = yaml.safe_load(made.text())
    assert read == {"api-key": key, "admin-api-key": admin}
    assert secrets.parse(made.text()) == made
    # SGLang turns each entry into two words in front of the others and lets argparse read them.
    parser = argparse.ArgumentParser()
    parser.add_argument("--api-key")
    parser.add_argument("--admin-api-key")
    parsed = parser.parse_args([word for option, value in read.items() for word in (f"--{option}", str(value))])
    assert (parsed.api_key, parsed.admin_api_key) == (key, admin)


@pytest.mark.parametrize(
    ("given_keys", "said"),
    [
        ({"api_key": "short"}, "5 characters"),
        ({"api_key": "with a blank 0123456789"}, "bearer token"),
        ({"api_key": "0123456789abcdef\nmore"}, "bearer token"),
        ({"api_key": "pässword-0123456789abc"}, "RFC 6750"),
        ({"api_key": "-0123456789abcdef012"}, "hyphen"),
        ({"api_key": 123456789012345678}, "no text"),
        ({"api_key": ADMIN, "admin_api_key": ADMIN}, "the same"),
        ({"key": KEY}, "known: api_key"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_without_being_told(given_keys: dict[str, object], said: str) -> None:
    with pytest.raises(secrets.SecretError, match=said) as refused:
        secrets.checked(given_keys)
    for value in given_keys.values():
        assert str(value) not in str(refused.value)


def test_empty_keys_are_none_and_a_last_line_break_is_no_part_of_one() -> None:
    assert secrets.checked({"api_key": "", "admin_api_key": None}) == {}
    assert secrets.checked({"api_key": KEY + "\n"}) == {"api_key": KEY}


def test_the_id_stays_with_the_same_keys_and_tells_nothing_of_them() -> None:
    first, second = secrets.identified({"api_key": KEY}, None), secrets.identified({"api_key": KEY}, None)
    assert first.id != second.id  # nothing derived from the key
    assert secrets.identified({"api_key": KEY}, first) is first
    assert secrets.identified({"api_key": ADMIN}, first).id != first.id
    assert secrets.identified({"api_key": KEY, "admin_api_key": ADMIN}, first).id != first.id
    assert KEY not in repr(first)


@pytest.mark.parametrize(
    "text", ["", "api-key: x", 'api-key: "x"', "# id: 0123456789abcdef", "\0", '# id: 0123456789abcdef\napi-key: "\\x"']
)
def test_a_damaged_file_holds_no_keys(tmp_path: Path, text: str) -> None:
    assert secrets.parse(text) is None
    assert secrets.read(tmp_path) is None


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "OPENAI_API_KEY", "hf_token", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "TOKEN", "APIKEY"]
)
def test_secrets_have_no_place_in_the_environment(name: str) -> None:
    assert secrets.variable_problem(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "SGLANG_SECRETS_ID",
        "SGLANG_SECRETS_FILE",
        "NCCL_P2P_LEVEL",
        "SGLANG_CLIP_MAX_NEW_TOKENS",
        "KEY_FILE",
    ],
)
def test_other_variables_do(name: str) -> None:
    assert secrets.variable_problem(name) is None


def test_the_guard_comes_first_and_programs_without_keys_run_without_it() -> None:
    made = secrets.environment("/etc/sglang/glm5", "0123456789abcdef", FILE, "/opt/mine:/opt/other")
    assert made["PYTHONPATH"] == "/etc/sglang/glm5/guard:/opt/mine:/opt/other"
    assert secrets.unguarded({**made, "A": "1"}, "/etc/sglang/glm5") == {"A": "1", "PYTHONPATH": "/opt/mine:/opt/other"}
    assert secrets.unguarded(secrets.environment("/etc/sglang/glm5", "x", FILE), "/etc/sglang/glm5") == {}
    assert secrets.unguarded({"PYTHONPATH": "/opt/mine"}, "/etc/sglang/glm5") == {"PYTHONPATH": "/opt/mine"}


def deployment(keyed: bool, identity: str = "0123456789abcdef") -> dict[str, object]:
    environment = {secrets.ID_VARIABLE: {"value": identity, "source": "sglang_api_key"}} if keyed else {}
    spec = {"hash": "a" * 64, "secrets": ["api_key"] if keyed else [], "environment": environment}
    return {"spec": spec, "launch": "#!/bin/sh\n", "environment": 'A="1"\n'}


@rooted
def test_the_file_of_the_keys_is_for_the_group_alone_and_no_difference_shows_them(tmp_path: Path) -> None:
    old, new = (secrets.Secrets({"api_key": key}, identity) for key, identity in ((KEY, "0" * 16), (ADMIN, "1" * 16)))
    first = instance.write(deployment(True), tmp_path, GROUP, keys=old)
    second = instance.write(deployment(True), tmp_path, GROUP, keys=new)
    assert stat.S_IMODE((tmp_path / secrets.FILE).stat().st_mode) == 0o640
    assert secrets.read(tmp_path) == new
    shown = json.dumps([first.diff, second.diff])
    assert KEY not in shown
    assert ADMIN not in shown
    assert [entry["after_header"].rpartition("/")[2] for entry in second.diff] == [secrets.FILE]
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != secrets.FILE:
            assert not re.search(f"{re.escape(KEY)}|{ADMIN}", path.read_text())


@rooted
def test_keys_that_systemd_hands_over_are_roots_alone_and_a_candidate_brings_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance.os, "fchown", lambda *_: None)
    folder, units = tmp_path / "glm5", tmp_path / "units"
    keys = secrets.Secrets({"api_key": KEY}, "0" * 16)
    handed = deployment(True)
    file = {"value": secrets.path("", "sglang@glm5.service"), "source": "sglang_credentials"}
    handed["spec"]["environment"][secrets.FILE_VARIABLE] = file  # type: ignore[index]
    instance.write(handed, folder, 0, keys=keys)
    assert stat.S_IMODE((folder / secrets.FILE).stat().st_mode) == 0o600
    assert not instance.write(handed, folder, 0, keys=keys).changed
    instance.stage("glm5", handed, folder, 0, units)
    settings = (units / "sglang@glm5.service.d" / "candidate.conf").read_text().splitlines()
    assert settings[-2:] == ["LoadCredential=", f"LoadCredential=secrets.yaml:{folder}/candidate/secrets.yaml"]
    instance.stage("glm5", deployment(True), folder, 0, units)
    assert "LoadCredential" not in (units / "sglang@glm5.service.d" / "candidate.conf").read_text()


@rooted
def test_without_keys_at_hand_the_hosts_stay_and_a_deployment_without_any_takes_them_away(tmp_path: Path) -> None:
    keys = secrets.Secrets({"api_key": KEY}, "0" * 16)
    instance.write(deployment(True), tmp_path, GROUP, keys=keys)
    assert not instance.write(deployment(True), tmp_path, GROUP).changed
    assert secrets.read(tmp_path) == keys
    assert instance.write(deployment(False), tmp_path, GROUP, apply=False).changed
    assert secrets.read(tmp_path) == keys
    assert instance.write(deployment(False), tmp_path, GROUP).changed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environment", "launch", "spec.json"]


@rooted
def test_a_candidate_has_keys_of_its_own_until_it_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance.subprocess, "run", lambda *_, **__: None)
    folder, units = tmp_path / "glm5", tmp_path / "units"
    old, new = (secrets.Secrets({"api_key": key}, identity) for key, identity in ((KEY, "0" * 16), (ADMIN, "1" * 16)))
    instance.write(deployment(True), folder, GROUP, keys=old)
    instance.stage("glm5", deployment(True), folder, GROUP, units, keys=new)
    assert secrets.read(instance.live("glm5", folder, units)) == new
    assert secrets.read(folder) == old
    instance.discard("glm5", folder, units)
    assert instance.live("glm5", folder, units) == folder
    # A rollback brings no keys: its candidate takes those of the instance.
    instance.stage("glm5", deployment(True), folder, GROUP, units)
    assert secrets.read(instance.live("glm5", folder, units)) == old


@rooted
def test_a_deployment_whose_keys_are_gone_is_named(tmp_path: Path) -> None:
    assert "not there any more" in instance.secrets_problem(deployment(True), tmp_path)
    assert instance.secrets_problem(deployment(False), tmp_path) == ""
    instance.write(deployment(True), tmp_path, GROUP, keys=secrets.Secrets({"api_key": KEY}, "0" * 16))
    assert instance.secrets_problem(deployment(True), tmp_path) == ""


def test_a_token_in_the_environment_is_refused_with_the_place_for_it() -> None:
    request = launch_spec.Request("glm5", "none", "none", "m", None, environment_layers=[("here", {"HF_TOKEN": "hf_x"})])  # type: ignore[arg-type]
    problems: list[launch_spec.Problem] = []
    launch_spec._environment(request, None, None, problems)
    assert [problem.fix for problem in problems] == ["set sglang_hf_token"]
    assert "hf_x" not in str(problems[0])
