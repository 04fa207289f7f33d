"""SGLang's own wheel from a git source: the tree laid out, what it lacks said early, and the build with locked tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import release_git, release_proof, release_tree
from .release_lock import lock_packages
from .release_request import Request
from .release_resolve import compile_lock
from .release_wheelhouse import file_digest


@dataclass(frozen=True)
class Tree:
    """A source laid out: the folder with the Python project, its build requirements, and the id of git's tree."""

    project: Path
    requires: tuple[str, ...]
    tree: str


@dataclass(frozen=True)
class OwnWheel:
    """What came of a source: the file, its package and version, and what a receipt says of it."""

    path: Path
    package: str
    version: str
    made: Mapping[str, Any]


def lay_out(request: Request, work: Path, env: Mapping[str, str]) -> Tree | None:
    """The tree of a git source, after what would make its build pointless was looked at; None for another source.

    ``request`` is pinned; ``work`` gets the folder ``src``. ReleaseError where a proof fails or a build tool is missing.
    """
    if request.repository is None or request.resolved is None:
        return None
    tree = work / "src"
    tree_id = release_git.checkout(request.repository, request.resolved, tree, request.patches)
    project = tree / request.source.get("subdirectory", "")
    requires = release_tree.build_requirements(project)
    release_tree.check_tools(release_tree.needed(tree, requires, request.environment), env["PATH"])
    if (project / "sglang").is_dir():
        release_proof.prove(request.proofs, project / "sglang")
    return Tree(project, requires, tree_id)


def build(
    request: Request,
    source: Tree,
    uv: str,
    env: Mapping[str, str],
    python: Path,
    work: Path,
    wheels: Path,
    said: Callable[[str], None] | None = None,
) -> OwnWheel:
    """Build the laid-out source with the interpreter ``python`` into the folder ``wheels``."""
    lock = work / "build-lock.txt"
    if source.requires:
        text = compile_lock(uv, env, python, work / "build.txt", source.requires)
        lock.write_text(text, encoding="utf-8")
    wheel = release_tree.build_wheel(
        source.project,
        wheels,
        uv,
        {**env, **request.environment},
        python=python,
        version=request.local_version(),
        lock=lock if source.requires else None,
        said=said,
    )
    package, version = release_tree.wheel_name(wheel)
    made = {
        "tree": source.tree,
        "patches": [{"name": patch.name, "sha256": patch.sha256} for patch in request.patches],
        "wheels": {wheel.name: file_digest(wheel)},
        "build_tools": lock_packages(lock.read_text(encoding="utf-8")) if source.requires else {},
    }
    return OwnWheel(wheel, package, version, made)
