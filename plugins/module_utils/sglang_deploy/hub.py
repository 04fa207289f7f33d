"""Models of the Hugging Face hub: their names, where they lie on a host, and what the hub says of a revision.

Only two addresses of the hub's HTTP interface are used here, the listing of a revision and one small file, so that
config.json can be read before anything is built or downloaded. The download itself is left to the library
huggingface_hub (`hub_worker`), in whose own cache layout a model lies: https://huggingface.co/docs/hub/local-cache.
Standard library only; runs on the managed host, and its names on the controller too.
"""

from __future__ import annotations

import http.client
import queue
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from .jsonfile import parse
from .release_uv import Index

ENDPOINT = "https://huggingface.co"
ROOT = "/srv/models"
_PINNED = re.compile(r"[0-9a-f]{40}")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_FILE_LIMIT = 256 * 2**20  # the index of the largest models has some 30 MB
_TRIES = 4
_TIMEOUT_S = 30  # between two pieces of an answer
_WHOLE_S = 600  # for a whole answer and all tries; the largest index comes in that at 50 kB/s


class HubError(Exception):
    """A model cannot be had from the hub. The message says what was asked, what came back and what to write instead."""


@dataclass(frozen=True)
class Served:
    """What a server is told of its model.

    `path` is its directory or hub name, `revision` what `--revision` gets (None: nothing), `name` what the model is called
    by its publisher; `settings` and `environment` are defaults that any layer of the user's may replace.
    """

    path: str
    revision: str | None
    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Remote:
    """One file of a revision: its size in bytes, and its SHA-256 (large files) or git blob id (small ones)."""

    name: str
    size: int
    sha256: str | None
    blob_id: str | None

    @property
    def digest(self) -> str:
        """What names the file's content, and the file in the cache."""
        return self.sha256 or self.blob_id or ""


@dataclass(frozen=True)
class Listing:
    """A revision as the hub knows it: the commit, and its files."""

    repo: str
    commit: str
    files: tuple[Remote, ...]


def is_pinned(revision: str) -> bool:
    """Whether a revision is a whole commit hash, which never means anything else later."""
    return _PINNED.fullmatch(revision) is not None


def check_repo(repo: str) -> None:
    """HubError where this is no name of a model on the hub."""
    if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo:
        where = (
            "it is a path; for a directory on the host write sglang_model_source: local"
            if repo.startswith(("/", "~", "."))
            else "write it as OWNER/NAME, such as lukealonso/GLM-5-NVFP4"
        )
        raise HubError(f"sglang_model: {repo!r} is no model of the Hugging Face hub; {where}.")


def repo_folder(root: str, repo: str) -> str:
    """The folder that keeps all revisions of a model, by the layout of huggingface_hub's cache."""
    return f"{root.rstrip('/')}/models--{repo.replace('/', '--')}"


def serve(source: str, model: str, revision: str, root: str) -> Served:
    """What the server is told of a model from `source` (local, tiny, server, hub). HubError for a name that is none.

    From `hub` it gets the directory of the pinned revision and asks nobody for more: HF_HUB_OFFLINE also keeps it from
    code in a repository that the pin does not cover. An unpinned revision is refused by `listing_of`, which can say what
    to write.
    """
    if source != "hub":
        return Served(model, revision or None, model)
    check_repo(model)
    return Served(
        f"{repo_folder(root, model)}/snapshots/{revision or 'main'}",
        None,
        model,
        settings={"served_model_name": model},
        environment={"HF_HUB_OFFLINE": "1"},
    )


def transport(index: Mapping[str, Any]) -> dict[str, str]:
    """Proxies and certificates of the package index (`sglang_index`) as the variables that urllib and httpx read."""
    found = Index.from_mapping({key: value for key, value in index.items() if key in ("proxies", "ca_bundle")})
    variables = {"SSL_CERT_FILE": found.ca_bundle} if found.ca_bundle else {}
    for scheme, value in found.proxies:
        name = "no_proxy" if scheme == "no" else f"{scheme}_proxy"
        variables |= {name: value, name.upper(): value}
    return variables


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, the 308 of renamed models too, and gives the token to the hub alone."""

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302  # Python 3.10 has none

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        found = super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)
        if found is not None and _origin(newurl) != _origin(req.full_url):
            found.remove_header("Authorization")
        return found


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc


class Hub:
    """Asks one hub. Proxies and certificates come from os.environ.

    `pause` is the first wait in seconds between tries, `whole` the seconds that an answer may take with all of them.
    """

    def __init__(self, endpoint: str = "", token: str = "", *, pause: float = 1.0, whole: float = _WHOLE_S) -> None:
        self.endpoint = (endpoint or ENDPOINT).rstrip("/")
        self._token, self._pause, self._whole = token, pause, whole
        self._opener = urllib.request.build_opener(_Redirects)

    def listing(self, repo: str, revision: str) -> Listing:
        """The files of a revision; a branch or tag is resolved to its commit."""
        at = urllib.parse.quote(revision or "main", safe="")
        content = self._get(f"/api/models/{repo}/revision/{at}?blobs=true", repo, revision)
        try:
            data = parse(content.decode("utf-8", errors="replace"))
            return Listing(repo, str(data["sha"]), tuple(_remote(entry) for entry in data["siblings"]))
        except (KeyError, TypeError, ValueError) as error:
            raise HubError(
                f"{self.endpoint} answers for {repo}, but not as the Hugging Face hub does ({error!r}). "
                "Check model_weights_hub_endpoint."
            ) from error

    def text(self, listing: Listing, name: str) -> str:
        """The content of a small file of a revision."""
        path = f"/{listing.repo}/resolve/{listing.commit}/{urllib.parse.quote(name)}"
        return self._get(path, listing.repo, listing.commit).decode("utf-8", errors="replace")

    def _get(self, path: str, repo: str, revision: str) -> bytes:
        """The answer to `path`. HubError for every other end, that of the time for a whole answer included."""
        came: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

        def ask() -> None:
            try:
                came.put(self._tried(path, repo, revision))
            except Exception as error:  # raised below, by the thread that waits
                came.put(error)

        # A thread, since urllib's limit starts anew with each byte; one that is given up ends with the process.
        threading.Thread(target=ask, daemon=True).start()
        try:
            found = came.get(timeout=self._whole)
        except queue.Empty:
            raise HubError(unreachable(self.endpoint, f"no whole answer to {path} in {self._whole:.0f} s")) from None
        if isinstance(found, Exception):
            raise found
        return found

    def _tried(self, path: str, repo: str, revision: str) -> bytes:
        request = urllib.request.Request(self.endpoint + path, headers={"User-Agent": "sglang-deploy"})  # noqa: S310
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        for left in reversed(range(_TRIES)):
            try:
                with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                    content: bytes = answer.read(_FILE_LIMIT + 1)
                if len(content) > _FILE_LIMIT:
                    raise HubError(f"{self.endpoint}{path} is larger than {_FILE_LIMIT // 2**20} MiB; it is no small file.")
                return content
            except urllib.error.HTTPError as error:
                if not left or (error.code not in (408, 429) and error.code < 500):
                    raise HubError(self._refusal(error, repo, revision)) from error
            except (OSError, http.client.HTTPException) as error:
                if not left:
                    reason = getattr(error, "reason", None) or error
                    raise HubError(unreachable(self.endpoint, str(reason))) from error
            time.sleep(self._pause * 2 ** (_TRIES - 1 - left))
        raise AssertionError("the last try returns or raises")

    def _refusal(self, error: urllib.error.HTTPError, repo: str, revision: str) -> str:
        said = error.headers.get("X-Error-Code") or ""
        head = ""
        if error.code == 404 and said == "RevisionNotFound" and revision != "main":
            try:
                head = self.listing(repo, "main").commit
            except HubError:
                head = ""  # the first refusal is the one to tell
        return refusal(self.endpoint, repo, revision, error.code, said, token=bool(self._token), head=head)


def _remote(entry: Mapping[str, Any]) -> Remote:
    large = entry.get("lfs") or {}
    size = large.get("size", entry["size"])
    return Remote(str(entry["rfilename"]), int(size), large.get("sha256"), entry.get("blobId"))


def unreachable(endpoint: str, reason: str) -> str:
    """The message for a hub that does not answer."""
    return (
        f"{endpoint} cannot be reached from this host: {reason}. Give a proxy or certificates in sglang_index, a mirror in "
        "model_weights_hub_endpoint, or copy the model to the host and write sglang_model_source: local."
    )


def refusal(endpoint: str, repo: str, revision: str, status: int, code: str, *, token: bool, head: str = "") -> str:
    """The message for an answer of the hub that is an error; `code` is its X-Error-Code.

    The hub answers 401 for a model that does not exist, too, when nobody is logged in.
    """
    asked = f"{endpoint} answers {status}{f' ({code})' if code else ''} for {repo}"
    if code == "GatedRepo" or status == 403:
        return (
            f"{asked}: access to it has to be granted first. Accept its terms on the hub with an account, and give a token "
            "of that account in model_weights_hub_token."
        )
    if status == 401 and token:
        return f"{asked}: it does not accept the token. Check model_weights_hub_token, and that it may read {repo}."
    if status == 401:
        return (
            f"{asked}: there is no such model, or it is private. Check sglang_model; for a private one give a token in "
            "model_weights_hub_token."
        )
    if status == 404 and code == "RevisionNotFound":
        now = f" Its main branch stands at {head}." if head else ""
        return f"{asked}: it has no revision {revision} (any more). Check sglang_model_revision.{now}"
    if status == 404:
        return f"{asked}: there is no such model. Check sglang_model."
    if status == 429:
        return f"{asked}: too many requests. Wait, or give a token in model_weights_hub_token."
    return f"{asked}. Try again later."


def listing_of(hub: Hub, repo: str, revision: str) -> Listing:
    """The listing of a pinned revision. HubError where it is not pinned, with the commit that it stands for now."""
    check_repo(repo)
    found = hub.listing(repo, revision)
    if not is_pinned(revision):
        asked = f"{revision} is no commit" if revision else "no revision is given"
        raise HubError(
            f"sglang_model_revision: {asked}, and what a branch or tag means can change between two deployments. "
            f"{revision or 'main'} of {repo} stands at this commit now; write\n  sglang_model_revision: {found.commit}"
        )
    if found.commit != revision:
        raise HubError(f"{hub.endpoint} gives {found.commit} for revision {revision} of {repo}. Do not use this hub.")
    return found
