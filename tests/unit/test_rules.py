"""The condition language, the rule file, and what the rules say of launches whose outcome is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import catalog as catalogs
from sglang_deploy import known as knowledge
from sglang_deploy import rules as rule_book
from sglang_deploy.conditions import UNKNOWN, ConditionError, check_condition, evaluate
from sglang_deploy.rules import Context, Host, Model, RuleError, RuleResult, UnknownRule, Versions, check, flatten

ROOT = Path(__file__).resolve().parents[2]
CATALOG = catalogs.load(ROOT / "catalog")
RULES = rule_book.load(ROOT / "catalog" / "rules.yml", CATALOG.options.names)
KNOWN = knowledge.load(CATALOG)

SM120 = Host(capability="12.0", gpu_count=8, gpu_memory_gib=95.6, sockets=2, nvlink=False, nvcc="12.8", driver="570")
GLM5 = Model(
    architecture="GlmMoeDsaForCausalLM",
    quantization="nvfp4",
    sparse_attention=True,
    mla=True,
    moe=True,
    shared_experts_bf16=False,
    has_mtp=False,
    num_heads=64,
    weights_gib=400,
    local=True,
)
FEBRUARY = Versions(sglang="0.5.9", flashinfer="0.6.3", transformers="5.2.0")


def says(context: Context, allow: tuple[str, ...] = ()) -> dict[str, str]:
    return {result.rule: result.severity for result in check(RULES, context, allow)}


def launch(settings: dict[str, Any], environment: dict[str, str] | None = None, **changes: Any) -> Context:
    base = Context(settings=settings, environment=environment or {}, versions=FEBRUARY, host=SM120, model=GLM5)
    return replace(base, **changes)


def hopper(settings: dict[str, Any]) -> Context:
    return launch(settings, host=Host(capability="9.0"), versions=Versions(sglang="0.5.16"))


DENSE = {"attention": "flashinfer", "kv_cache_dtype": "bfloat16", "tp_size": 8, "quantization": "modelopt_fp4"}
FP8_KV = {"kv_cache_dtype": "fp8_e4m3"}
OFF = {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"}


def test_the_combination_that_is_known_to_work_is_not_refused() -> None:
    settings = {
        **DENSE,
        "moe_runner": "cutlass",
        "fp4_gemm": "flashinfer_cudnn",
        "custom_all_reduce": False,
        "cuda_graph_max_bs": 32,
    }
    found = says(launch(settings, OFF))
    assert [rule for rule, severity in found.items() if severity in ("refuse", "warn")] == []


@pytest.mark.parametrize(
    ("rule", "severity", "context"),
    [
        ("dense-attention-fp8-kv", "refuse", launch({**DENSE, "kv_cache_dtype": "auto"}, OFF)),
        ("dense-attention-fp8-kv", "refuse", launch({"attention": "triton", "kv_cache_dtype": "fp8_e4m3"}, OFF)),
        ("dense-attention-fp8-kv", "refuse", launch({"decode_attention": "triton"}, OFF)),
        ("sparse-default-without-kernel", "refuse", launch({"kv_cache_dtype": "auto"}, OFF)),
        ("sparse-default-without-kernel", "warn", launch({}, OFF, versions=Versions())),
        ("sparse-default-without-kernel", "not checked", launch({}, OFF, model=replace(GLM5, sparse_attention=None))),
        ("sparse-backend-without-kernel", "refuse", launch({"sparse_decode": "trtllm"}, OFF)),
        ("sparse-trtllm-needs-sm100", "refuse", launch({"sparse_decode": "trtllm"}, host=Host(capability="9.0"))),
        ("sparse-trtllm-needs-sm100", "warn", launch({"sparse_decode": "trtllm"}, host=Host())),
        ("flashmla-sparse-needs-bf16-kv", "refuse", hopper({**FP8_KV, "sparse_decode": "flashmla_sparse"})),
        ("flashmla-kv-over-bf16", "warn", hopper({"sparse_prefill": "flashmla_kv", "kv_cache_dtype": "bfloat16"})),
        ("sparse-backends-unused", "inform", launch({**DENSE, "sparse_decode": "trtllm"}, OFF)),
        ("sparse-kv-dtype", "refuse", launch({**DENSE, "kv_cache_dtype": "fp4_e2m1"}, OFF)),
        (
            "flashinfer-sparse-mla-conditions",
            "refuse",
            launch({"sparse_decode": "flashinfer_sparse_mla", "kv_cache_dtype": "bf16"}),
        ),
        (
            "sparse-bf16-default-without-kernel",
            "refuse",
            launch({"kv_cache_dtype": "bfloat16"}, versions=Versions(sglang="0.5.20")),
        ),
        ("deepgemm-ue8m0-on-sm120", "refuse", launch(DENSE)),
        ("deepgemm-ue8m0-on-sm120", "refuse", launch(DENSE, {"SGLANG_ENABLE_JIT_DEEPGEMM": "true"})),
        ("deepgemm-off-with-native-sparse", "refuse", launch({}, OFF, versions=Versions(sglang="0.5.23"))),
        ("too-old-for-glm-moe-dsa", "refuse", launch(DENSE, OFF, versions=Versions(sglang="0.5.8.post1"))),
        (
            "transformers-without-glm-moe-dsa",
            "refuse",
            launch(DENSE, OFF, versions=replace(FEBRUARY, transformers="4.57.1")),
        ),
        ("fp4-gemm-race", "warn", launch(DENSE, OFF)),
        ("fp4-gemm-race", "warn", launch({**DENSE, "fp4_gemm": "flashinfer_cutlass"}, OFF)),
        ("fp4-moe-race", "warn", launch({**DENSE, "moe_runner": "flashinfer_cutlass"}, OFF)),
        ("trtllm-gen-needs-sm100", "refuse", launch({**DENSE, "moe_runner": "flashinfer_trtllm"}, OFF)),
        ("fusion-without-kernel", "inform", launch({**DENSE, "allreduce_fusion": True}, OFF)),
        ("shared-experts-bf16-fused", "refuse", launch(DENSE, OFF, model=replace(GLM5, shared_experts_bf16=True))),
        ("graph-batch-512", "warn", launch({**DENSE, "cuda_graph_max_bs": 512}, OFF)),
        ("p2p-off-custom-all-reduce-on", "warn", launch(DENSE, {**OFF, "NCCL_P2P_DISABLE": "1"})),
        ("p2p-level-across-sockets", "warn", launch(DENSE, {**OFF, "NCCL_P2P_LEVEL": "PHB"})),
        (
            "expandable-segments-ipc",
            "warn",
            launch({**DENSE, "tp_size": 2}, {**OFF, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        ),
        ("heads-not-divisible", "refuse", launch({**DENSE, "tp_size": 6}, OFF)),
        ("weights-do-not-fit", "refuse", launch({**DENSE, "tp_size": 4}, OFF)),
        ("one-gpu-for-all-weights", "warn", launch({"attention": "triton"}, OFF)),
        ("more-gpus-than-the-host-has", "refuse", launch({**DENSE, "tp_size": 16}, OFF)),
        ("no-room-for-kv", "warn", launch({**DENSE, "mem_fraction_static": 0.5}, OFF)),
        ("no-mtp-layer", "refuse", launch({**DENSE, "speculative_algorithm": "NEXTN"}, OFF)),
        ("quantization-mismatch", "refuse", launch({**DENSE, "quantization": "awq"}, OFF)),
        (
            "flashinfer-refuses-nvcc",
            "refuse",
            launch(DENSE, OFF, versions=Versions(sglang="0.5.15.post1", flashinfer="0.6.12")),
        ),
        ("nvcc-without-sm120", "refuse", launch(DENSE, OFF, host=replace(SM120, nvcc="12.6"))),
        ("cuda13-driver", "refuse", launch({}, versions=Versions(sglang="0.5.23"))),
        ("open-bind", "refuse", launch({**DENSE, "host": "0.0.0.0"}, OFF)),
        (
            "remote-code-without-revision",
            "refuse",
            launch({**DENSE, "trust_remote_code": True}, OFF, model=replace(GLM5, local=None)),
        ),
        (
            "remote-code-without-revision",
            "refuse",
            launch({**DENSE, "trust_remote_code": True, "revision": "main"}, OFF, model=replace(GLM5, local=None)),
        ),
        (
            "remote-code-writable",
            "refuse",
            launch({**DENSE, "trust_remote_code": True}, OFF, model=replace(GLM5, writable=True)),
        ),
        (
            "weights-fetched-by-the-server",
            "warn",
            launch(DENSE, OFF, model=replace(GLM5, local=False, fetched=False)),
        ),
        ("fp8-weights-before-ada", "warn", launch({}, host=Host(capability="8.6"), model=Model(quantization="fp8"))),
        ("trtllm-gen-before-blackwell", "warn", launch({"moe_runner": "flashinfer_trtllm"}, host=Host(capability="9.0"))),
        ("half-precision-experts", "warn", launch(DENSE, OFF, options={"dtype": "half"})),
        ("watchdog-zero", "warn", launch({**DENSE, "watchdog_timeout": 0}, OFF)),
        ("multi-host-without-address", "warn", launch({**DENSE, "nnodes": 2, "tp_size": 16}, OFF)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_known_fault_is_named(rule: str, severity: str, context: Context) -> None:
    if rule == "remote-code-without-revision":
        context = replace(context, model=replace(context.model, local=False))
    assert says(context).get(rule) == severity


@pytest.mark.parametrize(
    ("rule", "context"),
    [
        ("dense-attention-fp8-kv", launch({**DENSE, "kv_cache_dtype": "auto"}, OFF, host=Host(capability="9.0"))),
        ("dense-attention-fp8-kv", launch({"kv_cache_dtype": "auto"}, OFF)),
        ("deepgemm-ue8m0-on-sm120", launch(DENSE, versions=Versions(sglang="0.5.13.post1"))),
        ("deepgemm-off-with-native-sparse", launch(DENSE, OFF, versions=Versions(sglang="0.5.23"))),
        ("fp4-gemm-race", launch(DENSE, OFF, versions=Versions(sglang="0.5.12.post1", flashinfer="0.6.11.post1"))),
        ("trtllm-gen-needs-sm100", launch({"moe_runner": "flashinfer_trtllm"}, host=Host(capability="10.3"))),
        ("open-bind", launch({**DENSE, "host": "0.0.0.0"}, OFF, has_api_key=True)),
        ("open-bind", launch({**DENSE, "host": "127.0.0.1"}, OFF)),
        (
            "remote-code-without-revision",
            launch(
                {**DENSE, "trust_remote_code": True, "revision": "0123456789" * 4}, OFF, model=replace(GLM5, local=False)
            ),
        ),
        (
            "remote-code-without-revision",
            launch({**DENSE, "trust_remote_code": True}, OFF, model=replace(GLM5, local=True)),
        ),
        ("remote-code-writable", launch(DENSE, OFF, model=replace(GLM5, writable=True))),
        ("weights-fetched-by-the-server", launch(DENSE, OFF, model=replace(GLM5, local=True))),
        ("weights-fetched-by-the-server", launch(DENSE, OFF, model=replace(GLM5, local=False, fetched=True))),
        (
            "remote-code-writable",
            launch({**DENSE, "trust_remote_code": True}, OFF, model=replace(GLM5, writable=False)),
        ),
        ("weights-do-not-fit", launch({**DENSE, "device": "cpu", "tp_size": 1}, OFF)),
        ("expandable-segments-ipc", launch(DENSE, {**OFF, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})),
        (
            "flashinfer-refuses-nvcc",
            launch(
                DENSE, {**OFF, "FLASHINFER_CUDA_ARCH_LIST": "12.0a"}, versions=Versions(sglang="0.5.15", flashinfer="0.6.12")
            ),
        ),
    ],
)
def test_a_rule_stays_silent_where_its_cause_is_absent(rule: str, context: Context) -> None:
    assert says(context).get(rule, "not checked") == "not checked"


def test_unknown_facts_are_never_taken_as_true() -> None:
    context = Context(settings={"attention": "flashinfer", "tp_size": 8})
    results = check(RULES, context)
    assert {result.severity for result in results} <= {"not checked", "inform"}
    dense = next(result for result in results if result.rule == "dense-attention-fp8-kv")
    assert dense.reason.startswith("needs ")
    assert "derived.dense_on_sparse" in dense.needs


def test_allow_lets_a_refusal_pass_and_marks_it() -> None:
    context = launch({**DENSE, "kv_cache_dtype": "auto"}, OFF)
    result = next(r for r in check(RULES, context, ["dense-attention-fp8-kv"]) if r.rule == "dense-attention-fp8-kv")
    assert (result.severity, result.allowed, result.as_dict()["allowed"]) == ("warn", True, True)


def test_allow_of_an_unknown_rule_names_the_nearest() -> None:
    with pytest.raises(UnknownRule, match="open-bind"):
        check(RULES, launch(DENSE), ["open-bnd"])


def test_on_a_patched_source_a_refusal_is_a_warning() -> None:
    context = launch({**DENSE, "kv_cache_dtype": "auto"}, OFF, versions=Versions(patched=True))
    assert says(context)["dense-attention-fp8-kv"] == "warn"
    assert says(launch({**DENSE, "host": "::"}, OFF, versions=Versions(patched=True)))["open-bind"] == "refuse"


def test_a_refusal_that_rests_on_a_guessed_version_is_a_warning() -> None:
    context = launch({}, OFF, versions=Versions(sglang="0.5.9", exact=False))
    assert says(context)["sparse-default-without-kernel"] == "warn"
    dense = launch({**DENSE, "kv_cache_dtype": "auto"}, OFF, versions=Versions(sglang="0.5.9", exact=False))
    assert says(dense)["dense-attention-fp8-kv"] == "refuse"


def cured(context: Context, result: RuleResult) -> Context:
    settings = {**context.settings, **result.remedy.settings}
    environment = {**context.environment, **result.remedy.environment}
    return replace(
        context,
        settings={name: value for name, value in settings.items() if value is not None},
        environment={name: value for name, value in environment.items() if value is not None},
    )


@pytest.mark.parametrize(
    "context",
    [
        launch({**DENSE, "kv_cache_dtype": "auto"}),
        launch({"kv_cache_dtype": "auto"}),
        launch({**DENSE, "moe_runner": "flashinfer_trtllm", "fp4_gemm": "flashinfer_cutlass", "host": "0.0.0.0"}),
        launch({"kv_cache_dtype": "bfloat16"}, OFF, versions=Versions(sglang="0.5.20"), host=replace(SM120, driver="580")),
        launch({**DENSE, "attention": "fa3", "speculative_algorithm": "EAGLE"}, OFF, host=replace(SM120, nvcc="13.0")),
    ],
)
def test_remedies_that_can_be_applied_cure(context: Context) -> None:
    """Apply every remedy of every refusal: each refusal's own rule must then be silent, and none may be left."""
    for _ in range(3):
        for result in check(RULES, context):
            if result.severity == "refuse" and (result.remedy.settings or result.remedy.environment):
                context = cured(context, result)
                assert says(context).get(result.rule) != "refuse", result.rule
    assert [rule for rule, severity in says(context).items() if severity == "refuse"] == []


def test_every_profile_that_works_passes_its_own_rules() -> None:
    for profile in CATALOG.profiles.values():
        if profile.status == "refuted" or profile.fits.device == "cpu" or not profile.settings:
            continue
        for version in (v for v in CATALOG.recorded if profile.covers(v)):
            versions = replace(KNOWN.versions_of(version), transformers="5.12.1")
            environment = {name: value for name, value in profile.environment.items() if value is not None}
            settings = {name: value for name, value in profile.settings.items() if value is not None}
            host = replace(SM120, nvcc="13.0" if version != "0.5.9" else "12.8", driver="580")
            found = says(launch(settings, environment, versions=versions, host=host))
            assert [rule for rule, severity in found.items() if severity == "refuse"] == [], (profile.name, version)


def test_the_refuted_profile_is_refused() -> None:
    profile = CATALOG.profiles["nsa-trtllm"]
    settings = {name: value for name, value in profile.settings.items() if value is not None}
    found = says(launch(settings, {}))
    assert {"dense-attention-fp8-kv", "deepgemm-ue8m0-on-sm120"} <= {r for r, s in found.items() if s == "refuse"}


def test_every_rule_can_be_said_of_some_launch_in_words() -> None:
    for rule in RULES:
        assert rule.source
        assert rule.remedy.as_text()
        assert not rule.reason.endswith(" ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sevrity": "warn"}, "unknown field 'sevrity'; did you mean severity"),
        ({"severity": "stop"}, "refuse, warn, inform"),
        ({"topic": "speed"}, "works, security, performance"),
        ({"reason": ""}, "`reason` is missing"),
        ({"source": []}, "`source` is missing"),
        ({"when": {"field": "settings.kv_cache", "equals": 1}}, "unknown field 'settings.kv_cache'"),
        ({"when": {"field": "settings.port", "equls": 1}}, "unknown test 'equls'; did you mean equals"),
        ({"when": {"field": "settings.port", "in": "x"}}, "takes a list"),
        ({"when": {"field": "versions.sglang", "version": "about 0.5"}}, "no version range"),
        ({"when": {"all": []}}, "list of conditions"),
        ({"when": {"field": "settings.port"}}, "exactly one of"),
        ({"remedy": {"setings": {}}}, "unknown field 'setings'"),
        ({"remedy": {"settings": {"atention": "x"}}}, "did you mean attention"),
        ({"if_unknown": {"host.capability": "refus"}}, "refuse, warn, inform"),
    ],
)
def test_a_faulty_rule_file_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    rule = {
        "id": "x",
        "severity": "warn",
        "when": {"field": "settings.port", "equals": 1},
        "reason": "r",
        "remedy": "m",
        "source": ["s"],
    }
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"rules": [{**rule, **change}]}), encoding="utf-8")
    with pytest.raises(RuleError, match=message.replace("(", r"\(")):
        rule_book.load(path, CATALOG.options.names)


def test_a_rule_twice_is_refused(tmp_path: Path) -> None:
    rule = {
        "id": "x",
        "severity": "warn",
        "when": {"field": "has_api_key", "equals": True},
        "reason": "r",
        "remedy": "m",
        "source": ["s"],
    }
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"rules": [rule, rule]}), encoding="utf-8")
    with pytest.raises(RuleError, match="twice"):
        rule_book.load(path)


@pytest.mark.parametrize(
    ("condition", "truth"),
    [
        ({"field": "a", "equals": 8}, True),
        ({"field": "a", "equals": "8"}, True),
        ({"field": "a", "in": [1, 8]}, True),
        ({"field": "none", "equals": 1}, False),
        ({"field": "none", "default": "auto", "equals": "auto"}, True),
        ({"field": "none", "exists": False}, True),
        ({"field": "dark", "exists": True}, None),
        ({"field": "dark", "equals": 1}, None),
        ({"field": "v", "version": ">=0.5.9,<0.5.17"}, True),
        ({"field": "v", "version": "<0.5.9"}, False),
        ({"field": "v", "less": 3}, None),
        ({"field": "a", "at_least": 8}, True),
        ({"field": "a", "less": 8}, False),
        ({"field": "on", "truthy": True}, True),
        ({"field": "off", "truthy": False}, True),
        ({"field": "list", "overlaps": ["x", "z"]}, True),
        ({"field": "v", "contains": "post"}, True),
        ({"all": [{"field": "dark", "equals": 1}, {"field": "a", "equals": 9}]}, False),
        ({"all": [{"field": "dark", "equals": 1}, {"field": "a", "equals": 8}]}, None),
        ({"any": [{"field": "dark", "equals": 1}, {"field": "a", "equals": 8}]}, True),
        ({"any": [{"field": "dark", "equals": 1}, {"field": "a", "equals": 9}]}, None),
        ({"not": {"field": "dark", "equals": 1}}, None),
        ({"not": {"field": "a", "equals": 9}}, True),
    ],
)
def test_the_condition_language(condition: dict[str, Any], truth: bool | None) -> None:
    fields = {"a": 8, "dark": UNKNOWN, "v": "0.5.10.post1", "on": "True", "off": "0", "list": ("x", "y"), "none": None}
    check_condition(condition, lambda name: True, "here")
    outcome = evaluate(condition, fields)
    assert outcome.truth is truth
    assert bool(outcome.needs) is (truth is None)


LEAF = st.builds(lambda name, value: {"field": name, "equals": value}, st.sampled_from("abcd"), st.booleans())
TREE = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"all": parts}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"any": parts}),
        inner.map(lambda part: {"not": part}),
    ),
    max_leaves=8,
)


@given(TREE, st.dictionaries(st.sampled_from("abcd"), st.booleans(), min_size=4), st.sets(st.sampled_from("abcd")))
def test_a_certain_answer_stays_whatever_the_unknown_turns_out_to_be(
    tree: dict[str, Any], facts: dict[str, bool], dark: set[str]
) -> None:
    told = evaluate(tree, {name: UNKNOWN if name in dark else value for name, value in facts.items()})
    full = evaluate(tree, facts)
    assert full.truth is not None
    if told.truth is not None:
        assert told.truth is full.truth
    else:
        assert told.needs <= dark


def test_an_unknown_junction_is_refused() -> None:
    with pytest.raises(ConditionError, match="unknown test 'al'"):
        check_condition({"al": []}, lambda name: True, "here")


def test_derived_fields() -> None:
    flat = flatten(launch({"tp_size": 8, "pp_size": 2, "nnodes": 2, "dp_attention": 4, "ep_size": 8}))
    assert flat["derived.gpus_wanted_per_host"] == 8
    assert flat["derived.gpu_shortage"] == 0
    assert flat["derived.heads_remainder"] == 0
    assert flat["derived.ep_is_tp"] is True
    assert flat["derived.weights_gib_per_gpu"] == pytest.approx(25)
    placeholder = flatten(replace(launch({"tp_size": "<TP>"}), unresolved=frozenset({"tp_size"})))
    assert placeholder["derived.weights_gib_per_gpu"] is UNKNOWN
