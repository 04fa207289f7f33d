"""Names that people write: checked, and answered with the nearest known ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

INSTANCE_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
MOVING_REFS = ("main", "master", "HEAD")  # names of git that say no version of SGLang
ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# systemd drops an environment value that holds a control character other than tab (env_value_is_valid); argv cannot
# hold NUL, and a line break would split a line of the launch script.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|[\ud800-\udfff]")


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names most like `name`, or that begin with it, best first; empty where there are none."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=count, cutoff=0.6)
    begun = [other for other in names if name and other.startswith(name) and other not in close]
    return [*close, *begun][:count]


def suggest(name: str, known: Iterable[str]) -> str:
    """What to say after an unknown name: the nearest known ones, or (some of) all where none is alike."""
    names = sorted(known)
    close = nearest(name, names)
    if close:
        return f"did you mean {' or '.join(close)}?"
    if not names:
        return "none is known"
    shown = names[:20]
    return f"known: {', '.join(shown)}{' ...' if len(names) > len(shown) else ''}"


def instance_problem(name: object) -> str | None:
    """Why `name` cannot name an instance, or None. The name becomes a directory and the instance part of a unit."""
    if isinstance(name, str) and INSTANCE_NAME.fullmatch(name):
        return None
    return f"instance name {name!r} is not allowed: use a small letter, then up to 30 small letters, digits or hyphens"


def environment_name_problem(name: object) -> str | None:
    """Why `name` cannot name an environment variable, or None."""
    if isinstance(name, str) and ENVIRONMENT_NAME.fullmatch(name):
        return None
    return f"environment name {name!r} is not allowed: use letters, digits and underscores, not starting with a digit"


def text_problem(value: str) -> str | None:
    """Why `value` cannot be carried by an argument list, an environment file and a unit, or None."""
    found = _CONTROL.search(value)
    if found is None:
        return None
    what = {"\n": "a line break", "\r": "a carriage return", "\0": "a NUL byte"}.get(found[0], "a control character")
    return f"the value holds {what}; write it on one line without control characters"
