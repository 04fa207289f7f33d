"""What confines the service: directives of systemd with their values; docs/hardening.md says what each does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .names import suggest, text_problem

DIRECTIVES: Mapping[str, str | tuple[str, ...]] = {
    "NoNewPrivileges": "true",
    "CapabilityBoundingSet": "",
    "AmbientCapabilities": "",
    "DevicePolicy": "closed",
    # /dev/null, zero, full, random, urandom, tty and ptmx are always there; the classes are those of /proc/devices.
    "DeviceAllow": (
        "char-nvidia rw",
        "char-nvidia-frontend rw",
        "char-nvidiactl rw",
        "char-nvidia-uvm rw",
        "char-nvidia-caps rw",
        "char-nvidia-caps-imex-channels rw",
        "char-nvidia-nvswitch rw",
        "char-nvidia-nvlink rw",
        "char-nvidia-modeset rw",
        "char-infiniband_verbs rw",  # NCCL between hosts; without it, it falls back to sockets and says so in no error
    ),
    "KeyringMode": "private",
    "LockPersonality": "true",
    "PrivateIPC": "true",
    "PrivateTmp": "true",
    "PrivateUsers": "true",
    "ProtectClock": "true",
    "ProtectControlGroups": "true",
    "ProtectHome": "true",
    "ProtectHostname": "true",
    "ProtectKernelLogs": "true",
    "ProtectKernelModules": "true",
    "ProtectKernelTunables": "true",
    "ProtectProc": "invisible",
    "ProtectSystem": "strict",
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "RestrictNamespaces": "true",
    "RestrictRealtime": "true",
    "RestrictSUIDSGID": "true",
    "SystemCallArchitectures": "native",
    "SystemCallErrorNumber": "EPERM",
    # A second line that begins with ~ takes calls out of the first.
    "SystemCallFilter": ("@system-service @pkey", "~@privileged @obsolete"),
    "UMask": "0077",
}
_HIDES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # folders, and the values beside true that hide them
    "ProtectHome": (("/home", "/root", "/run/user"), ("tmpfs",)),
    "PrivateTmp": (("/tmp", "/var/tmp"), ("disconnected",)),  # noqa: S108
}
_TRUE = ("1", "yes", "y", "true", "t", "on")
UNSEEN = tuple(folder for folders, _ in _HIDES.values() for folder in folders)
"""Folders whose content is not there for the service as DIRECTIVES confine it."""


class HardeningError(ValueError):
    """A directive that cannot be loosened as written. The message says what can."""


def lines(changes: Mapping[str, Any]) -> list[str]:
    """The lines of the unit: DIRECTIVES with `changes` laid over them.

    A value is text, a truth, or a list (a line each); null takes a directive out. Raises HardeningError for a name that is
    not one of DIRECTIVES: sglang_hardening loosens what is there and is no way to write other parts of the unit.
    """
    if not isinstance(changes, Mapping):
        raise HardeningError(f"sglang_hardening is {changes!r}: write directives and values, such as ProtectProc: null")
    unknown = [name for name in changes if name not in DIRECTIVES]
    if unknown:
        raise HardeningError(
            f"sglang_hardening: {unknown[0]} is no directive of the unit; {suggest(str(unknown[0]), DIRECTIVES)}"
        )
    found = []
    for name, value in {**DIRECTIVES, **changes}.items():
        for text in _texts(name, value):
            if problem := text_problem(text):
                raise HardeningError(f"sglang_hardening.{name}: {problem}")
            found.append(f"{name}={text}")
    return found


def unseen(changes: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of UNSEEN that are not there for the service under `changes` either; HardeningError as for lines().

    What counts of a directive with several lines is the last one, as systemd has it.
    """
    lines(changes)
    found: tuple[str, ...] = ()
    for name, (folders, also) in _HIDES.items():
        texts = _texts(name, {**DIRECTIVES, **changes}[name])
        if texts and texts[-1].strip().lower() in (*_TRUE, *also):
            found += folders
    return found


def _texts(name: str, value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, (str, int)):
        return [str(value)]
    if isinstance(value, (list, tuple)) and all(isinstance(entry, str) for entry in value):
        return list(value)
    raise HardeningError(f"sglang_hardening.{name} is {value!r}: write text, true, false, null or a list of texts")
