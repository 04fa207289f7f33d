"""Where routers reach an instance, and what it does for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "module_utils"))

from sglang_deploy import router


class FilterModule:
    """Filters of this project."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """`sglang_worker_url | sglang_worker_url(inventory_hostname, sglang_port, sglang_tls_certificate)`, and
        `deployment.spec.settings | sglang_worker_part`: whether it prefills, decodes, or does both.
        """
        return {"sglang_worker_url": router.worker_url, "sglang_worker_part": router.part_of}
