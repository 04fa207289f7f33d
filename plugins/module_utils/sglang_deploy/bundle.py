"""A support bundle: what someone else needs to understand a failure, without what is nobody's business.

Collected and redacted on the host, so that nothing private leaves it. Standard library only.
"""

from __future__ import annotations

import io
import os
import platform
import pwd
import re
import socket
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from . import ledger, redact
from .instance import unit_name

PART_BYTES = 8 * 1024 * 1024
"""Bytes kept of a part, the last ones."""
VERDICTS = 5
"""Newest verdicts that go along."""
_KERNEL = re.compile(r"nvrm|nvidia|\bxid\b|out of memory|oom-kill|pcieport|\baer\b|iommu", re.IGNORECASE)
_SECRET_NAME = re.compile(r"key|token|passw|secret|credential", re.IGNORECASE)
_ASSIGNED = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=[\"']?([^\"'\n]+)", re.MULTILINE)
_ARGUMENT = re.compile(r"--([\w-]*(?:key|token|password))[=\s]+[\"']?([^\s\"'\\]+)")


def collect(name: str, config_root: Path, state_root: Path) -> dict[str, str]:
    """File name in the bundle -> text, not yet redacted. What the host does not have is left out."""
    unit = unit_name(name)
    journal = ["journalctl", f"--unit={unit}", "--no-pager", "--quiet", "--all", "--output=short-iso", "--lines=50000"]
    parts = {
        "journal.txt": _said(journal),
        "unit.txt": _said(["systemctl", "cat", "--no-pager", unit]) + _said(["systemctl", "show", "--no-pager", unit]),
        "nvidia-smi.txt": _said(["nvidia-smi"]),
        "topology.txt": _said(["nvidia-smi", "topo", "-m"]) + _said(["lscpu"]) + _said(["free", "-m"]),
        "kernel.txt": "".join(line for line in _said(["dmesg"]).splitlines(keepends=True) if _KERNEL.search(line)),
        "versions.txt": f"kernel {platform.release()}\npython {platform.python_version()}\n"
        + _text(Path("/etc/os-release"))
        + _said(["systemctl", "--version"]),
    }
    folder, state = config_root / name, state_root / name
    for path in sorted([*folder.glob("*"), *folder.glob("candidate/*")]):
        parts[str(path.relative_to(config_root))] = _text(path)
    lines, _ = ledger.entries(state)
    parts["ledger.jsonl"] = _text(state / "ledger.jsonl")
    for line in lines[-VERDICTS:]:
        parts[str(line.get("verdict") or "verdicts/none.json")] = _text(state / str(line.get("verdict") or "none"))
    release = re.search(r"^exec (\S+)/venv/bin/python", parts.get(f"{name}/launch", ""), re.MULTILINE)
    if release:
        parts["receipt.json"] = _text(Path(release[1]) / "receipt.json")
    return {part: text for part, text in parts.items() if text}


def known_names(parts: Mapping[str, str], hosts: Iterable[str] = ()) -> redact.Redactor:
    """A Redactor that knows this host's accounts, its names, who deployed, and the values of its keys.

    hosts: further names, such as the inventory's.
    """
    accounts = {entry.pw_name for entry in pwd.getpwall() if entry.pw_uid >= 1000 and entry.pw_name != "nobody"}
    deployers = re.findall(r'"by": "([^"]+)"', parts.get("ledger.jsonl", ""))
    names = {socket.gethostname(), socket.getfqdn(), *hosts}
    for line in _text(Path("/etc/hosts")).splitlines():
        names.update(line.partition("#")[0].split()[1:])
    names |= {name.partition(".")[0] for name in names if not re.fullmatch(r"[\d.:]+", name)}
    names -= {"", "localhost", *(name for name in names if name.startswith(("localhost", "ip6-")))}
    words = set()
    for part, text in parts.items():
        if "environment" in part:
            words |= {value.strip() for key, value in _ASSIGNED.findall(text) if _SECRET_NAME.search(key)}
        if "launch" in part:
            words |= {value for _, value in _ARGUMENT.findall(text)}
    return redact.Redactor(users=accounts | set(deployers), hosts=names, words=words)


def write(parts: Mapping[str, str], redactor: redact.Redactor, path: Path) -> None:
    """Write the redacted parts as a tar.gz that only its owner reads. Raises OSError."""
    with (
        os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream,
        tarfile.open(fileobj=stream, mode="w:gz") as archive,
    ):
        for name, text in parts.items():
            content = redactor.text(text).encode()
            entry = tarfile.TarInfo(f"sglang-bundle/{name}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[-PART_BYTES:].replace(b"\0", b"").decode("utf-8", "replace")


def _text(path: Path) -> str:
    try:
        return path.read_bytes()[-PART_BYTES:].replace(b"\0", b"").decode("utf-8", "replace")
    except OSError:
        return ""
