"""SGLang's source from a git repository: which commit a ref is, its tree with submodules, and local patches on it.

Commits are kept in a bare repository per URL under the cache folder, so that a second ref fetches only what differs.
git is run without the host's configuration, without questions, and with credentials in its environment only: never in
an argument, a file or a message.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .names import nearest
from .release_host import ReleaseError
from .release_uv import Index, without_credentials, without_secrets

UPSTREAM = "https://github.com/sgl-project/sglang.git"
DEFAULT_CACHE = "/var/cache/sglang/git"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_VERSION = re.compile(r"\d+(\.\d+)+((\.post|\.dev|rc|a|b)\d+)?")
# A file, since git does not hand settings of the environment on to the process that reads a local repository.
_CONFIG = """\
[core]
	hooksPath = /dev/null
[safe]
	directory = *
[http]
	lowSpeedLimit = 1000
	lowSpeedTime = 60
[gc]
	auto = 0
[user]
	name = sglang-deploy
	email = sglang-deploy@localhost
"""


@dataclass(frozen=True)
class Patch:
    """A local patch: its file's name, for messages, and its text in the form of ``git diff``."""

    name: str
    text: str = field(repr=False)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class Repository:
    """A repository: its URL (which may hold user and password), how it is reached and where its commits are kept."""

    url: str = field(repr=False)
    index: Index = field(default_factory=Index)
    cache: str = DEFAULT_CACHE

    @property
    def clean_url(self) -> str:
        """The URL without credentials; a user of ssh is none."""
        return without_credentials(self.url) if self.url.startswith("http") else self.url

    @property
    def local(self) -> bool:
        """Whether it lies on this host."""
        return self.url.startswith(("/", "file://"))

    @property
    def mirror(self) -> Path:
        """The bare repository in the cache."""
        return Path(self.cache) / f"{hashlib.sha256(self.clean_url.encode()).hexdigest()[:16]}.git"


@dataclass(frozen=True)
class Resolved:
    """What a ref is now: the commit, the full name to fetch it by, and the version tags that the repository has."""

    commit: str
    name: str
    tags: Mapping[str, str] = field(default_factory=dict, repr=False)


def version_of(ref: str) -> str | None:
    """The release number that a tag such as ``v0.5.9`` stands for; None for a branch, a commit or a pull request."""
    found = _VERSION.fullmatch(ref.removeprefix("refs/tags/").removeprefix("v"))
    return found[0] if found else None


def base_version(ref: str, stated: str | None, resolved: Resolved) -> str:
    """The release number that a build is named after.

    That of a tag on the commit, else ``stated`` (the stack's), else ``.dev0`` of the release after the newest tag.
    """
    on_commit = [
        version for tag, commit in resolved.tags.items() if commit == resolved.commit and (version := version_of(tag))
    ]
    if version := version_of(ref) or next(iter(on_commit), None) or stated:
        return version
    numbers = [tuple(map(int, tag[1:].split("."))) for tag in resolved.tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag)]
    if not numbers:
        return "0.dev0"
    *head, last = max(numbers)
    return ".".join(map(str, (*head, last + 1))) + ".dev0"


# First match wins: git's wording -> what to do.
_CURES = (
    (r"detected dubious ownership", "The repository belongs to another user: give it to root, or name it by another URL."),
    (
        r"could not read (Username|Password)|Authentication failed|error: 40[13]|HTTP 40[13]|Permission denied \(publickey",
        "The server wants credentials or refused them: put user:token@ before the host in sglang_git_url, from a vault.",
    ),
    (r"Host key verification", "The server's ssh key is not known to root on this host: add it to /root/.ssh/known_hosts."),
    (
        r"certificate|SSL",
        "The server's certificate is not trusted: give the CA file as ca_bundle in sglang_index.",
    ),
    (
        r"Could not resolve|Failed to connect|Connection (refused|timed out|reset)|transfer rate|Network is unreachable|407",
        "The server cannot be reached from this host: check sglang_git_url and the proxies in sglang_index.",
    ),
    (
        r"not found|does not exist|does not appear to be a git repository|error: 404",
        "There is no such repository for this user: check sglang_git_url.",
    ),
    (r"No space left", "The disk is full: free space under the cache folder."),
)


def _environment(repository: Repository, config: str) -> dict[str, str]:
    index = repository.index
    env = index.environment(same_filesystem=True)
    env = {name: value for name, value in env.items() if not name.startswith("UV_")}
    env |= {
        "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh" if repository.local else "git:http:https:ssh",
        "GIT_ASKPASS": "true",
        "GIT_CONFIG_GLOBAL": config,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    for scheme, value in index.proxies:
        env["no_proxy" if scheme == "no" else f"{scheme}_proxy"] = value  # curl reads http_proxy in small letters only
    if index.ca_bundle:
        env["GIT_SSL_CAINFO"] = index.ca_bundle
    parts = urlsplit(repository.url)
    if parts.scheme in ("http", "https") and parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        host = parts.netloc.rpartition("@")[2]
        env |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"http.{parts.scheme}://{host}/.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {base64.b64encode(pair.encode()).decode()}",
        }
    return env


class _GitError(ReleaseError):
    """git failed; ``said`` is its error output."""

    def __init__(self, step: str, said: str) -> None:
        self.said = said
        words = "\n".join(without_secrets(line) for line in said.strip().splitlines()[-8:])
        cure = next((advice for pattern, advice in _CURES if re.search(pattern, said, re.IGNORECASE)), "")
        super().__init__("\n".join(part for part in (f"{step} failed. git says:", words, cure) if part))


def _git(
    repository: Repository, arguments: Sequence[str], *, step: str, cwd: Path | None = None, text: str | None = None
) -> str:
    """Run git and return its output."""
    with tempfile.NamedTemporaryFile("w", prefix="sglang-", suffix=".gitconfig", encoding="utf-8") as config:
        config.write(_CONFIG)
        config.flush()
        try:
            done = subprocess.run(
                ["git", *arguments],
                env=_environment(repository, config.name),
                cwd=cwd or "/",
                input=text,
                stdin=subprocess.DEVNULL if text is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        except FileNotFoundError as error:
            raise ReleaseError("git is not installed on this host: apt install git.") from error
    if done.returncode != 0:
        raise _GitError(step, done.stderr or done.stdout or f"status {done.returncode}, without a word")
    return done.stdout


def _ls_remote(repository: Repository, *options: str, patterns: Sequence[str] = ()) -> dict[str, str]:
    """Full ref name to commit; an annotated tag counts as the commit that it stands on."""
    said = _git(
        repository,
        ["ls-remote", *options, "--", repository.clean_url, *patterns],
        step=f"Asking {repository.clean_url} for its refs",
    )
    found: dict[str, str] = {}
    for line in said.splitlines():
        commit, _, name = line.partition("\t")
        if _COMMIT.fullmatch(commit):
            found[name.removesuffix("^{}")] = commit  # the line of the commit follows that of the tag object
    return found


def resolve(repository: Repository, ref: str) -> Resolved:
    """Which commit ``ref`` is: a branch, a tag, ``pull/N/head``, a full ref name, HEAD, or all 40 digits of a commit.

    Asks the server, but for a commit that is in the cache. ReleaseError names the nearest known names.
    """
    if _COMMIT.fullmatch(ref):
        return Resolved(ref, ref)
    if repository.index.offline and not repository.local:
        raise ReleaseError(
            f"sglang_index is offline, and which commit {ref} is, only {repository.clean_url} knows: set sglang_ref to "
            "all 40 digits of a commit that was fetched before, or sglang_git_url to a repository on this host."
        )
    known = _ls_remote(repository, "--heads", "--tags")
    tags = {name.removeprefix("refs/tags/"): commit for name, commit in known.items() if name.startswith("refs/tags/")}
    if ref.startswith(("pull/", "refs/")) or ref == "HEAD":
        name = ref if ref.startswith("refs/") or ref == "HEAD" else f"refs/{ref}"
        commit = known.get(name) or _ls_remote(repository, patterns=[name]).get(name)
        if commit:
            return Resolved(commit, name, tags)
        raise ReleaseError(f"{repository.clean_url} has no {name}: check sglang_ref (a pull request is pull/NUMBER/head).")
    names = [name for name in (f"refs/tags/{ref}", f"refs/heads/{ref}") if name in known]
    if len({known[name] for name in names}) > 1:
        raise ReleaseError(f"{ref} is both a tag and a branch of {repository.clean_url}: write {names[0]} or {names[1]}.")
    if names:
        return Resolved(known[names[0]], names[0], tags)
    short = sorted(name.split("/", 2)[2] for name in known)
    near = nearest(ref, short) or ([f"v{ref}"] if f"v{ref}" in tags else [])
    hint = f"the nearest names are {', '.join(near)}" if near else f"it has {len(short)} branches and tags"
    if re.fullmatch(r"[0-9a-f]{7,39}", ref):
        hint += "; a commit is written with all 40 digits"
    raise ReleaseError(f"{repository.clean_url} has no branch, tag or commit {ref!r}: {hint}.")


@contextlib.contextmanager
def _held(repository: Repository) -> Iterator[Path]:
    """The mirror, made if need be, for this process alone. What a killed git left locked is free again."""
    mirror = repository.mirror
    mirror.parent.mkdir(parents=True, exist_ok=True)
    with mirror.with_suffix(".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not (mirror / "HEAD").is_file():
            shutil.rmtree(mirror, ignore_errors=True)
            _git(repository, ["init", "--quiet", "--bare", str(mirror)], step="Making the source cache")
        for stale in (*mirror.glob("*.lock"), *mirror.glob("refs/**/*.lock"), *mirror.glob("objects/pack/tmp_*")):
            stale.unlink()
        yield mirror


_NOT_ALONE = r"shallow|unadvertised|not our ref|couldn't find remote ref"


def fetch(repository: Repository, resolved: Resolved) -> str:
    """Make sure that the commit is in the mirror; returns the ref that holds it there.

    Alone and without history where the server gives it so, else with all branches and tags. A fetch that was cut off
    leaves no ref, so it is done again.
    """
    held = f"refs/sglang/{resolved.commit}"
    missing = ReleaseError(f"{repository.clean_url} has no commit {resolved.commit}: check sglang_ref.")
    with _held(repository) as mirror:

        def git(*arguments: str) -> str:
            return _git(
                repository,
                ["--git-dir", str(mirror), *arguments],
                step=f"Fetching {resolved.name} of {repository.clean_url}",
            )

        with contextlib.suppress(_GitError):
            git("rev-parse", "--verify", "--quiet", f"{held}^{{commit}}")
            return held
        if repository.index.offline and not repository.local:
            raise ReleaseError(
                f"sglang_index is offline, and {resolved.commit} of {repository.clean_url} was not fetched before."
            )
        wanted = dict.fromkeys((resolved.commit, resolved.name))  # some servers give names only
        everything = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
        if resolved.name.startswith("refs/pull/"):
            everything.append(f"+{resolved.name}:{resolved.name}")
        for name in wanted:
            try:
                git("fetch", "--quiet", "--no-tags", "--depth", "1", "--", repository.clean_url, f"+{name}:{held}")
            except _GitError as error:
                if resolved.name == resolved.commit and "not our ref" in error.said:
                    raise missing from error
                if not re.search(_NOT_ALONE, error.said, re.IGNORECASE):
                    raise
                continue
            if git("rev-parse", f"{held}^{{commit}}").strip() == resolved.commit:
                return held
            git("update-ref", "-d", held)  # the branch has moved since
        deepen = ["--unshallow"] if (mirror / "shallow").is_file() else []
        git("fetch", "--quiet", "--no-tags", *deepen, "--", repository.clean_url, *everything)
        try:
            git("update-ref", held, resolved.commit)
        except _GitError as error:
            raise missing from error
        return held


def prune(cache: Path, keep: Collection[str]) -> list[str]:
    """Take from the cache folder the commits that are not in ``keep``, and repositories that have none left.

    Returns what went, as ``<repository's folder>`` or ``<folder> <commit>``. A repository in use is left for the next time.
    """
    gone = []
    for mirror in sorted(cache.glob("*.git")):
        with mirror.with_suffix(".lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            here = Repository(f"file://{mirror}", cache=str(cache))
            git = functools.partial(_git, here, step="Pruning the source cache")
            try:
                said = git(["--git-dir", str(mirror), "for-each-ref", "--format=%(refname)", "refs/sglang/"])
                held = {name.rpartition("/")[2]: name for name in said.split()}
                stale = sorted(held.keys() - set(keep))
                if len(stale) < len(held):
                    for commit in stale:
                        git(["--git-dir", str(mirror), "update-ref", "-d", held[commit]])
                        gone.append(f"{mirror.name} {commit}")
                    if stale:
                        git(["--git-dir", str(mirror), "-c", "gc.auto=1", "gc", "--quiet", "--prune=now"])
                    continue
            except _GitError:  # not a repository any more: nothing in it can be used
                pass
            going = mirror.with_suffix(".removing")
            mirror.rename(going)
            shutil.rmtree(going)
            gone.append(mirror.name)
    for left in cache.glob("*.removing"):
        shutil.rmtree(left, ignore_errors=True)
    return gone


def checkout(repository: Repository, resolved: Resolved, tree: Path, patches: Sequence[Patch] = ()) -> str:
    """Lay the commit out in the new folder ``tree``, with its submodules and with the patches applied in order.

    Returns the id of the tree that came out. ReleaseError where a patch does not apply: its file, and the hunk that
    failed in git's words.
    """
    held = fetch(repository, resolved)

    def git(*arguments: str, step: str = "Laying out the source", text: str | None = None) -> str:
        return _git(repository, arguments, step=step, cwd=tree, text=text)

    tree.mkdir()
    git("init", "--quiet")
    own = replace(repository, url=str(repository.mirror))  # the mirror is a local repository, whatever the server is
    _git(
        own,
        ["fetch", "--quiet", "--depth", "1", f"file://{repository.mirror}", held],
        step="Laying out the source",
        cwd=tree,
    )
    git("checkout", "--quiet", "--detach", "FETCH_HEAD")
    if (tree / ".gitmodules").is_file():
        git("remote", "add", "origin", repository.clean_url)  # what relative URLs of submodules are relative to
        update = ["submodule", "--quiet", "update", "--init", "--recursive"]
        try:
            git(*update, "--depth", "1", step="Fetching the submodules")
        except _GitError:
            git(*update, step="Fetching the submodules")
    for number, patch in enumerate(patches, 1):
        _apply(git, patch, number, resolved)
    return git("rev-parse", "HEAD^{tree}").strip()


def _apply(git: Callable[..., str], patch: Patch, number: int, resolved: Resolved) -> None:
    text = patch.text if patch.text.endswith("\n") else patch.text + "\n"
    try:
        git("apply", "--check", "-", text=text)
    except _GitError as error:
        lines = [line.removeprefix("error: ") for line in error.said.splitlines() if line.startswith("error: ")]
        raise ReleaseError(
            f"Patch {number}, {patch.name}, does not apply to {resolved.name} ({resolved.commit[:12]}): "
            f"{'; '.join(lines) or error.said.strip()}. Make it against that commit, or take it out of sglang_patches."
        ) from error
    git("apply", "--index", "-", text=text)
    # Build backends ask git which files belong to the tree, so a file that a patch adds must be committed.
    git("commit", "--quiet", "--no-verify", "--message", patch.name)
