"""From what a stack asks for to lock.txt: every package with its version and its hashes, resolved by uv."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from . import release_uv
from .release_lock import canonical_name, lock_packages, merged, with_hashes
from .release_request import Request


def compile_lock(
    uv: str,
    env: Mapping[str, str],
    python: str | Path,
    target: Path,
    requirements: Sequence[str],
    *more: str,
    said: Callable[[str], None] | None = None,
) -> str:
    """The requirements resolved into the file ``target``; its text.

    ``python`` is the interpreter to resolve for; ``more`` are further arguments of ``uv pip compile``; ``said`` is told
    what uv reports meanwhile. UvError where nothing fits.
    """
    source = target.with_suffix(".in")
    source.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    arguments = ["pip", "compile", str(source), "--python", str(python), "--generate-hashes", "--no-header"]
    arguments += ["--no-annotate", *more, "--output-file", str(target)]
    release_uv.run(uv, arguments, env=env, step="Resolving the stack's packages", said=said)
    lock = target.read_text(encoding="utf-8")
    # uv leaves out the hashes of local wheels that it need not open, as with --no-deps; its other format has them.
    if lock.count("--hash=") < len(lock_packages(lock)):
        pylock = target.with_name("pylock.toml")
        more_exact = [*arguments[:-2], "--output-file", str(pylock), "--format", "pylock.toml"]
        release_uv.run(uv, more_exact, env=env, step="Hashing the stack's packages")
        lock = with_hashes(lock, pylock.read_text(encoding="utf-8"))
    return lock


def resolve(
    request: Request,
    uv: str,
    env: Mapping[str, str],
    python: str | Path,
    work: Path,
    *target: str,
    said: Callable[[str], None] | None = None,
) -> str:
    """The text of lock.txt. ``work`` takes uv's files; ``target`` names another Python or platform in uv's arguments."""
    extra = list(target)
    left_out = [canonical_name(line) for line in (*request.excludes, *request.system)]
    for name, lines in (
        ("constraints", request.constraints),
        ("overrides", request.overrides),
        ("excludes", left_out),
    ):
        if lines:
            (work / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
            extra += [f"--{name}", str(work / f"{name}.txt")]
    lock = ""
    if request.requirements:
        lock = compile_lock(uv, env, python, work / "requirements.txt", request.requirements, *extra, said=said)
    if request.requirements_no_deps:
        alone = compile_lock(
            uv, env, python, work / "no-deps.txt", request.requirements_no_deps, *target, "--no-deps", said=said
        )
        lock = merged(lock, alone)
    return lock.lstrip()
