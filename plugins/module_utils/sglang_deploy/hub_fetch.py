"""Gets a model from the hub: starts the download on the host, or joins one that runs, and follows it.

The download is a process of its own that outlives a lost connection and a controller that is stopped; a lock that it
holds keeps a second one from starting. Standard library only; runs on the managed host.
"""

from __future__ import annotations

import errno
import fcntl
import inspect
import json
import os
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import hub_worker, model_dir
from .hub import Hub, HubError, refusal, unreachable
from .hub_store import Place, check_space, is_whole, missing, read_receipt, required, write

_POLL_S = 0.5


@dataclass(frozen=True)
class Wanted:
    """What is to be fetched, and how.

    `python` is that of a release with huggingface_hub; `environment` holds further variables of the download (proxies,
    certificates, HF_*); `pause` is its first wait in seconds after an error.
    """

    place: Place
    endpoint: str
    token: str
    python: str
    environment: Mapping[str, str]
    pause: float = 2.0


def step(wanted: Wanted, state: Mapping[str, Any], until: float) -> dict[str, Any]:
    """Start or join the download in the first call (`state` is empty), follow it for `until` seconds in each.

    Returns the state for the next call: `outcome` is "" while it runs, "whole" (nothing had to be done), "done" or "failed"
    with the `reason`; `phase`, `done`, `total` in bytes and `rate` in bytes per second tell how far it is.
    """
    now = dict(state) or _begin(wanted)
    deadline = time.monotonic() + until
    while not now["outcome"] and time.monotonic() < deadline:
        time.sleep(min(_POLL_S, until))
        now = _look(wanted, now)
    return now


def _begin(wanted: Wanted) -> dict[str, Any]:
    place = wanted.place
    state: dict[str, Any] = {
        "run": uuid.uuid4().hex,
        "joined": False,
        "started": time.time(),
        "outcome": "",
        "reason": "",
        "phase": "fetching",
        "again": [],
        "samples": [],
    }
    if is_whole(place, read_receipt(place)):
        return {**state, "outcome": "whole", "phase": "done", "done": 0, "total": 0, "rate": 0.0}
    hub = Hub(wanted.endpoint, wanted.token)
    _, files, _ = required(hub, place)
    check_space(place, missing(place, files))
    state["files"] = [[entry.digest, entry.size] for entry in files]
    state |= {"total": sum(entry.size for entry in files), "done": _fetched(place, state["files"]), "rate": 0.0}
    if not Path(wanted.python).exists():
        raise HubError(f"{wanted.python} does not exist. The release brings the library for downloads; build it first.")
    before = os.umask(0o022)  # the service's user only reads
    for folder in (place.snapshot.parent, place.blobs, place.record("lock").parent):
        folder.mkdir(parents=True, exist_ok=True)
    os.umask(before)
    place.record("log").touch(mode=0o600)  # it may hold addresses that are signed for a while
    with place.record("lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return {**state, "joined": True}
        request = {
            "run": state["run"],
            "root": place.root,
            "repo": place.repo,
            "revision": place.revision,
            "endpoint": hub.endpoint,
            "token": wanted.token,
            "snapshot": str(place.snapshot),
            "blobs": str(place.blobs),
            "state": str(place.record("state")),
            "receipt": str(place.record("receipt")),
            "known": read_receipt(place).get("files", {}),
            "pause": wanted.pause,
            "files": [asdict(entry) for entry in files],
        }
        _start(wanted, request, lock.fileno())
    return state


def _start(wanted: Wanted, request: Mapping[str, Any], lock: int) -> None:
    """Start the worker in a session of its own; it holds the lock as long as it lives."""
    home = wanted.place.record("lock").parent
    own = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR")}
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    hub = {
        "HOME": str(home),
        "HF_HOME": str(home / "home"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    }
    write(wanted.place.record("state"), {"run": request["run"], "phase": "fetching", "checked": 0, "again": []})
    with wanted.place.record("log").open("wb") as log:
        worker = subprocess.Popen(
            [wanted.python, "-c", inspect.getsource(hub_worker)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**own, **proxies, **hub, **wanted.environment},
            cwd=home,
            start_new_session=True,
            pass_fds=(lock,),
        )
    try:
        if worker.stdin is not None:
            with worker.stdin as pipe:
                pipe.write(json.dumps(request).encode())
    except BrokenPipeError:
        pass  # it ended before it read; its log tells


def _fetched(place: Place, files: list[list[Any]]) -> int:
    """Bytes of the wanted files on disk, parts included; what was allocated beyond a file's size does not count."""
    count = 0
    for digest, size in dict(files).items():
        try:
            whole = (place.blobs / digest).stat().st_size
        except OSError:
            parts = [*place.blobs.glob(f"{digest}.incomplete"), *place.blobs.glob(f"{digest}.*.incomplete")]
            whole = max((_allocated(part) for part in parts), default=0)
        count += min(size, whole)
    return count


def _allocated(path: Path) -> int:
    try:
        status = path.stat()
    except OSError:
        return 0  # it has just become whole
    return min(status.st_size, status.st_blocks * 512)


def _look(wanted: Wanted, state: Mapping[str, Any]) -> dict[str, Any]:
    """The state after one look at what the worker has written, its lock, and the disk."""
    place = wanted.place
    ended = not _locked(place)  # before its last word is read, so that this is not missed
    try:
        told = json.loads(place.record("state").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        told = {}
    ours = state["joined"] or told.get("run") == state["run"]
    phase = told.get("phase", "fetching") if ours else "fetching"
    done = told.get("checked", 0) if phase == "checking" else _fetched(place, state["files"])
    new = {**state, "phase": phase, "done": done, "again": told.get("again", []) if ours else []}
    samples = state["samples"] if phase == state["phase"] else []
    new["samples"] = [*samples, [time.time(), done]][-60:]
    (first, before), (last, after) = new["samples"][0], new["samples"][-1]
    new["rate"] = max(0.0, (after - before) / (last - first)) if last - first > 1 else state["rate"]
    if not ended:
        return new
    if phase == "done":
        return {**new, "outcome": "done", **_finish(place)}
    return {**new, "outcome": "failed", "reason": _why(wanted, told)}


def _locked(place: Place) -> bool:
    try:
        with place.record("lock").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _finish(place: Place) -> dict[str, str]:
    """Reads what the model is, once, into the receipt; the outcome where it cannot be served."""
    try:
        model = model_dir.inspect(place.snapshot).as_dict()
    except model_dir.ModelDirError as error:
        return {"outcome": "failed", "reason": str(error)}
    write(place.record("receipt"), {**read_receipt(place), "model": model})
    return {}


def _why(wanted: Wanted, told: Mapping[str, Any]) -> str:
    """Why the worker failed, and what to do; it can be run again in every case, and goes on with what is there."""
    place = wanted.place
    log = place.record("log")
    if told.get("damaged"):
        return (
            f"{', '.join(told['damaged'])} of {place.repo} came twice with another content than the hub's hash says, and "
            f"was removed. A proxy or mirror between changes it, or this host's memory or disk does. The log is {log}."
        )
    if told.get("errno") in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"The disk of {place.root} is full. Free space there, or set model_weights_root to a larger one; what is "
            "downloaded already is kept, and the next run goes on with it."
        )
    if told.get("status"):
        given = bool(wanted.token)
        return refusal(wanted.endpoint, place.repo, place.revision, told["status"], told.get("code", ""), token=given)
    if told.get("error", "").startswith(("ConnectError", "ConnectTimeout", "ReadTimeout", "ProxyError")):
        return unreachable(wanted.endpoint, told["error"])
    if told.get("error"):
        return f"The download of {place.repo} has failed: {told['error']}. Run again to go on; the log is {log}."
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    last = f" Its last line: {lines[-1]}." if lines else ""
    return f"The download of {place.repo} ended without a word: it was killed.{last} Run again to go on; the log is {log}."
