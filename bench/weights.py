#!/usr/bin/env python3
"""How long the check of a model takes: a directory of 64 shards with the tensors of GLM-5-NVFP4, sparse, 440 GB to the eye.

    bench/weights.py [--shards N] [--runs N] [--folder DIR]

Names, types and headers are as in the real checkpoint; the weights are holes, and the check never reads them. Then the
same for a model of the hub that has a receipt, and the hashing speed of one thread on what is in memory. JSON at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugins" / "module_utils"))

from sglang_deploy import hub_store, model_dir

CONFIG = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "num_hidden_layers": 78,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 64,
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*"]},
}
LAYERS, EXPERTS, HIDDEN, INNER = 78, 256, 6144, 2048
COMMIT = "0" * 40


def tensors() -> Iterator[tuple[str, str, int]]:
    """Name, type and bytes of the tensors of an NVFP4 checkpoint of GLM-5, near enough."""
    yield "model.embed_tokens.weight", "BF16", 154880 * HIDDEN * 2
    for layer in range(LAYERS):
        for number in range(16):
            yield f"model.layers.{layer}.self_attn.part{number}.weight", "BF16", HIDDEN * 1536 * 2
        for expert in range(EXPERTS if layer > 2 else 0):
            for part in ("gate_proj", "up_proj", "down_proj"):
                name = f"model.layers.{layer}.mlp.experts.{expert}.{part}"
                yield f"{name}.weight", "U8", HIDDEN * INNER // 2
                yield f"{name}.weight_scale", "F8_E4M3", HIDDEN * INNER // 16
                yield f"{name}.weight_scale_2", "F32", 4
                yield f"{name}.input_scale", "F32", 4
    yield "lm_head.weight", "BF16", 154880 * HIDDEN * 2


def make(folder: Path, shards: int) -> int:
    """Write the directory; the number of tensors."""
    everything = list(tensors())
    each = -(-len(everything) // shards)
    index = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        header: dict[str, object] = {}
        end = 0
        for tensor, dtype, size in everything[number * each : (number + 1) * each]:
            header[tensor] = {"dtype": dtype, "shape": [size], "data_offsets": [end, end + size]}
            end += size
            index[tensor] = file
        raw = json.dumps(header).encode()
        with (folder / file).open("wb") as handle:
            handle.write(len(raw).to_bytes(8, "little") + raw)
            handle.truncate(8 + len(raw) + end)
    (folder / model_dir.INDEX).write_text(json.dumps({"weight_map": index}), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    return len(everything)


def receipt(place: hub_store.Place, model: model_dir.ModelSummary) -> None:
    """What a download leaves beside a model."""
    place.record("receipt").parent.mkdir(parents=True)
    status = {path.name: path.stat() for path in place.snapshot.iterdir()}
    files = {name: {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "digest": ""} for name, found in status.items()}
    hub_store.write(place.record("receipt"), {"files": files, "model": model.as_dict()})


def seconds(call: Callable[[], object], runs: int) -> list[float]:
    """Processor time of each call: on a machine that does nothing else, how long it takes."""
    times = []
    for _ in range(runs):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return times


def main() -> int:
    """Run the bench."""
    parser = argparse.ArgumentParser(description="Time of the model check.")
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, help="where to make the directory (default: the system's for temporary files)"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as work:
        place = hub_store.Place(work, "bench/model", COMMIT)
        place.snapshot.mkdir(parents=True)
        count = make(place.snapshot, given.shards)
        model = model_dir.inspect(place.snapshot)
        checked = seconds(lambda: model_dir.inspect(place.snapshot), given.runs)
        receipt(place, model)
        known = seconds(lambda: hub_store.is_whole(place, hub_store.read_receipt(place)), given.runs)
    block = bytes(2**26)
    hashing = len(block) / min(seconds(lambda: hashlib.sha256(block).digest(), given.runs))
    result = {
        "python": platform.python_version(),
        "shards": given.shards,
        "tensors": count,
        "gb": round(model.weight_bytes / 1e9, 1),
        "check_s": round(statistics.median(checked), 3),
        "with_receipt_s": round(statistics.median(known), 5),
        "sha256_gb_per_s_and_thread": round(hashing / 1e9, 2),
    }
    print(f"{given.shards} shards, {count} tensors, {result['gb']} GB: {result['check_s']} s (median of {given.runs})")
    print(f"with a receipt of the hub's hashes: {result['with_receipt_s'] * 1000:.2f} ms")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
