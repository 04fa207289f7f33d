"""Downloads one revision with huggingface_hub, checks every file by its hash and writes the receipt.

Runs by itself with a release's own Python, which has the library; `hub_fetch` starts it and reads what it writes. The
request comes as JSON on standard input, with the token in it: neither arguments nor environment hold it. Files are
fetched again once where a hash is wrong.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

BLOCK = 2**22
TRIES = 5
STREAMS = 8  # files at a time, as many as snapshot_download takes
RESERVE = 2**16  # bytes kept for the last word on a disk that is full
STALE_S = 60  # a file that is being downloaded was written to more recently than this


class Damaged(Exception):
    """Files that are not what the hub says; `names` tells which."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(", ".join(names))
        self.names = names


def write(path: str, data: object) -> None:
    """A JSON file, there at once or not at all."""
    partial = f"{path}.new"
    Path(partial).write_text(json.dumps(data), encoding="utf-8")
    Path(partial).replace(path)


def digest_of(path: Path, entry: dict[str, Any], count: Any) -> str:
    """The SHA-256 of a large file or the git blob id of a small one; `count` is told of bytes as they are read."""
    sha: Any = hashlib.sha256() if entry["sha256"] else hashlib.sha1(b"blob %d\0" % path.stat().st_size)  # noqa: S324
    buffer = bytearray(BLOCK)
    with path.open("rb", buffering=0) as handle:
        while size := handle.readinto(buffer):
            sha.update(memoryview(buffer)[:size])
            count(size)
    return str(sha.hexdigest())


def digest_named(entry: dict[str, Any]) -> str:
    """What names the content: the file's name in the cache, too."""
    return str(entry["sha256"] or entry["blob_id"])


def drop_leftovers(request: dict[str, Any]) -> None:
    """Remove parts of files that a killed download left and no other can go on with."""
    # Newer versions of the library write <hash>.<random>.incomplete and start over; older ones go on with <hash>.incomplete.
    for entry in request["files"]:
        for path in Path(request["blobs"]).glob(f"{digest_named(entry)}.*.incomplete"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > STALE_S:
                    path.unlink()


def fetch(request: dict[str, Any]) -> None:
    """Download what is missing; what breaks off is gone on with, a few times.

    File by file, since the library's snapshot_download first asks for a listing, whose pages have no end if the hub gives
    none, and the files are known here.
    """
    import httpx  # type: ignore[import-not-found]  # of the release
    import huggingface_hub  # type: ignore[import-not-found]  # of the release

    def one(entry: dict[str, Any]) -> None:
        huggingface_hub.hf_hub_download(
            request["repo"],
            entry["name"],
            revision=request["revision"],
            cache_dir=request["root"],
            endpoint=request["endpoint"],
            token=request["token"] or False,
        )

    for left in reversed(range(TRIES)):
        try:
            with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
                list(pool.map(one, request["files"]))
            return
        except (httpx.TransportError, OSError) as error:
            # where the hub cannot be asked, the library says that nothing is in the cache; the reason is the cause
            cause = (error.__cause__ or error) if type(error).__name__ == "LocalEntryNotFoundError" else error
            status = getattr(getattr(cause, "response", None), "status_code", 0)
            refused = status and status < 500 and status not in (408, 429)
            if refused or getattr(cause, "errno", None) or not left:
                raise cause from None
            print(f"going on after: {error!r}", file=sys.stderr)
            time.sleep(request["pause"] * 2 ** (TRIES - 1 - left))


def verify(request: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Read every file and compare; the receipt's files. Damaged where one is not what it should be, and then it is gone."""
    snapshot, known = Path(request["snapshot"]), request["known"]
    state |= {"phase": "checking", "checked": 0}
    lock, written = threading.Lock(), [time.monotonic()]

    def count(size: int) -> None:
        with lock:
            state["checked"] += size
            if time.monotonic() - written[0] > 1:
                written[0] = time.monotonic()
                write(request["state"], state)

    def check(entry: dict[str, Any]) -> dict[str, Any] | None:
        path = snapshot / entry["name"]
        try:
            status = path.stat()
            found = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "digest": digest_named(entry)}
            if known.get(entry["name"]) == found:
                count(status.st_size)
                return found
            if status.st_size == entry["size"] and digest_of(path, entry, count) == found["digest"]:
                return found
        except FileNotFoundError:
            return None
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        return None

    write(request["state"], state)
    with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        results = dict(zip((entry["name"] for entry in request["files"]), pool.map(check, request["files"]), strict=True))
    if damaged := [name for name, found in results.items() if found is None]:
        raise Damaged(damaged)
    return results


def run(request: dict[str, Any], state: dict[str, Any]) -> None:
    """Fetch and verify, a second time where a hash was wrong, and write the receipt."""
    drop_leftovers(request)
    for again in (True, False):
        state |= {"phase": "fetching"}
        write(request["state"], state)
        fetch(request)
        try:
            files = verify(request, state)
            break
        except Damaged as error:
            if not again:
                raise
            print(f"fetched again, for their hash is wrong: {error}", file=sys.stderr)
            state["again"] = error.names
    receipt = {name: request[name] for name in ("repo", "revision", "endpoint")}
    write(request["receipt"], {**receipt, "files": files, "checked_at": int(time.time())})


def main() -> int:
    """Work one request off; the state file tells the end, whatever it is."""
    request = json.load(sys.stdin)
    os.umask(0o022)  # the service's user only reads
    state: dict[str, Any] = {"run": request["run"], "pid": os.getpid(), "phase": "fetching", "checked": 0, "again": []}
    reserve = Path(request["state"]).with_suffix(".reserve")
    try:
        reserve.write_bytes(b"\0" * RESERVE)
        run(request, state)
        state["phase"] = "done"
    except BaseException as error:
        reserve.unlink(missing_ok=True)
        response = getattr(error, "response", None)
        said = "".join(traceback.format_exception(error))
        hidden = request["token"]
        with contextlib.suppress(OSError):  # the log's disk is full
            print(said.replace(hidden, "***") if hidden else said, file=sys.stderr, flush=True)
        text = f"{type(error).__name__}: {error}"
        state |= {
            "phase": "failed",
            "error": text.replace(hidden, "***") if hidden else text,
            "errno": getattr(error, "errno", None),
            "status": getattr(response, "status_code", None),
            "code": response.headers.get("X-Error-Code", "") if response is not None else "",
            "damaged": error.names if isinstance(error, Damaged) else [],
        }
    write(request["state"], state)
    reserve.unlink(missing_ok=True)
    return 0 if state["phase"] == "done" else 1


if __name__ == "__main__":
    sys.exit(main())
