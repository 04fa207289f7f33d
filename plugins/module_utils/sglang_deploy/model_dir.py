"""Check a local model directory before anything starts, and read from it what the plan must know.

A model that lacks a shard, or whose last file was cut off by an interrupted copy, otherwise shows itself minutes into
the load. Only file names, sizes, headers and small JSON files are read, never the weights.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
# Any one of these sets is a tokenizer that transformers can load.
TOKENIZERS = (
    ("tokenizer.json",),
    ("tokenizer.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("tiktoken.model",),
    ("tekken.json",),
)
_HEADER_LIMIT = 100 * 2**20  # the limit of the safetensors library itself


class ModelDirError(Exception):
    """The directory cannot be served. ``problems`` holds each reason with its cure."""

    def __init__(self, path: Path, problems: Sequence[str]) -> None:
        super().__init__(f"The model in {path} cannot be served:\n" + "\n".join(f"- {problem}" for problem in problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class ModelSummary:
    """What the directory holds.

    ``quantization`` is the method of config.json or hf_quant_config.json (``modelopt_fp4``, ``fp8`` ...), None for
    plain weights. ``shared_experts_unquantized`` is True where the quantiser's ignore list names the shared experts or
    the weights show them in a 16-bit type, and None where there are none. ``has_mtp`` tells whether weights of a
    multi-token-prediction layer are there, None where that is not known yet. ``weight_bytes`` counts the weight files as
    they lie on disk; ``dtypes`` maps safetensors types to tensors. ``fingerprint`` is a SHA-256 over names, sizes and
    headers of the weights and over the small files: another model gives another one.
    """

    path: str
    architecture: str
    model_type: str | None
    quantization: str | None
    kv_cache_quantization: str | None
    layers: int | None
    hidden_size: int | None
    attention_heads: int | None
    kv_heads: int | None
    experts: int | None
    experts_per_token: int | None
    shared_experts: int | None
    shared_experts_unquantized: bool | None
    has_mtp: bool | None
    context_length: int | None
    vocabulary: int | None
    dtype: str | None
    dtypes: Mapping[str, int]
    weight_files: int
    weight_bytes: int
    tensors: int
    remote_code: bool
    fingerprint: str

    def as_dict(self) -> dict[str, Any]:
        """The summary as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Header:
    """The header of one safetensors file: tensors by name, their types, the file's size, and the header's SHA-256."""

    tensors: Mapping[str, str]
    size: int
    sha256: str


class HeaderError(Exception):
    """A file is no whole safetensors file; the message says why."""


def read_header(path: Path) -> Header:
    """The header of a safetensors file. HeaderError where it cannot be read or promises other than the file's size."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if size < 8:
            raise HeaderError(f"it has {size} bytes, too few for a header")
        if length > min(_HEADER_LIMIT, size - 8):
            raise HeaderError(
                f"its header should have {length} bytes, but the file has {size}: it is cut off or not safetensors"
            )
        raw = handle.read(length)
    try:
        header = json.loads(raw)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
        types = {name: str(entry["dtype"]) for name, entry in entries.items()}
    except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
        raise HeaderError("its header is not the JSON of a safetensors file") from error
    wanted = 8 + length + end
    if size != wanted:
        relation = f"{wanted - size} bytes are missing" if size < wanted else f"{size - wanted} bytes too many"
        raise HeaderError(f"it has {size} bytes, its header says {wanted}: {relation}")
    return Header(types, size, hashlib.sha256(raw).hexdigest())


def _load_json(path: Path, problems: list[str], cure: str) -> dict[str, Any] | None:
    """The JSON object in a file, or None and a problem."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"{path.name} is missing. {cure}")
        return None
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} is not readable JSON ({error}). Copy the file again.")
        return None
    if not isinstance(data, dict):
        problems.append(f"{path.name} holds no JSON object. Copy the file again.")
        return None
    return data


def _architecture(config: Mapping[str, Any], problems: list[str]) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    problems.append("config.json names no architecture (architectures). Use the config.json that belongs to the weights.")
    return ""


def _check_tokenizer(path: Path, problems: list[str]) -> None:
    if any(all((path / name).is_file() for name in names) for names in TOKENIZERS):
        return
    wanted = ", ".join(" with ".join(names) for names in TOKENIZERS[:3])
    only = " (tokenizer_config.json alone is not one)" if (path / "tokenizer_config.json").is_file() else ""
    problems.append(
        f"No tokenizer{only}: one of {wanted} must be there. Copy the tokenizer files of the model beside its weights."
    )


def _weight_files(path: Path, problems: list[str]) -> tuple[list[str], Mapping[str, str]]:
    """Names of the weight files, and the index's map from tensor to file."""
    present = sorted(entry.name for entry in path.glob("*.safetensors"))
    if not (path / INDEX).exists():
        if present:
            numbered = [match for name in present if (match := re.search(r"-(\d+)-of-(\d+)\.safetensors$", name))]
            if numbered:
                problems.append(
                    f"{INDEX} is missing, but the weights are in {numbered[0][2]} numbered shards. Copy it beside them."
                )
            return present, {}
        others = sorted(entry.name for pattern in ("*.bin", "*.pt", "*.gguf") for entry in path.glob(pattern))
        if not others:
            problems.append(
                "No weights: neither *.safetensors nor *.bin, *.pt or *.gguf. Copy the model's weight files here."
            )
        return others, {}
    index = _load_json(path / INDEX, problems, "")
    if index is None:
        return present, {}
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(name, str) for name in weight_map.values()):
        problems.append(f"{INDEX} has no usable weight_map. Copy the file again.")
        return present, {}
    named = sorted(set(weight_map.values()))
    outside = [name for name in named if Path(name).name != name]
    if outside:
        problems.append(f"{INDEX} names files outside the directory: {_some(outside)}. Do not use this model.")
        return present, {}
    missing = [name for name in named if not (path / name).is_file()]
    if missing:
        problems.append(
            f"{len(missing)} of {len(named)} shards that {INDEX} names are missing: {_some(missing)}. Download or "
            f"copy them again."
        )
    return [name for name in named if name not in missing], weight_map


def _some(names: Sequence[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _headers(path: Path, names: Sequence[str], weight_map: Mapping[str, str], problems: list[str]) -> dict[str, Header]:
    headers: dict[str, Header] = {}
    for name in names:
        if not name.endswith(".safetensors"):
            continue
        try:
            headers[name] = read_header(path / name)
        except HeaderError as error:
            problems.append(f"{name} is damaged: {error}. Download or copy it again.")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}. Check its owner and mode.")
    absent: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        if name in headers and tensor not in headers[name].tensors:
            absent.setdefault(name, []).append(tensor)
    for name, tensors in sorted(absent.items()):
        problems.append(
            f"{name} lacks tensors that {INDEX} places in it: {_some(sorted(tensors), 3)}. Index and shards differ in "
            f"version."
        )
    return headers


def _quantization(config: Mapping[str, Any], separate: Mapping[str, Any]) -> tuple[str | None, str | None, list[str]]:
    """Method, KV-cache method and ignore list, from config.json and ModelOpt's hf_quant_config.json."""
    inner = config.get("quantization_config") or {}
    inner = inner if isinstance(inner, dict) else {}
    outer = separate.get("quantization") or {}
    outer = outer if isinstance(outer, dict) else {}
    algorithm = str(outer.get("quant_algo") or inner.get("quant_algo") or "").upper()
    method = str(inner.get("quant_method") or ("modelopt" if outer else "")).lower()
    if method.startswith("modelopt") and algorithm:
        # SGLang's own names for ModelOpt's algorithms.
        method = {"FP8": "modelopt_fp8", "NVFP4": "modelopt_fp4"}.get(algorithm, f"modelopt_{algorithm.lower()}")
    ignored = [
        str(entry) for entry in outer.get("exclude_modules") or inner.get("ignore") or inner.get("exclude_modules") or []
    ]
    ignored += [str(entry) for entry in inner.get("modules_to_not_convert") or []]
    kv = outer.get("kv_cache_quant_algo") or inner.get("kv_cache_quant_algo") or _kv_scheme(inner.get("kv_cache_scheme"))
    return method or None, str(kv) if kv else None, ignored


def _kv_scheme(scheme: object) -> str | None:
    if not isinstance(scheme, dict):
        return None
    return f"{scheme.get('type', '')}{scheme.get('num_bits', '')}".upper() or None


def _ignores(patterns: Sequence[str], module: str) -> bool:
    """Whether a quantiser's ignore list covers a module: exact, by prefix, wildcard, or ``re:``."""
    for pattern in patterns:
        if pattern.startswith("re:"):
            try:
                if re.match(pattern[3:], module):
                    return True
            except re.error:
                continue
        elif fnmatch.fnmatchcase(module, pattern) or module.startswith(f"{pattern}."):
            return True
    return False


def _shared_unquantized(shared: Sequence[tuple[str, str]], ignored: Sequence[str], quantization: str | None) -> bool | None:
    """Whether the shared experts stay in a 16-bit type; ``shared`` holds (tensor, dtype)."""
    weights = [(name, dtype) for name, dtype in shared if name.endswith(".weight")]
    if not weights or quantization is None:
        return None if not weights else True
    if any(_ignores(ignored, name.removesuffix(".weight")) for name, _ in weights):
        return True
    return all(dtype in ("BF16", "F16") for _, dtype in weights)


def _number(config: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        if isinstance(value := config.get(key), int) and not isinstance(value, bool):
            return value
    return None


def _fingerprint(path: Path, headers: Mapping[str, Header], others: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in sorted(headers):
        digest.update(f"{name}\0{headers[name].size}\0{headers[name].sha256}\n".encode())
    for name in sorted(others):
        digest.update(f"{name}\0{(path / name).stat().st_size}\n".encode())
    for small in _small_files(path):
        digest.update(f"{small.name}\0{hashlib.sha256(small.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _small_files(path: Path) -> Iterator[Path]:
    """The files beside the weights that decide what the server does: configs, tokenizer, templates, code."""
    for entry in sorted(path.iterdir()):
        wanted = entry.suffix in (".json", ".jinja", ".txt", ".model", ".py")
        if wanted and not entry.name.startswith(".") and entry.is_file():
            yield entry


def inspect(path: Path) -> ModelSummary:
    """The summary of a model directory. ModelDirError lists all that is wrong with it, each with its cure."""
    if not path.is_dir():
        what = "is not a directory" if path.exists() else "does not exist on this host"
        cure = "Set the model's path to the directory that holds config.json."
        if not path.is_absolute():
            cure = "For a model of the Hugging Face hub write sglang_model_source: hub (or server)."
        raise ModelDirError(path, [f"{path} {what}. {cure}"])
    problems: list[str] = []
    try:
        config = _load_json(path / "config.json", problems, "Point to the directory that holds it, or copy the model again.")
        _check_tokenizer(path, problems)
        names, weight_map = _weight_files(path, problems)
        headers = _headers(path, names, weight_map, problems)
        separate = {}
        if (path / "hf_quant_config.json").exists():
            separate = _load_json(path / "hf_quant_config.json", problems, "") or {}
        architecture = _architecture(config, problems) if config is not None else ""
        if problems or config is None:
            raise ModelDirError(path, problems)
        mark = _fingerprint(path, headers, [name for name in names if name not in headers])
        return replace(_summary(path, architecture, config, separate, names, headers), fingerprint=mark)
    except PermissionError as error:
        raise ModelDirError(path, [*problems, f"{error.filename} cannot be read: permission denied."]) from error


def _summary(
    path: Path,
    architecture: str,
    config: Mapping[str, Any],
    separate: Mapping[str, Any],
    names: Sequence[str],
    headers: Mapping[str, Header],
) -> ModelSummary:
    nested = config.get("text_config")
    text = {**config, **nested} if isinstance(nested, dict) else config
    quantization, kv_quantization, ignored = _quantization(config, separate)
    tensors = {name: dtype for header in headers.values() for name, dtype in header.tensors.items()}
    dtypes: dict[str, int] = {}
    for dtype in tensors.values():
        dtypes[dtype] = dtypes.get(dtype, 0) + 1
    layers = _number(text, "num_hidden_layers")
    shared = [(name, dtype) for name, dtype in tensors.items() if ".shared_expert" in name and ".experts." not in name]
    # GLM, DeepSeek keep the MTP layer as one more decoder layer; Qwen under mtp.
    mtp = any(name.startswith(("mtp.", "model.mtp.", f"model.layers.{layers}.")) for name in tensors)
    others = [name for name in names if name not in headers]
    stated = text.get("torch_dtype") or text.get("dtype")
    return ModelSummary(
        path=str(path),
        architecture=architecture,
        model_type=config.get("model_type"),
        quantization=quantization,
        kv_cache_quantization=kv_quantization,
        layers=layers,
        hidden_size=_number(text, "hidden_size"),
        attention_heads=_number(text, "num_attention_heads"),
        kv_heads=_number(text, "num_key_value_heads"),
        experts=_number(text, "n_routed_experts", "num_experts", "num_local_experts"),
        experts_per_token=_number(text, "num_experts_per_tok"),
        shared_experts=_number(text, "n_shared_experts"),
        shared_experts_unquantized=_shared_unquantized(shared, ignored, quantization),
        has_mtp=mtp,
        context_length=_number(text, "max_position_embeddings"),
        vocabulary=_number(text, "vocab_size"),
        dtype=str(stated) if stated else None,
        dtypes=dict(sorted(dtypes.items())),
        weight_files=len(names),
        weight_bytes=sum(header.size for header in headers.values()) + sum((path / name).stat().st_size for name in others),
        tensors=len(tensors),
        remote_code="auto_map" in config,
        fingerprint="",
    )


def foresee(path: Path, small: Mapping[str, str], weight_map: Mapping[str, str], sizes: Mapping[str, int]) -> ModelSummary:
    """The summary of a model that is not on this host yet, as far as its small files tell.

    ``small`` holds the text of config.json and hf_quant_config.json, ``weight_map`` the index's tensors and files,
    ``sizes`` every file with its bytes; ``path`` is where the model will lie. Types of tensors are not known yet, nor,
    without an index, are their names. ModelDirError lists what is wrong with it already.
    """
    problems: list[str] = []
    config = _parse_json("config.json", small.get("config.json"), problems)
    separate = _parse_json("hf_quant_config.json", small.get("hf_quant_config.json", "{}"), problems)
    if not any(all(name in sizes for name in names) for names in TOKENIZERS):
        problems.append("No tokenizer is among its files. Use a model that has one.")
    weights = sorted({*weight_map.values()} or {name for name in sizes if name.endswith((".safetensors", ".bin", ".gguf"))})
    if not weights:
        problems.append("No weights are among its files. Use another model or revision.")
    architecture = _architecture(config, problems)
    if problems:
        raise ModelDirError(path, problems)
    scaled = {tensor.rpartition("_scale")[0] for tensor in weight_map if "_scale" in tensor}
    tensors = {tensor: "U8" if tensor in scaled else "BF16" for tensor in weight_map}
    told = _summary(path, architecture, config, separate, [], {"": Header(tensors, 0, "")})
    return replace(
        told,
        has_mtp=told.has_mtp if weight_map else None,
        dtypes={},
        weight_files=len(weights),
        weight_bytes=sum(sizes.get(name, 0) for name in weights),
    )


def _parse_json(name: str, text: str | None, problems: list[str]) -> dict[str, Any]:
    """The JSON object in a text, or an empty one and a problem."""
    if text is None:
        problems.append(f"{name} is missing. Use a model that has one.")
        return {}
    try:
        data = json.loads(text)
    except ValueError as error:
        problems.append(f"{name} is not JSON ({error}). Use another revision.")
        return {}
    if not isinstance(data, dict):
        problems.append(f"{name} holds no JSON object. Use another revision.")
        return {}
    return data
