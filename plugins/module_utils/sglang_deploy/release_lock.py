"""Lock files as uv writes them: every package with its version and its hashes."""

from __future__ import annotations

import re


class LockError(Exception):
    """A stack's requirements cannot be put into one lock."""


def canonical_name(requirement: str) -> str:
    """The canonical package name that a requirement line begins with."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0]).lower()


def lock_packages(lock: str) -> dict[str, str]:
    """Package name to the ``name==version`` or ``name @ url`` line of a lock file."""
    lines = (line.split(" \\")[0].split(" ;")[0].strip() for line in lock.splitlines() if re.match(r"[A-Za-z0-9]", line))
    return {canonical_name(line): line for line in lines}


def merged(lock: str, alone: str) -> str:
    """One lock from the resolved packages and those taken alone."""
    first, second = lock_packages(lock), lock_packages(alone)
    clash = sorted(
        f"{first[name]} and {second[name]}" for name in first.keys() & second.keys() if first[name] != second[name]
    )
    if clash:
        raise LockError(
            f"requirements and requirements_no_deps resolve to different versions: {'; '.join(clash)}. "
            "Pin the package in only one of them, or add an override."
        )
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", alone)
    return lock.rstrip() + "\n" + "".join(block for block in blocks if block.strip() and canonical_name(block) not in first)


def with_hashes(lock: str, pylock: str) -> str:
    """The lock with hashes from uv's pylock.toml for the packages that have none."""
    hashes: dict[str, list[str]] = {}
    for block in pylock.split("[[packages]]")[1:]:
        if name := re.search(r'(?m)^name = "([^"]+)"', block):
            hashes[canonical_name(name[1])] = re.findall(r'sha256 = "([0-9a-f]{64})"', block)
    lines = []
    for line in lock.splitlines():
        bare = re.match(r"[A-Za-z0-9]", line) and not line.endswith("\\")
        found = hashes.get(canonical_name(line), []) if bare else []
        lines.append(" \\\n    ".join([line, *(f"--hash=sha256:{digest}" for digest in sorted(found))]))
    return "\n".join(lines) + "\n"


def with_own_hash(lock: str, package: str, digest: str, origin: str) -> str:
    """The lock with one package bound to the one file that was built here, and a comment that says from what."""
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", lock)
    for number, block in enumerate(blocks):
        if block and canonical_name(block) == package:
            line = block.splitlines()[0].removesuffix("\\").rstrip()
            blocks[number] = f"# {package} is {origin}\n{line} \\\n    --hash=sha256:{digest}\n"
    return "".join(blocks)
