"""JSON files of the project on a host, in one form: sorted, indented, ending with a newline."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str) -> Any:
    """The value. Raises ValueError for every text that is none, one that is nested without end included."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def dump(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
