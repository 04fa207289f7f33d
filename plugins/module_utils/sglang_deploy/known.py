"""Read hardware, version and model names as people write them, by catalog/known.yml and catalog/upstream.yml.

For commands that come without a host or a model directory: "8x RTX PRO 6000 96GB", "lmsysorg/sglang:v0.5.12-cu130",
"Mar 2026", "nvidia/GLM-5.2-NVFP4". What a name does not say stays None.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml
from packaging.version import Version

from .catalog import Catalog
from .rules import LOADER, Host, Model, Versions

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_VERSION = re.compile(r"(?<![\d.])v?(0\.\d+\.\d+(?:\.post\d+)?(?:rc\d+)?)(?![\d.])")
_FORK = re.compile(r"communit|fork|patch|custom|voipmonitor|b12x|glm\d?-\w+|\bcu13[12]\b", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    """What a text says of the server's version: engine (sglang, vllm, other), versions, and whether they are exact.

    A date gives the release that was current then; it is not exact, since the build may lie on either side of it.
    """

    engine: str
    versions: Versions
    exact: bool = False


@dataclass(frozen=True)
class Known:
    """The tables of catalog/known.yml, and the catalog with upstream's releases."""

    tables: Mapping[str, Any]
    catalog: Catalog

    def versions_of(self, release: str, *, patched: bool = False) -> Versions:
        """The versions that come with a release by its own pins; only SGLang's own where it is not in the table."""
        entry = self.catalog.upstream_for(release)
        if entry is None:
            return Versions(sglang=release, patched=patched)
        # Not transformers: stacks put another one over the pin, since older releases need it for new models.
        return Versions(
            sglang=release,
            flashinfer=entry.flashinfer,
            torch=entry.torch,
            cuda=entry.cuda,
            deep_gemm=entry.deep_gemm,
            patched=patched,
        )

    def release_at(self, date: datetime.date) -> str | None:
        """The newest release on that day; None before the first in the table."""
        past = [entry.sglang for entry in self.catalog.upstream if entry.released <= date.isoformat()]
        return past[-1] if past else None

    def source(self, text: str) -> Source:
        """Read a version text: a release, a docker tag, a month, a date, a nightly tag."""
        if re.search(r"vllm|trt-?llm|llama\.cpp|lmdeploy", text, re.IGNORECASE):
            return Source("vllm" if "vllm" in text.lower() else "other", Versions())
        found = _VERSION.findall(text)
        # The name of an official image without a release in it is a preview build with code of its own.
        preview = "sglang:" in text and not found and not re.search(r"nightly|dev|latest", text)
        patched = bool(_FORK.search(text)) or preview
        if found:
            release = max(found, key=Version)
            return Source("sglang", self.versions_of(release, patched=patched), exact=len(found) == 1)
        date = _date(text)
        current = self.release_at(date) if date else None
        if current is None:
            return Source("sglang", Versions(patched=patched))
        if patched:  # a fork of that month shares no version with the release of that month
            return Source("sglang", Versions(patched=True))
        return Source("sglang", self.versions_of(current))

    def host(self, text: str) -> tuple[Host, int]:
        """Read a hardware text: one host, and the number of hosts ("2x8 H800" is two of eight)."""
        matching = (item for item in self.tables["gpus"] if re.search(item["name"], text, re.IGNORECASE))
        gpu: Mapping[str, Any] = next(matching, {})
        memory = re.search(r"(\d{2,3})\s*Gi?B", text)
        several = re.match(r"\s*(\d+)\s*x\s*(\d+)\b(?!\s*0)", text)
        single = re.match(r"\s*(\d+)\s*x?\s*(?=[A-Z])", text)
        nodes = int(several[1]) if several and int(several[2]) <= 16 else 1
        count = int(several[2]) if several and int(several[2]) <= 16 else int(single[1]) if single else None
        gib = gpu.get("memory_gib")
        if memory and (gib is None or abs(float(memory[1]) - gib) > 5):
            gib = float(memory[1])
        return Host(gpu.get("capability"), count, gib, nvlink=gpu.get("nvlink")), nodes

    def model(self, name: str) -> Model:
        """Read a checkpoint's name: family, format, lower bound of its size."""
        words = name.strip()
        last = words.rstrip("/").rpartition("/")[2]
        family = next((f for f in self.tables["families"] if re.search(f["name"], last, re.IGNORECASE)), None)
        form = next((f for f in self.tables["formats"] if re.search(f["name"], last, re.IGNORECASE)), None)
        counts = [float(n) for n in re.findall(r"(?<![A-Za-z\d.])(\d+(?:\.\d+)?)B(?![A-Za-z])", last)]
        entry = family or {}
        native = entry.get("native", "")
        per_parameter = form["bytes"] if form else self.tables["bytes_of_native"].get(native)
        parameters = max(counts) if counts else entry.get("parameters")
        quantization = form["quantization"] if form else {"bf16": "none", "": None}.get(native, native)
        model = Model(
            architecture=entry.get("architecture"),
            quantization=quantization,
            sparse_attention=entry.get("sparse_attention"),
            mla=entry.get("mla"),
            moe=entry.get("moe"),
            num_heads=entry.get("num_heads"),
            weights_gib=parameters * per_parameter * 1e9 / 2**30 if parameters and per_parameter else None,
            local=words.startswith(("/", "~", ".", "<")) or None,
        )
        if re.search(r"MTP", last):
            model = replace(model, has_mtp=True)
        for facts in self.tables["checkpoints"]:
            if re.search(facts["name"], words, re.IGNORECASE):
                model = replace(model, **{k: v for k, v in facts.items() if k not in ("name", "source")})
        return model


def load(catalog: Catalog) -> Known:
    """Load known.yml of a catalog."""
    text = (catalog.root / "known.yml").read_text(encoding="utf-8")
    return Known(yaml.load(text, Loader=LOADER), catalog)  # noqa: S506 - a safe loader either way


def _date(text: str) -> datetime.date | None:
    """The day that a text names; a month stands for its middle. A bare year says too little."""
    if found := re.search(r"(20\d\d)-?(\d\d)-?(\d\d)(?!\d)", text):
        try:
            return datetime.date(int(found[1]), int(found[2]), int(found[3]))
        except ValueError:
            return None
    if (found := re.search(r"(20\d\d)-(\d\d)(?!\d)", text)) and 1 <= int(found[2]) <= 12:
        return datetime.date(int(found[1]), int(found[2]), 15)
    if found := re.search(r"\b([A-Za-z]{3})[a-z]*\.?\s+(20\d\d)", text):
        month = found[1].lower()
        if month in MONTHS:
            return datetime.date(int(found[2]), MONTHS.index(month) + 1, 15)
    return None
