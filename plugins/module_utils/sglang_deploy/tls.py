"""The certificate of a server: looked at before it is used, and not doubted where a host asks itself.

`openssl` judges names and dates, as it does for everybody else on the host. Standard library only, since it runs there.
"""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from ipaddress import ip_address
from pathlib import Path

from .hardening import UNSEEN

SOON_DAYS = 14
OWN = "/etc/sglang"
"""Of it the unit sees its own instance's files alone, whatever is loosened."""


@dataclass(frozen=True)
class Certificate:
    """What was found: problems that keep it from being used, warnings that do not, and its last day (UTC)."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    until: str = ""


def examine(
    certificate: Path,
    key: Path,
    name: str,
    group: int,
    now: datetime | None = None,
    unseen: Sequence[str] = UNSEEN,
) -> Certificate:
    """Look at a certificate and its key (PEM files): dates, name, whether they belong together and who may read the key.

    name: DNS name or address that clients use; empty leaves it unchecked. group: group id of the service. now: in UTC, for
    dates to be judged at another time than the present. unseen: folders that are not there for it (hardening.unseen).
    """
    problems = [problem for path in (certificate, key) if (problem := _unreadable(path, group, unseen))]
    if shutil.which("openssl") is None:
        problems.append("openssl, which judges the certificate, is not on the host: apt install openssl")
    problems = problems or _key_problems(key)
    if problems:
        return Certificate(tuple(problems))
    until = end(certificate)
    if until is None:
        return Certificate((f"{certificate} holds no certificate in PEM",))
    left = (until - (now or datetime.now(timezone.utc))).total_seconds() / 86400
    if left <= 0:
        problems.append(f"{certificate} ended on {until:%Y-%m-%d}: renew it")
    if name and not _is_for(certificate, name):
        problems.append(
            f"{certificate} is not for {name}, but for {_names(certificate)}: get one, or correct sglang_tls_name"
        )
    public = _openssl("pkey", "-in", str(key), "-pubout", "-passin", "pass:")
    if public is None:
        problems.append(f"{key} holds no private key in PEM without a password")
    elif public.strip() != (_openssl("x509", "-in", str(certificate), "-noout", "-pubkey") or "").strip():
        problems.append(f"{key} is not the key of {certificate}")
    soon = [f"{certificate} ends on {until:%Y-%m-%d}, in {left:.0f} days"] if 0 < left < SOON_DAYS else []
    return Certificate(tuple(problems), tuple(soon), f"{until:%Y-%m-%d}")


def end(certificate: Path) -> datetime | None:
    """When a certificate ends (UTC), None where the file holds none or openssl cannot be asked."""
    found = re.search(r"notAfter=(.+)", _openssl("x509", "-noout", "-enddate", "-in", str(certificate)) or "")
    return datetime.strptime(found[1].strip(), "%b %d %H:%M:%S %Y %Z").replace(tzinfo=timezone.utc) if found else None


def _unreadable(path: Path, group: int, unseen: Sequence[str]) -> str:
    """Why the service cannot read a file, by the modes of the file and of the folders above it; empty if it can."""
    if any(one.is_relative_to(folder) for one in (path, path.resolve()) for folder in (*unseen, OWN)):
        return f"{path}: the service does not see what lies there: put the file elsewhere, such as /etc/ssl/sglang"
    try:
        for folder in reversed(path.resolve().parents):
            if not _grants(folder, group, stat.S_IXGRP, stat.S_IXOTH):
                return f"{path}: the service cannot enter {folder}: put the file elsewhere, such as /etc/ssl/sglang"
        if not _grants(path, group, stat.S_IRGRP, stat.S_IROTH):
            return f"{path} cannot be read by the service: chgrp sglang, chmod 640"
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def _grants(path: Path, group: int, by_group: int, by_all: int) -> bool:
    state = path.stat()
    return bool(state.st_mode & by_all) or (state.st_gid == group and bool(state.st_mode & by_group))


def _key_problems(key: Path) -> list[str]:
    state = key.stat()
    if state.st_mode & stat.S_IRWXO:
        return [f"{key} can be read by everybody on the host: chmod 640"]
    if state.st_uid != 0 or state.st_mode & stat.S_IWGRP:
        return [f"{key} can be written by others than root: chown root, chmod 640"]
    return []


def _is_for(certificate: Path, name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        option = "-checkhost"
    else:
        option = "-checkip"
    said = _openssl("x509", "-noout", "-in", str(certificate), option, name) or ""
    return "does match" in said


def _names(certificate: Path) -> str:
    said = _openssl("x509", "-noout", "-in", str(certificate), "-ext", "subjectAltName") or ""
    return ", ".join(re.findall(r"(?:DNS|IP Address):([^,\s]+)", said)) or "no name"


def _openssl(*words: str) -> str | None:
    """What openssl says, None where it fails or is not there."""
    try:
        done = subprocess.run(["openssl", *words], capture_output=True, text=True, timeout=20, check=False, input="")
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
