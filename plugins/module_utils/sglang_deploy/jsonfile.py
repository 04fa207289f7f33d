"""JSON files of the project on a host, in one form: sorted, indented, ending with a newline."""

from __future__ import annotations

import json
from typing import Any


def dump(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
