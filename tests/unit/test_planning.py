"""What the rules are told: versions, model and host; and the plan of the project's own group_vars, end to end."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display
from loading import plugin
from sglang_deploy import catalog as catalogs
from sglang_deploy import known as knowledge
from sglang_deploy import planning
from sglang_deploy import rules as rule_book
from sglang_deploy.command import parse
from sglang_deploy.dialect import Dialect, Option
from sglang_deploy.explain import explain
from sglang_deploy.interpretation import PLACEHOLDER, interpret
from sglang_deploy.launch_spec import resolve
from sglang_deploy.rules import Host, Model, Versions

ROOT = Path(__file__).resolve().parents[2]
CATALOG = catalogs.load(ROOT / "catalog")
KNOWN = knowledge.load(CATALOG)
RULES = rule_book.load(ROOT / "catalog" / "rules.yml", CATALOG.options.names)
NO_HOST, NO_MODEL = Host(), Model()
BOX = {
    "gpus": ["NVIDIA RTX PRO 6000 Blackwell Server Edition"] * 8,
    "capability": "12.0",
    "gpu_count": 8,
    "gpu_memory_gib": 95.6,
    "driver": "580.95.05",
    "nvlink": False,
    "nvcc": "12.8",
    "sockets": 1,
}
GLM5 = {  # what model_dir.inspect says of a GLM-5-NVFP4 directory
    "path": "/srv/models/glm5",
    "architecture": "GlmMoeDsaForCausalLM",
    "model_type": "glm_moe_dsa",
    "quantization": "modelopt_fp4",
    "experts": 256,
    "shared_experts": 1,
    "shared_experts_unquantized": True,
    "has_mtp": False,
    "attention_heads": 64,
    "weight_bytes": 440 * 2**30,
}


def test_versions_of_the_stacks() -> None:
    found = planning.versions_of_stack(CATALOG.stacks["glm5-cuda128"])
    assert found == Versions("0.5.9", "0.6.3", "5.2.0", "2.9.1", "12.8", None, None, patched=False, exact=True)
    assert planning.versions_of_stack(CATALOG.stacks["cuda13"]).deep_gemm == "0.2.3.post2"


@pytest.mark.parametrize(
    ("ref", "sglang", "patched"), [("main", None, True), ("22dce5720", "0.5.9", True), ("v0.5.10", "0.5.10", False)]
)
def test_a_source_that_is_no_release_counts_as_patched(ref: str, sglang: str | None, patched: bool) -> None:
    found = planning.versions_of_stack(CATALOG.stacks["glm5-cuda128"].at(ref))
    assert (found.sglang, found.patched) == (sglang, patched)


def test_the_receipt_wins_over_the_stack() -> None:
    receipt = {
        "versions": {
            "sglang": "0.5.9",
            "torch": "2.9.1+cu128",
            "cuda": "12.8",
            "transformers": "5.2.0",
            "flashinfer-python": "0.6.8",
        },
        "python": {"version": "3.12.3"},
    }
    found = planning.versions_of_receipt(receipt, CATALOG.stacks["glm5-cuda128"])
    assert (found.flashinfer, found.torch, found.python, found.deep_gemm) == ("0.6.8", "2.9.1+cu128", "3.12.3", None)


def test_a_model_directory() -> None:
    found = planning.model_of(GLM5, KNOWN)
    assert found == Model(
        architecture="GlmMoeDsaForCausalLM",
        quantization="nvfp4",
        sparse_attention=True,
        mla=True,
        moe=True,
        shared_experts_bf16=True,
        has_mtp=False,
        num_heads=64,
        weights_gib=440,
        local=True,
    )


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"quantization": None}, "quantization", "none"),
        ({"quantization": None}, "shared_experts_bf16", False),
        ({"quantization": "compressed-tensors"}, "quantization", None),
        ({"quantization": "modelopt_fp8"}, "quantization", "fp8"),
        ({"shared_experts_unquantized": None}, "shared_experts_bf16", None),
        ({"architecture": "SomethingNewForCausalLM"}, "sparse_attention", None),
        ({"architecture": "Glm4MoeForCausalLM"}, "sparse_attention", False),
        ({"experts": None}, "moe", False),
        ({"attention_heads": None}, "num_heads", None),
    ],
)
def test_a_model_directory_tells_what_it_tells(change: dict[str, Any], field: str, value: object) -> None:
    assert getattr(planning.model_of({**GLM5, **change}, KNOWN), field) == value


def test_what_was_read_wins_over_the_name() -> None:
    named = KNOWN.model("/models/lukealonso/GLM-5-NVFP4")
    found = planning.over(planning.model_of({**GLM5, "attention_heads": None}, KNOWN), named)
    assert (named.shared_experts_bf16, found.shared_experts_bf16) == (False, True)
    assert (found.num_heads, found.weights_gib) == (64, 440)


def test_host_facts_that_are_missing_stay_unknown() -> None:
    assert planning.host_of({}) == Host()
    assert asdict(planning.host_of(BOX)) == {name: BOX[name] for name in asdict(Host())}


def test_the_catalog_warns_of_other_chips_and_refuted_profiles() -> None:
    def told(profile: str, host: Host = NO_HOST, model: Model = NO_MODEL) -> list[str]:
        stack = CATALOG.stacks["glm5-cuda128"]
        return [result.rule for result in planning.noted(stack, CATALOG.profiles[profile], host, model)]

    assert told("dense-mla-bf16") == told("dense-mla-bf16", planning.host_of(BOX), planning.model_of(GLM5, KNOWN)) == []
    assert told("nsa-trtllm") == ["profile-refuted"]
    assert told("dense-mla-bf16", Host(capability="9.0")) == ["profile-for-another-chip", "stack-for-another-chip"]
    assert told("dense-mla-bf16", model=Model("Qwen3ForCausalLM")) == ["profile-for-another-model"]


# --- the action plugins, as the plays call them ---


def variables(*files: str) -> dict[str, Any]:
    """What a play sees: the role's defaults under group_vars."""
    found: dict[str, Any] = {}
    for path in ("roles/sglang_plan/defaults/main.yml", *files):
        found |= yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    return found


def arguments(given: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The task's arguments as the role writes them."""
    task = yaml.safe_load((ROOT / "roles/sglang_plan/tasks/resolve.yml").read_text(encoding="utf-8"))[0]["sglang_plan"]
    plain = {name: given.get(f"sglang_{name}") for name in task}
    return {
        **plain,
        "user": "sglang",
        "release": {},
        "model_facts": {},
        "host_facts": {"host": BOX},
        "show": False,
        "ref": "",
        "patched": False,
        **more,
    }


def run(given: dict[str, Any], **more: Any) -> dict[str, Any]:
    task = mock.Mock(args=arguments(given, **more), async_val=0, check_mode=False)
    action = plugin("sglang_plan").ActionModule(task, mock.Mock(), mock.Mock(), None, None, None)
    result: dict[str, Any] = action.run(task_vars={"inventory_hostname": "gpu1"})
    return result


def test_a_toolkit_of_wheels_is_the_cuda_home_of_build_and_server() -> None:
    given = variables("group_vars/glm5.yml") | {"sglang_stack": "cuda13", "sglang_profile": "dsa-native-fp8"}
    for way, home in {"apt": "/usr/local/cuda-13.0", "wheels": "/opt/sglang/cuda/13.0"}.items():
        made = run(given, toolkit=way)
        assert made["stack"]["environment"]["CUDA_HOME"] == home
        environment = made["deployment"]["environment"]
        assert f'CUDA_HOME="{home}"' in environment and f":{home}/bin:" in environment


def test_the_arguments_of_the_task_are_variables_of_the_role() -> None:
    own = {
        "model_source",
        "model_root",
        "keys",
        "credentials",
        "tls",
        "group",
        "ref",
        "patched",
        "user",
        "release",
        "model_facts",
        "host_facts",
        "show",
        "toolkit",
        "pin",
        "hardening",
        "source",
        "git_url",
    }
    assert {f"sglang_{name}" for name in arguments({}) if name not in own} <= set(variables())


@pytest.mark.parametrize(
    "facts", [{}, {"model": {**GLM5, "shared_experts_unquantized": False}}], ids=["by name", "from the directory"]
)
def test_the_projects_own_group_vars_are_not_refused_on_the_box(facts: dict[str, Any]) -> None:
    directory = {"sglang_model": "/srv/models/glm5"} if facts else {}
    found = run(variables("group_vars/glm5.yml") | directory, model_facts=facts)
    told = {item["rule"]: item["severity"] for item in found["plan"]["findings"]}
    assert "refuse" not in told.values()
    warned = [rule for rule, severity in told.items() if severity == "warn"]
    assert warned == ([] if facts else ["weights-fetched-by-the-server"])
    assert found["deployment"]["spec"]["allowed"] == []


@pytest.mark.parametrize(
    ("source", "there", "warned"),
    [("server", None, True), ("server", False, True), ("server", True, False), ("hub", False, False)],
)
def test_weights_that_the_server_has_yet_to_fetch_are_told(source: str, there: bool | None, warned: bool) -> None:
    given = variables("group_vars/glm5.yml") | {"sglang_model_source": source, "sglang_model_revision": "0" * 40}
    told = run(given, model_source=source, host_facts={"host": {**BOX, "weights": there}})["plan"]["findings"]
    (found,) = [item for item in told if item["rule"] == "weights-fetched-by-the-server"] or [None]
    assert (found is not None) is warned
    if found:
        assert found["severity"] == "warn" and "410 GiB" in found["reason"] and "sglang_start_seconds" in found["reason"]
        assert "sglang_model_source: hub" in found["remedy"]["text"]


NSA = {"sglang_profile": "nsa-trtllm", "sglang_settings": {}}
REFUSALS = ["dense-attention-fp8-kv", "deepgemm-ue8m0-on-sm120", "open-bind"]


def test_the_published_attempt_is_refused_with_its_reasons() -> None:
    with pytest.raises(AnsibleActionFail) as refused:
        run(variables("group_vars/glm5.yml") | NSA)
    text = str(refused.value)
    assert "3 problems" in text
    assert "nothing was stopped" in text
    for rule in REFUSALS:
        assert f"REFUSED: {rule}: " in text
        assert f"sglang_allow: [{rule}]" in text
    assert "set kv_cache_dtype: bfloat16" in text
    assert "sgl-project/sglang#19948" in text


def test_before_the_host_is_known_only_what_is_certain_is_refused() -> None:
    with pytest.raises(AnsibleActionFail) as refused:
        run(variables("group_vars/glm5.yml") | NSA, host_facts={})
    assert "1 problem)" in str(refused.value)
    assert "open-bind" in str(refused.value)


def test_what_is_allowed_passes_and_is_recorded() -> None:
    found = run(variables("group_vars/glm5.yml") | NSA | {"sglang_allow": REFUSALS})
    assert sorted(found["deployment"]["spec"]["allowed"]) == sorted(REFUSALS)
    assert "profile-refuted" in [item["rule"] for item in found["plan"]["findings"]]
    assert run(variables("group_vars/glm5.yml") | NSA | {"sglang_allow": ",".join(REFUSALS)})["plan"]["refused"] is False


def test_allowing_what_no_rule_says_is_an_error_with_the_nearest() -> None:
    with pytest.raises(AnsibleActionFail, match=r"sglang_allow: there is no rule 'open-bnd'; did you mean open-bind"):
        run(variables("group_vars/glm5.yml") | {"sglang_allow": ["open-bnd"]})


def test_another_ref_is_judged_as_what_it_is() -> None:
    with pytest.raises(AnsibleActionFail, match=r"(?s)CUDA 12\.8.*cuda13"):
        run(variables("group_vars/glm5.yml"), ref="main")
    found = run(variables("group_vars/glm5.yml") | NSA | {"sglang_allow": ["open-bind"]}, ref="22dce57")
    told = {item["rule"]: item["severity"] for item in found["plan"]["findings"]}
    assert told["dense-attention-fp8-kv"] == "warn"
    assert (
        run(variables("group_vars/glm5.yml") | NSA | {"sglang_allow": ["open-bind"]}, patched=True)["plan"]["refused"]
        is False
    )


def test_the_lab_has_no_warning_that_is_noise() -> None:
    lab = variables("group_vars/lab.yml") | {"sglang_port": 18001}
    summary = {
        **GLM5,
        "architecture": "Glm4MoeForCausalLM",
        "quantization": None,
        "attention_heads": 4,
        "weight_bytes": 10**7,
    }
    found = run(lab, host_facts={"host": {"sockets": 1}}, model_facts={"model": summary})
    told = [(item["rule"], item["allowed"]) for item in found["plan"]["findings"] if item["severity"] != "not checked"]
    assert told == [("open-bind", True)]


def test_the_plan_is_shown_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = plugin("sglang_plan")
    for name in ("catalog",):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setattr(module, "PROJECT", tmp_path)
    shown: list[str] = []
    monkeypatch.setattr(Display, "display", lambda self, text, *_, **__: shown.append(text))
    task = mock.Mock(args=arguments(variables("group_vars/glm5.yml"), show=True), async_val=0, check_mode=True)
    action = module.ActionModule(task, mock.Mock(), mock.Mock(), None, None, None)
    action.run(task_vars={"inventory_hostname": "gpu/1"})
    [text] = shown
    assert text.startswith("gpu/1: plan of glm5: SGLang 0.5.9")
    assert "The options are those recorded for SGLang 0.5.9, for want of a built release." in text
    [written] = (tmp_path / ".cache" / "plan").iterdir()
    assert written.name == "gpu_1-glm5.json"
    assert written.stat().st_mode & 0o077 == 0
    assert str(written.relative_to(tmp_path)) in text


# --- explain ---


@pytest.mark.parametrize(
    ("given", "name", "found"),
    [
        (
            ['sglang_command=A=1 python3 -m x --tp=8 --json {"a": 1}'],
            "sglang_command",
            'A=1 python3 -m x --tp=8 --json {"a": 1}',
        ),
        (["sglang_command='python3 -m x --tp 8'"], "sglang_command", None),
        (
            ["sglang_command_hardware=8x RTX PRO 6000 sglang_command_version=0.5.9"],
            "sglang_command_hardware",
            "8x RTX PRO 6000",
        ),
        (["sglang_command_hardware=8x RTX PRO 6000 sglang_command_version=0.5.9"], "sglang_command_version", "0.5.9"),
        (["@file.yml", '{"sglang_command": "x"}', "other=sglang_command"], "sglang_command", None),
        (None, "sglang_command", None),
    ],
)
def test_what_was_typed_after_e(given: list[str] | None, name: str, found: str | None) -> None:
    assert plugin("sglang_explain").as_typed(name, given) == found


def filled(option: Option | None, value: object) -> str:
    """A value, or one that the option takes where the publication leaves it open."""
    text = str(value)
    if option is None or not PLACEHOLDER.fullmatch(text):
        return text
    return "8" if option.type in ("int", "human_readable_int", "float") else "filled-in"


def written(case: dict[str, Any], dialect: Dialect) -> str:
    words = [f"{name}={shlex.quote(filled(dialect.options[0], value))}" for name, value in (case["env"] or {}).items()]
    words += ["python3", "-m", "sglang.launch_server"]
    for flag, value in (case["flags"] or {}).items():
        if value is not False:
            words += (
                [flag]
                if value is True
                else [flag, shlex.quote(filled(dialect.find((dialect.expand(flag) or [flag])[0]), value))]
            )
    if not {"--model", "--model-path"} & set(case["flags"]):
        words += ["--model-path", shlex.quote(str(case["model"]).split(" ")[0])]
    return " ".join(words)


def test_the_group_vars_of_a_command_give_the_same_command() -> None:
    """Every labelled command that a recorded version accepts: command, group_vars, launch spec, command."""
    cases: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests/data/launch_commands.yaml").read_text(encoding="utf-8"))
    known_variables = set(variables()) | {"sglang_model_source"}
    tried = 0
    for case in cases:
        source = KNOWN.source(str(case["sglang_version"]))
        if source.engine != "sglang":
            continue
        dialect = CATALOG.dialect(source.versions.sglang or "0.5.12")
        found = explain(written(case, dialect), source, NO_HOST, NO_MODEL, CATALOG, RULES, dialects=[dialect])
        if found.reading.problems or found.reading.secrets:
            continue
        tried += 1
        assert set(found.group_vars) <= known_variables
        given = {**variables(), "sglang_settings": {}, "sglang_environment": {}, **found.group_vars}
        stack = replace(CATALOG.stacks["cuda13"], name="any", environment={}, settings={})
        request = plugin("sglang_plan").request(arguments(given | {"sglang_stack": "any"}), dialect, stack, {})
        spec = resolve(replace(CATALOG, stacks={"any": stack}), request)
        again = interpret(parse(shlex.join(["sglang", "serve", *spec.argv])), [dialect], CATALOG.options)
        assert again.problems == ()
        defaults = {"host": "127.0.0.1", "port": 30000}
        assert dict(again.settings) == {**defaults, **found.reading.settings}, case["id"]
        assert again.extra_args == found.reading.extra_args, case["id"]
        own = {name: variable.value for name, variable in spec.environment.items() if variable.source != "default"}
        assert own == dict(found.reading.environment), case["id"]
    assert tried >= 20


def explained(**given: Any) -> dict[str, Any]:
    """Run the action as the role's task does."""
    task = yaml.safe_load((ROOT / "roles/sglang_plan/tasks/explain.yml").read_text(encoding="utf-8"))[0]["sglang_explain"]
    names = {name: "sglang_" + ("" if name in variables_of_plan else "command_") + name for name in task}
    args = {name: variables().get(names[name], "") for name in task} | given
    module = plugin("sglang_explain")
    action = module.ActionModule(
        mock.Mock(args=args, async_val=0, check_mode=False), mock.Mock(), mock.Mock(), None, None, None
    )
    result: dict[str, Any] = action.run(task_vars={})
    return result


variables_of_plan = {"command", "stack", "stacks", "profile", "profiles", "allow"}
PASTED = "NCCL_P2P_LEVEL=SYS sglang serve lukealonso/GLM-5-NVFP4 --tp 8 --api-key s3cret --attention-backend flashinfer"


def test_a_pasted_command_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown: list[str] = []
    monkeypatch.setattr(Display, "display", lambda self, text, *_, **__: shown.append(text))
    pasted = tmp_path / "launch.sh"
    pasted.write_text(PASTED)
    found = explained(file=str(pasted), version="0.5.9", hardware="8x RTX PRO 6000")
    assert found["verdict"] == "refuse"
    assert found["group_vars"]["sglang_environment"] == {"NCCL_P2P_LEVEL": "SYS"}
    text = "\n".join(shown)
    for words in (
        "REFUSED: dense-attention-fp8-kv",
        "remedy: set kv_cache_dtype: bfloat16",
        "left out as secrets: --api-key",
    ):
        assert words in text
    assert "judged for SGLang 0.5.9, 8x RTX PRO 6000" in text
    assert "s3cret" not in text
    assert yaml.safe_load(text.partition("group_vars that reproduce it:")[2]) == found["group_vars"]


def test_without_version_and_chip_those_of_stack_and_profile_count(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(Display, "display", lambda self, text, *_, **__: shown.append(text))
    assert explained(command=PASTED)["verdict"] == "refuse"
    assert "judged for stack glm5-cuda128" in shown[0]
    assert explained(command=PASTED, stack="cuda13")["group_vars"]["sglang_stack"] == "cuda13"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"command": "sglang serve 'x"}, "quote"),
        ({"command": "vllm serve x"}, "vLLM"),
        ({"command": PASTED, "version": "tomorrow"}, "sglang_command_version: 'tomorrow' names no version"),
        ({"command": PASTED, "hardware": "abacus"}, "sglang_command_hardware: 'abacus' names no GPU"),
        ({"command": PASTED, "stack": "cuda31"}, "did you mean cuda13"),
        ({"command": PASTED, "allow": ["open-bnd"]}, "did you mean open-bind"),
        ({"file": "/nowhere/launch.sh"}, "/nowhere/launch.sh cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_explained_is_one_clear_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(AnsibleActionFail, match=message):
        explained(**given)


@pytest.mark.parametrize(
    ("name", "source", "ref", "expected"),
    [
        ("glm5-cuda128", "", "", ("git", "v0.5.9", "0.5.9")),
        ("glm5-cuda128", "", "main", ("git", "main", "main")),
        ("glm5-cuda128", "wheelhouse", "main", ("git", "main", "main")),
        ("cuda13", "", "", ("index", None, "0.5.23")),
        ("cuda13", "wheelhouse", "", ("index", None, "0.5.23")),
        ("cuda13", "git", "", ("git", "v0.5.23", "0.5.23")),
        ("cuda13", "git", "main", ("git", "main", "main")),
    ],
)
def test_the_plan_judges_what_the_builder_builds(
    name: str, source: str, ref: str, expected: tuple[str, str | None, str]
) -> None:
    built = planning.as_built(CATALOG.stacks[name], source, ref)
    assert (built.source.kind, built.source.ref, built.sglang) == expected


def test_another_repository_is_part_of_the_plan() -> None:
    url = "https://mirror.example/sglang.git"
    assert planning.as_built(CATALOG.stacks["glm5-cuda128"], url=url).source.url == url
    assert planning.as_built(CATALOG.stacks["cuda13"], "git", url=url).source.url == url
