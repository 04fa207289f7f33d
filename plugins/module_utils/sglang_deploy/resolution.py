"""Ask an installed release what it makes of an argument list, without starting it.

`resolve` runs `resolution_probe` with the release's own Python in a child that is limited in time and memory. It runs on
the managed host and needs the standard library alone. SGLang decides by the chip: where the child sees no GPU and the
device is not the CPU, what it would say is not what the server would do, and the answer is "not resolvable here".
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import resolution_probe
from .instance import service_environment

TIMEOUT_S = 300.0
MEMORY_BYTES = 8 * 2**30
_POLL_S = 0.2
# What mooncake's wheel 0.3.13 links and does not bring, and how Debian and Ubuntu call it. It is the same where TCP is used.
_MOONCAKE = {"libcurl.so.4": "libcurl4", "libibverbs.so.1": "libibverbs1", "libnuma.so.1": "libnuma1"}
# Folders that the service alone may write to: what another user left in them would be in its way.
_CACHES = frozenset(service_environment("", "", "", "", "")) - {"PATH", "HF_HOME"}


@dataclass(frozen=True)
class Resolution:
    """What the release said.

    ok: `resolved` holds the fields of its arguments. refused: the release would not start with these arguments. Otherwise
    `reason` says why it cannot be told here. `log` is what SGLang logged while resolving. passing: the host's packages
    decide it, so the answer is good for once.
    """

    ok: bool
    refused: bool = False
    reason: str = ""
    resolved: Mapping[str, Any] = field(default_factory=dict)
    log: tuple[str, ...] = ()
    seconds: float = 0.0
    passing: bool = False

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


def resolve(
    python: Path,
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    timeout_s: float = TIMEOUT_S,
    memory_bytes: int = MEMORY_BYTES,
    cache: Path | None = None,
    keep: bool = True,
    identity: tuple[int, int] | None = None,
) -> Resolution:
    """Resolve `argv` (options only) by the release whose interpreter is `python`.

    Args:
        environment: the instance's variables; of the caller's own, PATH and CUDA_VISIBLE_DEVICES are kept. HOME and the
            kernel caches are replaced by a folder that is thrown away.
        timeout_s: the child is killed after this many seconds.
        memory_bytes: the child is killed when its resident memory passes this.
        cache: a directory for answers; one is used again while the interpreter, arguments, environment and the model's
            description are the same. Only certain answers are kept, and none where `keep` is False.
        identity: user and group id of the child, which may run code that came with the model; None is the caller's.

    Never raises for what the release does; everything ends in a `Resolution`.
    """
    kept = cache / f"{_key(python, argv, environment)}.json" if cache else None
    if kept is not None and (known := _read(kept)) is not None:
        return known
    started = time.monotonic()
    answer = _ask(python, argv, environment, timeout_s, memory_bytes, identity)
    answer = Resolution(**{**answer.__dict__, "seconds": round(time.monotonic() - started, 1)})
    if kept is not None and keep and (answer.ok or answer.refused) and not answer.passing:
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(answer.as_dict()), encoding="utf-8")
        partial.replace(kept)
    return answer


def _read(path: Path) -> Resolution | None:
    """An answer that was kept; None where there is none that can be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Resolution(**{**data, "log": tuple(data["log"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _ask(
    python: Path,
    argv: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
    memory_bytes: int,
    identity: tuple[int, int] | None,
) -> Resolution:
    if not os.access(python, os.X_OK):
        return Resolution(False, reason=f"{python} cannot be run; is the release built?")
    with tempfile.TemporaryDirectory(prefix="sglang-plan-") as work:
        target, said = Path(work, "answer.json"), Path(work, "output")
        user, group = identity or (None, None)
        if identity is not None:
            os.chown(work, *identity)
        with said.open("wb") as output:
            child = subprocess.Popen(
                [str(python), "-c", inspect.getsource(resolution_probe), str(target)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(environment, work),
                cwd=work,
                start_new_session=True,
                user=user,
                group=group,
                extra_groups=() if identity is not None else None,
            )
            stopped = _wait(child, json.dumps(list(argv)).encode(), timeout_s, memory_bytes)
        if stopped:
            return Resolution(False, reason=stopped)
        if not target.is_file():
            lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = lines[-1] if lines else "it said nothing"
            return Resolution(False, reason=f"the release's Python ended with status {child.returncode}: {last}")
        return judge(json.loads(target.read_text(encoding="utf-8")), argv)


def _environment(environment: Mapping[str, str], work: str) -> dict[str, str]:
    """The child's variables: the instance's, with its own folders for caches, and without a network."""
    own = {name: os.environ[name] for name in ("PATH", "CUDA_VISIBLE_DEVICES", "LANG") if name in os.environ}
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME') or os.environ.get('HOME', '')}/.cache"
    # A model that is not on this host must not be downloaded for a plan; one that the server has fetched is found.
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_MODULES_CACHE": f"{work}/modules"}
    moved = {name: f"{work}/{name.lower()}" for name in _CACHES}
    return {**own, "HF_HOME": f"{cache}/huggingface", **environment, **offline, **moved}


def _wait(child: subprocess.Popen[bytes], given: bytes, timeout_s: float, memory_bytes: int) -> str | None:
    """Feed the child and wait; the reason where it had to be killed."""
    deadline = time.monotonic() + timeout_s
    try:
        if child.stdin is not None:
            with child.stdin as pipe:
                pipe.write(given)
    except BrokenPipeError:
        pass  # it ended before it read; its status tells
    try:
        while child.poll() is None:
            if time.monotonic() > deadline:
                return f"SGLang did not answer within {timeout_s:.0f} s"
            used = _resident_bytes(child.pid)
            if used > memory_bytes:
                return f"SGLang used {used / 2**30:.1f} GiB of memory to resolve; {memory_bytes / 2**30:.1f} are allowed"
            time.sleep(_POLL_S)
        return None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0  # it ended between two looks
    return pages * os.sysconf("SC_PAGE_SIZE")


def judge(report: Mapping[str, Any], argv: Sequence[str]) -> Resolution:
    """What a probe's report is worth."""
    log = tuple(report.get("log") or ())
    error, kind, stage = report.get("error"), report.get("error_type"), report.get("stage")
    if stage == "import":
        return Resolution(False, reason=f"the release cannot be imported: {kind}: {error}", log=log)
    if kind == "SystemExit":  # argparse's own answer does not depend on the chip
        return Resolution(False, refused=True, reason=str(error), log=log)
    resolved = report.get("resolved") or {}
    device = resolved.get("device") or _device(argv)
    if not report.get("gpu") and device != "cpu":
        told = f" (it said {kind}: {error})" if error else ""
        return Resolution(False, reason=f"no GPU is visible, and SGLang decides by the chip{told}", log=log)
    if error:
        return Resolution(False, refused=kind in ("ValueError", "AssertionError"), reason=f"{kind}: {error}", log=log)
    if missing := report.get("transfer"):
        return Resolution(False, refused=True, reason=_no_transfer(**missing), log=log, passing=True)
    return Resolution(True, resolved=resolved, log=log)


def _no_transfer(backend: str, error: str) -> str:
    """What to do where the release cannot import what moves the KV cache."""
    if found := re.match(r"(lib\S+?\.so\S*): cannot open shared object file", error):
        known = f"apt install {' '.join(_MOONCAKE.values())}"
        cure = f"the host lacks {found[1]}: {known if found[1] in _MOONCAKE else 'install the package that has it'}"
    else:
        cure = f"add the package of {backend} to the requirements of the stack, as in docs/several-hosts.md"
    return f"disaggregation_transfer_backend {backend} cannot be imported ({error}); {cure}"


def _device(argv: Sequence[str]) -> str | None:
    words = [word for argument in argv for word in argument.split("=", 1)]
    return words[words.index("--device") + 1] if "--device" in words[:-1] else None


def _key(python: Path, argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Everything that decides the answer: interpreter, arguments, environment, what describes the model."""
    at = next((index for index, word in enumerate(argv[:-1]) if word in ("--model-path", "--model")), None)
    files = [] if at is None else [Path(argv[at + 1], name) for name in ("config.json", "hf_quant_config.json")]
    content = b"".join(path.read_bytes() for path in files if path.is_file())
    # Not resolved: the interpreter of every release is a link to the same one of the host.
    deciding = [str(python.absolute()), list(argv), dict(environment), hashlib.sha256(content).hexdigest()]
    deciding.append(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:24]
