#!/usr/bin/env python3
"""Do GPUs reach one another's memory unaltered? `nvidia-smi topo -p2p` says OK on hosts where such copies hang or corrupt.

    python p2p_test.py [--mib 64] [--rounds 3] [--seconds 60]

Needs any torch with CUDA and two GPUs or more. Copies random data between each ordered pair and compares it with the
original by way of main memory, then lets NCCL add up over all GPUs. The work is done in a child that is killed when one
step takes longer than --seconds, so a hang ends with the pair's name. Prints JSON to standard output and lines for a
person to standard error. Ends with 0 where all is well, 1 where something is not, 2 where there is nothing to test.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

OK, BAD, UNTESTED = 0, 1, 2


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mib", type=int, default=64, help="size of a copy")
    options.add_argument("--rounds", type=int, default=3, help="copies for each pair, each of other data")
    options.add_argument("--seconds", type=float, default=60, help="limit for a pair, and for NCCL")
    options.add_argument("--quiet", action="store_true", help="no lines to standard error; they are in the JSON, too")
    options.add_argument("--child", default="", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        work(json.loads(given.child), given.mib, given.rounds)
        return OK
    found = test(given.mib, given.rounds, given.seconds)
    found["told"] = list(told(found))
    print(json.dumps(found, indent=2))
    if not given.quiet:
        print("\n".join(found["told"]), file=sys.stderr)
    return {True: OK, False: BAD, None: UNTESTED}[found["ok"]]


def test(mib: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Run the steps in children, each killed at its limit; a child goes on with what the last one left."""
    result: dict[str, Any] = {"ok": None, "problem": None, "torch": None, "gpus": [], "pairs": [], "nccl": None}
    done: set[str] = set()
    while True:
        left = None
        for event in child(mib, rounds, seconds, sorted(done)):
            if event["step"] == "gpus":
                result.update(torch=event["torch"], gpus=event["gpus"], problem=event["problem"])
            elif event["step"] == "begin":
                left = event
            else:
                left = None
                done.add(event["name"])
                keep(result, event)
        if left is None:
            break
        done.add(left["name"])
        keep(result, {**left, "ok": False, "problem": left.get("problem") or f"no answer in {seconds:g} s"})
    tried = [*result["pairs"], *([result["nccl"]] if result["nccl"] else [])]
    result["ok"] = all(step["ok"] for step in tried) if tried else None
    return result


def keep(result: dict[str, Any], event: dict[str, Any]) -> None:
    """Put the outcome of a step into the result."""
    kept = {key: value for key, value in event.items() if key not in ("step", "name")}
    if event["name"] == "nccl":
        result["nccl"] = kept
    else:
        result["pairs"].append(kept)


def child(mib: int, rounds: int, seconds: float, done: list[str]) -> Iterator[dict[str, Any]]:
    """What a child says, until it ends or is silent for too long. A step that it leaves open has its reason added."""
    command = [sys.executable, __file__, f"--mib={mib}", f"--rounds={rounds}", f"--child={json.dumps({'done': done})}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    begun: dict[str, Any] | None = None
    # torch and CUDA take their time before the first step.
    limit = seconds + 120
    while True:
        try:
            line = lines.get(timeout=limit)
        except queue.Empty:
            process.kill()  # a process that hangs in the driver may stay; it is not waited for
            if begun is None:
                yield {"step": "gpus", "torch": None, "gpus": [], "problem": f"torch did not start in {limit:g} s"}
            return
        if line is None:
            break
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        limit = seconds
        if event["step"] == "gpus" and done:
            continue
        begun = event if event["step"] == "begin" else None
        yield event
    process.wait()
    said = (process.stderr.read() if process.stderr else "").strip().splitlines()
    if begun is not None:
        yield {**begun, "problem": f"the process ended: {said[-1] if said else f'exit {process.returncode}'}"}
    elif process.returncode and not done:
        problem = said[-1] if said else f"exit {process.returncode}"
        yield {"step": "gpus", "torch": None, "gpus": [], "problem": f"torch does not run: {problem}"}


def work(order: dict[str, Any], mib: int, rounds: int) -> None:
    """The child: say what there is, then do each step that is not done yet."""
    import torch

    count = torch.cuda.device_count()
    problem = None if count > 1 else f"{count or 'no'} CUDA GPU{'' if count == 1 else 's'} here; it takes two"
    say(step="gpus", torch=torch.__version__, gpus=[torch.cuda.get_device_name(n) for n in range(count)], problem=problem)
    if count < 2:
        return
    for source in range(count):
        for target in range(count):
            name = f"{source}-{target}"
            if source != target and name not in order["done"]:
                step = {"name": name, "from": source, "to": target}
                say(step="begin", **step)
                say(step="end", **step, **copy(torch, source, target, mib, rounds))
    if "nccl" not in order["done"]:
        say(step="begin", name="nccl")
        say(step="end", name="nccl", **add_up(torch, count, mib))


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def copy(torch: Any, source: int, target: int, mib: int, rounds: int) -> dict[str, Any]:
    """Copy from one GPU to another and compare by way of main memory; speed of the last round in GiB/s."""
    peer = torch.cuda.can_device_access_peer(target, source)
    speed = 0.0
    for number in range(rounds):
        generator = torch.Generator().manual_seed(1000 * source + 10 * target + number)
        original = torch.randint(-(2**31), 2**31 - 1, (mib * 2**18,), dtype=torch.int32, generator=generator)
        near = original.to(f"cuda:{source}")
        far = torch.zeros_like(near, device=f"cuda:{target}")
        for device in (source, target):
            torch.cuda.synchronize(device)
        begun = time.monotonic()
        far.copy_(near)
        for device in (source, target):
            torch.cuda.synchronize(device)
        speed = mib / 1024 / (time.monotonic() - begun)
        wrong = int((far.cpu() != original).sum())
        if wrong:
            return {
                "ok": False,
                "peer": peer,
                "problem": f"{wrong} of {original.numel()} words arrived wrong, in round {number + 1}",
            }
    return {"ok": True, "peer": peer, "gib_s": round(speed, 1), "problem": None}


def add_up(torch: Any, count: int, mib: int) -> dict[str, Any]:
    """One all-reduce of NCCL over all GPUs, as the server does at each layer."""
    parts = [torch.full((mib * 2**18,), n + 1, dtype=torch.int32, device=f"cuda:{n}") for n in range(count)]
    if not torch.cuda.nccl.is_available(parts):
        return {"ok": True, "problem": None, "skipped": "this torch has no NCCL"}
    torch.cuda.nccl.all_reduce(parts)
    for number in range(count):
        torch.cuda.synchronize(number)
    wrong = [number for number, part in enumerate(parts) if not bool((part == count * (count + 1) // 2).all())]
    return {"ok": not wrong, "problem": f"wrong sums on GPU {', '.join(map(str, wrong))}" if wrong else None}


def told(found: dict[str, Any]) -> Iterator[str]:
    """The result in lines for a person, problems first."""
    if found["ok"] is None:
        yield f"not tested: {found['problem'] or 'nothing answered'}"
        return
    pairs = found["pairs"]
    for pair in pairs:
        if not pair["ok"]:
            yield f"GPU {pair['from']} to GPU {pair['to']}: {pair['problem']}"
    if found["nccl"] and not found["nccl"]["ok"]:
        yield f"NCCL over {len(found['gpus'])} GPUs: {found['nccl']['problem']}"
    if not found["ok"]:
        yield 'Boot with iommu=pt (or off) and turn ACS off; until then set NCCL_P2P_DISABLE: "1" in sglang_environment.'
        return
    speeds = [pair["gib_s"] for pair in pairs]
    direct = sum(bool(pair["peer"]) for pair in pairs)
    copied = f"{len(pairs)} pairs of {len(found['gpus'])} GPUs copy without a fault ({direct} with P2P)"
    yield f"{copied}, {min(speeds)} to {max(speeds)} GiB/s"


if __name__ == "__main__":
    sys.exit(main())
