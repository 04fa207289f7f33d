"""The plan's table and JSON, asked against effective, and the explanation of a command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sglang_deploy import catalog as catalogs
from sglang_deploy import known as knowledge
from sglang_deploy import plan as planning
from sglang_deploy import plantext
from sglang_deploy import rules as rule_book
from sglang_deploy.dialect import Dialect
from sglang_deploy.effective import compare_effective, judge
from sglang_deploy.explain import candidates, explain
from sglang_deploy.known import Source
from sglang_deploy.launch_spec import LaunchSpec, Request, resolve
from sglang_deploy.rules import Host, Model, UnknownRule, Versions

ROOT = Path(__file__).resolve().parents[2]
CATALOG = catalogs.load(ROOT / "catalog")
RULES = rule_book.load(ROOT / "catalog" / "rules.yml", CATALOG.options.names)
KNOWN = knowledge.load(CATALOG)
DIALECT = CATALOG.dialect("0.5.9")
HOST = Host(capability="12.0", gpu_count=8, gpu_memory_gib=95.6, nvlink=False, nvcc="12.8", driver="570")
MODEL = Model(
    architecture="GlmMoeDsaForCausalLM", quantization="nvfp4", sparse_attention=True, num_heads=64, weights_gib=400
)


def spec_of(**settings: Any) -> LaunchSpec:
    return resolve(
        CATALOG,
        Request(
            instance="glm5",
            stack="glm5-cuda128",
            profile="dense-mla-bf16",
            model="/srv/models/glm5",
            layers=(("group_vars", settings),),
            dialect=DIALECT,
        ),
    )


def plan_of(spec: LaunchSpec, **more: Any) -> planning.Plan:
    context = planning.context_of(
        spec, DIALECT, versions=Versions(sglang="0.5.9", flashinfer="0.6.3"), host=HOST, model=MODEL
    )
    return planning.make(spec, context, RULES, DIALECT, **more)


def row(plan: planning.Plan, name: str) -> planning.Row:
    return next(row for row in plan.rows if row.setting == name)


def test_a_plan_without_conflicts() -> None:
    plan = plan_of(spec_of())
    assert not plan.refused
    assert row(plan, "kv_cache_dtype") == planning.Row(
        "kv_cache_dtype", "bfloat16", "profile dense-mla-bf16", "--kv-cache-dtype bfloat16", "not resolvable here"
    )
    assert "What SGLang makes of it: not resolvable here: the release is not built yet" in shown(plan)


def shown(plan: planning.Plan, **more: Any) -> list[str]:
    return [line.text for line in plantext.show(plan, "gpu1", **more)]


def test_a_refusal_has_its_remedy_its_source_and_the_way_to_go_on() -> None:
    plan = plan_of(spec_of(kv_cache_dtype="auto"))
    assert plan.refused
    first, remedy, source, allow = [line.text for line in plantext.refusals(plan.results)]
    assert first.startswith("REFUSED: dense-attention-fp8-kv: ")
    assert remedy.strip() == "remedy: set kv_cache_dtype: bfloat16"
    assert "sgl-project/sglang#18904" in source
    assert allow.strip() == "to go on all the same: sglang_allow: [dense-attention-fp8-kv]"
    assert row(plan, "kv_cache_dtype").findings == ("dense-attention-fp8-kv",)
    assert row(plan, "kv_cache_dtype").source == "group_vars"


def test_what_is_allowed_is_recorded() -> None:
    plan = plan_of(spec_of(kv_cache_dtype="auto"), allow=["dense-attention-fp8-kv"])
    assert not plan.refused
    assert plan.as_dict()["allowed"] == ["dense-attention-fp8-kv"]
    assert [line for line in shown(plan) if line.startswith("allowed: dense-attention-fp8-kv: ")]


def test_allowing_a_rule_that_does_not_exist_names_the_nearest() -> None:
    with pytest.raises(UnknownRule, match="did you mean dense-attention-fp8-kv"):
        plan_of(spec_of(), allow=["dense-attention-fp8"])


def test_the_text_has_the_host_first_then_problems_then_settings() -> None:
    lines = shown(plan_of(spec_of(moe_runner="flashinfer_cutlass"), resolution={"ok": True, "resolved": {"page_size": 64}}))
    assert lines[0].startswith("gpu1: plan of glm5: SGLang 0.5.9, stack glm5-cuda128, profile dense-mla-bf16")
    at = {
        word: next(n for n, line in enumerate(lines) if line.startswith(word))
        for word in ("warning:", "setting", "variable")
    }
    assert at["warning:"] < at["setting"] < at["variable"]
    assert [line.split() for line in lines if line.startswith("page_size")] == [["page_size", "(unset)", "SGLang", "64"]]


def test_what_was_not_checked_is_a_count_unless_asked_for() -> None:
    plan = plan_of(spec_of())
    missing = [result.rule for result in plan.results if result.severity == "not checked"]
    assert missing
    assert f"{len(missing)} rule{'s' if len(missing) > 1 else ''} not checked for want of facts (-v names them)" in shown(
        plan
    )
    told = "\n".join(shown(plan, verbose=True))
    assert all(f"not checked: {rule}: needs " in told for rule in missing)


def test_a_release_that_refuses_the_arguments_is_a_refusal() -> None:
    answer = {"ok": False, "refused": True, "reason": "ValueError: KV must be bfloat16", "resolved": {}}
    plan = plan_of(spec_of(), resolution=answer)
    assert plan.refused
    assert next(r.reason for r in plan.results if r.rule == "release-refuses").endswith("ValueError: KV must be bfloat16")
    assert not plan_of(spec_of(), resolution=answer, allow=["release-refuses"]).refused


def test_what_sglang_would_override_is_a_refusal_before_anything_stops() -> None:
    line = "Setting KV cache dtype to fp8_e4m3 for DeepSeek DSA on SM12 device."
    for answer in ({"kv_cache_dtype": "fp8_e4m3"}, {}):
        resolution = {"ok": True, "resolved": answer, "log": [] if answer else [line]}
        plan = plan_of(spec_of(), resolution=resolution)
        [reason] = [result.reason for result in plan.results if result.severity == "refuse"]
        assert "kv_cache_dtype: asked bfloat16, runs fp8_e4m3" in reason
        assert row(plan, "kv_cache_dtype").findings == ("sglang-overrides",)
        assert not plan_of(spec_of(), resolution=resolution, allow=["sglang-overrides"]).refused


def test_a_switch_is_shown_in_the_settings_own_words() -> None:
    for value, told in ((True, "false"), (False, "true")):
        plan = plan_of(spec_of(), resolution={"ok": True, "resolved": {"disable_custom_all_reduce": value}})
        assert row(plan, "custom_all_reduce").resolved == told


def test_the_resolved_column_comes_from_the_release() -> None:
    answer = {"ok": True, "resolved": {"kv_cache_dtype": "fp8_e4m3", "page_size": 64}}
    plan = plan_of(spec_of(), resolution=answer)
    assert row(plan, "kv_cache_dtype").resolved == "fp8_e4m3"
    assert plan.not_resolved is None


def test_a_release_that_cannot_tell_says_why() -> None:
    plan = plan_of(spec_of(), resolution={"ok": False, "reason": "no GPU is visible", "resolved": {}})
    assert plan.not_resolved == "not resolvable here: no GPU is visible"
    assert {r.resolved for r in plan.rows} == {"not resolvable here"}


def test_a_plan_is_json() -> None:
    data = json.loads(json.dumps(plan_of(spec_of()).as_dict()))
    assert data["spec"]["hash"] == spec_of().hash
    assert {"setting", "asked", "source", "option", "resolved", "findings"} == set(data["rows"][0])


def started(spec: LaunchSpec, dialect: Dialect = DIALECT) -> dict[str, Any]:
    """The spec as it goes to the host, through JSON."""
    data: dict[str, Any] = json.loads(json.dumps({**spec.as_dict(), "server_fields": planning.server_fields(spec, dialect)}))
    return data


def compare(spec: LaunchSpec, info: dict[str, Any], log: tuple[str, ...] = ()) -> dict[str, tuple[str, str, str]]:
    found = compare_effective(started(spec), info, log)
    return {item.setting: (item.asked, item.effective, item.severity) for item in found}


def test_a_server_that_runs_what_was_asked_shows_no_difference() -> None:
    info = {
        "kv_cache_dtype": "bf16",
        "attention_backend": "flashinfer",
        "mem_fraction_static": 0.9,
        "disable_custom_all_reduce": True,
        "tp_size": 8,
        "quantization": "modelopt_fp4",
    }
    assert compare(spec_of(), info) == {}


def test_a_kv_cache_that_became_fp8_is_a_finding_with_both_values() -> None:
    log = ("[2026-11-30 07:46:35] Setting KV cache dtype to fp8_e4m3 for DeepSeek DSA on SM12 device.",)
    assert compare(spec_of(), {}, log)["kv_cache_dtype"] == ("bfloat16", "fp8_e4m3", "finding")
    assert compare(spec_of(kv_cache_dtype="auto"), {}, log)["kv_cache_dtype"] == ("auto", "fp8_e4m3", "inform")
    assert compare(spec_of(kv_cache_dtype=None), {}, log)["kv_cache_dtype"] == ("(unset)", "fp8_e4m3", "inform")


def test_sparse_backends_are_read_from_the_log() -> None:
    log = ("[2026-11-30 07:56:45] Set DSA backends for fp8_e4m3 KV Cache: prefill=flashmla_kv, decode=trtllm.",)
    spec = spec_of(sparse_prefill="flashmla_sparse")
    found = compare(spec, {}, log)
    assert found["sparse_prefill"] == ("flashmla_sparse", "flashmla_kv", "finding")
    assert found["sparse_decode"] == ("(unset)", "trtllm", "inform")


def test_the_line_of_the_sm120_default_is_read() -> None:
    log = (
        "Set DSA backends for GLM FP8 KV Cache on SM120/SM121: prefill=flashinfer_sparse_mla, decode=flashinfer_sparse_mla.",
    )
    assert compare(spec_of(), {}, log)["sparse_decode"] == ("(unset)", "flashinfer_sparse_mla", "inform")


def test_a_switch_that_the_server_did_not_take_is_a_finding() -> None:
    found = compare(spec_of(), {"disable_custom_all_reduce": False})
    assert found["custom_all_reduce"] == ("false", "true", "finding")


@pytest.mark.parametrize(
    ("field", "value"),
    [("mem_fraction_static", "0.90"), ("tp_size", "8"), ("max_running_requests", 64.0), ("quantization", None)],
)
def test_the_same_in_another_form_is_no_difference(field: str, value: object) -> None:
    assert compare(spec_of(), {field: value}) == {}


def test_findings_come_first() -> None:
    info = {"page_size": 64, "quantization": "fp8"}
    found = compare_effective(started(spec_of()), info)
    assert [item.severity for item in found] == ["finding", "inform"]


def test_graphs_off_by_two_options_is_no_difference() -> None:
    dialect = CATALOG.dialect("0.5.23")
    spec = resolve(
        CATALOG,
        Request("glm5", "cuda13", "dsa-conservative", "/srv/models/glm5", dialect),
    )
    fields = planning.server_fields(spec, dialect)["cuda_graph"]
    assert fields == {"cuda_graph_backend_decode": "disabled", "cuda_graph_backend_prefill": "disabled"}
    assert compare_effective(started(spec, dialect), fields) == []
    [difference] = compare_effective(started(spec, dialect), {**fields, "cuda_graph_backend_decode": "full"})
    assert (difference.asked, difference.effective, difference.severity) == ("false", "full", "finding")


def test_the_sentence_names_both_values() -> None:
    ok, told, evidence = judge(started(spec_of()), {"kv_cache_dtype": "fp8_e4m3", "page_size": 64})
    assert not ok
    assert "kv_cache_dtype: asked bfloat16, runs fp8_e4m3 (/server_info kv_cache_dtype)" in told
    assert [item["setting"] for item in evidence["chosen"]] == ["page_size"]
    ok, told, _ = judge(started(spec_of()), {"kv_cache_dtype": "bfloat16", "page_size": 64})
    assert ok
    assert told.endswith("settings run as asked; SGLang chose page_size 64")


COMMAND = "SGLANG_ENABLE_JIT_DEEPGEMM=0 sglang serve lukealonso/GLM-5-NVFP4 --tp-size 8 --attention-backend flashinfer"


def judged(text: str, version: str = "0.5.9", **more: Any) -> dict[str, str]:
    found = explain(text, KNOWN.source(version), HOST, KNOWN.model("lukealonso/GLM-5-NVFP4"), CATALOG, RULES, **more)
    return {result.rule: result.severity for result in found.results}


def test_a_command_is_explained() -> None:
    source = KNOWN.source("0.5.9")
    found = explain(COMMAND, source, HOST, KNOWN.model("lukealonso/GLM-5-NVFP4"), CATALOG, RULES)
    assert found.verdict == "refuse"
    assert found.group_vars == {
        "sglang_stack": "glm5-cuda128",
        "sglang_profile": "bare",
        "sglang_model_source": "server",
        "sglang_model": "lukealonso/GLM-5-NVFP4",
        "sglang_port": 30000,
        "sglang_backends": {"attention": "flashinfer"},
        "sglang_settings": {"tp_size": 8},
        "sglang_environment": {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"},
    }
    assert judged(COMMAND)["dense-attention-fp8-kv"] == "refuse"


def test_an_unknown_option_weighs_as_much_as_the_version_is_certain() -> None:
    text = COMMAND + " --enable-pcie-oneshot-allreduce"
    assert judged(text)["command-unknown"] == "refuse"
    assert judged(text, "Mar 2026")["command-unknown"] == "warn"
    assert judged(text, "community build")["command-unknown"] == "inform"


def test_recorded_options_around_a_version_are_asked() -> None:
    def names(text: str) -> list[str]:
        return [dialect.sglang for dialect in candidates(CATALOG, KNOWN.source(text))]

    assert names("0.5.9") == ["0.5.9"]
    assert names("0.5.14") == ["0.5.12", "0.5.15.post1"]
    assert names("Mar 2026") == ["0.5.9", "0.5.10.post1"]
    assert len(names("2026")) == len(CATALOG.recorded)
    assert [d.sglang for d in candidates(CATALOG, Source("sglang", Versions(sglang="0.6.0")))] == ["0.5.23"]


def test_the_bench_meets_its_targets() -> None:
    run = subprocess.run([sys.executable, str(ROOT / "bench" / "plan.py")], capture_output=True, text=True, check=True)
    figures = json.loads(run.stdout.splitlines()[-1])
    assert figures["parsed"] == figures["total"] > 0
    assert figures["works_refused"] == 0
    assert figures["fails_flagged"] * 3 >= figures["fails_total"] * 2 > 0
    assert figures["profile_versions"] > 0
    assert figures["profile_versions_refused"] == 0


@pytest.mark.parametrize("module", ["effective", "resolution", "dialect", "host_facts"])
def test_what_runs_on_the_host_needs_the_standard_library_alone(module: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'plugins/module_utils')!r}); import sglang_deploy.{module}"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
