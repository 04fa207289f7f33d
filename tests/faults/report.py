"""The results as a table in docs/reliability.md. A fault that was not tried in this run keeps its last result and date."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .rows import Fault

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("results.json")
DOCUMENT = ROOT / "docs" / "reliability.md"
START, END = "<!-- written by tests/faults: begin -->", "<!-- end -->"


def read(path: Path = RESULTS) -> dict[str, Any]:
    """Results by a fault's title."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def keep(results: Mapping[str, Any], faults: Sequence[Fault], path: Path = RESULTS) -> None:
    """Write them, without those of faults that are no more."""
    titles = {fault.title for fault in faults}
    kept = {title: result for title, result in results.items() if title in titles}
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def table(faults: Sequence[Fault], results: Mapping[str, Any]) -> list[str]:
    """Markdown: what was tried, in the order of faults.yml, and what was never tried."""
    tried = [(fault, results[fault.title]) for fault in faults if fault.title in results]
    passed = [result for _, result in tried if not result["problems"]]
    lines = [f"{len(faults)} faults are described, {len(tried)} were tried, {len(passed)} ended well.", ""]
    heading = [
        "| phase | fault | the run | served meanwhile | the next run | seconds | date |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += heading if tried else []
    for fault, result in tried:
        problems = "; ".join(result["problems"])
        after = "as it should" if not problems else f"**{problems}**"
        cells = (fault.phase, fault.name, result["ended"], result["served"], after, str(result["seconds"]), result["date"])
        lines.append("| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |")
    made = sorted({", ".join(f"{name}: {value}" for name, value in result["versions"].items()) for _, result in tried})
    lines += ["", *(f"With {one}." for one in made)]
    never = [fault.title for fault in faults if fault.title not in results]
    if never:
        lines += ["", f"Not yet tried: {'; '.join(never)}."]
    return lines


def write(faults: Sequence[Fault], results: Mapping[str, Any], document: Path = DOCUMENT) -> None:
    """Put the table between its marks."""
    before, _, rest = document.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    document.write_text(f"{before}{START}\n\n" + "\n".join(table(faults, results)) + f"\n\n{END}{after}", encoding="utf-8")
