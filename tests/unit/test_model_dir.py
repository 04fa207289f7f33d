"""The model directory check: whole directories are summed up, broken ones refused with all that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import model_dir

CONFIG: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "max_position_embeddings": 4096,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}
SIZES = {"BF16": 2, "U8": 1, "F8_E4M3": 1, "F32": 4}


def safetensors(path: Path, tensors: dict[str, str], elements: int = 8) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dtype in tensors.items():
        end = offset + elements * SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": [elements], "data_offsets": [offset, end]}
        offset = end
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"\0" * offset)


def write(path: Path, data: object) -> None:
    path.write_text(json.dumps(data), encoding="utf-8")


def make(folder: Path, shards: list[dict[str, str]] | None = None, config: dict[str, Any] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    write(folder / "config.json", CONFIG if config is None else config)
    write(folder / "tokenizer.json", {})
    shards = shards or [{"model.embed.weight": "BF16"}, {"model.layers.0.mlp.experts.0.up_proj.weight": "U8"}]
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        safetensors(folder / name, tensors)
        weight_map |= dict.fromkeys(tensors, name)
    write(folder / model_dir.INDEX, {"metadata": {}, "weight_map": weight_map})
    return folder


def problems(folder: Path) -> str:
    with pytest.raises(model_dir.ModelDirError) as caught:
        model_dir.inspect(folder)
    assert str(folder) in str(caught.value)
    return "\n".join(caught.value.problems)


def test_a_whole_directory(tmp_path: Path) -> None:
    summary = model_dir.inspect(make(tmp_path / "m"))
    assert summary.architecture == "GlmMoeDsaForCausalLM"
    assert (summary.layers, summary.experts, summary.experts_per_token, summary.shared_experts) == (2, 16, 2, 1)
    assert (summary.attention_heads, summary.vocabulary, summary.context_length) == (4, 100, 4096)
    assert summary.dtype == "bfloat16"
    assert summary.dtypes == {"BF16": 1, "U8": 1}
    assert (summary.weight_files, summary.tensors) == (2, 2)
    assert summary.weight_bytes == sum(path.stat().st_size for path in (tmp_path / "m").glob("*.safetensors"))
    assert summary.quantization is None
    assert not summary.has_mtp
    json.dumps(summary.as_dict())


def test_no_directory(tmp_path: Path) -> None:
    assert "does not exist" in problems(tmp_path / "none")
    (tmp_path / "file").touch()
    assert "is not a directory" in problems(tmp_path / "file")


def test_everything_wrong_is_listed_at_once(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", [{"a": "BF16"}, {"b": "BF16"}, {"c": "BF16"}])
    (folder / "config.json").unlink()
    (folder / "tokenizer.json").unlink()
    (folder / "model-00002-of-00003.safetensors").unlink()
    whole = (folder / "model-00003-of-00003.safetensors").read_bytes()
    (folder / "model-00003-of-00003.safetensors").write_bytes(whole[:-3])
    said = problems(folder)
    assert "config.json is missing" in said
    assert "No tokenizer" in said
    assert "1 of 3 shards" in said and "model-00002-of-00003.safetensors" in said
    assert "model-00003-of-00003.safetensors is damaged" in said and "3 bytes are missing" in said


@pytest.mark.parametrize(
    ("text", "expected"), [("{", "not readable JSON"), ("[]", "no JSON object"), ("{}", "architecture")]
)
def test_a_bad_config(tmp_path: Path, text: str, expected: str) -> None:
    folder = make(tmp_path / "m")
    (folder / "config.json").write_text(text, encoding="utf-8")
    assert expected in problems(folder)


def test_tokenizer_config_alone_is_no_tokenizer(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    write(folder / "tokenizer_config.json", {})
    assert "tokenizer_config.json alone" in problems(folder)
    (folder / "tokenizer.model").write_bytes(b"x")
    model_dir.inspect(folder)


def test_vocab_needs_merges(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    (folder / "tokenizer.json").rename(folder / "vocab.json")
    assert "No tokenizer" in problems(folder)
    (folder / "merges.txt").touch()
    model_dir.inspect(folder)


def test_no_weights(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    for path in (*folder.glob("*.safetensors"), folder / model_dir.INDEX):
        path.unlink()
    assert "No weights" in problems(folder)
    (folder / "pytorch_model.bin").write_bytes(b"1234")
    summary = model_dir.inspect(folder)
    assert (summary.weight_files, summary.weight_bytes, summary.tensors) == (1, 4, 0)


def test_numbered_shards_need_their_index(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    (folder / model_dir.INDEX).unlink()
    assert f"{model_dir.INDEX} is missing" in problems(folder)


def test_one_unnumbered_file_needs_no_index(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", [{"a": "BF16"}])
    (folder / model_dir.INDEX).unlink()
    next(folder.glob("*.safetensors")).rename(folder / "model.safetensors")
    assert model_dir.inspect(folder).tensors == 1


def test_an_index_that_leaves_the_directory(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    write(folder / model_dir.INDEX, {"weight_map": {"a": "../../etc/passwd"}})
    assert "outside the directory" in problems(folder)


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_a_bad_index(tmp_path: Path, text: str) -> None:
    folder = make(tmp_path / "m")
    (folder / model_dir.INDEX).write_text(text, encoding="utf-8")
    assert model_dir.INDEX in problems(folder)


def test_an_index_of_another_version(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    index = json.loads((folder / model_dir.INDEX).read_text(encoding="utf-8"))
    index["weight_map"]["model.new.weight"] = "model-00001-of-00002.safetensors"
    write(folder / model_dir.INDEX, index)
    assert "lacks tensors" in problems(folder) and "model.new.weight" in problems(folder)


@given(cut=st.integers(min_value=1, max_value=400), grow=st.booleans())
def test_any_other_size_than_the_headers_is_found(tmp_path_factory: pytest.TempPathFactory, cut: int, grow: bool) -> None:
    path = tmp_path_factory.mktemp("s") / "m.safetensors"
    safetensors(path, {"a": "BF16", "b": "F32"}, 20)
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * cut if grow else whole[: max(0, len(whole) - cut)])
    with pytest.raises(model_dir.HeaderError):
        model_dir.read_header(path)


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_no_safetensors(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("s") / "m.safetensors"
    path.write_bytes(data)
    try:
        header = model_dir.read_header(path)
    except model_dir.HeaderError:
        return
    assert header.tensors == {} and header.size == len(data)


SHARED = "model.layers.1.mlp.shared_experts.up_proj"


@pytest.mark.parametrize(
    ("quantization_config", "separate", "dtype", "method", "unquantized"),
    [
        (None, None, "BF16", None, True),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*shared_experts*"]},
            None,
            "BF16",
            "modelopt_fp4",
            True,
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, None, "U8", "modelopt_fp4", False),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": []}, None, "BF16", "modelopt_fp4", True),
        (None, {"quant_algo": "NVFP4", "exclude_modules": [SHARED]}, "BF16", "modelopt_fp4", True),
        (None, {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}, "F8_E4M3", "modelopt_fp8", False),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1.mlp.shared_experts"]},
            None,
            "BF16",
            "fp8",
            True,
        ),
        (
            {"quant_method": "compressed-tensors", "ignore": ["re:.*shared_experts.*"]},
            None,
            "BF16",
            "compressed-tensors",
            True,
        ),
    ],
)
def test_quantization_and_shared_experts(
    tmp_path: Path,
    quantization_config: dict[str, Any] | None,
    separate: dict[str, Any] | None,
    dtype: str,
    method: str | None,
    unquantized: bool,
) -> None:
    config = CONFIG | ({"quantization_config": quantization_config} if quantization_config else {})
    folder = make(tmp_path / "m", [{f"{SHARED}.weight": dtype, "lm_head.weight": "BF16"}], config)
    if separate:
        write(folder / "hf_quant_config.json", {"quantization": separate})
    summary = model_dir.inspect(folder)
    assert summary.quantization == method
    assert summary.shared_experts_unquantized is unquantized


def test_kv_cache_quantization(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    write(folder / "hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}})
    assert model_dir.inspect(folder).kv_cache_quantization == "FP8"


@pytest.mark.parametrize(
    ("tensor", "expected"), [("model.layers.2.eh_proj.weight", True), ("model.layers.1.mlp.w", False), ("mtp.fc", True)]
)
def test_mtp_layer(tmp_path: Path, tensor: str, expected: bool) -> None:
    assert model_dir.inspect(make(tmp_path / "m", [{tensor: "BF16"}])).has_mtp is expected


def test_text_config_is_read(tmp_path: Path) -> None:
    config = {
        "architectures": ["Glm4vMoeForConditionalGeneration"],
        "text_config": {"num_hidden_layers": 46, "dtype": "bfloat16"},
    }
    summary = model_dir.inspect(make(tmp_path / "m", config=config))
    assert (summary.layers, summary.dtype) == (46, "bfloat16")


def test_the_fingerprint_follows_the_model(tmp_path: Path) -> None:
    first = model_dir.inspect(make(tmp_path / "a")).fingerprint
    assert model_dir.inspect(make(tmp_path / "b")).fingerprint == first
    (tmp_path / "b" / "README.md").write_text("words", encoding="utf-8")
    assert model_dir.inspect(tmp_path / "b").fingerprint == first
    (tmp_path / "b" / "chat_template.jinja").write_text("{{ x }}", encoding="utf-8")
    changed = model_dir.inspect(tmp_path / "b").fingerprint
    assert changed != first
    safetensors(tmp_path / "b" / "model-00001-of-00002.safetensors", {"model.embed.weight": "F32"})
    assert model_dir.inspect(tmp_path / "b").fingerprint not in (first, changed)
