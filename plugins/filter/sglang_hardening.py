"""The unit's confining directives as lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "module_utils"))

from sglang_deploy import hardening


def lines(changes: Mapping[str, Any]) -> list[str]:
    """`sglang_hardening | sglang_hardening`: every directive, with the changes of the variable laid over it."""
    try:
        return hardening.lines(changes)
    except hardening.HardeningError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters of this project."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"sglang_hardening": lines}
