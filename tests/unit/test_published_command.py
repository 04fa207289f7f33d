"""The published command comes out of the plays exactly, from the group_vars that a user edits."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = """
    --model lukealonso/GLM-5-NVFP4 --served-model-name glm-5 --reasoning-parser glm45 --tool-call-parser glm47
    --trust-remote-code --tp 8 --mem-fraction-static 0.85 --max-running-requests 64 --kv-cache-dtype auto
    --quantization modelopt_fp4 --attention-backend flashinfer --fp8-gemm-backend cutlass --nsa-decode-backend trtllm
    --nsa-prefill-backend trtllm --moe-runner-backend flashinfer_cutlass --disable-custom-all-reduce
    --enable-flashinfer-allreduce-fusion --disable-cuda-graph --host 0.0.0.0 --port 8000
"""
SAME_OPTION = {"--model": "--model-path", "--tp": "--tp-size"}
VARIABLES = {
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_LEVEL": "PHB",
    "NCCL_ALLOC_P2P_NET_LL_BUFFERS": "1",
    "NCCL_MIN_NCHANNELS": "8",
    "OMP_NUM_THREADS": "8",
    "SAFETENSORS_FAST_GPU": "1",
    "CUDA_HOME": "/usr/local/cuda-12.8",
}
# The plan refuses this launch on every address without a key, and with code that is not pinned; whoever wants it all the
# same says so by name.
ALLOWED = {
    "sglang_allow": ["open-bind", "remote-code-without-revision"],
    "sglang_settings": {"reasoning_parser": "glm45", "tool_call_parser": "glm47", "trust_remote_code": True},
}


def render(folder: Path, **variables: object) -> tuple[list[tuple[str, ...]], dict[str, str]]:
    """The options, each with its values, and the environment, as a real shell reads the files that the play writes."""
    folder.mkdir(exist_ok=True)
    (folder / "hosts.yml").write_text(f"glm5: {{hosts: {{gpu1: {{ansible_python_interpreter: {sys.executable}}}}}}}\n")
    if not (folder / "group_vars").exists():
        (folder / "group_vars").symlink_to(ROOT / "group_vars")
    given = {"sglang_config_root": str(folder / "etc"), **variables}
    played = subprocess.run(
        [
            str(Path(sys.executable).with_name("ansible-playbook")),
            "--inventory",
            str(folder / "hosts.yml"),
            "--extra-vars",
            json.dumps(given),
            "tests/plays/render.yml",
        ],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        check=False,
        capture_output=True,
        text=True,
    )
    assert played.returncode == 0, played.stdout
    launch = folder / "etc" / "glm5" / "launch"
    words = _shell(["sh", str(ROOT / "molecule" / "common" / "files" / "launch_arguments.sh"), str(launch)]).splitlines()
    assert words[1:3] == ["-m", "sglang.launch_server"]
    script = f"set -a; . {shlex.quote(str(launch.with_name('environment')))}; env -0"
    pairs = _shell(["env", "-i", "sh", "-c", script]).split("\0")
    return options(words[3:]), dict(pair.split("=", 1) for pair in pairs if pair)


def _shell(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def options(words: list[str]) -> list[tuple[str, ...]]:
    """Options with their values, in an order that does not matter."""
    found: list[tuple[str, ...]] = []
    for word in words:
        if word.startswith("--"):
            found.append((SAME_OPTION.get(word, word),))
        else:
            found[-1] += (word,)
    return sorted(found)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple[str, ...]], dict[str, str]]:
    return render(tmp_path_factory.mktemp("published"), sglang_profile="nsa-trtllm", **ALLOWED)


def test_the_argument_list_is_the_published_one(published: tuple[list[tuple[str, ...]], dict[str, str]]) -> None:
    assert published[0] == options(shlex.split(PUBLISHED))


def test_the_environment_holds_the_published_variables(published: tuple[list[tuple[str, ...]], dict[str, str]]) -> None:
    environment = published[1]
    assert {name: environment.get(name) for name in VARIABLES} == VARIABLES
    # Nothing but these, the deployment's marker and what a login shell would have set: HOME, PATH and the caches.
    others = set(environment) - set(VARIABLES)
    service = {"HOME", "PATH", "SGLANG_DEPLOYMENT", "PWD"}
    own = {name for name in others if "CACHE" not in name and name not in service}
    assert own == {"FLASHINFER_WORKSPACE_BASE", "HF_HOME"}


@pytest.mark.parametrize(
    ("backend", "value", "option"),
    [
        ("moe_runner", "cutlass", "--moe-runner-backend"),
        ("attention", "triton", "--attention-backend"),
        ("fp8_gemm", "triton", "--fp8-gemm-backend"),
    ],
)
def test_a_backend_changed_in_group_vars_changes_exactly_its_option(
    published: tuple[list[tuple[str, ...]], dict[str, str]], tmp_path: Path, backend: str, value: str, option: str
) -> None:
    changed, environment = render(tmp_path, sglang_profile="nsa-trtllm", sglang_backends={backend: value}, **ALLOWED)
    assert set(changed) - set(published[0]) == {(option, value)}
    assert {name for name, _ in set(published[0]) - set(changed)} == {option}
    assert set(environment) == set(published[1])
