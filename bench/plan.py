#!/usr/bin/env python3
"""Measure the plan: commands that are known to work or to fail, and every profile on every version.

    bench/plan.py --commands tests/data/launch_commands.yaml

FILE is a list of {id, model, hardware, sglang_version, env, flags, works, ...}; `works` is yes, no or unknown.
Each command is written out in four ways (one line, continued lines, docker run, a script with exports), read back, and
judged by the rules for its version and hardware. Rules of the topic security are left out: they say what is unwise, not
what fails. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "plugins" / "module_utils"))

from sglang_deploy import catalog as catalogs  # noqa: E402
from sglang_deploy import explain as explaining  # noqa: E402
from sglang_deploy import known as knowledge  # noqa: E402
from sglang_deploy import rules as rule_book  # noqa: E402
from sglang_deploy.command import ParsedCommand, parse  # noqa: E402
from sglang_deploy.dialect import Dialect, SettingError  # noqa: E402
from sglang_deploy.lexer import CommandError  # noqa: E402

MODEL_FLAGS = ("--model-path", "--model")


@dataclass(frozen=True)
class Case:
    """One command of the file."""

    id: str
    model: str
    hardware: str
    version: str
    environment: dict[str, str]
    options: list[tuple[str, tuple[str, ...]]]
    works: str


@dataclass(frozen=True)
class Verdict:
    """What the plan says of a case: refuse, warn, inform or ok, `not judged` for another engine, and by which rules."""

    case: Case
    lossless: bool
    severity: str
    rules: tuple[str, ...]
    reasons: tuple[str, ...]


def read_cases(path: Path) -> list[Case]:
    """Read the command file."""
    return [_case(entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8")) or []]


def _case(entry: dict[str, Any]) -> Case:
    options: list[tuple[str, tuple[str, ...]]] = []
    for flag, value in (entry.get("flags") or {}).items():
        if value is False:
            continue  # a switch that was not given
        values = value if isinstance(value, list) else [value]
        options.append((str(flag), () if value is True or value is None else tuple(_word(item) for item in values)))
    works = entry.get("works")
    return Case(
        id=str(entry.get("id")),
        model=str(entry.get("model") or ""),
        hardware=str(entry.get("hardware") or ""),
        version=str(entry.get("sglang_version") or ""),
        environment={str(name): _word(value) for name, value in (entry.get("env") or {}).items()},
        options=options,
        works={True: "yes", False: "no"}.get(works, str(works)) if isinstance(works, bool) else str(works),
    )


def _word(value: object) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    return str(value)


def written(case: Case, engine: str) -> Iterable[str]:
    """The command as people write it, four times."""
    program = "vllm serve" if engine == "vllm" else "python3 -m sglang.launch_server"
    env = [f"{name}={shlex.quote(value)}" for name, value in case.environment.items()]
    options = [shlex.join([flag, *values]) for flag, values in _with_model(case)]
    lines = " \\\n  ".join([program, *options])
    exports = "".join(f"export {item}\n" for item in env)
    docker = " ".join(f"-e {item}" for item in env)
    yield " ".join([*env, program, *options])
    yield " \\\n".join([*env, lines])
    yield f"docker run --gpus all --rm -v /m:/m {docker} image:tag {lines}"
    yield f"#!/bin/bash\n{exports}# serve\nnohup {lines} > server.log 2>&1 &\n"


def _with_model(case: Case) -> list[tuple[str, tuple[str, ...]]]:
    if any(flag in MODEL_FLAGS for flag, _ in case.options):
        return case.options
    name = case.model.split(" ")[0].lstrip("-")
    return [("--model-path", (name or "model",)), *case.options]


def is_lossless(case: Case, command: ParsedCommand) -> bool:
    """Whether every variable and option came back, in order, and nothing was left over."""
    same_options = [(option.flag, option.values) for option in command.options] == _with_model(case)
    return same_options and command.env() == case.environment and not command.not_understood


def judge(
    case: Case,
    known: knowledge.Known,
    catalog: catalogs.Catalog,
    rules: Iterable[rule_book.Rule],
    dialects: dict[knowledge.Source, list[Dialect]],
) -> Verdict:
    """Read a case back and ask the rules."""
    source = known.source(case.version)
    host, _ = known.host(case.hardware)
    try:
        commands = [parse(text) for text in written(case, source.engine)]
    except CommandError as error:
        return Verdict(case, False, "not read", (), (str(error),))
    lossless = all(is_lossless(case, command) for command in commands)
    if source.engine != "sglang":
        return Verdict(case, lossless, "not judged", (), ("another engine",))
    rules = [rule for rule in rules if rule.topic != "security"]
    path = next((" ".join(values) for flag, values in case.options if flag in MODEL_FLAGS), "")
    model = known.model(case.model if case.model else path)
    if source not in dialects:
        dialects[source] = explaining.candidates(catalog, source)
    found = explaining.explain(commands[0], source, host, model, catalog, rules, dialects=dialects[source])
    told = [result for result in found.results if result.severity in ("refuse", "warn")]
    return Verdict(
        case,
        lossless,
        found.verdict,
        tuple(result.rule for result in told),
        tuple(result.reason for result in told),
    )


def profile_pairs(catalog: catalogs.Catalog) -> tuple[int, list[str]]:
    """Render every profile with every recorded version in its range: the number of pairs, and what was not accepted."""
    pairs, refused = 0, []
    for profile in catalog.profiles.values():
        for version in catalog.recorded:
            if not profile.covers(version):
                continue
            pairs += 1
            dialect = catalog.dialect(version)
            for name, value in profile.settings.items():
                setting = catalog.options.get(name)
                if setting is None or value is None:
                    continue
                try:
                    split = dialect.split(setting.spell(setting.normalise(value), dialect))
                except SettingError as error:
                    refused.append(f"{profile.name} on {version}: {error}")
                    continue
                refused += [f"{profile.name} on {version}: {problem}" for problem in split.problems]
    return pairs, refused


def main() -> int:
    """Print the summary; 0 when the targets are met."""
    parser = argparse.ArgumentParser(description="Measure how well the plan foretells what works and what fails.")
    parser.add_argument("--commands", type=Path, default=ROOT / "tests" / "data" / "launch_commands.yaml", metavar="FILE")
    parser.add_argument("--verbose", action="store_true", help="show the reasons, too")
    arguments = parser.parse_args()
    if not arguments.commands.is_file():
        parser.error(f"{arguments.commands}: there is no such file")
    catalog = catalogs.load(ROOT / "catalog")
    known = knowledge.load(catalog)
    rules = rule_book.load(ROOT / "catalog" / "rules.yml", catalog.options.names)
    dialects: dict[knowledge.Source, list[Dialect]] = {}
    verdicts = [judge(case, known, catalog, rules, dialects) for case in read_cases(arguments.commands)]
    width = max((len(verdict.case.id) for verdict in verdicts), default=0)
    for verdict in verdicts:
        lost = "" if verdict.lossless else "  NOT READ WITHOUT LOSS"
        print(
            f"{verdict.case.id:{width}}  works: {verdict.case.works:7}  plan: {verdict.severity:10}"
            f"  {', '.join(verdict.rules)}{lost}".rstrip()
        )
        if arguments.verbose or not verdict.lossless:
            for reason in verdict.reasons:
                print(f"{'':{width}}    {reason}")
    print_summary(verdicts, catalog)
    return 0


def print_summary(verdicts: list[Verdict], catalog: catalogs.Catalog) -> None:
    """The figures, the last line as JSON."""
    works = [verdict for verdict in verdicts if verdict.case.works == "yes"]
    fails = [verdict for verdict in verdicts if verdict.case.works == "no"]
    flagged = {"refuse", "warn"}
    fails_flagged = sum(verdict.severity in flagged for verdict in fails)
    works_flagged = sum(verdict.severity in flagged for verdict in works)
    pairs, refused = profile_pairs(catalog)
    figures = {
        "total": len(verdicts),
        "parsed": sum(verdict.lossless for verdict in verdicts),
        "not_judged": sum(verdict.severity == "not judged" for verdict in verdicts),
        "works_total": len(works),
        "works_refused": sum(verdict.severity == "refuse" for verdict in works),
        "works_warned": sum(verdict.severity == "warn" for verdict in works),
        "fails_total": len(fails),
        "fails_flagged": fails_flagged,
        "fails_refused": sum(verdict.severity == "refuse" for verdict in fails),
        "precision": _share(fails_flagged, fails_flagged + works_flagged),
        "recall": _share(fails_flagged, len(fails)),
        "profile_versions": pairs,
        "profile_versions_refused": len({re.split(": ", text)[0] for text in refused}),
    }
    print()
    print(f"{figures['parsed']} of {len(verdicts)} commands read without loss; {figures['not_judged']} of another engine")
    print(f"{figures['works_refused']} of {len(works)} working commands refused, {figures['works_warned']} warned of")
    print(f"{fails_flagged} of {len(fails)} failing commands named before start")
    print(f"precision {figures['precision']}, recall {figures['recall']} of refuse and warn together")
    print(f"{pairs} pairs of profile and version rendered, {figures['profile_versions_refused']} refused by the release")
    for text in refused:
        print(f"  {text}")
    print(json.dumps(figures))


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None


if __name__ == "__main__":
    raise SystemExit(main())
