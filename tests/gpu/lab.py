"""The machine as the steps see it: unpacked, booted, with plays to run and results that are kept."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boot

PLACE = "srv/gpu-tests"  # below the root: wheels, ansible, uv, debs, project, work
INSTANCE = "gpu"
PORT = 30080
# NVLink multicast stays off: on hosts that are shared it can put GPUs out of service.
ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "OMP_NUM_THREADS": "8",
}
# Where such machines keep the Python that has torch, if it is not the system's own.
VENVS = ("/opt/torch/.venv", "/opt/venv", "/venv")
PATH = "/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IGNORED = shutil.ignore_patterns(
    ".git", ".venv", ".cache", "__pycache__", "results", "bench", "molecule", ".*_cache", ".hypothesis"
)


class StepError(Exception):
    """A step did not do what it should; the message says what."""


@dataclass(frozen=True)
class Play:
    """How a play ended: its output, status, seconds, and the recap's count of changes."""

    rc: int
    text: str
    seconds: float
    changed: int | None


def expect(true: object, message: str) -> None:
    """StepError unless `true`."""
    if not true:
        raise StepError(message)


class Lab:
    """One machine. `out` gets results.json, a line of progress a step, and the plays' output.

    `patience` multiplies the time limits, for machines that are slower than a GPU machine; `skip_tags` goes
    to Ansible, `gpu` is the one that the instance sees.
    """

    def __init__(
        self,
        out: Path,
        parts: Path,
        project: Path,
        lower: Path,
        variables: Path | None = None,
        patience: float = 1,
        skip_tags: str = "",
        gpu: str = "",
    ) -> None:
        self.out, self.parts, self.project, self.lower, self.variables = out, parts, project, lower, variables
        self.patience, self.skip_tags, self.gpu = patience, skip_tags, gpu
        self.port = PORT + 10 * int(boot.LANE)
        self.out.mkdir(parents=True, exist_ok=True)
        self.place = lower / PLACE
        self.began = time.monotonic()
        self._step = ""

    # Steps and results

    def step(self, name: str, what: Callable[[Lab], Mapping[str, Any]], *, again: bool = False) -> bool:
        """Run a step and write its result; whether it passed, now or before."""
        done = self.results().get(name, {})
        if done.get("ok") and not again:
            self.say(f"{name}: done before")
            return True
        self._step, began = name, time.monotonic()
        self.keep(name, {"ok": False})
        self.say(f"{name} ...")
        try:
            found: dict[str, Any] = {"ok": True, **what(self)}
        except subprocess.TimeoutExpired as error:
            found = {"ok": False, "problem": f"not done after {error.timeout:.0f} s: {error.cmd}"}
        except StepError as error:
            found = {"ok": False, "problem": str(error)}
        except Exception:
            found = {"ok": False, "problem": traceback.format_exc()[-3000:]}
        if not found["ok"]:
            found = {**self.results().get(name, {}), **found}  # with what it had kept in part
        found["seconds"] = round(time.monotonic() - began, 1)
        self.keep(name, found)
        self.say(
            f"{name}: {'ok' if found['ok'] else 'FAILED'} in {found['seconds']} s {str(found.get('problem', ''))[-1500:]}"
        )
        return bool(found["ok"])

    def results(self) -> dict[str, Any]:
        """What every step found so far, on this machine."""
        path = self.place / "results.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def keep(self, name: str, found: Mapping[str, Any]) -> None:
        """Write one step's result, beside what it found in part before."""
        self.place.mkdir(parents=True, exist_ok=True)
        with (self.place / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two runs may go on at once
            everything = {**self.results(), name: dict(found)}
            for path in (self.place / "results.json", self.out / "results.json"):
                part = path.with_suffix(f".{os.getpid()}")
                part.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
                part.replace(path)

    def say(self, text: str) -> None:
        """A line of progress, on the screen and in the results."""
        line = f"[{time.monotonic() - self.began:6.1f}] {text}"
        print(line, flush=True)
        with (self.out / "progress.txt").open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    # The machine

    def unpack(self) -> dict[str, Any]:
        """The bundle lies under PLACE. StepError where parts are missing or damaged."""
        if (self.place / "unpacked").exists():
            return {"before": True}
        first = self.parts / "1" / "of"
        expect(first.exists(), f"{self.parts} holds no parts: run tests/gpu/prepare, and bring them all")
        count, digest = first.read_text(encoding="ascii").split()
        pieces = [self.parts / str(number) / "part" for number in range(1, int(count) + 1)]
        missing = [piece for piece in pieces if not piece.exists()]
        expect(not missing, f"part {', '.join(piece.parent.name for piece in missing)} has not come yet")
        found = hashlib.sha256()
        self.place.mkdir(parents=True, exist_ok=True)
        with subprocess.Popen(["tar", "-xJ", "-C", str(self.place)], stdin=subprocess.PIPE) as tar:
            assert tar.stdin
            for piece in pieces:
                with piece.open("rb") as stream:
                    while block := stream.read(2**22):
                        found.update(block)
                        tar.stdin.write(block)
        expect(tar.returncode == 0 and found.hexdigest() == digest, "the parts are damaged")
        (self.place / "unpacked").touch()
        return {"parts": int(count)}

    @property
    def root(self) -> Path:
        """The booted system's root, as this process sees it."""
        return boot.ROOT

    def inside(self, path: str) -> Path:
        """A path of the booted system."""
        return self.root / path.lstrip("/")

    def boot(self) -> None:
        """systemd runs, and the project lies in it as it is now."""
        boot.boot(self.place / "debs", self.lower)
        self.sync()

    def sync(self) -> None:
        """The project inside is as it is now; nothing where nothing has booted."""
        if not boot.enter():
            return
        target = self.inside(f"/{PLACE}/project")
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "project"
            shutil.copytree(self.project, copy, ignore=IGNORED, symlinks=True)
            files = sorted(path for path in copy.rglob("*") if path.is_file())
            digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
        mark = target / ".copied"
        if mark.exists() and mark.read_text(encoding="ascii") == digest:
            return  # plays of another run may be reading it
        for old in target.glob("*"):
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
        shutil.copytree(self.project, target, ignore=IGNORED, dirs_exist_ok=True, symlinks=True)
        if self.variables:
            shutil.copy(self.variables, target / "tests/gpu/inventory/host_vars/gpu/main.yml")
        mark.write_text(digest, encoding="ascii")

    def share_torch(self) -> str | None:
        """Let the system's Python see the packages of the one that has torch; their folder."""
        for venv in VENVS:
            for packages in sorted(self.inside(venv).glob("lib/python3.*/site-packages")):
                if (packages / "torch").is_dir():
                    seen = "/" + str(packages.relative_to(self.root))
                    own = self.inside(f"/usr/local/lib/{packages.parent.name}/dist-packages")
                    own.mkdir(parents=True, exist_ok=True)
                    (own / "machine.pth").write_text(f"import site; site.addsitedir({seen!r})\n", encoding="utf-8")
                    ninja = self.inside(f"{venv}/bin/ninja")
                    if ninja.exists() and not self.inside("/usr/local/bin/ninja").exists():
                        shutil.copy(ninja, self.inside("/usr/local/bin/ninja"))  # a unit's PATH has no such folder
                    return seen
        return None

    def run(self, *argv: str, timeout: float = 60, check: bool = True, env: Mapping[str, str] | None = None) -> str:
        """The output of a command inside. StepError where it fails and `check`."""
        variables = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **(env or {})}
        words = [*boot.enter(), "env", "-i", *(f"{name}={value}" for name, value in variables.items())]
        seconds = timeout * self.patience
        words += ["timeout", "-k", "5", str(seconds), *argv]  # inside, since what nsenter has started outlives it
        done = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds + 10,
            check=False,
        )
        expect(not check or done.returncode == 0, f"{' '.join(argv)[:300]}: status {done.returncode}\n{done.stdout[-2000:]}")
        return done.stdout

    def ansible(self, seconds: float) -> list[str]:
        """ansible-playbook inside, with its surroundings and a time limit."""
        project = f"/{PLACE}/project"
        variables = {
            "PYTHONPATH": f"/{PLACE}/ansible",
            "ANSIBLE_CONFIG": f"{project}/ansible.cfg",
            "ANSIBLE_HOME": f"/{PLACE}/ansible-home",
            "ANSIBLE_FORCE_COLOR": "0",
            "PATH": PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
        }
        env = ["env", "-i", "-C", project, *(f"{name}={value}" for name, value in variables.items())]
        words = ["timeout", "-k", "5", str(seconds), "/usr/bin/python3", "-m", "ansible", "playbook"]
        words += ["-i", "tests/gpu/inventory", *(["--skip-tags", self.skip_tags] if self.skip_tags else [])]
        return [*boot.enter(), *env, *words]

    def play(
        self,
        name: str,
        playbook: str = "deploy-glm5.yml",
        variant: Mapping[str, Any] | None = None,
        more: Sequence[str] = (),
        timeout: float = 400,
        must: bool = True,
    ) -> Play:
        """Run a playbook; `variant` holds the variables that this and later plays differ in. Output goes to `out`."""
        if variant is not None:
            path = self.inside(f"/{PLACE}/project/tests/gpu/inventory/host_vars/gpu/variant.yml")
            seen = {"CUDA_VISIBLE_DEVICES": self.gpu} if self.gpu else {}
            environment = {**ENVIRONMENT, **seen, **variant.get("sglang_environment", {})}
            whole = {"sglang_port": self.port, "sweep_port": self.port + 5, **variant, "sglang_environment": environment}
            path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        began, log = time.monotonic(), self.out / f"{self._step}-{name}.txt"
        with log.open("w", encoding="utf-8") as stream:
            done = subprocess.run(
                [*self.ansible(timeout * self.patience), playbook, *more],
                stdout=stream,
                stderr=subprocess.STDOUT,
                check=False,
            )
        text = log.read_text(encoding="utf-8", errors="replace")
        recap = re.search(r"^gpu\s*:.*\bchanged=(\d+)", text, re.MULTILINE)
        play = Play(done.returncode, text, round(time.monotonic() - began, 1), int(recap[1]) if recap else None)
        self.say(f"  {self._step} {name}: status {play.rc}, {play.changed} changed, {play.seconds} s")
        expect(not must or play.rc == 0, f"{playbook} ended with {play.rc}:\n{text[-2500:]}")
        return play

    def verdict(self) -> dict[str, Any]:
        """The newest verdict of the instance."""
        folder = self.inside(f"/var/lib/sglang/{INSTANCE}/verdicts")
        newest = max(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, default=None)
        expect(newest, "no verdict was written")
        return json.loads(newest.read_text(encoding="utf-8"))

    def spec(self) -> dict[str, Any]:
        """The launch spec of what is deployed."""
        return json.loads(self.inside(f"/etc/sglang/{INSTANCE}/spec.json").read_text(encoding="utf-8"))

    def journal(self, lines: int = 4000) -> str:
        """The instance's log."""
        unit = f"sglang@{INSTANCE}.service"
        return self.run("journalctl", "-u", unit, "-n", str(lines), "-o", "short-iso-precise", "--no-pager", check=False)

    def wheels(self, *names: str) -> Path:
        """These wheels unpacked into one folder, for programs that run before there is a release."""
        target = self.place / "some-wheels"
        for name in names:
            (wheel,) = (self.place / "wheels").glob(f"{name}-*.whl")
            if not (target / name).exists():
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(target)
        return target
