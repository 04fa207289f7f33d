#!/usr/bin/env python3
"""Write the reference pages from what the project itself reads: argument specs and catalog. --check only compares."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
HEAD = "<!-- Made by `make docs`; edit the sources that the text names. -->\n\n"
MARKUP = re.compile(r"\b[CVO]\(((?:[^()]|\([^()]*\))*)\)")


def main() -> int:
    stale = []
    for name, text in {"variables.md": variables(), "catalog.md": catalog()}.items():
        path = ROOT / "docs" / name
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(f"docs/{name}")
    if stale:
        print(f"{', '.join(stale)}: not what the sources say; run `make docs`", file=sys.stderr)
    return 1 if stale else 0


def variables() -> str:
    """Every variable of every role, with type, default and meaning."""
    text = [
        HEAD,
        "# Variables\n\nWhat can be set in group_vars, host_vars or with `-e`, by the role that reads it first.\n",
    ]
    for role in sorted(path.name for path in (ROOT / "roles").iterdir()):
        spec = _yaml(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]["main"]
        text.append(f"\n## {role}\n\n{_sentence(spec['short_description'])}\n\n{_prose(spec['description'])}\n\n")
        rows = [
            (f"`{name}`", _type(option), _default(option), _prose(option["description"]))
            for name, option in spec["options"].items()
        ]
        text += _table(("variable", "type", "default", "meaning"), rows)
    return "".join(text)


def catalog() -> str:
    """Stacks, profiles and settings of the catalog."""
    stacks, profiles = (_yaml(ROOT / "catalog" / f"{name}.yml") for name in ("stacks", "profiles"))
    settings = _yaml(ROOT / "catalog" / "options.yml")["settings"]
    text = [
        HEAD,
        "# Catalog\n\n## Stacks\n\nVersions that belong together (`sglang_stack`; catalog/stacks.yml has the evidence).\n\n",
    ]
    columns = ("sglang", "cuda", "driver", "python", "torch", "transformers", "flashinfer")
    text += _table(
        ("stack", *columns, "summary"),
        [
            (f"`{name}`", *(str(stack.get(column, "")) for column in columns), stack["summary"])
            for name, stack in stacks.items()
        ],
    )
    text.append("\n## Profiles\n\nServing choices with evidence (`sglang_profile`; catalog/profiles.yml has the sources).\n")
    for name, profile in profiles.items():
        base = f", over `{profile['extends']}`" if "extends" in profile else ""
        text.append(f"\n### {name}\n\n{_sentence(profile['summary'])} Status: {profile['status']}{base}.\n\n")
        chosen = {**profile.get("settings", {}), **profile.get("environment", {})}
        text.append("".join(f"- `{key}`: `{_value(value)}`\n" for key, value in chosen.items()))
        text += ["\nKnown faults:\n\n", *(f"- {fault}\n" for fault in profile["faults"])] if profile.get("faults") else []
    text.append(
        "\n## Settings\n\nNames for `sglang_settings` and `sglang_backends`, and the options that they can become, "
        "newest first.\n\n"
    )
    text += _table(
        ("setting", "type", "meaning", "options"),
        [(f"`{name}`", entry["type"], entry["summary"], _spellings(entry)) for name, entry in settings.items()],
    )
    return "".join(text)


def _spellings(entry: Mapping[str, Any]) -> str:
    sides = [(None, "options"), ("true", "if_true"), ("false", "if_false")]
    said = []
    for value, key in sides:
        spelled = [_words(spelling) for spelling in entry.get(key, []) if spelling]
        if spelled:
            said.append((f"{value}: " if value else "") + ", ".join(f"`{words}`" for words in spelled))
    return "; ".join(said)


def _words(spelling: str | list[str]) -> str:
    return spelling if isinstance(spelling, str) else " ".join(spelling)


def _type(option: Mapping[str, Any]) -> str:
    kind = str(option["type"]) + (f" of {option['elements']}" if "elements" in option else "")
    return kind + (f" ({', '.join(str(choice) or 'empty' for choice in option['choices'])})" if "choices" in option else "")


def _default(option: Mapping[str, Any]) -> str:
    return f"`{_value(option['default'])}`" if option.get("default") not in (None, "") else ""


def _value(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool | None) else str(value)


def _prose(text: str | list[str]) -> str:
    return MARKUP.sub(r"`\1`", text if isinstance(text, str) else " ".join(text)).strip()


def _sentence(text: str) -> str:
    return text if text.endswith(".") else text + "."


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    lines = [list(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return [
        f"| {' | '.join(lines[0])} |\n",
        f"|{'---|' * len(lines[0])}\n",
        *(f"| {' | '.join(line)} |\n" for line in lines[1:]),
    ]


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())
