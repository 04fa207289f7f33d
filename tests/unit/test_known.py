"""Hardware, versions and models as people write them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sglang_deploy import catalog as catalogs
from sglang_deploy import known as knowledge

ROOT = Path(__file__).resolve().parents[2]
CATALOG = catalogs.load(ROOT / "catalog")
KNOWN = knowledge.load(CATALOG)


@pytest.mark.parametrize(
    ("text", "capability", "count", "nodes"),
    [
        ("8x RTX PRO 6000 96GB SM120 PCIe", "12.0", 8, 1),
        ("2x RTX 5090", "12.0", 2, 1),
        ("DGX Spark (GB10)", "12.1", None, 1),
        ("4x A100", "8.0", 4, 1),
        ("8x H20-3e", "9.0", 8, 1),
        ("4x H100", "9.0", 4, 1),
        ("8x B200", "10.0", 8, 1),
        ("8x B300", "10.3", 8, 1),
        ("2x RTX 3090", "8.6", 2, 1),
        ("1x RTX 4090", "8.9", 1, 1),
        ("1x L40S 48GB", "8.9", 1, 1),
        ("2x8 H800", "9.0", 8, 2),
        ("4x8 (32 GPU)", None, 8, 4),
        ("8x Hopper/Blackwell", None, 8, 1),
        ("8x MI300X", None, 8, 1),
    ],
)
def test_hardware(text: str, capability: str | None, count: int | None, nodes: int) -> None:
    host, found = KNOWN.host(text)
    assert (host.capability, host.gpu_count, found) == (capability, count, nodes)


@pytest.mark.parametrize(
    ("text", "engine", "version", "exact", "patched"),
    [
        ("0.5.9", "sglang", "0.5.9", True, False),
        ("v0.5.10", "sglang", "0.5.10", True, False),
        ("lmsysorg/sglang:v0.5.12.post1-cu130", "sglang", "0.5.12.post1", True, False),
        ("v0.5.8/v0.5.9", "sglang", "0.5.9", False, False),
        ("2026-03", "sglang", "0.5.9", False, False),
        ("Mar 2026", "sglang", "0.5.9", False, False),
        ("nightly-dev-cu13-20260528", "sglang", "0.5.12.post1", False, False),
        ("stock SGLang image, Jul 2026", "sglang", "0.5.15.post1", False, False),
        ("2026", "sglang", None, False, False),
        ("Feb 2025", "sglang", None, False, False),
        ("0.0.0.dev1+g22dce5720", "sglang", None, False, False),
        ("community build, Mar 2026", "sglang", None, False, True),
        ("lmsysorg/sglang:glm-5.3-flash (e6f5482505e7)", "sglang", None, False, True),
        ("vLLM 0.15.1 (cu128)", "vllm", None, False, False),
    ],
)
def test_versions(text: str, engine: str, version: str | None, exact: bool, patched: bool) -> None:
    source = KNOWN.source(text)
    assert (source.engine, source.versions.sglang, source.exact, source.versions.patched) == (
        engine,
        version,
        exact,
        patched,
    )


def test_a_release_brings_its_pins_but_not_the_one_that_stacks_override() -> None:
    versions = KNOWN.versions_of("0.5.9")
    assert (versions.flashinfer, versions.transformers) == ("0.6.3", None)


@pytest.mark.parametrize(
    ("name", "quantization", "sparse"),
    [
        ("lukealonso/GLM-5-NVFP4", "nvfp4", True),
        ("zai-org/GLM-5-FP8", "fp8", True),
        ("zai-org/GLM-5", "none", True),
        ("Salyut1/GLM-4.7-NVFP4", "nvfp4", False),
        ("MiniMax-M2.5", "fp8", False),
        ("DeepSeek-R1-BF16", "none", False),
        ("deepseek-ai/DeepSeek-V3.2", "fp8", True),
        ("moonshotai/Kimi-K2.5", "int4", False),
        ("QuantTrio/Qwen3.5-397B-A17B-AWQ", "awq", False),
        ("<PATH>/Qwen3.5-397B-A17B-FP8", "fp8", False),
        ("somebody/unheard-of", None, None),
    ],
)
def test_models(name: str, quantization: str | None, sparse: bool | None) -> None:
    model = KNOWN.model(name)
    assert (model.quantization, model.sparse_attention) == (quantization, sparse)


def test_weights_are_a_lower_bound_and_a_count_in_the_name_wins() -> None:
    glm, published = (KNOWN.model(f"{who}/GLM-5-NVFP4").weights_gib for who in ("somebody", "lukealonso"))
    assert glm is not None and published is not None
    assert 350 < glm < published
    assert KNOWN.model("lukealonso/MiniMax-M2.5-REAP-139B-A10B-NVFP4").weights_gib == pytest.approx(68.6, abs=1)
    assert KNOWN.model("somebody/unheard-of").weights_gib is None


def test_what_texts_say_of_the_size_of_glm5_is_the_catalogs() -> None:
    size = KNOWN.model("lukealonso/GLM-5-NVFP4").weights_gib
    assert size is not None
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "group_vars").glob("*.yml")]
    texts += [ROOT / "catalog" / "findings.yml", ROOT / "catalog" / "rules.yml"]
    said = [found for path in texts for found in re.findall(r"\b([34]\d\d) GB\b", path.read_text(encoding="utf-8"))]
    assert len(said) > 3
    assert set(said) == {f"{size * 2**30 / 1e9:.0f}"}


def test_single_checkpoints() -> None:
    assert KNOWN.model("lukealonso/GLM-5-NVFP4").has_mtp is False
    assert KNOWN.model("festr2/GLM-5-NVFP4-MTP").has_mtp is True
    assert KNOWN.model("nvidia/GLM-5.2-NVFP4").shared_experts_bf16 is True
