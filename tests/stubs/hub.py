"""A small Hugging Face hub: listings, files with hashes, ranges, a second address for large files; and its faults.

It speaks what huggingface_hub and this project ask of the real one. Faults are set on the instance while it runs. As a
program, it offers the files of a folder as a model until it is stopped, and prints the commit: hub.py PORT OWNER/NAME DIR.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import sys
import threading
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

LARGE = 2000  # bytes from which on a file is kept by its SHA-256, as git-lfs does


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def commit_of(files: Mapping[str, bytes]) -> str:
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


@dataclass
class Asked:
    method: str
    path: str
    range: str | None
    token: str | None
    host: str


@dataclass
class FakeHub:
    """Commits by repository, branches, and faults.

    `token`: who has another one, or none, is refused. `gated` and `gone` name repositories and commits. `cut` maps a file to
    the bytes after which the connection breaks, once for each entry of its list. `changed` maps a file to other content that
    is sent in its place, as long as `changes` lasts. `status` makes every answer an error; `pace` is a pause in seconds for
    each block of 64 KiB. `endless`: each page of a listing of files names one more.
    """

    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    branches: dict[tuple[str, str], str] = field(default_factory=dict)
    token: str | None = None
    gated: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    cut: dict[str, list[int]] = field(default_factory=dict)
    changed: dict[str, bytes] = field(default_factory=dict)
    changes: int = 1
    status: int = 0
    pace: float = 0.0
    endless: bool = False
    asked: list[Asked] = field(default_factory=list)
    port: int = 0

    def publish(self, repo: str, files: Mapping[str, bytes], branch: str = "main") -> str:
        """A new commit on a branch; its hash."""
        commit = commit_of(files)
        self.repos.setdefault(repo, {})[commit] = dict(files)
        self.branches[repo, branch] = commit
        return commit

    def __enter__(self) -> FakeHub:
        handler = type("Bound", (_Handler,), {"hub": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fetched(self, name: str = "") -> list[Asked]:
        """The downloads of content that were asked for."""
        return [item for item in self.asked if item.method == "GET" and item.path.startswith("/cdn/") and name in item.path]


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # of a client that was killed
            super().handle()

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, parts = self.hub, urllib.parse.urlsplit(self.path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        hub.asked.append(Asked(self.command, parts.path, self.headers.get("Range"), token, self.headers.get("Host", "")))
        if hub.status:
            return self._error(hub.status, "")
        words = parts.path.strip("/").split("/")
        if words[0] == "cdn":
            return self._content(words)
        if words[:2] == ["api", "models"]:
            return self._api(words[2:], token, urllib.parse.parse_qs(parts.query))
        if len(words) > 4 and words[2] == "resolve":
            return self._resolve("/".join(words[:2]), urllib.parse.unquote(words[3]), "/".join(words[4:]), token)
        return self._error(404, "")

    def _commit(self, repo: str, revision: str, token: str | None) -> str | None:
        """The commit; None where an error was answered."""
        hub = self.hub
        if repo not in hub.repos or (hub.token and token != hub.token):
            self._error(404 if repo not in hub.repos and token else 401, "RepoNotFound")
            return None
        if repo in hub.gated:
            self._error(403, "GatedRepo")
            return None
        commit = hub.branches.get((repo, revision), revision)
        if commit not in hub.repos[repo] or commit in hub.gone:
            self._error(404, "RevisionNotFound")
            return None
        return commit

    def _api(self, words: list[str], token: str | None, query: dict[str, list[str]]) -> None:
        repo = "/".join(words[:2])
        kind, revision = (words[2], urllib.parse.unquote(words[3])) if len(words) > 3 else ("revision", "main")
        commit = self._commit(repo, revision, token)
        if commit is None:
            return None
        files = self.hub.repos[repo][commit]
        if kind == "tree":
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": blob_id(content)}
                | (
                    {"lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}}
                    if len(content) >= LARGE
                    else {}
                )
                for name, content in files.items()
            ]
            more = {"Link": f'<{self.hub.url}{self.path}>; rel="next"'} if self.hub.endless else {}
            return self._json(entries, more)
        siblings = [
            {"rfilename": name}
            | ({"size": len(content), "blobId": blob_id(content)} if "blobs" in query else {})
            | (
                {"lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}}
                if "blobs" in query and len(content) >= LARGE
                else {}
            )
            for name, content in files.items()
        ]
        return self._json({"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "private": False, "tags": []})

    def _resolve(self, repo: str, revision: str, name: str, token: str | None) -> None:
        commit = self._commit(repo, revision, token)
        if commit is None:
            return None
        name = urllib.parse.unquote(name)
        content = self.hub.repos[repo][commit].get(name)
        if content is None:
            return self._error(404, "EntryNotFound")
        if len(content) < LARGE:
            return self._send(200, content, {"X-Repo-Commit": commit, "ETag": f'"{blob_id(content)}"'})
        sha = hashlib.sha256(content).hexdigest()
        # The large files of the real hub are on other hosts, which must not be given the token.
        there = f"http://localhost:{self.hub.port}/cdn/{repo}/{commit}/{urllib.parse.quote(name)}"
        more = {"X-Repo-Commit": commit, "X-Linked-Etag": f'"{sha}"', "X-Linked-Size": str(len(content)), "Location": there}
        return self._send(302, b"", more)

    def _content(self, words: list[str]) -> None:
        repo, commit, name = "/".join(words[1:3]), words[3], urllib.parse.unquote("/".join(words[4:]))
        hub, content = self.hub, self.hub.repos["/".join(words[1:3])][words[3]][name]
        if repo in hub.repos and commit and name in hub.changed and hub.changes > 0 and self.command == "GET":
            hub.changes -= 1
            content = hub.changed[name]
        first = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        more = {"ETag": '"elsewhere"', "Accept-Ranges": "bytes"}
        if first:
            more["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        cuts = hub.cut.get(name) if self.command == "GET" else None
        self._send(206 if first else 200, content[first:], more, cuts.pop(0) if cuts else None)

    def _json(self, data: Any, more: Mapping[str, str] | None = None) -> None:
        self._send(200, json.dumps(data).encode(), {"Content-Type": "application/json", **(more or {})})

    def _error(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code} if code else {})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        body = body if cut is None else body[:cut]
        try:
            for at in range(0, len(body), 2**16):
                self.wfile.write(body[at : at + 2**16])
                if self.hub.pace:
                    time.sleep(self.hub.pace)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()


if __name__ == "__main__":
    at, name, folder = sys.argv[1:]
    with FakeHub(port=int(at)) as running:
        print(
            running.publish(name, {p.name: p.read_bytes() for p in Path(folder).iterdir() if p.name[0] != "."}), flush=True
        )
        threading.Event().wait()
