"""What is tried on the GPU, step by step. Each returns what it found; StepError where that is not as it should be."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hardening
import overhead
import two
from lab import INSTANCE, PLACE, VENVS, Lab, Play, expect

BF16 = {"sglang_profile": "gpu-tests-bf16"}
FP8 = {"sglang_profile": "gpu-tests-fp8"}
UNIT = f"sglang@{INSTANCE}.service"


def machine(lab: Lab) -> dict[str, Any]:
    """Unpacked and booted; what the machine is."""
    found: dict[str, Any] = {"unpack": lab.unpack()}
    began = time.monotonic()
    lab.boot()
    found["boot_s"] = round(time.monotonic() - began, 1)
    version = subprocess.run([lab.place / "uv", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    uv = lab.inside(f"/opt/sglang/uv/{version}/bin/uv")
    uv.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(lab.place / "uv", uv)
    found["torch"] = lab.share_torch()
    asked = {
        "kernel": ["uname", "-r"],
        "system": ["systemctl", "--version"],
        "gpus": ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader"],
        "topology": ["nvidia-smi", "topo", "-m"],
        "nvcc": ["/usr/local/cuda/bin/nvcc", "--version"],
        "python": [
            "/usr/bin/python3.12",
            "-c",
            "import sys, torch; print(sys.version, torch.__version__, torch.version.cuda)",
        ],
        "cpus": ["nproc"],
        "libraries": ["sh", "-c", "ldconfig -p | grep -E 'libcuda|nccl|nvidia-ml'; ls -d /usr/local/cuda*"],
    }
    return found | {name: lab.run(*argv, check=False).strip() for name, argv in asked.items()}


def caches(lab: Lab) -> dict[str, Any]:
    """Kernel caches of an earlier run, from `caches.tar.xz` beside the parts: they belong to the same release's id."""
    archive = lab.parts.parent / "caches.tar.xz"
    expect(archive.exists(), f"there is no {archive}")
    lab.run("sh", "-c", "id sglang 2>/dev/null || useradd --system --user-group --no-create-home sglang")
    target = lab.inside("/var/cache/sglang")
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-xJf", str(archive), "-C", str(target)], check=True)
    lab.run("sh", "-c", "chown -R sglang:sglang /var/cache/sglang/gpu-tests-*")
    # ninja compiles again what is older than its sources, and the release's are as new as the release: made old, once
    # they are there. Not Python's, whose compiled form names their time.
    age = "find {} -type f ! -name '*.py' ! -name '*.pyc' -exec touch -d 2020-01-01 '{{}}' +"
    wait = "for i in $(seq 600); do for r in {}; do [ -d $r ] && {} && exit; done; sleep 0.5; done"
    releases = [str(lab.inside(f"/opt/sglang/releases/{path.name}")) for path in target.glob("gpu-tests-*")]
    script = "; ".join(wait.format(release, age.format(release)) for release in releases)
    subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {"mib": _caches(lab)}


def keep_caches(lab: Lab) -> dict[str, Any]:
    """The kernel caches into the results, for `caches` on the next machine."""
    source = lab.inside("/var/cache/sglang")
    names = [path.name for path in source.glob("gpu-tests-*")]
    subprocess.run(["tar", "-cJf", str(lab.out / "caches.tar.xz"), "-C", str(source), *names], check=True)
    return {"mib": _caches(lab)}


def models(lab: Lab) -> dict[str, Any]:
    """A good and a broken model, made once on the machine itself, where every lane sees them."""
    lab.unpack()
    target = lab.place / "models"
    if not (target / "nan-glm" / "config.json").exists():
        python = next((f"{venv}/bin/python3" for venv in VENVS if Path(f"{venv}/bin/python3").exists()), "python3")
        script = lab.project / "tests/gpu/probes/make_model.py"
        command = [python, str(script), str(target / "tiny-glm"), str(target / "nan-glm")]
        environment = {**os.environ, "PYTHONPATH": str(lab.wheels("transformers", "tokenizers"))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        expect(done.returncode == 0, done.stderr[-2000:])
    return {}


def _caches(lab: Lab) -> dict[str, int]:
    """MiB below each release's and profile's cache folder."""
    root = lab.inside("/var/cache/sglang")
    sizes = {}
    for folder in root.glob("gpu-tests-*/*"):
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        sizes[f"{folder.parent.name}/{folder.name}"] = size // 2**20
    return sizes


def ready_s(play: Play) -> int | None:
    """Seconds from the process to readiness, as the play shows them in "gpu  3:16  ready"."""
    shown = re.findall(r"^gpu\s+(\d+):(\d\d)\s+ready$", play.text, re.MULTILINE)
    return int(shown[-1][0]) * 60 + int(shown[-1][1]) if shown else None


def _state(lab: Lab, play: Play) -> dict[str, Any]:
    """What was just gated: times, effective settings, caches."""
    verdict = lab.verdict()
    found = {key: verdict.get(key) for key in ("ok", "checks")}
    told = ("kv_cache_dtype", "dsa_prefill_backend", "dsa_decode_backend", "attention_backend", "page_size")
    found["effective"] = {key: (verdict.get("effective") or {}).get(key) for key in told}
    return {
        "play_s": play.seconds,
        "ready_s": ready_s(play),
        **found,
        "caches_mib": _caches(lab),
        "profile": lab.spec()["profile"],
    }


def host_check(lab: Lab) -> dict[str, Any]:
    """The host's evidence, and what is made of it."""
    play = lab.play("play", "playbooks/host_check.yml", BF16, ["-e", "host_check_whole=true"], timeout=90, must=False)
    kept = sorted(lab.inside(f"/{PLACE}/project/.cache").glob("host_check/*.json"))
    for path in kept:
        shutil.copy(path, lab.out / f"host_check-{path.name}")
    return {"rc": play.rc, "play_s": play.seconds, "report": play.text[-6000:], "kept": [path.name for path in kept]}


def deploy(lab: Lab) -> dict[str, Any]:
    """A first deployment, kernels and all; the second run changes nothing."""
    first = lab.play("first", variant=BF16, timeout=560)
    found = {"first": _state(lab, first)}
    lab.keep("deploy", {"ok": False, **found})
    receipt = json.loads(next(lab.inside("/opt/sglang/releases").glob("*/receipt.json")).read_text(encoding="utf-8"))
    found["release"] = {key: receipt[key] for key in ("id", "versions", "seconds", "bytes", "packages")}
    (lab.out / "journal-deploy.txt").write_text(lab.journal(), encoding="utf-8")
    second = lab.play("second", timeout=120)
    found["second_s"] = second.seconds
    score = lab.run("systemd-analyze", "security", UNIT, "--no-pager", check=False)
    (lab.out / "security.txt").write_text(score, encoding="utf-8")
    found["security"] = score.strip().splitlines()[-1]
    expect(second.changed == 0, f"the second run changed {second.changed}")
    return found


def swap(lab: Lab) -> dict[str, Any]:
    """To another profile with kernels of its own, back, and forth again: cold, warm, warm."""
    found: dict[str, Any] = {}
    for name, variant in (("fp8-cold", FP8), ("bf16-warm", BF16), ("fp8-warm", FP8)):
        found[name] = _state(lab, play := lab.play(name, variant=variant, timeout=480))
        lab.keep("swap", {"ok": False, **found})
        (lab.out / f"journal-{name}.txt").write_text(lab.journal(), encoding="utf-8")
        expect(play.changed, f"{name} changed nothing")
    cold, warm = found["fp8-cold"]["ready_s"], found["fp8-warm"]["ready_s"]
    found["cold_over_warm"] = round(cold / warm, 2) if cold and warm else None
    expect(len(found["fp8-warm"]["caches_mib"]) == 2, "the two profiles do not have caches of their own")
    return found


def _refused(lab: Lab, name: str, variant: Mapping[str, Any]) -> dict[str, Any]:
    """A deployment that must be refused, and what was good must run again."""
    before = lab.spec()["hash"]
    play = lab.play(name, variant=variant, timeout=400, must=False)
    found: dict[str, Any] = {"play_s": play.seconds, "rc": play.rc}
    log = lab.journal()
    (lab.out / f"journal-{name}.txt").write_text(log, encoding="utf-8")
    found["said"] = play.text[-3500:]
    found["good_again"] = lab.spec()["hash"] == before and "runs again and passed its gate" in play.text
    found["fatal_line"] = next((line[:200] for line in log.splitlines() if "probability tensor" in line), None)
    lab.keep(f"{name}-partial", found)
    expect(play.rc != 0, "the play accepted a broken model")
    expect(found["good_again"], f"what was good does not run again:\n{play.text[-1500:]}")
    return found


def nan(lab: Lab) -> dict[str, Any]:
    """NaN in the final norm: the play names the diary's crash, and what was good runs again."""
    found = _refused(lab, "nan", {**BF16, "sglang_model": "/srv/gpu-tests/models/nan-glm"})
    expect(re.search(r"nan-|NaN", found["said"]), "the play does not name NaN")
    return found


def nan_sanitized(lab: Lab) -> dict[str, Any]:
    """The same with SGLang's sanitiser on: every answer is 200, and still it is refused."""
    environment = {"SGLANG_SANITIZE_NAN_LOGITS": "1"}
    variant = {**BF16, "sglang_model": "/srv/gpu-tests/models/nan-glm", "sglang_environment": environment}
    return _refused(lab, "nan-sanitized", variant)


def good(lab: Lab) -> dict[str, Any]:
    """The good deployment is there (again), for steps after it."""
    play = lab.play("deploy", variant=BF16, timeout=300)
    return _state(lab, play)


def sweep(lab: Lab) -> dict[str, Any]:
    """The sweep over backends; its page, its record and the trials' log are kept."""
    more = ["-e", "@tests/gpu/sweep.yml"]
    play = lab.play("sweep", "playbooks/sweep.yml", BF16, more, timeout=1900, must=False)
    for pattern in ("*.html", "sweep.json"):
        for path in lab.inside(f"/{PLACE}/project/sweeps").rglob(pattern):
            shutil.copy(path, lab.out / path.name)
    log = lab.run("journalctl", f"--unit=sglang@{INSTANCE}-sweep", "--output=cat", "--no-pager", check=False)
    (lab.out / "journal-sweep.txt").write_text(log, encoding="utf-8")
    expect(play.rc == 0, play.text[-3000:])
    return {"play_s": play.seconds, "said": play.text[-6000:]}


STEPS: dict[str, Callable[[Lab], Mapping[str, Any]]] = {
    "machine": machine,
    "models": models,
    "caches": caches,
    "keep_caches": keep_caches,
    "host_check": host_check,
    "deploy": deploy,
    "swap": swap,
    "nan": nan,
    "nan_sanitized": nan_sanitized,
    "good": good,
    "sweep": sweep,
    "hardening": hardening.probes,
    "hardening_server": hardening.server,
    "overhead": overhead.pairs,
    "two_host": two.host,
    "two_deploy": two.deploy,
    "two_sweep": two.sweep,
    "two_rank_killed": two.rank_killed,
}
DEFAULT = ("machine", "models", "host_check", "deploy", "swap", "nan", "nan_sanitized", "hardening", "overhead")
