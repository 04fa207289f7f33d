"""Read from a host what `driver` judges. Read-only; standard library only."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import driver

_SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_QUERY = ("dpkg-query", "--show", "--showformat=${Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\n")
_PATTERNS = ("nvidia-*", "libnvidia-*", "libcuda1", "xserver-xorg-video-nvidia*", "linux-modules-nvidia-*")


def look(files: Iterable[str] = (), options: Iterable[str] = (), root: Path = Path("/")) -> driver.Evidence:
    """What this host shows of the driver. `files` and `options` are those that the caller will judge."""
    secure = driver.parse_secure_boot(_bytes(root / _SECURE_BOOT))
    enforced = _text(root / "sys/module/module/parameters/sig_enforce").strip() == "Y"
    return driver.Evidence(
        loaded=driver.parse_loaded(_text(root / "proc/driver/nvidia/version")),
        on_disk=driver.parse_module(_said(["modinfo", "nvidia"])),
        packages=driver.parse_packages(_said([*_QUERY, *_PATTERNS])),
        signatures=True if enforced else secure,
        keys=_text(root / "proc/keys"),
        nouveau=(root / "sys/module/nouveau").is_dir(),
        files={path: _text(file) if (file := root / path.lstrip("/")).is_file() else None for path in files},
        parameters={
            f"{module} {name}": _text(file).strip()
            for module, name in driver.parameter_names(options)
            if (file := root / "sys/module" / module / "parameters" / name).is_file()
        },
    )


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _text(path: Path) -> str:
    return (_bytes(path) or b"").decode("utf-8", "replace")


def _said(command: Sequence[str]) -> str:
    """What a command printed, whatever its status: dpkg-query ends with 1 where one pattern matches nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
