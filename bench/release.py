#!/usr/bin/env python3
"""Time builds of the stack `cpu`: with an empty cache, with a full one, from a wheelhouse; and uv against pip on its lock.

    python bench/release.py [--python /usr/bin/python3] [--index JSON] [--keep DIR]

`--index` is what sglang_index takes; without it that of the lab, where there is one. The builds run on this machine, one
after the other, with the project's own builder; what they make (about 6 GB) is taken away unless --keep names a folder.
uv and pip install the same lock from the same wheelhouse, without a network or a cache, in one run. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "plugins" / "module_utils"))

from sglang_deploy import release, release_uv, release_wheelhouse, release_wheelhouse_make  # noqa: E402
from sglang_deploy.release_wheelhouse_make import Target  # noqa: E402

UV = "0.13.9"
STACK = "cpu"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3", help="the interpreter to build with")
    parser.add_argument("--index", type=json.loads, default=lab_index(), help="where packages come from, as JSON")
    parser.add_argument("--keep", type=Path, help="folder for everything that is made")
    given = parser.parse_args()
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
        return bench(given.keep, given.python, given.index)
    with tempfile.TemporaryDirectory(prefix="bench-release-") as folder:
        return bench(Path(folder), given.python, given.index)


def lab_index() -> dict[str, Any]:
    """The lab's package index without the path of its certificates, which is the containers'."""
    path = ROOT / ".cache" / "lab" / "index.json"
    index: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {key: value for key, value in index.items() if key != "ca_bundle"}


def bench(folder: Path, python: str, given: dict[str, Any]) -> int:
    """Run everything under ``folder`` and print it."""
    stack = yaml.safe_load((ROOT / "catalog" / "stacks.yml").read_text(encoding="utf-8"))[STACK] | {"name": STACK}
    constraints = (ROOT / "catalog" / stack["constraints"]).read_text(encoding="utf-8")

    def request(cache: str, **more: Any) -> release.Request:
        index = release.Index.from_mapping({**given, **more, "cache_dir": str(folder / cache)})
        return release.Request.from_stack(stack, index, constraints)

    def build(root: str, wanted: release.Request) -> release.Built:
        return release.build(wanted, folder / root, uv_version=UV, python=python, progress=say)

    uv_s, _ = timed("uv itself, by pip", lambda: release_uv.provide(folder / "uv", UV, python, request("cold").index))
    for root in ("cold", "warm", "from-wheelhouse"):  # so that no build is charged for it
        shutil.copytree(folder / "uv", folder / root / "uv" / UV, symlinks=True)
    cold_s, first = timed("a build with an empty cache", lambda: build("cold", request("cold-cache")))
    warm_s, _ = timed("a build with a full cache", lambda: build("warm", request("cold-cache")))
    chosen = release.choose_python(stack["python"], python)
    target = Target(chosen.minor, f"{os.uname().machine}-manylinux_2_36")
    path = folder / "wheelhouse"
    make_s, _ = timed(
        "making a wheelhouse",
        lambda: release_wheelhouse_make.make(
            request("cold-cache"), target, path, uv_version=UV, python=python, progress=say
        ),
    )
    house = release_wheelhouse.located(path, folder)
    offline_s, _ = timed(
        "a build from the wheelhouse, with an empty cache",
        lambda: build("from-wheelhouse", request("no-cache").from_wheelhouse(house)),
    )
    uv_install_s, pip_install_s = compare(folder, python, path)
    result = {
        "stack": STACK,
        "packages": first.receipt["packages"],
        "release_mb": first.receipt["bytes"] // 10**6,
        "uv_itself_s": round(uv_s, 1),
        "cold_s": round(cold_s, 1),
        "warm_s": round(warm_s, 1),
        "wheelhouse_made_s": round(make_s, 1),
        "from_wheelhouse_s": round(offline_s, 1),
        "install_uv_s": round(uv_install_s, 1),
        "install_pip_s": round(pip_install_s, 1),
        "pip_over_uv": round(pip_install_s / uv_install_s, 1),
        "load": os.getloadavg()[0],
    }
    print(json.dumps(result))
    return 0


def compare(folder: Path, python: str, wheelhouse: Path) -> tuple[float, float]:
    """Seconds that uv and pip take to install the wheelhouse's lock into a bare environment each, byte-compiled."""
    uv = str(folder / "uv" / "bin" / "uv")
    env = {**os.environ, "UV_NO_CONFIG": "1", "PIP_CONFIG_FILE": os.devnull}
    lock = ["--no-index", "--find-links", str(wheelhouse / "wheels"), "--no-deps", "--require-hashes"]
    lock += ["--requirement", str(wheelhouse / "lock.txt"), "--quiet"]
    installers: dict[str, Callable[[Path], list[str]]] = {
        "uv": lambda venv: [
            uv,
            "pip",
            "install",
            "--no-cache",
            "--compile-bytecode",
            "--python",
            str(venv / "bin" / "python"),
            *lock,
        ],
        "pip": lambda venv: [str(venv / "bin" / "python"), "-m", "pip", "install", "--no-cache-dir", *lock],
    }
    seconds = []
    for name, command in installers.items():
        venv = folder / f"venv-{name}"
        subprocess.run([python, "-m", "venv", str(venv)], check=True)
        words = command(venv)
        took, _ = timed(f"{name} on that lock", lambda words=words: subprocess.run(words, check=True, env=env))  # type: ignore[misc]
        seconds.append(took)
        shutil.rmtree(venv)
    return seconds[0], seconds[1]


def timed(what: str, act: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result of ``act``."""
    began = time.monotonic()
    result = act()
    took = time.monotonic() - began
    print(f"{what}: {took:.1f} s", flush=True)
    return took, result


def say(text: str) -> None:
    print(f"    {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
