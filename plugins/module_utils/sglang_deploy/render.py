"""The files that start an instance: a launch script and an environment file.

Both are read by two programs. The environment file is read by systemd (`EnvironmentFile=`) and by a POSIX shell (`.
FILE`), so every value stands in double quotes with a backslash before `"`, `\\`, `` ` `` and `$`: the one form that
both read alike (systemd's src/basic/env-file.c; single quotes cannot carry a single quote there, and neither reader
expands `%`). Comments stand on lines of their own, since systemd knows no others.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from .launch_spec import LaunchSpec
from .names import environment_name_problem, text_problem

MODULE = ("-m", "sglang.launch_server")  # what the release's Python runs
_SPECIAL = re.compile(r'(["\\`$])')


def launch_script(spec: LaunchSpec, python: str, environment_file: str, program: Sequence[str] = MODULE) -> str:
    """A POSIX shell script that runs the instance: `python` is the release's interpreter and `program` what it runs,
    `environment_file` an absolute path.

    One option a line, so that a person can read it and a diff shows one change. It may be run by hand: it reads the
    environment file itself, which is harmless under systemd, where the same values are already set.
    """
    lines = [" ".join(map(shlex.quote, program)), *(" ".join(map(shlex.quote, words)) for words in option_lines(spec.argv))]
    command = " \\\n    ".join(lines)
    return f"""#!/bin/sh
# Instance {spec.instance}: SGLang {spec.sglang_version}, stack {spec.stack}, profile {spec.profile}
# Release {spec.release or "not built yet"}, launch spec {spec.hash}
# Written by Ansible; edits are overwritten. The same file is run by systemd and may be run by hand.
set -eu
set -a
. {shlex.quote(environment_file)}
set +a
exec {shlex.quote(python)} {command}
"""


def environment_file(environment: Mapping[str, str]) -> str:
    """The environment as a file that systemd and a POSIX shell read alike. Raises ValueError for what neither could
    carry.
    """
    lines = ['# Written by Ansible; edits are overwritten. systemd and the launch script read it: one NAME="value" a line.']
    for name, value in sorted(environment.items()):
        problem = environment_name_problem(name) or text_problem(value)
        if problem:
            raise ValueError(f"environment {name}: {problem}")
        lines.append(f'{name}="{_escaped(value)}"')
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return _SPECIAL.sub(r"\\\1", value)


def option_lines(argv: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The argument list cut before each option, so that an option and its values stay together."""
    groups: list[tuple[str, ...]] = []
    for word in argv:
        if word.startswith("--") or not groups:
            groups.append((word,))
        else:
            groups[-1] = (*groups[-1], word)
    return groups
