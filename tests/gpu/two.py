"""The same on two GPUs of one host: tensor parallel through NCCL."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import hardening
from lab import INSTANCE, Lab, expect

TP2 = {"sglang_profile": "gpu-tests-tp2"}
RANKS = r"sglang::scheduler"


def _ranks(lab: Lab) -> list[str]:
    """Process ids of the ranks, inside."""
    return lab.run("pgrep", "-f", RANKS, check=False).split()


def host(lab: Lab) -> dict[str, Any]:
    """What the driver says of the way between the GPUs, and what copies and NCCL make of it."""
    more = ["-e", "host_check_whole=true", "-e", "host_check_p2p=true"]
    play = lab.play("play", "playbooks/host_check.yml", TP2, more, timeout=150, must=False)
    matrix = {name: lab.run("nvidia-smi", "topo", *words, check=False) for name, words in _ASKED.items()}
    for path in lab.inside("/srv/gpu-tests/project/.cache").glob("host_check/*.json"):
        (lab.out / f"two-{path.name}").write_bytes(path.read_bytes())
    return {"rc": play.rc, "play_s": play.seconds, "report": play.text[-6000:], **matrix}


_ASKED = {"matrix": ["-m"], "p2p_read": ["-p2p", "r"], "p2p_nvlink": ["-p2p", "n"]}


def deploy(lab: Lab) -> dict[str, Any]:
    """The instance over two ranks, and what its log says of NCCL and of all-reduce."""
    play = lab.play("deploy", variant=TP2, timeout=560)
    log = lab.journal()
    (lab.out / "journal-two.txt").write_text(log, encoding="utf-8")
    verdict = lab.verdict()
    shown = re.findall(r"^gpu\s+(\d+:\d\d)\s+ready$", play.text, re.MULTILINE)
    said = [line[-220:] for line in log.splitlines() if re.search(r"all.?reduce|NCCL|nccl|P2P", line)]
    second = lab.play("second", timeout=90)
    expect(second.changed == 0, f"the second run changed {second.changed}")
    return {
        "play_s": play.seconds,
        "second_s": second.seconds,
        "ready": shown[-1:],
        "effective": verdict.get("effective"),
        "said": said[-25:],
        "ranks": len(_ranks(lab)),
    }


def sweep(lab: Lab) -> dict[str, Any]:
    """Variants of NCCL's environment, and the all-reduce of SGLang's own on and off."""
    more = ["-e", "@tests/gpu/sweep-nccl.yml"]
    play = lab.play("sweep", "playbooks/sweep.yml", TP2, more, timeout=800, must=False)
    for path in lab.inside("/srv/gpu-tests/project/.cache").rglob("*.html"):
        (lab.out / f"two-{path.name}").write_bytes(path.read_bytes())
    expect(play.rc == 0, play.text[-3000:])
    return {"play_s": play.seconds, "said": play.text[-6000:]}


def rank_killed(lab: Lab) -> dict[str, Any]:
    """A rank of a candidate is killed while it starts: what was good runs again. Then one of the service's own."""
    before, killed = lab.spec()["hash"], []

    def kill() -> None:
        until = time.monotonic() + 200
        candidate = lab.inside(f"/etc/sglang/{INSTANCE}/candidate/spec.json")
        while time.monotonic() < until and not killed:
            if candidate.exists() and "Load weight end" in lab.journal(60).rpartition("Started SGLang")[2]:
                killed.extend(_ranks(lab)[-1:])
                lab.run("kill", "-9", *killed, check=False)
            time.sleep(0.5)

    watcher = threading.Thread(target=kill)
    watcher.start()
    variant = {**TP2, "sglang_settings": {"max_running_requests": 8}}
    play = lab.play("candidate", variant=variant, timeout=400, must=False)
    watcher.join()
    found: dict[str, Any] = {"killed": killed, "rc": play.rc, "play_s": play.seconds, "said": play.text[-3000:]}
    found["good_again"] = lab.spec()["hash"] == before and "runs again and passed its gate" in play.text
    lab.keep("two_rank_killed", {"ok": False, **found})
    began = time.monotonic()
    lab.run("kill", "-9", *_ranks(lab)[-1:], check=False)
    time.sleep(3)
    found["service_back"] = hardening.answers(lab)
    found["service_back_s"] = round(time.monotonic() - began, 1)
    (lab.out / "journal-rank-killed.txt").write_text(lab.journal(1500), encoding="utf-8")
    expect(killed and play.rc != 0 and found["good_again"], "what was good does not run again")
    expect(found["service_back"], "the service did not come back after one of its ranks was killed")
    return found
