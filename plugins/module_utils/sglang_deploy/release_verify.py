"""What a finished environment holds, held against what the stack promised and what was locked."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import release_probe
from .release_host import ReleaseError
from .release_lock import lock_packages
from .release_request import Request
from .release_system import exact, same_version


def probe(python: Path, request: Request, work: Path) -> dict[str, Any]:
    """What the release at ``python`` says of itself (see ``release_probe``); ``work`` is a folder for it to write to."""
    source = inspect.getsource(release_probe)
    target = work / "probe.json"
    home = work / "home"
    home.mkdir()
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(home), "LANG": "C.UTF-8", **request.environment}
    env["HF_HUB_OFFLINE"] = "1"
    done = subprocess.run(
        [str(python), "-I", "-B", "-c", source, str(target), request.program],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=env,
        cwd=home,
    )
    if done.returncode != 0 or not target.is_file():
        said = [line for line in done.stderr.splitlines() if line.strip()][-6:]
        raise ReleaseError(
            "The installed server cannot be imported, so this set of packages does not work together. Its last words:\n"
            + "\n".join(said)
            + "\nCompare the stack's versions with what SGLang pins, and see lock files of releases that work."
        )
    report: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return report


def verify_versions(expected: Mapping[str, str], report: Mapping[str, Any]) -> None:
    """ReleaseError where the finished environment does not have a version that the stack promises."""
    wrong = []
    for name, wanted in expected.items():
        found = report[name] if name in ("sglang", "torch", "cuda") else report["packages"].get(name, "missing")
        if not same_version(wanted, str(found)):
            wrong.append(f"{name} is {found}, the stack says {wanted}")
    if wrong:
        raise ReleaseError(
            f"The built environment is not the stack: {'; '.join(wrong)}. "
            "Pin the version in the stack's requirements or overrides, or correct what the stack says."
        )


def verify_overrides(request: Request, report: Mapping[str, Any]) -> None:
    """ReleaseError where a package that the stack overrides came out as another version."""
    packages = report["packages"]
    wrong = [
        f"{name} is {packages[name]}, overridden to {version}"
        for name, version in exact(request.overrides).items()
        if name in packages and not same_version(version, packages[name])
    ]
    if wrong:
        raise ReleaseError(f"The built environment does not have the stack's overrides: {'; '.join(wrong)}.")


def _plain(version: str) -> str:
    """A version without the spellings that mean the same: ``1.0-Post01`` is ``1.0.post1``."""
    return ".".join(re.sub(r"^0+(?=\d)", "", part) for part in re.findall(r"\d+|[a-z]+", version.lower()))


def verify_lock(lock: str, report: Mapping[str, Any], given: Mapping[str, str]) -> None:
    """ReleaseError where the environment is not what was locked: a version moved, a package is missing or too much.

    ``given`` are packages of the host that the stack uses; where there are any, others of the host are seen as well.
    """
    packages: Mapping[str, str] = report["packages"]
    locked = {name: exact([line]).get(name) for name, line in lock_packages(lock).items()}
    wrong = [
        f"{name} is {packages.get(name, 'missing')}, locked as {version}"
        for name, version in locked.items()
        if version is not None and _plain(packages.get(name, "")) != _plain(version)
    ]
    wrong += [
        f"{name} is {packages.get(name, 'missing')}, the host's Python has {version}"
        for name, version in given.items()
        if packages.get(name) != version
    ]
    if not given:
        wrong += [f"{name} {packages[name]} is not locked" for name in sorted(packages.keys() - locked.keys())]
    if wrong:
        raise ReleaseError(
            f"The built environment is not what was locked: {'; '.join(wrong)}. Empty uv's cache folder and build again."
        )


def options_text(report: Mapping[str, Any]) -> str:
    """options.json: the catalog's dialect format, one option a line."""
    lines = ",\n".join(json.dumps(option) for option in report["options"])
    return f'{{"schema": 1, "sglang": {json.dumps(report["sglang"])}, "options": [\n{lines}\n]}}\n'


def versions(report: Mapping[str, Any]) -> dict[str, str | None]:
    """The versions that decide behaviour: SGLang, torch, its CUDA, transformers, kernels, FlashInfer, DeepGEMM."""
    kept = re.compile(
        r"transformers|triton|torchvision|(sgl|sglang)-(kernel.*|deep-gemm.*)|flashinfer.*|nvidia-nccl.*|nvidia-cudnn.*"
    )
    packages = {name: version for name, version in report["packages"].items() if kept.fullmatch(name)}
    return {"sglang": report["sglang"], "torch": report["torch"], "cuda": report["cuda"], **packages}
