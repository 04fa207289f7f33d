"""The keys of an instance: checked, kept in one file on the host, told apart without anything derived from them.

`--config FILE` gives SGLang its keys, so that they stand in no argument list and no environment. Whether the keys of a
running server are those that are asked for is told by a random id beside them, made anew with each change: a digest in a
file that everybody may read would let a weak key be guessed offline. Standard library only, since it runs on the
managed host too.
"""

from __future__ import annotations

import json
import re
import secrets as random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = "secrets.yaml"  # SGLang reads no other ending
CREDENTIALS = "/run/credentials"
"""Where systemd puts the credentials of its units, each unit's readable by its user alone."""
GUARD = "guard"
"""Folder beside FILE with the module that keeps the keys out of the log and out of /server_info."""
ID_VARIABLE = "SGLANG_SECRETS_ID"
FILE_VARIABLE = "SGLANG_SECRETS_FILE"
KEYS = {"api_key": "api-key", "admin_api_key": "admin-api-key"}
"""What can be set, and the option of SGLang that it becomes. Both are plain options in every release since 0.5.8."""
MINIMUM = 16
_LINE = re.compile(r'(api-key|admin-api-key): (".*")')
_ID = re.compile(r"# id: ([0-9a-f]{16})")
_SECRET_VARIABLE = re.compile(
    r"(?i)(?:^|_)(?:TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIALS?|(?:API|ACCESS|SECRET|PRIVATE)_?KEY)$"
)


class SecretError(ValueError):
    """A key that cannot be used. The message names it and says what is wrong, and never holds it."""


@dataclass(frozen=True)
class Secrets:
    """Keys by name (those of KEYS), and the id of this set of keys."""

    values: Mapping[str, str] = field(repr=False)
    id: str

    def text(self) -> str:
        """The file for `--config`."""
        lines = [f"# Written by Ansible; edits are overwritten.\n# id: {self.id}"]
        lines += [f"{KEYS[name]}: {json.dumps(value)}" for name, value in sorted(self.values.items())]
        return "\n".join(lines) + "\n"


def checked(given: Mapping[str, Any]) -> dict[str, str]:
    """The keys that are set, as text. Empty ones are none.

    Raises SecretError for a key that HTTP cannot carry, that argparse would take for an option, or that can be guessed.
    What a bearer token may hold needs no escape in YAML, JSON, Python or a shell, so a key looks the same wherever it is.
    """
    values: dict[str, str] = {}
    for name, value in given.items():
        if value in (None, ""):
            continue
        if name not in KEYS:
            raise SecretError(f"{name} is no key of SGLang's; known: {', '.join(KEYS)}")
        if not isinstance(value, str):
            raise SecretError(f"sglang_{name} is no text: put it in quotes")
        key = value.rstrip("\n")  # a file's last line ends so
        if not re.fullmatch(r"[A-Za-z0-9._~+/=-]+", key):
            raise SecretError(
                f"sglang_{name} holds a character that a bearer token cannot have (RFC 6750): "
                "use letters, digits and . _ ~ + / = -"
            )
        if key.startswith("-"):
            raise SecretError(f"sglang_{name} begins with a hyphen, which SGLang takes for an option: make another one")
        if len(key) < MINIMUM:
            raise SecretError(
                f"sglang_{name} has {len(key)} characters and can be guessed: use {MINIMUM} or more, "
                "such as the output of `openssl rand -hex 24`"
            )
        values[name] = key
    if len(set(values.values())) < len(values):
        raise SecretError("sglang_api_key and sglang_admin_api_key are the same: every user could administer the server")
    return values


def parse(text: str) -> Secrets | None:
    """The keys in a file that Secrets.text() made, None for anything else."""
    names = {option: name for name, option in KEYS.items()}
    values, identity = {}, ""
    for line in text.splitlines():
        if found := _LINE.fullmatch(line):
            try:
                values[names[found[1]]] = str(json.loads(found[2]))
            except ValueError:
                return None
        elif found := _ID.fullmatch(line):
            identity = found[1]
    return Secrets(values, identity) if values and identity else None


def read(directory: Path) -> Secrets | None:
    """The keys of an instance's folder; None where it has none, or the file is damaged."""
    try:
        return parse((directory / FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def identified(values: Mapping[str, str], before: Secrets | None) -> Secrets:
    """The keys with their id: that of `before` where nothing changed, else a new one."""
    if before is not None and dict(before.values) == dict(values):
        return before
    return Secrets(dict(values), random.token_hex(8))


def path(directory: str, credential_of: str = "") -> str:
    """Where the server reads its keys: in the instance's folder, or among the credentials of the unit that is named."""
    return f"{CREDENTIALS}/{credential_of}/{FILE}" if credential_of else f"{directory}/{FILE}"


def by_credential(environment: Mapping[str, Any]) -> bool:
    """Whether a launch spec's environment says that systemd hands the keys over."""
    return str((environment.get(FILE_VARIABLE) or {}).get("value", "")).startswith(f"{CREDENTIALS}/")


def environment(directory: str, identity: str, file: str, python_path: str = "") -> dict[str, str]:
    """What the server's environment needs beside the file: the guard, where the keys are (see path), and the id that
    makes a change of keys a change of the launch spec. python_path is what the user wants PYTHONPATH to be.
    """
    guard = f"{directory}/{GUARD}"
    return {
        "PYTHONPATH": f"{guard}:{python_path}" if python_path else guard,
        FILE_VARIABLE: file,
        ID_VARIABLE: identity,
    }


def unguarded(variables: Mapping[str, str], directory: str) -> dict[str, str]:
    """An environment without what environment() added, for programs that are asked and get no keys."""
    guard = f"{directory}/{GUARD}"
    kept = {name: value for name, value in variables.items() if name not in (FILE_VARIABLE, ID_VARIABLE)}
    path = kept.pop("PYTHONPATH", "")
    own = path.removeprefix(guard).removeprefix(":") if path.split(":")[0] == guard else path
    return {**kept, "PYTHONPATH": own} if own else kept


def variable_problem(name: str) -> str | None:
    """Why a variable of the server's environment looks like a secret and may not be given as one, or None."""
    if not _SECRET_VARIABLE.search(name):
        return None
    return (
        "its name says that it is a secret, and the environment stands in spec.json, in the plan and in the ledger, "
        "which everybody on the host may read"
    )
