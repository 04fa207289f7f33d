"""The catalog of findings, and what decides when several are seen."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import finding_rules, findings

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
CATALOG = yaml.safe_load((ROOT / "catalog" / "findings.yml").read_text(encoding="utf-8"))
RULES = findings.parse_catalog(CATALOG)
OPTIONS = yaml.safe_load((ROOT / "catalog" / "options.yml").read_text(encoding="utf-8"))["settings"]

ENTRY: dict[str, Any] = {
    "id": "some-failure",
    "class": "driver",
    "phase": "host",
    "severity": "fatal",
    "match": {"log": ["some words"]},
    "cause": "A cause.",
    "source": ["a test"],
}


def diagnose(text: str | bytes, **known: Any) -> findings.Diagnosis:
    raw = text.encode() if isinstance(text, str) else text
    return findings.diagnose(RULES, io.BytesIO(raw), findings.context_from(known))


@pytest.mark.parametrize(
    ("name", "first", "line"),
    [
        ("nan-first-sampled-token.log", "nan-at-sampling", "probability tensor contains"),
        ("nan-sanitized-garbage.log", "nan-detected", "NaN detected in sampler"),
        ("missing-flash-ops.log", "wheels-of-another-cuda", "flash_ops"),
        ("config-missing-field.log", "checkpoint-index", "moe_layer_freq"),
        ("missing-dependency.log", "module-missing", "No module named 'dill'"),
        ("no-libibverbs.log", "transfer-engine-missing", "Please install mooncake"),
        ("fp8-kv-flashmla-sparse.log", "fp8-kv-with-flashmla-sparse", "kv must have dtype torch::kBFloat16"),
        ("missing-cxx-compiler.journal", "no-compiler", "No working C++ compiler"),
    ],
)
def test_real_failures(name: str, first: str, line: str) -> None:
    path = DATA / "logs" / name
    with path.open("rb") as stream:
        found = findings.diagnose(RULES, stream)
    assert found.known
    assert found.findings[0].id == first
    assert line in found.findings[0].line
    numbered = path.read_text(encoding="utf-8", errors="replace").split("\n")
    assert line in numbered[found.findings[0].line_number - 1]


@pytest.mark.parametrize("name", ["healthy.log", "fp8-kv-healthy.log", "stuck-in-graph-capture-killed.log"])
def test_nothing_fatal_in_logs_without_failure(name: str) -> None:
    with (DATA / "logs" / name).open("rb") as stream:
        found = findings.diagnose(RULES, stream)
    assert [finding.id for finding in found.findings if finding.severity == "fatal"] == []


@pytest.mark.parametrize(("file", "right", "wrong"), [("reports.yaml", 0.90, 0.03), ("holdout.yaml", 0.90, 0.03)])
def test_reports_are_recognised(file: str, right: float, wrong: float) -> None:
    cases = [case for case in yaml.safe_load((DATA / file).read_text(encoding="utf-8")) if case.get("log_lines")]
    said = []
    for case in cases:
        settings = {key.lstrip("-").replace("-", "_"): value for key, value in (case.get("flags") or {}).items()}
        found = diagnose("\n".join(case["log_lines"]), settings=settings, environment=case.get("env") or {})
        said.append((case["class"], found.cls))
    assert sum(have == want for want, have in said) / len(said) >= right
    assert sum(have not in (want, "unknown") for want, have in said) / len(said) < wrong


SAMPLES = {
    "RuntimeError: Assertion error (csrc/apis/attention.hpp:219): Unsupported architecture": "sparse-indexer-on-sm120",
    "RuntimeError: The size of tensor a (3072) must match the size of tensor b (6144)": "shared-experts-fused",
    "nvcc fatal   : Unsupported gpu architecture 'compute_120a'": "nvcc-too-old",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": "cuda-out-of-memory",
    "probability tensor contains either `inf`, `nan` or element < 0": "nan-at-sampling",
    "NVRM: Xid (PCI:0000:c1:00): 79, pid=1234, GPU has fallen off the bus.": "gpu-fault",
}
WRAPPINGS = {
    "sglang": "[2026-11-30 08:02:26 TP3 EP1] {}",
    "journal": "Nov 30 08:50:28 host1 python[296]: [2026-11-30 08:50:28 TP1] {}",
    "iso": "2026-11-30T08:50:28+0000 host1 python[296]: {}",
    "container": "sglang-1  | (TP3 EP1) {}",
    "colour": "\x1b[1;31m{}\x1b[0m",
    "progress": " 25%|##   | 1/4 [00:01<00:03]\r{}",
    "windows": "{}\r",
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("text", SAMPLES)
def test_wrappings_do_not_hide_a_failure(text: str, wrapping: str) -> None:
    log = "INFO start\n" + WRAPPINGS[wrapping].format(text) + "\nReceived sigquit from a child process.\n"
    found = diagnose(log)
    assert (found.findings[0].id, found.findings[0].line_number) == (SAMPLES[text], 2)


@pytest.mark.parametrize("text", SAMPLES)
def test_wrapped_text_is_still_found(text: str) -> None:
    for width in (30, 37):
        wrapped = "\n".join(text[at : at + width] for at in range(0, len(text), width))
        assert diagnose(f"start\n{wrapped}\nend").findings[0].id == SAMPLES[text], wrapped


@pytest.mark.parametrize("text", SAMPLES)
def test_bytes_that_are_no_text_do_not_hide_a_failure(text: str) -> None:
    assert diagnose(b"\xff\xfe\0\0\n\0" + text.encode() + b"\n\xc3").findings[0].id == SAMPLES[text]


def test_first_cause_stands_before_its_consequences() -> None:
    found = diagnose(
        "TCPStore: Broken pipe\nSIGQUIT received. It usually means one child failed.\n"
        "RuntimeError: CUDA error: device-side assert triggered\nprobability tensor contains either `inf`, `nan`\n"
        "Scheduler hit an exception: Traceback\n"
    )
    assert [finding.id for finding in found.findings] == ["nan-at-sampling"]


def test_consequences_alone_are_unknown_and_show_what_to_read() -> None:
    found = diagnose("Scheduler hit an exception: Traceback\n  File x\nStrangeError: it broke\nSIGQUIT received.\n")
    assert not found.known
    assert found.cls == "unknown"
    assert (3, "StrangeError: it broke") in [(hit.number, hit.text) for hit in found.worth_reading]


def test_versions_and_settings_make_the_cause_exact() -> None:
    text = "probability tensor contains either `inf`, `nan` or element < 0"
    old = diagnose(text, versions={"sglang": "0.5.9", "flashinfer": "0.6.3"}).findings[0]
    assert "UE8M0" in old.cause
    assert dict(old.remedy.environment)["SGLANG_ENABLE_JIT_DEEPGEMM"] == "0"
    new = diagnose(text, versions={"sglang": "0.5.17", "flashinfer": "0.6.14"}).findings[0]
    assert "UE8M0" not in new.cause
    kv = diagnose(text, settings={"kv_cache_dtype": "fp8_e4m3", "attention_backend": "flashinfer"}).findings[0]
    assert dict(kv.remedy.settings) == {"kv_cache_dtype": "bfloat16"}


def test_settings_are_taken_from_the_servers_own_line() -> None:
    log = (
        "server_args=ServerArgs(model_path='m', speculative_algorithm='NGRAM', tp_size=8)\n"
        "CUDA error: an illegal memory access was encountered\n"
    )
    assert diagnose(log).cls == "spec_decode"
    assert diagnose(log.replace("NGRAM", "x")).cls == "deps_pinning"


def test_the_kernel_that_read_outside_its_memory_is_named() -> None:
    where = "csrc/sm90/decode/sparse_fp8/instantiations/../splitkv_mla.cuh:754"
    line = f"CUDA error ({where}): an illegal memory access was encountered"
    (found,) = diagnose(line, settings={"kv_cache_dtype": "bfloat16"}).findings
    assert ("flashmla_kv" in found.cause, found.remedy.settings) == (True, (("kv_cache_dtype", "fp8_e4m3"),))
    (found,) = diagnose(line, settings={"kv_cache_dtype": "fp8_e4m3"}).findings
    assert "flashmla_kv" not in found.cause


def test_a_torch_without_cuda_is_no_missing_kernel() -> None:
    assert diagnose("AssertionError: Torch not compiled with CUDA enabled").findings[0].id == "torch-without-cuda"


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("Port 30000 is already in use, trying port 30001", False),
        ("port 30000 is in use. Waiting for 15 seconds for nccl_port to be available. x", False),
        ("ValueError: nccl_port at 30000 is not available in 30 seconds. nccl_port at 30000 is not available", True),
        ("Port is already in use. dist_init_port=20000 port_base=20001", True),
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use",
            True,
        ),
    ],
)
def test_a_port_that_sglang_goes_around_is_not_taken(line: str, taken: bool) -> None:
    assert ("port-taken" in [finding.id for finding in diagnose(line).findings]) is taken


def test_answers_are_evidence_too() -> None:
    assert diagnose("", answers=["null_logprobs"]).findings[0].id == "nan-answers"
    assert diagnose("", answers=["uniform_logprobs"]).cls == "fp4_kernel_numeric"


def test_log_that_stops_between_ranks() -> None:
    last = "[2026-11-30 08:02:51 TP0] Init torch distributed begin."
    assert diagnose(f"a\n{last}\n").findings[0].id == "ranks-hang"
    assert not diagnose(f"{last}\nLoad weight begin.\n").findings


@pytest.mark.parametrize(
    ("version", "clauses", "fits"),
    [
        ("0.5.9", ">=0.5.9,<0.5.13", True),
        ("0.5.10.post1", "<0.5.9", False),
        ("v0.5.10", ">0.5.9", True),
        ("0.5.10.post1", ">0.5.10", True),
        ("0.6.0rc1", "<0.6", True),
        ("main", ">=0.1", False),
        ("0.5", "==0.5.0", True),
    ],
)
def test_versions_are_compared_as_versions(version: str, clauses: str, fits: bool) -> None:
    assert findings.version_in(version, clauses) is fits


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"clas": "x"}, "unknown field 'clas'; did you mean class"),
        ({"class": "drivers"}, "did you mean driver"),
        ({"severity": "bad"}, "severity"),
        ({"match": {}}, "needs at least one of log"),
        ({"match": {"logs": ["some words"]}}, "unknown field 'logs'; did you mean log"),
        ({"match": {"log": ["["]}}, "some-failure"),
        ({"match": {"log": [r"\d+"]}}, "plain characters"),
        ({"consequences": ["some-failur"]}, "did you mean some-failure"),
        ({"remedy": {"settings": {"a": [1]}}}, "single value"),
        ({"narrow": [{"when": {"versions": {"sglang": "0.5"}}, "cause": "x"}]}, "not a comparison"),
        ({"narrow": [{"cause": "x"}]}, "missing when"),
        ({"id": "Some Failure"}, "lower-case"),
        ({"cause": 3}, "must be text"),
    ],
)
def test_entries_that_do_not_fit_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(findings.CatalogError, match=None) as error:
        findings.parse_catalog({"findings": [{**copy.deepcopy(ENTRY), **change}]}, "f.yml")
    assert says in str(error.value)
    assert str(error.value).startswith("f.yml")


def test_every_class_is_of_the_vocabulary_and_every_setting_exists() -> None:
    seen = {case["class"] for case in yaml.safe_load((DATA / "reports.yaml").read_text(encoding="utf-8"))}
    assert seen <= finding_rules.CLASSES
    for rule in RULES:
        for remedy in [rule.remedy, *(one.remedy for one in rule.narrow if one.remedy)]:
            assert {name for name, _ in remedy.settings} <= set(OPTIONS), rule.id
        assert (
            rule.confidence == "consequence"
            or rule.severity == "info"
            or rule.remedy != finding_rules.Remedy()
            or rule.narrow
        )


def test_what_ends_a_wait_is_certain() -> None:
    stop = findings.stopping(RULES)
    assert "Scheduler hit an exception" in stop
    assert "illegal memory access" not in stop
    assert stop <= findings.patterns(RULES)


@given(st.binary(max_size=2000))
def test_any_bytes_are_read(data: bytes) -> None:
    findings.diagnose(RULES, io.BytesIO(data)).as_dict()
