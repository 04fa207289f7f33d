"""What an installed release makes of an argument list: run by the release's own Python, never imported for its work.

`resolution.resolve` hands this file's source to `venv/bin/python -c` with the path of a JSON file to write; the argument
list comes as JSON on standard input. It calls SGLang's own `prepare_server_args`, and `check_server_args` where the
version has it, and imports what moves a KV cache between hosts where prefill and decode are apart, since SGLang does so
only when the model is loaded. Nothing else is started and no weights are read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import logging
import sys
from pathlib import Path
from typing import Any

ENGINES = {"mooncake": "mooncake.engine", "nixl": "nixl._api"}
SECRETS = ("api_key", "admin_api_key", "ssl_keyfile_password")


def plain(value: Any) -> Any:
    """A value as JSON can hold it; what it cannot hold becomes text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    return str(value)


def fields(server_args: Any) -> dict[str, Any]:
    """The fields of ServerArgs, secrets left out."""
    names = [item.name for item in dataclasses.fields(server_args)]
    return {name: plain(getattr(server_args, name)) for name in names if name not in SECRETS}


def transfer_problem(server_args: Any) -> dict[str, str] | None:
    """Why the release cannot move a KV cache from prefill to decode, where it is asked to; None where it can."""
    if getattr(server_args, "disaggregation_mode", None) not in ("prefill", "decode"):
        return None
    backend = str(getattr(server_args, "disaggregation_transfer_backend", "")).removesuffix("_tcp")
    try:
        importlib.import_module(ENGINES.get(backend, "sglang"))
    except ImportError as error:
        return {"backend": backend, "error": str(error)}
    return None


class Lines(logging.Handler):
    """Keeps what SGLang logs while it resolves: that is where it says what it overrides."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main(target: str, argv: list[str]) -> None:
    """Write {"stage", "resolved", "log", "gpu", "transfer", "error", "error_type"} to `target`."""
    report: dict[str, Any] = {"stage": "import", "resolved": None, "log": [], "gpu": None, "error": None}
    lines = Lines()
    said = io.StringIO()
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
        from sglang.srt.server_args import (  # type: ignore[import-not-found,unused-ignore]
            prepare_server_args,
        )

        report["gpu"] = bool(torch.cuda.is_available())
        report["stage"] = "arguments"
        logging.getLogger("sglang").addHandler(lines)
        with contextlib.redirect_stderr(said):
            server_args = prepare_server_args(argv)
        report["resolved"] = fields(server_args)
        report["stage"] = "check"
        if hasattr(server_args, "check_server_args"):
            server_args.check_server_args()
        report["stage"] = "transfer"
        report["transfer"] = transfer_problem(server_args)
        report["stage"] = "done"
    except SystemExit:
        report["error_type"] = "SystemExit"
        report["error"] = said.getvalue().strip().splitlines()[-1] if said.getvalue().strip() else "refused"
    except Exception as error:
        report["error_type"] = type(error).__name__
        report["error"] = str(error).strip() or type(error).__name__
    report["log"] = lines.lines
    Path(target).write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], json.load(sys.stdin))
