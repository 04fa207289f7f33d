"""Asking a release: the runner's limits with stand-in releases, the judgement of reports. No SGLang is needed."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from sglang_deploy import resolution
from sglang_deploy.resolution import judge, resolve

SERVER_ARGS = """
import argparse, dataclasses, logging, os, sys, time

@dataclasses.dataclass
class ServerArgs:
    device: str = None
    kv_cache_dtype: str = "auto"
    api_key: str = "secret"
    disaggregation_mode: str = "null"
    disaggregation_transfer_backend: str = "mooncake"

    def check_server_args(self):
        assert self.kv_cache_dtype != "nvfp4", "KV must be bfloat16"

def prepare_server_args(argv):
    mode = os.environ.get("MODE")
    if mode == "sleep": time.sleep(60)
    if mode == "eat": hold = bytearray(400 * 2**20); time.sleep(60)
    if mode == "die": os._exit(3)
    if mode == "gpu": raise RuntimeError("no accelerator")
    parser = argparse.ArgumentParser()
    parser.add_argument("--device"); parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--model-path")
    parser.add_argument("--disaggregation-mode", default="null")
    parser.add_argument("--disaggregation-transfer-backend", default="mooncake")
    given = parser.parse_args(argv)
    logging.getLogger("sglang.srt").warning("Setting KV cache dtype to bfloat16")
    parts = {name: value for name, value in vars(given).items() if name.startswith("disaggregation")}
    return ServerArgs(device=given.device, kv_cache_dtype=given.kv_cache_dtype, **parts)
"""


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A stand-in for a release: packages named sglang and torch, and a python that finds them."""
    site = tmp_path / "site"
    (site / "sglang" / "srt").mkdir(parents=True)
    for package in (site / "sglang", site / "sglang" / "srt"):
        (package / "__init__.py").write_text("")
    (site / "sglang" / "srt" / "server_args.py").write_text(SERVER_ARGS)
    (site / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_resolved_fields_and_log_come_back_without_secrets(release: Path) -> None:
    answer = resolve(release, ["--device", "cpu"], {})
    assert answer.ok
    assert answer.resolved["device"] == "cpu"
    assert set(answer.resolved) == {
        "device",
        "kv_cache_dtype",
        "disaggregation_mode",
        "disaggregation_transfer_backend",
    }
    assert answer.log == ("Setting KV cache dtype to bfloat16",)


def test_what_the_parser_refuses_is_refused_in_its_words(release: Path) -> None:
    answer = resolve(release, ["--device", "cpu", "--no-such"], {})
    assert (answer.ok, answer.refused) == (False, True)
    assert "unrecognized arguments: --no-such" in answer.reason


def test_what_the_check_refuses_is_refused(release: Path) -> None:
    answer = resolve(release, ["--device", "cpu", "--kv-cache-dtype", "nvfp4"], {})
    assert (answer.refused, answer.reason) == (True, "AssertionError: KV must be bfloat16")


def test_without_a_gpu_nothing_is_guessed(release: Path) -> None:
    answer = resolve(release, [], {})
    assert (answer.ok, answer.refused, dict(answer.resolved)) == (False, False, {})
    assert answer.reason == "no GPU is visible, and SGLang decides by the chip"
    assert "RuntimeError: no accelerator" in resolve(release, [], {"MODE": "gpu"}).reason


def test_a_release_that_hangs_is_ended(release: Path) -> None:
    answer = resolve(release, [], {"MODE": "sleep"}, timeout_s=1)
    assert answer.reason == "SGLang did not answer within 1 s"
    assert answer.seconds < 20


def test_a_release_that_eats_memory_is_ended(release: Path) -> None:
    answer = resolve(release, [], {"MODE": "eat"}, memory_bytes=200 * 2**20)
    assert "GiB of memory" in answer.reason


def test_a_release_that_dies_says_so(release: Path) -> None:
    assert "ended with status 3" in resolve(release, [], {"MODE": "die"}).reason


def test_no_release_says_so(tmp_path: Path) -> None:
    assert "is the release built?" in resolve(tmp_path / "python", [], {}).reason


def test_a_broken_release_says_so(release: Path) -> None:
    (release.parent / "site" / "torch.py").write_text("raise ImportError('libcudart.so.13')")
    assert resolve(release, [], {}).reason == "the release cannot be imported: ImportError: libcudart.so.13"


def test_certain_answers_are_kept_and_others_not(release: Path, tmp_path: Path) -> None:
    cache, model = tmp_path / "cache", tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    argv = ["--device", "cpu", "--model-path", str(model)]
    first = resolve(release, argv, {}, cache=cache)
    (release.parent / "site" / "torch.py").write_text("raise ImportError('would be seen if asked again')")
    assert resolve(release, argv, {}, cache=cache) == first
    (model / "config.json").write_text('{"changed": 1}')
    assert not resolve(release, argv, {}, cache=cache).ok
    assert len(list(cache.iterdir())) == 1


PREFILL = ["--device", "cpu", "--disaggregation-mode", "prefill", "--disaggregation-transfer-backend"]


@pytest.mark.parametrize("backend", ["mooncake", "mooncake_tcp"])
def test_prefill_without_what_moves_the_cache_is_refused_until_it_is_there(
    release: Path, tmp_path: Path, backend: str
) -> None:
    cache, site = tmp_path / "cache", release.parent / "site"
    answer = resolve(release, [*PREFILL, backend], {}, cache=cache)
    assert (answer.ok, answer.refused) == (False, True)
    assert "add the package of mooncake to the requirements of the stack" in answer.reason
    (site / "mooncake").mkdir()
    engine = site / "mooncake" / "engine.py"
    engine.write_text("raise ImportError('libibverbs.so.1: cannot open shared object file: No such file or directory')")
    answer = resolve(release, [*PREFILL, backend], {}, cache=cache)
    assert answer.refused
    assert "the host lacks libibverbs.so.1: apt install libcurl4 libibverbs1 libnuma1" in answer.reason
    # Another length, or the second's own bytecode is taken for it.
    engine.write_text("raise ImportError('libcudart.so.12.8.90: cannot open shared object file: No such file or directory')")
    answer = resolve(release, [*PREFILL, backend], {}, cache=cache)
    assert "the host lacks libcudart.so.12.8.90: install the package that has it" in answer.reason
    engine.write_text("")
    assert resolve(release, [*PREFILL, backend], {}, cache=cache).ok


def test_another_transfer_is_not_looked_for_and_a_whole_server_needs_none(release: Path) -> None:
    assert resolve(release, [*PREFILL, "fake"], {}).ok
    assert resolve(release, ["--device", "cpu", "--disaggregation-mode", "null"], {}).ok
    assert "package of nixl" in resolve(release, [*PREFILL, "nixl"], {}).reason


def test_the_child_gets_the_instances_environment_and_little_else(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE", "sleep")
    assert resolve(release, ["--device", "cpu"], {}, timeout_s=20).ok


@pytest.mark.parametrize(
    ("report", "argv", "ok", "refused"),
    [
        ({"stage": "done", "gpu": True, "resolved": {"device": "cuda"}}, [], True, False),
        ({"stage": "arguments", "gpu": True, "error": "x", "error_type": "ValueError"}, [], False, True),
        ({"stage": "arguments", "gpu": True, "error": "x", "error_type": "OSError"}, [], False, False),
        ({"stage": "arguments", "gpu": False, "error": "x", "error_type": "ValueError"}, ["--device=cpu"], False, True),
        ({"stage": "arguments", "gpu": False, "error": "x", "error_type": "ValueError"}, [], False, False),
    ],
)
def test_judging_a_report(report: dict[str, Any], argv: list[str], ok: bool, refused: bool) -> None:
    answer = judge(report, argv)
    assert (answer.ok, answer.refused) == (ok, refused)
    assert json.dumps(answer.as_dict())


@pytest.mark.skipif("SGLANG_RELEASE_PYTHON" not in os.environ, reason="SGLANG_RELEASE_PYTHON names no release's Python")
def test_a_real_release_resolves_on_the_cpu() -> None:
    model = os.environ["SGLANG_RELEASE_MODEL"]
    argv = ["--model-path", model, "--device", "cpu", "--max-total-tokens", "8192"]
    answer = resolution.resolve(Path(os.environ["SGLANG_RELEASE_PYTHON"]), argv, {"SGLANG_USE_CPU_ENGINE": "1"})
    assert answer.ok, answer.reason
    assert answer.resolved["device"] == "cpu"
    assert answer.resolved["attention_backend"] not in (None, "auto")


def test_no_answer_is_kept_where_none_may_be(release: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert resolve(release, ["--device", "cpu"], {}, cache=cache, keep=False).ok
    assert not cache.exists()


def test_a_damaged_answer_is_asked_for_again(release: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = resolve(release, ["--device", "cpu"], {}, cache=cache)
    [kept] = cache.iterdir()
    kept.write_text("{}")
    assert resolve(release, ["--device", "cpu"], {}, cache=cache).resolved == first.resolved


def test_releases_do_not_share_answers(tmp_path: Path) -> None:
    """The interpreter of every release is a link to the host's own."""
    links = [tmp_path / name / "python" for name in ("one", "two")]
    for link in links:
        link.parent.mkdir()
        link.symlink_to(sys.executable)
    assert resolution._key(links[0], [], {}) != resolution._key(links[1], [], {})


def test_the_services_own_folders_are_left_alone(tmp_path: Path) -> None:
    asked = {
        "HOME": "/var/cache/s/home",
        "TRITON_CACHE_DIR": "/var/cache/s/triton",
        "NCCL_DEBUG": "INFO",
        "HF_HUB_OFFLINE": "0",
    }
    given = resolution._environment(asked, str(tmp_path))
    assert given["NCCL_DEBUG"] == "INFO"
    assert given["HF_HUB_OFFLINE"] == "1"
    assert given["HF_HOME"] == "/var/cache/s/home/.cache/huggingface"
    fetched = {**asked, "HF_HOME": "/var/cache/s/huggingface"}  # a model that the server has fetched is found
    assert resolution._environment(fetched, str(tmp_path))["HF_HOME"] == "/var/cache/s/huggingface"
    assert given["HOME"].startswith(str(tmp_path))
    assert given["TRITON_CACHE_DIR"].startswith(str(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as somebody else")
def test_it_asks_as_the_user_that_is_named() -> None:
    told = '{"stage": "done", "resolved": {"device": "cpu", "user": "%s"}, "log": [], "gpu": false, "error": null}'
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folder is root's alone
        Path(folder).chmod(0o755)
        python = Path(folder, "python")
        python.write_text(f'#!/bin/sh\nprintf \'{told}\' "$(id -u)" >"$3"\n')
        python.chmod(0o755)
        assert resolve(python, ["--device", "cpu"], {}, identity=(65534, 65534)).resolved["user"] == "65534"
