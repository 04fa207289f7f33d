"""What a release is to be built from, and the name that follows from it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import release_git
from .names import MOVING_REFS
from .release_git import Patch, Repository, Resolved
from .release_host import ReleaseError
from .release_lock import canonical_name
from .release_uv import Index
from .release_wheelhouse import Wheelhouse, WheelhouseError

SOURCES = ("index", "git")
SERVER, ROUTER = "sglang", "sglang_router"
"""Packages whose parser a release can be asked for."""
_URL = re.compile(r"(https?|ssh|git|file)://\S+|/\S+|[\w.-]+@[\w.-]+:\S+")


@dataclass(frozen=True)
class Request:
    """What to build; made by ``Request.from_stack``.

    ``source`` is ``{"kind": "index", "package", "version"}`` or ``{"kind": "git", "url", "ref", "subdirectory"}``; the
    latter comes with the ``repository`` and local ``patches``, and gets ``commit``, ``version`` and ``resolved`` by
    ``pinned``.
    ``requirements`` are resolved with their dependencies, ``requirements_no_deps`` are taken alone. ``expected`` maps
    sglang, torch, transformers ... to the version that the finished environment must have; ``proofs`` name what its
    files must show. ``environment`` is set while a source is built and while the release is asked for its options.
    ``disk_mib`` must be free.
    ``excludes`` are packages that nothing brings in; ``system`` are packages that the host's own Python must have, which
    the release then sees, and ``given`` the versions that were found of them.
    With a ``wheelhouse`` everything comes from there, and ``source`` says what it was made from. ``program`` is SERVER or
    ROUTER: what the finished environment is asked for its version and options.
    """

    stack: str
    source: Mapping[str, str]
    python_range: str
    requirements: tuple[str, ...]
    requirements_no_deps: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    expected: Mapping[str, str] = field(default_factory=dict)
    proofs: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    disk_mib: int = 0
    index: Index = field(default_factory=Index)
    repository: Repository | None = None
    resolved: Resolved | None = None
    patches: tuple[Patch, ...] = ()
    excludes: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    wheelhouse: Wheelhouse | None = None
    program: str = SERVER

    @classmethod
    def from_stack(
        cls,
        stack: Mapping[str, Any],
        index: Index,
        constraints: str = "",
        source_kind: str | None = None,
        *,
        ref: str | None = None,
        url: str | None = None,
        patches: Sequence[Patch] = (),
        git_cache: str = release_git.DEFAULT_CACHE,
    ) -> Request:
        """A request from a catalog stack (as its dictionary) and the text of its constraints file.

        ``source_kind`` asks for another kind of source than the stack's own: ``index`` takes the stack's SGLang version
        from there, ``git`` the same version's tag from upstream. ``ref`` and ``url`` take the place of a git source's;
        ``patches`` are applied to it; ``git_cache`` keeps its commits.

        ReleaseError where the stack lacks what a build needs, or names a source that cannot be built.
        """
        name = str(stack.get("name", ""))
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,40}", name):
            raise ReleaseError(f"The stack's name {name!r} cannot be part of a folder name: use a-z, 0-9, dot and hyphen.")
        sglang = str(stack["sglang"]) if stack.get("sglang") else None
        source = _source(name, stack, sglang, source_kind)
        repository = None
        if source["kind"] == "git":
            if ref and ref != source.get("ref"):
                sglang = release_git.version_of(ref) or (None if ref in MOVING_REFS else sglang)
            source |= {"url": url or source.get("url", ""), "ref": ref or source.get("ref", "")}
            if not _URL.fullmatch(source["url"]):
                raise ReleaseError(
                    f"Stack {name}: a git source needs a url such as {release_git.UPSTREAM} or an absolute path; set "
                    "sglang_git_url or the stack's source."
                )
            if not re.fullmatch(r"[\w./+-]+", source["ref"]) or source["ref"].startswith("-"):
                raise ReleaseError(f"Stack {name}: a git source needs a ref such as v0.5.9, main or pull/14311/head.")
            repository = Repository(source["url"], index, git_cache)
            source["url"] = repository.clean_url
        elif given := [word for word, value in (("ref", ref), ("git_url", url), ("patches", patches)) if value]:
            raise ReleaseError(
                f"Stack {name} comes from an index, where sglang_{' and sglang_'.join(given)} mean nothing: set "
                "sglang_source: git, or leave them out."
            )
        requirements = _strings(stack, "requirements")
        no_deps = _strings(stack, "requirements_no_deps")
        if repository is None:
            pinned = f"{source['package']}=={source['version']}"
            if not any(canonical_name(line) == canonical_name(source["package"]) for line in (*requirements, *no_deps)):
                requirements = (pinned, *requirements)
        if stack.get("constraints") and not constraints.strip():
            raise ReleaseError(f"Stack {name}: the text of its constraints file {stack['constraints']} was not given.")
        version = source.get("version") or (sglang if sglang and release_git.version_of(sglang) else None)
        program = str(stack.get("program") or SERVER)
        if program not in (SERVER, ROUTER):
            raise ReleaseError(f"Stack {name}: program {program!r} is not known; known are {SERVER} and {ROUTER}.")
        return cls(
            stack=name,
            source=source,
            python_range=str(stack.get("python") or ">=3.10"),
            requirements=requirements,
            requirements_no_deps=no_deps,
            overrides=_overrides(stack),
            constraints=tuple(
                line.strip() for line in constraints.splitlines() if line.strip() and not line.strip().startswith("#")
            ),
            expected={**({canonical_name(program): version} if version else {}), **_expected(stack)},
            proofs=_strings(stack, "proofs"),
            environment={str(key): str(value) for key, value in dict(stack.get("environment") or {}).items()},
            disk_mib=int(stack.get("disk_mib") or 0),
            index=index,
            repository=repository,
            patches=tuple(patches),
            excludes=_strings(stack, "excludes"),
            system=_strings(stack, "system_site_packages"),
            program=program,
        )

    def from_wheelhouse(self, wheelhouse: Wheelhouse) -> Request:
        """The request served from a wheelhouse. WheelhouseError says in what it was made for something else."""
        wanted, made = asked(self), wheelhouse.manifest["asked"]
        other = [f"{key} ({made.get(key)!r} there, {wanted[key]!r} here)" for key in wanted if made.get(key) != wanted[key]]
        ref = wheelhouse.manifest["source"].get("ref")
        if ref != self.source.get("ref"):
            other.append(f"ref ({ref!r} there, {self.source.get('ref')!r} here)")
        if other:
            raise WheelhouseError(
                f"The wheelhouse was made for something else than what is asked for now, by its {'; '.join(other)}. Make "
                "it anew with playbooks/wheelhouse.yml and these variables, or go back to what it was made for."
            )
        return replace(self, wheelhouse=wheelhouse, repository=None, source=dict(wheelhouse.manifest["source"]))

    def pinned(self) -> Request:
        """The request with the commit that its ref is now, and the release number that a build of it is named after.

        Asks the repository's server. A request from an index is returned as it is.
        """
        if self.repository is None:
            return self
        resolved = release_git.resolve(self.repository, self.source["ref"])
        version = release_git.base_version(self.source["ref"], self.expected.get("sglang"), resolved)
        return replace(self, resolved=resolved, source={**self.source, "commit": resolved.commit, "version": version})

    def local_version(self) -> str:
        """The version of a wheel that is built from this pinned source: release number, commit and patches."""
        patched = hashlib.sha256("".join(patch.sha256 for patch in self.patches).encode()).hexdigest()[:8]
        return f"{self.source['version']}+g{self.source['commit'][:12]}" + (f".p{patched}" if self.patches else "")

    def with_wheel(self, package: str, version: str) -> Request:
        """The request with a wheel built from its source in the place of the package's requirement."""

        def replaced(lines: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(exact if canonical_name(line) == package else line for line in lines)

        exact = f"{package}=={version}"
        requirements, no_deps = replaced(self.requirements), replaced(self.requirements_no_deps)
        if exact not in (*requirements, *no_deps):
            requirements = (exact, *requirements)
        return replace(self, requirements=requirements, requirements_no_deps=no_deps)


def asked(request: Request) -> dict[str, object]:
    """What decides a build apart from where things come from, JSON-able: what a stack and its user ask for."""
    expected = dict(request.expected)
    source = {key: value for key, value in request.source.items() if key in ("kind", "package", "version", "subdirectory")}
    if source["kind"] == "git":
        expected.pop("sglang", None)
        source.pop("version", None)
    choices = {key: value for key, value in request.environment.items() if key.startswith("SGLANG_BUILD_")}
    other = {} if request.program == SERVER else {"program": request.program}
    return {
        **other,
        "stack": request.stack,
        "source": source,
        "requirements": sorted(request.requirements),
        "requirements_no_deps": sorted(request.requirements_no_deps),
        "overrides": sorted(request.overrides),
        "constraints": sorted(request.constraints),
        "excludes": sorted(request.excludes),
        "system_site_packages": sorted(request.system),
        "expected": expected,
        "proofs": sorted(request.proofs),
        "patches": [patch.sha256 for patch in request.patches],
        "environment": choices,
    }


def request_id(request: Request, python_version: str, platform: str) -> str:
    """``<stack>-<12 hex>`` over everything that decides what gets built; credentials, proxies and caches do not.

    Of a git source the commit, the folder and the patches decide, not the name or the URL that led to them; of a
    wheelhouse its lock, not the place where it lies. ``python_version`` is ``3.11``-like and ``platform``
    ``linux-x86_64``-like: a change of the host's patch version is not another release.
    """
    source = {key: value for key, value in request.source.items() if key not in ("url", "ref")}
    if source["kind"] == "git":
        source.pop("version", None)
    where: dict[str, object] = {"index": request.index.identity()}
    if request.wheelhouse is not None:
        where = {"lock": request.wheelhouse.lock_sha256}
    deciding = {
        **asked(request),
        **where,
        "source": source,
        "given": dict(request.given),
        "python": python_version,
        "platform": platform,
    }
    digest = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()
    return f"{request.stack}-{digest[:12]}"


def _source(name: str, stack: Mapping[str, Any], sglang: str | None, kind: str | None) -> dict[str, str]:
    source = {str(key): str(value) for key, value in dict(stack.get("source") or {}).items() if value is not None}
    if source.get("kind") == "wheelhouse":
        source["kind"] = "index"  # what such a stack's wheelhouse is made from
    if kind and kind != source.get("kind"):
        source = {"kind": kind}
        if kind == "index" and sglang:
            source |= {"package": "sglang", "version": sglang}
        if kind == "git" and sglang:
            source |= {"url": release_git.UPSTREAM, "ref": f"v{sglang}", "subdirectory": "python"}
    if source.get("kind") not in SOURCES:
        raise ReleaseError(
            f"Stack {name}: source kind {source.get('kind')!r} cannot be built; this builder knows {' and '.join(SOURCES)}. "
            "Set sglang_source to one of them, or choose another stack."
        )
    for key in ("package", "version") if source["kind"] == "index" else ():
        if key not in source:
            raise ReleaseError(f"Stack {name}: its source has no {key}.")
    folder = source.get("subdirectory", "")
    if folder.startswith("/") or ".." in folder.split("/"):
        raise ReleaseError(f"Stack {name}: the source's subdirectory {folder!r} lies outside the source.")
    return source


def _strings(stack: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = stack.get(key) or ()
    if isinstance(value, str) or not all(isinstance(entry, str) and entry.strip() for entry in value):
        raise ReleaseError(f"Stack {stack.get('name')}: {key} must be a list of strings, not {value!r}.")
    return tuple(value)


def _overrides(stack: Mapping[str, Any]) -> tuple[str, ...]:
    given = stack.get("overrides") or {}
    if isinstance(given, Mapping):
        return tuple(f"{key}=={value}" for key, value in given.items())
    return _strings(stack, "overrides")


def _expected(stack: Mapping[str, Any]) -> dict[str, str]:
    expected = {key: str(stack[key]) for key in ("torch", "cuda", "transformers") if stack.get(key)}
    expected |= {"flashinfer-python": str(stack["flashinfer"])} if stack.get("flashinfer") else {}
    for key in ("kernel", "deep_gemm"):
        package, _, version = str(stack.get(key) or "").partition("==")
        expected |= {canonical_name(package): version} if version else {}
    return expected
