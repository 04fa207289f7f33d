"""Starts the router with its keys. Installed as start.py beside them; run by the release's own Python, never imported here.

The router takes keys as arguments alone, which everybody on a host may read, so they are read from the file of the keys and
put into the parsed arguments. And it names its process `sglang::router`, which overwrites the argument list and the
environment by which a deployment recognises what runs; here it does not. Tried with sglang-router 0.3.2. Standard library
only, but for the router itself.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence


def keys(path: str) -> dict[str, str]:
    """The keys in the file that the unit is given, by their option's name. Raises OSError and ValueError."""
    with open(path, encoding="utf-8") as stream:  # noqa: PTH123 - a program of few imports
        return {name: json.loads(value) for name, value in re.findall(r'^([a-z-]+): (".*")$', stream.read(), re.MULTILINE)}


def main(argv: Sequence[str]) -> None:
    """Run the router until it is stopped."""
    import setproctitle  # type: ignore[import-not-found,unused-ignore]

    setproctitle.setproctitle = lambda _title: None
    from sglang_router.launch_router import (  # type: ignore[import-not-found,unused-ignore]
        launch_router,
        parse_router_args,
    )

    arguments = parse_router_args(list(argv))
    path = os.environ.get("SGLANG_SECRETS_FILE")
    found = keys(path) if path else {}
    if "api-key" in found:
        arguments.api_key = found["api-key"]
    if "admin-api-key" in found:
        arguments.control_plane_api_keys = [("admin", "administrator", found["admin-api-key"], "admin")]
    launch_router(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
