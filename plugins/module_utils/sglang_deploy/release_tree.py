"""A wheel from a source tree: what the host must have for it, and the build with locked build tools."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import release_uv
from .release_host import ReleaseError
from .release_lock import canonical_name

GIB_PER_JOB = 4  # what one compiler process of a CUDA or Rust build takes at its worst


@dataclass(frozen=True)
class Tool:
    """A program that a build calls: why, the Debian or Ubuntu packages that bring it, and the oldest version that serves."""

    program: str
    reason: str
    packages: str
    oldest: tuple[int, ...] = ()


def jobs(memory_kib: int | None = None, cores: int | None = None) -> int:
    """How many compiler processes this host stands: one a core, and 4 GiB of available memory for each; at least one."""
    if memory_kib is None:
        found = re.search(r"(?m)^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"))
        memory_kib = int(found[1]) if found else 0
    return max(1, min(cores or len(os.sched_getaffinity(0)), memory_kib // (GIB_PER_JOB * 2**20)))


def build_requirements(project: Path) -> tuple[str, ...]:
    """``requires`` of the build system in a folder's pyproject.toml. ReleaseError where that is not there.

    Read without a TOML parser, which Python 3.10 has not: an array of strings is written alike in both languages.
    """
    path = project / "pyproject.toml"
    if not path.is_file():
        raise ReleaseError(f"The source has no {project.name}/pyproject.toml: check the stack's subdirectory.")
    table = re.search(r"(?ms)^\[build-system\]\s*$(.*?)(?=^\[\w|\Z)", path.read_text(encoding="utf-8"))
    array = re.search(r"(?ms)^requires\s*=\s*(\[.*)", table[1]) if table else None
    if array is None:
        return ("setuptools", "wheel")  # what PEP 518 says of a project without the table
    for end in re.finditer(r"\]", array[1]):
        with contextlib.suppress(SyntaxError, ValueError):
            return tuple(map(str, ast.literal_eval(array[1][: end.end()])))
    raise ReleaseError(f"{project.name}/pyproject.toml: the build system's requires cannot be read.")


def needed(tree: Path, requires: Sequence[str], environment: Mapping[str, str]) -> list[Tool]:
    """The programs that building a tree calls, by its build requirements and its Rust crates.

    Since 0.5.11 SGLang's wheel holds Rust extensions (setuptools-rust), one of which generates code from protocol
    buffers (tonic-build; upstream PR 23750). SGLANG_BUILD_RUST_EXTS=none in the stack's environment leaves them out.
    Newer trees want the Rust of edition 2024 and bring protoc along (protoc-bin-vendored; rust/Cargo.toml of main).
    """
    tools = []
    names = {canonical_name(line) for line in requires}
    rust = names & {"setuptools-rust", "maturin"}
    if rust and environment.get("SGLANG_BUILD_RUST_EXTS", "").strip().lower() != "none":
        reason = f"{sorted(rust)[0]} compiles the tree's Rust extensions"
        crates = {
            str(path.relative_to(tree)): path.read_text(encoding="utf-8", errors="replace")
            for path in sorted((tree / "rust").rglob("Cargo.toml"))
        }
        oldest = max(map(_oldest_rust, crates.values()), default=())
        tools += [Tool("cargo", reason, "cargo", oldest), Tool("rustc", reason, "rustc", oldest)]
        tools.append(Tool("cc", "Rust links with it", "gcc"))
        generating = [name for name, text in crates.items() if re.search(r"\b(tonic|prost|tonic-prost)-build\b", text)]
        if generating and not any("protoc-bin-vendored" in text for text in crates.values()):
            tools.append(Tool("protoc", f"{generating[0]} generates code from protocol buffers", "protobuf-compiler"))
    if names & {"scikit-build-core", "cmake"}:
        reason = "the tree's C++ extensions are compiled"
        tools += [Tool("g++", reason, "g++"), Tool("cmake", reason, "cmake"), Tool("ninja", reason, "ninja-build")]
    return tools


def _oldest_rust(manifest: str) -> tuple[int, ...]:
    """The oldest Rust that compiles a crate, by its Cargo.toml: what it says, or what its edition needs."""
    stated = re.search(r'(?m)^rust-version\s*=\s*"(\d+)\.(\d+)', manifest)
    edition = (1, 85) if re.search(r'(?m)^edition\s*=\s*"2024"', manifest) else ()
    return max(edition, (int(stated[1]), int(stated[2])) if stated else ())


def _version(program: str) -> tuple[int, ...]:
    """The first two numbers of what ``program --version`` says; nothing where it says none."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=30)
        if found := re.search(r"(\d+)\.(\d+)", done.stdout):
            return int(found[1]), int(found[2])
    return ()


def check_tools(tools: Sequence[Tool], path: str) -> None:
    """ReleaseError with the packages to install for every tool that ``path`` does not have, or not new enough."""
    missing = [tool for tool in tools if shutil.which(tool.program, path=path) is None]
    if missing:
        listed = "; ".join(f"{tool.program} ({tool.reason})" for tool in missing)
        packages = " ".join(dict.fromkeys(tool.packages for tool in missing))
        raise ReleaseError(f"This source cannot be built on this host, which lacks {listed}. apt install {packages}.")
    for tool in tools:
        found = _version(shutil.which(tool.program, path=path) or "") if tool.oldest else ()
        if found < tool.oldest:
            have = ".".join(map(str, found)) or "of an unknown version"
            raise ReleaseError(
                f"This source cannot be built on this host: {tool.program} is {have}, and the tree's crates need "
                f"{'.'.join(map(str, tool.oldest))} ({tool.reason}). Install a newer one, with rustup or from a newer "
                "archive, where root's PATH finds it, or leave the extensions out with SGLANG_BUILD_RUST_EXTS: none in the "
                "stack's environment."
            )


def build_wheel(
    project: Path,
    out: Path,
    uv: str,
    env: Mapping[str, str],
    *,
    python: Path,
    version: str,
    lock: Path | None,
    said: Callable[[str], None] | None = None,
) -> Path:
    """The wheel of the project, made in ``out`` with the build tools of ``lock`` (None: it needs none).

    ``version`` is what setuptools-scm is told, since a commit without history says none; a tree with a fixed version
    keeps it. ``said`` is told what uv reports. UvError with the build's own words where it fails.
    """
    workers = str(jobs())
    environment = {
        **env,
        "SETUPTOOLS_SCM_PRETEND_VERSION": version,
        "MAX_JOBS": workers,
        "CARGO_BUILD_JOBS": workers,
        "CMAKE_BUILD_PARALLEL_LEVEL": workers,
        "SOURCE_DATE_EPOCH": "315532800",  # 1980, the zip format's first day: the same tree makes the same wheel
    }
    if "SSL_CERT_FILE" in env:
        environment.setdefault("CARGO_HTTP_CAINFO", env["SSL_CERT_FILE"])
    arguments = ["build", "--wheel", "--quiet", "--no-sources", "--no-create-gitignore"]
    arguments += ["--out-dir", str(out), "--python", str(python)]
    arguments += ["--build-constraints", str(lock), "--require-hashes"] if lock else []
    release_uv.run(uv, [*arguments, str(project)], env=environment, step="Building SGLang from its source", said=said)
    wheels = sorted(out.glob("*.whl"))
    if len(wheels) != 1:
        raise ReleaseError(f"Building {project.name} made {len(wheels)} wheels instead of one.")
    return wheels[0]


def wheel_name(wheel: Path) -> tuple[str, str]:
    """Canonical package name and version of a wheel, by its file name."""
    name, version = wheel.name.split("-")[:2]
    return canonical_name(name), version
