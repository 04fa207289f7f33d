import json
from dataclasses import replace
from pathlib import Path

import pytest
from sglang_deploy import catalog
from sglang_deploy.launch_spec import LaunchSpecError, Request, resolve

ROOT = Path(__file__).parents[2] / "catalog"
CATALOG = catalog.load(ROOT)
DEFAULTS = {"host": "127.0.0.1", "port": 30000}
GROUP_VARS = {
    "served_model_name": "glm-5",
    "reasoning_parser": "glm45",
    "tool_call_parser": "glm47",
    "trust_remote_code": True,
    "port": 8000,
}
ENVIRONMENT = {"NCCL_IB_DISABLE": 1, "NCCL_P2P_LEVEL": "PHB", "SAFETENSORS_FAST_GPU": True}


def request(profile="nsa-trtllm", stack="glm5-cuda128", **changes):
    asked = Request(
        instance="glm5",
        stack=stack,
        profile=profile,
        model="lukealonso/GLM-5-NVFP4",
        dialect=CATALOG.dialect(CATALOG.stacks[stack].sglang if stack in CATALOG.stacks else "0.5.9"),
        release="glm5-cuda128-0123456789ab",
        default_settings=DEFAULTS,
        layers=[("group_vars", GROUP_VARS)],
        environment_layers=[("group_vars", ENVIRONMENT)],
    )
    return replace(asked, **changes)


def spec(**changes):
    return resolve(CATALOG, request(**changes))


def refused(**changes):
    with pytest.raises(LaunchSpecError) as error:
        spec(**changes)
    return error.value.problems


def options(argv):
    """The argument list cut before each option, for comparison without order."""
    groups = []
    for word in argv:
        if word.startswith("--"):
            groups.append([word])
        else:
            groups[-1].append(word)
    return {" ".join(group) for group in groups}


PUBLISHED = """
    --model-path lukealonso/GLM-5-NVFP4 --served-model-name glm-5 --reasoning-parser glm45 --tool-call-parser glm47
    --trust-remote-code --tp-size 8 --mem-fraction-static 0.85 --max-running-requests 64 --kv-cache-dtype auto
    --quantization modelopt_fp4 --attention-backend flashinfer --fp8-gemm-backend cutlass --nsa-decode-backend trtllm
    --nsa-prefill-backend trtllm --moe-runner-backend flashinfer_cutlass --disable-custom-all-reduce
    --enable-flashinfer-allreduce-fusion --disable-cuda-graph --host 0.0.0.0 --port 8000
"""


def test_the_published_command_renders_exactly():
    found = spec().argv
    assert options(found) == options(PUBLISHED.split())
    assert len(found) == len(PUBLISHED.split())


BACKENDS = {
    "attention": "triton",
    "kv_cache_dtype": "bfloat16",
    "fp8_gemm": "triton",
    "sparse_decode": "tilelang",
    "sparse_prefill": "tilelang",
    "moe_runner": "cutlass",
    "quantization": "fp8",
}


@pytest.mark.parametrize(("name", "value"), BACKENDS.items())
def test_one_changed_backend_changes_exactly_its_option(name, value):
    before = options(spec().argv)
    after = options(spec(layers=[("group_vars", {**GROUP_VARS, name: value})]).argv)
    (old,), (new,) = before - after, after - before
    assert old.split()[0] == new.split()[0]
    assert new.split()[1] == value


@pytest.mark.parametrize(
    ("name", "gone"), [("custom_all_reduce", "--disable-custom-all-reduce"), ("cuda_graph", "--disable-cuda-graph")]
)
def test_a_switched_backend_takes_its_option_away(name, gone):
    after = options(spec(layers=[("group_vars", {**GROUP_VARS, name: True})]).argv)
    assert options(spec().argv) - after == {gone}


PAIRS = [
    (profile.name, version)
    for profile in CATALOG.profiles.values()
    for version in CATALOG.recorded
    if profile.covers(version)
]


@pytest.mark.parametrize(("profile", "version"), PAIRS)
def test_every_profile_is_accepted_by_every_version_in_its_range(profile, version):
    on_cpu = CATALOG.profiles[profile].fits.device == "cpu"
    of = CATALOG.dialect(version)
    asked = request(profile=profile, stack="cpu" if on_cpu else "cuda13" if "dsa" in profile else "glm5-cuda128", dialect=of)
    found = resolve(CATALOG, asked)
    split = of.split(found.argv)
    assert split.problems == ()
    assert split.positional == ()
    assert [item.flag for item in split.given if item.abbreviated or item.option.deprecated] == []
    settings, rest = CATALOG.options.settings_of(split.given, of)
    assert rest == []
    assert settings == {name: choice.value for name, choice in found.settings.items() if choice.options}


def test_later_layers_win_and_say_where_a_value_came_from():
    found = spec(
        layers=[
            ("group_vars", {**GROUP_VARS, "moe_runner": "cutlass"}),
            ("host_vars", {"port": 9000}),
            ("-e", {"port": "9001"}),
        ]
    )
    sources = {name: (choice.value, choice.source) for name, choice in found.settings.items()}
    assert sources["port"] == (9001, "-e")
    assert sources["moe_runner"] == ("cutlass", "group_vars")
    assert sources["attention"] == ("flashinfer", "profile nsa-trtllm")
    assert sources["host"] == ("0.0.0.0", "profile nsa-trtllm")
    assert sources["model_path"] == ("lukealonso/GLM-5-NVFP4", "model")
    assert spec(stack="cpu", profile="cpu-lab", layers=[]).settings["max_total_tokens"].source == "stack cpu"
    assert spec(profile="dense-mla-bf16", layers=[]).settings["host"].source == "default"


def test_null_takes_a_setting_or_variable_of_a_lower_layer_out():
    found = spec(layers=[("group_vars", {"fp8_gemm": None})], environment_layers=[("group_vars", {"CUDA_HOME": None})])
    assert "fp8_gemm" not in found.settings
    assert "CUDA_HOME" not in found.environment
    assert "--fp8-gemm-backend" not in found.argv


def test_environment_layers():
    found = spec(profile="dense-mla-bf16")
    assert found.variables == {
        "CUDA_HOME": "/usr/local/cuda-12.8",
        "NCCL_IB_DISABLE": "1",
        "NCCL_P2P_LEVEL": "PHB",
        "SAFETENSORS_FAST_GPU": "1",
        "SGLANG_ENABLE_JIT_DEEPGEMM": "0",
    }
    assert found.environment["CUDA_HOME"].source == "stack glm5-cuda128"


def test_extra_arguments_come_last():
    found = spec(extra_args=["--enable-symm-mem", "--soft-watchdog-timeout", 60])
    assert found.argv[-3:] == ("--enable-symm-mem", "--soft-watchdog-timeout", "60")
    assert found.extra_args == found.argv[-3:]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--port", "9000"], "--port is managed; write the setting port: 9000"),
        (["--port=9000"], "--port is managed; write the setting port: 9000"),
        (["--tp", "4"], "write the setting tp_size: 4"),
        (["--tensor-parallel-size", "4"], "write the setting tp_size: 4"),
        (["--disable-radix-cache"], "write the setting radix_cache: false"),
        (["--api-key", "s3cret"], "secret file"),
        (["--api-ke", "s3cret"], "secret file"),
        (["--portt", "1"], "not an option of SGLang 0.5.9: did you mean --port"),
        (["--pp", "2"], "ambiguous"),
        (["--enable-symm-me"], "write --enable-symm-mem"),
        (["--enable-symm-mem", "--enable-symm-mem"], "given twice"),
        (["--soft-watchdog-timeout"], "no value follows"),
        (["--soft-watchdog-timeout", "soon"], "not a number"),
        (["9000"], "belongs to no option"),
        (["--soft-watchdog-timeout", "6\n0"], "line break"),
        ("--enable-symm-mem", "not a list"),
    ],
)
def test_extra_arguments_that_collide_or_do_not_exist_are_refused(words, text):
    assert text in "\n".join(map(str, refused(extra_args=words)))


def test_a_refused_secret_is_not_repeated():
    assert "s3cret" not in "\n".join(map(str, refused(extra_args=["--api-key", "s3cret"])))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"stack": "glm5-cuda12"}, "stack (from the request): 'glm5-cuda12' is not known; did you mean glm5-cuda128"),
        ({"profile": "dense"}, "profile (from the request): 'dense' is not known; did you mean"),
        ({"profile": "dsa-native-fp8"}, "it is for SGLang >=0.5.17 on cuda, and stack glm5-cuda128 has 0.5.9"),
        ({"profile": "cpu-lab"}, "take one of dense-mla-bf16"),
        ({"instance": "GLM 5"}, "instance name 'GLM 5' is not allowed"),
        ({"model": ""}, "setting model_path (from model): the value is empty"),
        (
            {"layers": [("host_vars", {"moe_runer": "x"})]},
            "setting moe_runer (from host_vars): it is not known; did you mean moe_runner",
        ),
        ({"layers": [("host_vars", {"enable_symm_mem": True})]}, "goes into extra_args: --enable-symm-mem"),
        (
            {"layers": [("host_vars", {"port": 0})]},
            "setting port (from host_vars): 0 is out of range; write a whole number from 1 to",
        ),
        (
            {"layers": [("host_vars", {"moe_runner": "b12x"})]},
            "does not know --moe-runner-backend b12x; its choices are auto, deep_gemm",
        ),
        ({"layers": [("host_vars", {"sparse_topk": "torch"})]}, "SGLang 0.5.9 has no option for sparse_topk"),
        ({"layers": [("host_vars", ["port"])]}, "settings (from host_vars): ['port'] is not a mapping"),
        (
            {"layers": [("host_vars", {"dp_size": 2, "dp_attention": 4})]},
            "which dp_size (from host_vars) already gives",
        ),
        (
            {"environment_layers": [("host_vars", {"A-B": 1})]},
            "environment (from host_vars): environment name 'A-B' is not allowed",
        ),
        (
            {"environment_layers": [("host_vars", {"A": "1\n2"})]},
            "environment A (from host_vars): the value holds a line break",
        ),
        ({"environment_layers": [("host_vars", {"A": ["x"]})]}, "is not text"),
        ({"layers": [("host_vars", {"api_key": "x"})]}, "setting api_key (from host_vars): it is not known"),
    ],
)
def test_a_wrong_request_is_refused_with_source_and_fix(changes, text):
    assert text in "\n".join(map(str, refused(**changes)))


def test_all_problems_are_said_at_once():
    found = refused(
        instance="X",
        profile="y",
        layers=[("a", {"port": 0}), ("b", {"z": 1})],
        environment_layers=[("c", {"1": "x"})],
        extra_args=["--nope"],
    )
    assert [problem.what for problem in found] == [
        "instance",
        "profile",
        "setting z",
        "setting port",
        "extra_args",
        "environment",
    ]


def test_an_inconsistent_stack_is_refused_with_the_nearest():
    stacks = {**CATALOG.stacks, "glm5-cuda128": CATALOG.stacks["glm5-cuda128"].at("main")}
    with pytest.raises(LaunchSpecError, match="or take cuda13"):
        resolve(replace(CATALOG, stacks=stacks), request())


def test_the_hash_counts_what_decides_and_nothing_else():
    base = spec()
    assert base.hash == spec(layers=[("elsewhere", GROUP_VARS)]).hash
    assert base.hash == spec(instance="other").hash
    different = [
        spec(release="other"),
        spec(layers=[("group_vars", {**GROUP_VARS, "port": 8001})]),
        spec(environment_layers=[]),
        spec(extra_args=["--enable-symm-mem"]),
    ]
    assert len({base.hash, *(other.hash for other in different)}) == 5


def test_the_dictionary_is_json_and_complete():
    data = json.loads(json.dumps(spec(extra_args=["--enable-symm-mem"]).as_dict()))
    assert data["argv"] == [word for s in data["settings"].values() for word in s["options"]] + data["extra_args"]
    assert data["settings"]["cuda_graph"] == {
        "value": False,
        "source": "profile nsa-trtllm",
        "options": ["--disable-cuda-graph"],
    }
    assert data["environment"]["NCCL_P2P_LEVEL"] == {"value": "PHB", "source": "group_vars"}
    assert set(data) == {
        *(
            "schema",
            "instance",
            "stack",
            "sglang_version",
            "release",
            "profile",
            "model",
            "settings",
            "extra_args",
            "argv",
        ),
        *("environment", "hash"),
    }
