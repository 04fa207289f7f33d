"""Models of the hub as they lie on a host: what of a revision is needed, what is there, and what is known to be whole.

A model lies in the cache layout of huggingface_hub under a root of its own (one copy for all instances; revisions share
files that are equal). Beside it, in `sglang/`, lies a receipt for each revision that was checked by hash, so that 440 GB
are not read again for every deployment: a file with the size and time of the receipt is taken as the one that was read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import model_dir
from .hub import Hub, HubError, Listing, Remote, listing_of, repo_folder

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".ggml", ".onnx", ".onnx_data", ".h5", ".msgpack", ".ot")
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".mp4", ".pdf")


@dataclass(frozen=True)
class Place:
    """Where one revision of a model lies."""

    root: str
    repo: str
    revision: str

    @property
    def folder(self) -> Path:
        return Path(repo_folder(self.root, self.repo))

    @property
    def snapshot(self) -> Path:
        return self.folder / "snapshots" / self.revision

    @property
    def blobs(self) -> Path:
        return self.folder / "blobs"

    def record(self, kind: str) -> Path:
        """The file beside the model that holds `receipt`, `state`, `lock` or `log` of the revision."""
        return self.folder / "sglang" / f"{self.revision}.{kind}"


@dataclass(frozen=True)
class Found:
    """What a look at a model says. `whole`: it lies there, checked. `fetch_bytes`: what is still to be downloaded."""

    whole: bool
    model: Mapping[str, Any]
    fetch_bytes: int = 0


def wanted(files: Iterable[Remote], weight_map: Mapping[str, str]) -> tuple[Remote, ...]:
    """The files of a revision that serving needs: what the index names, or else the safetensors, and all small files.

    Other formats of the same weights (`consolidated*`, `original/`, *.bin beside safetensors ...) would double the size.
    """
    everything = tuple(files)
    names = {entry.name for entry in everything}
    weights = set(weight_map.values())
    if not weights:
        top = {name for name in names if "/" not in name and not name.startswith("consolidated")}
        weights = {name for name in top if name.endswith(".safetensors")} or {
            name for name in top if name.endswith(_WEIGHTS) and not name.endswith((".onnx", ".onnx_data", ".h5", ".msgpack"))
        }
    return tuple(
        entry
        for entry in everything
        if entry.name in weights or not (entry.name.lower().endswith(_WEIGHTS + _PICTURES) or "original/" in entry.name)
    )


def weight_map(text: str, repo: str) -> dict[str, str]:
    """Tensors to files, by the text of an index."""
    try:
        found = json.loads(text)["weight_map"]
        return {str(tensor): str(name) for tensor, name in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HubError(f"{model_dir.INDEX} of {repo} has no usable weight_map. Use another revision.") from error


def read_receipt(place: Place) -> dict[str, Any]:
    """The receipt of a revision that was checked; empty where there is none."""
    try:
        found = json.loads(place.record("receipt").read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def write(path: Path, data: object) -> None:
    """A JSON file, there at once or not at all."""
    partial = path.with_name(f".{path.name}.new")
    partial.write_text(json.dumps(data), encoding="utf-8")
    partial.replace(path)


def is_whole(place: Place, receipt: Mapping[str, Any]) -> bool:
    """Whether every file of the receipt lies there with the size and time that it had when its hash was checked."""
    files = receipt.get("files") or {}
    try:
        for name, entry in files.items():
            status = (place.snapshot / name).stat()
            if (status.st_size, status.st_mtime_ns) != (entry["size"], entry["mtime_ns"]):
                return False
    except OSError:
        return False
    return bool(files)


def inspect_once(folder: Path, cache: Path, *, keep: bool) -> dict[str, Any]:
    """`model_dir.inspect` as plain data, kept in `cache` (where `keep`) as long as no file's size or time changes.

    The headers of GLM-5 hold 230 000 tensors, two seconds to read. ModelDirError as there; never kept. A folder that has a
    link to nowhere is read each time, and so is everything where the cache cannot be written.
    """
    kept: Path | None = None
    try:
        seen = sorted((path.name, *_stamp(path)) for path in folder.iterdir())
        key = hashlib.sha256(json.dumps([str(folder), seen]).encode()).hexdigest()[:24]
        kept = cache / f"model-{key}.json"
        found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError):
        found = model_dir.inspect(folder).as_dict()
    if keep and kept:
        with contextlib.suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
            write(kept, found)
    return found


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_mode


def missing(place: Place, files: Iterable[Remote]) -> int:
    """Bytes that a download has to bring; a file that any revision of the model brought is not fetched twice."""
    absent = {entry.digest: entry.size for entry in files if not (place.blobs / entry.digest).is_file()}
    return sum(absent.values())


def check_space(place: Place, need: int) -> None:
    """HubError where `need` bytes do not fit under the root, with a hundredth to spare."""
    there = place.folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if need and free < need + need // 100:
        raise HubError(
            f"Too little disk for {place.repo}: {need / 1e9:.1f} GB are to be downloaded, and {place.root} has "
            f"{free / 1e9:.1f} GB free. Free space there, or set model_weights_root to a larger disk."
        )


def required(hub: Hub, place: Place) -> tuple[Listing, tuple[Remote, ...], dict[str, str]]:
    """What the hub says of a pinned revision, the files of it that are needed, and the index's map."""
    listing = listing_of(hub, place.repo, place.revision)
    names = {entry.name for entry in listing.files}
    index = weight_map(hub.text(listing, model_dir.INDEX), place.repo) if model_dir.INDEX in names else {}
    files = wanted(listing.files, index)
    absent = sorted(set(index.values()) - {entry.name for entry in files})
    if absent:
        raise HubError(
            f"{len(absent)} shards that {model_dir.INDEX} names are not in revision {place.revision} of {place.repo}: "
            f"{', '.join(absent[:3])}. Use another revision."
        )
    return listing, files, index


def look(hub: Hub, place: Place) -> Found:
    """What there is of a model, and what it is: from its directory where it is whole, else from the hub's small files.

    Downloads no weights and writes nothing. HubError, ModelDirError say why it cannot be served.
    """
    receipt = read_receipt(place)
    if is_whole(place, receipt):
        model = receipt.get("model") or model_dir.inspect(place.snapshot).as_dict()
        return Found(True, {**model, "path": str(place.snapshot)})
    listing, files, index = required(hub, place)
    need = missing(place, files)
    check_space(place, need)
    small = {
        entry.name: hub.text(listing, entry.name) for entry in files if entry.name in ("config.json", "hf_quant_config.json")
    }
    sizes = {entry.name: entry.size for entry in files}
    return Found(False, model_dir.foresee(place.snapshot, small, index, sizes).as_dict(), need)
