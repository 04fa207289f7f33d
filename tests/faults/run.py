"""Try the faults of faults.yml: python -m faults.run [--only WORDS] [--left] [--list] [--keep], in tests/.

Each row: the host is good; something breaks; a deployment runs, or is cut off; then the next one has to make it good again.
What is judged: how the run ended, what it said, who served meanwhile, that files, process and ledger agree afterwards, and
that the server decodes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from . import host, report
from .rows import RUNS, Fault, load

INVENTORY = "tests/faults/inventory/hosts.yml"
LIMIT = 1200
"""Seconds after which a run counts as one that hangs."""
OTHER = {"sglang_settings": {"chunked_prefill_size": 512}}
CUT = "pkill --signal KILL --full '^sshd(-session)?: root' || true"


@dataclass
class Ran:
    """What came of a run of the controller. status is None for one that was killed."""

    status: int | None
    said: str
    reached: bool
    second: tuple[int, str] | None = None

    @property
    def ended(self) -> str:
        return "cut" if self.status is None else "good" if self.status == 0 else "refused"


def command(run: str, variables: Mapping[str, Any]) -> list[str]:
    return ["ansible-playbook", f"--inventory={INVENTORY}", f"--extra-vars={json.dumps(dict(variables))}", *RUNS[run]]


def play(fault: Fault) -> Ran:
    """Run what the row says, and break it where it says."""
    ran = Ran(None, "", False)
    other: subprocess.Popen[str] | None = None
    with start(command(fault.run, fault.vars)) as process:
        timer = threading.Timer(LIMIT, lambda: os.killpg(process.pid, signal.SIGKILL))
        timer.start()
        try:
            for line in process.stdout or ():
                ran.said += line
                if fault.at and fault.at in line and not ran.reached:
                    ran.reached = True
                    if fault.do == "kill":
                        os.killpg(process.pid, signal.SIGKILL)
                        break
                    if fault.second is not None:
                        other = start(command(fault.run, fault.second))
                    elif fault.do == "host":
                        subprocess.run(["podman", "kill", host.NAME], check=True, capture_output=True)
                    else:
                        host.shell(CUT if fault.do == "cut" else fault.do)
            process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # nobody reads on, so it would wait for ever
            raise
        finally:
            timer.cancel()
        ran.status = None if process.returncode < 0 else process.returncode
    if other is not None:
        with other:
            said = other.communicate(timeout=LIMIT)[0]
            ran.second = (other.returncode, said)
    return ran


def start(given: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        given, cwd=host.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def judge(fault: Fault, ran: Ran, good: str, before: host.Seen, after: host.Seen | None) -> list[str]:
    """What is wrong with a run that met its fault. after: None where the host is dead."""
    problems = []
    if fault.at and not ran.reached:
        problems.append(f"its output never had {fault.at!r}")
    if fault.ends not in (ran.ended, "any"):
        problems.append(f"it ended {ran.ended}")
    said = ran.said
    if ran.second is not None:
        said = ran.second[1]
        if ran.second[0] == 0:
            problems.append("the second controller was not refused")
    flat = " ".join(said.split())
    problems += [f"it does not say {words!r}" for words in fault.says if words not in flat]
    if "Traceback (most recent call last)" in ran.said + said or "MODULE FAILURE" in ran.said + said:
        problems.append("its message is a traceback")
    if after is None or fault.serves == "any":
        return problems
    if fault.serves == "stopped":
        return [*problems, *(["the unit runs"] if after.active else [])]
    if fault.serves == "same" and after.invocation != before.invocation:
        problems.append("the server was restarted")
    if not after.active or (after.process == good) == (fault.serves == "asked"):
        problems.append(f"it serves {after.process[:12] or 'nothing'}")
    if why := host.decodes():
        problems.append(f"the server does not decode: {why}")
    return problems


def converge(good: str) -> list[str]:
    """What is wrong after a deployment of what is good; good may be empty, for the first one."""
    done = subprocess.run(command("deploy", {}), cwd=host.ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        return [f"the next run failed: {' '.join(done.stdout[-600:].split())}"]
    return wrong(good)


def wrong(good: str) -> list[str]:
    seen = host.look()
    problems = seen.settled()
    if good and seen.process != good:
        problems.append(f"it serves {seen.process[:12]}")
    if why := host.decodes():
        problems.append(f"the server does not decode: {why}")
    return problems


def attempt(fault: Fault, good: str) -> dict[str, Any]:
    """One row, from good to good."""
    began = time.monotonic()
    before = host.look()
    host.shell(fault.before or "true")
    ran = play(fault)
    served = "the host was dead"
    after = None
    if fault.do == "host":
        host.boot(killed=True)
    else:
        after = host.look()
        new = "what was asked for" if after.process else "nothing"
        served = (
            "the same process"
            if after.invocation == before.invocation
            else "what was good"
            if after.process == good
            else new
        )
    problems = judge(fault, ran, good, before, after)
    host.shell(fault.after or "true")
    if fault.boots:
        host.boot()
    if fault.run == "deploy" and not fault.vars and ran.ended == "good":
        problems += wrong(good)
    else:
        problems += converge(good)
    return {
        "problems": problems,
        "ended": {"good": "succeeded", "refused": "failed, and said why", "cut": "was killed"}[ran.ended],
        "served": served,
        "seconds": round(time.monotonic() - began),
        "date": date.today().isoformat(),
        "said": ran.said[-3000:] if problems else "",
    }


def prepare() -> str:
    """The hash of what is good, on a host where something else was good before."""
    subprocess.run(["ansible-playbook", f"--inventory={INVENTORY}", "playbooks/lab.yml"], cwd=host.ROOT, check=True)
    host.prepare()
    kept = "test -d /root/kept/deployments"
    for variables in (OTHER, {}):
        if variables and host.shell(f"{kept} && echo yes || true").strip():
            continue
        subprocess.run(command("deploy", variables), cwd=host.ROOT, check=True)
    good = host.look()
    if problems := wrong(good.process):
        raise SystemExit(f"the host is not good to begin with: {problems}")
    host.shell(f"{kept} || {{ mkdir /root/kept && cp --archive $STATE/deployments $STATE/ledger.jsonl /root/kept/; }}")
    return good.process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="only faults with these words in their title")
    parser.add_argument("--left", action="store_true", help="only those that were not tried yet, or did not end well")
    parser.add_argument("--list", action="store_true", help="list them, and try none")
    parser.add_argument("--keep", action="store_true", help="leave the host running")
    given = parser.parse_args()
    faults = load()
    chosen = [fault for fault in faults if not given.only or any(words in fault.title for words in given.only)]
    results, failed = report.read(), 0
    if given.left:
        chosen = [fault for fault in chosen if results.get(fault.title, {"problems": ["new"]})["problems"]]
    if given.list:
        sys.exit("\n".join(fault.title for fault in chosen))
    good = prepare()
    versions = host.versions()
    for number, fault in enumerate(chosen, 1):
        try:
            result = attempt(fault, good)
        except (RuntimeError, subprocess.SubprocessError) as error:
            result = {"problems": [f"the test itself: {error}"], "ended": "-", "served": "-", "seconds": 0, "said": ""}
            result["date"] = date.today().isoformat()
        said = result.pop("said")
        failed += bool(result["problems"])
        print(f"{number}/{len(chosen)} {fault.title}: {said_of(result)}")
        if said:
            print(said)
        sys.stdout.flush()
        results[fault.title] = {**result, "versions": versions}
        report.keep(results, faults)
        report.write(faults, report.read())
        restore(good)
    if not given.keep:
        subprocess.run(["podman", "rm", "--force", "--time=2", host.NAME], check=True, capture_output=True)
    sys.exit(f"{failed} of {len(chosen)} faults did not end well" if failed else 0)


def said_of(result: Mapping[str, Any]) -> str:
    return f"{'; '.join(result['problems']) or 'as it should'} ({result['seconds']} s)"


def restore(good: str) -> None:
    """The next row starts from a host that is good, with the history that a rollback needs."""
    host.shell("mkdir --parents $STATE/deployments && cp --archive /root/kept/deployments/. $STATE/deployments/")
    host.shell("cp --archive /root/kept/ledger.jsonl $STATE/")
    if wrong(good) and (problems := converge(good)):
        raise SystemExit(f"the host cannot be made good again: {problems}")


if __name__ == "__main__":
    main()
