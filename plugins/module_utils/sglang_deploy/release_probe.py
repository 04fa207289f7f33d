"""What an installed release says of itself: run by the release's own Python, never imported for its work elsewhere.

``release.build`` hands this file's source to ``venv/bin/python -c`` with the path of the JSON file to write. It reads
the option list from SGLang's own parser (``ServerArgs.add_cli_args``), so that nothing about options is remembered from
another version.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Any


def option(action: argparse.Action) -> dict[str, Any]:
    """One entry of options.json. Deprecated means that the action's class, or its help text's first word, says so.

    SGLang does both. The word further on in a help text speaks of something else that the option replaces.
    """
    kind = type(action).__name__.lstrip("_")
    help_text = action.help if isinstance(action.help, str) else ""
    entry: dict[str, Any] = {"flags": list(action.option_strings), "dest": action.dest, "kind": kind}
    if action.nargs is not None:
        entry["nargs"] = action.nargs
    if action.type is not None:
        entry["type"] = getattr(action.type, "__name__", str(action.type))
    if action.choices is not None:
        unordered = isinstance(action.choices, set | frozenset)
        choices = sorted(action.choices, key=str) if unordered else list(action.choices)
        entry["choices"] = [choice if isinstance(choice, int | float | str) else str(choice) for choice in choices]
    if "deprecated" in kind.lower() or re.match(r"\W*deprecated\b", help_text, re.IGNORECASE):
        entry["deprecated"] = True
    return entry


def options(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Every option of ``parser`` in its own order, without ``--help``."""
    return [option(a) for a in parser._actions if a.option_strings and not isinstance(a, argparse._HelpAction)]


def distributions() -> dict[str, str]:
    """Installed packages: canonical name to version."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            # The first on the path is the one that is imported; the host's own packages may lie behind.
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return dict(sorted(found.items()))


def router() -> dict[str, Any]:
    """The router's version and options; it has neither SGLang nor torch."""
    from sglang_router.router_args import RouterArgs  # type: ignore[import-not-found,unused-ignore]

    parser = argparse.ArgumentParser(add_help=False)
    RouterArgs.add_cli_args(parser)
    version = importlib.metadata.version("sglang-router")
    return {"sglang": f"router {version}", "torch": None, "cuda": None, "options": options(parser)}


def main(target: str, program: str) -> None:
    """Import the program, then write ``{"sglang", "torch", "cuda", "packages", "options"}`` to ``target``.

    ``program`` is ``sglang``, which brings torch, or ``sglang_router``.
    """
    packages = distributions()  # first: setuptools, once imported, puts what it carries onto the path
    if program == "sglang_router":
        Path(target).write_text(json.dumps({**router(), "packages": packages}), encoding="utf-8")
        return
    import sglang  # type: ignore[import-not-found,unused-ignore]
    import torch  # type: ignore[import-not-found,unused-ignore]
    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found,unused-ignore]

    parser = argparse.ArgumentParser(add_help=False)
    ServerArgs.add_cli_args(parser)
    report = {
        "sglang": sglang.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "packages": packages,
        "options": options(parser),
    }
    Path(target).write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
