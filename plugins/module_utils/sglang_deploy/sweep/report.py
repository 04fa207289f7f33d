"""The results of a sweep: sweep.json, a page for people, and the pin."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import yaml

from . import board, measure, order, outcome, pin, trials
from .space import Space

SCHEMA = 1


def results(
    *,
    host: str,
    instance: str,
    space: Space,
    state: order.State,
    record: trials.Record,
    objective: measure.Objective,
    workload: measure.Workload,
    facts: Mapping[str, Any],
    unit: str,
    base_backends: Mapping[str, Any],
    base_environment: Mapping[str, Any],
    date: str,
) -> dict[str, Any]:
    """Everything that a sweep found, JSON-able: the content of sweep.json."""
    ended = [line for line in record.lines if line.get("kind") == trials.ENDED]
    chosen = order.choose(state)
    found = order.effects(state)
    rows = [_trial(number, line, outcome.best_before(ended, number), unit) for number, line in enumerate(ended, 1)]
    return {
        "schema": SCHEMA,
        "host": host,
        "instance": instance,
        "date": date,
        "space": space.name,
        "size": space.size,
        "objective": objective.as_dict(),
        "workload": workload.as_dict(),
        "unit": unit,
        "facts": dict(facts),
        "seconds": round(sum(float(line.get("seconds") or 0) for line in ended), 1),
        "seconds_failed": round(sum(float(line.get("seconds") or 0) for line in ended if line["status"] != "passed"), 1),
        "trials": rows,
        "skipped": [dict(line) for line in record.lines if line.get("kind") == trials.SKIPPED],
        "effects": [vars(each) for each in found],
        "blame": blame(state),
        "noise": order.between_launches(state),
        "choice": _choice(chosen, space, base_backends, base_environment) if chosen else {},
        "by_users": by_users(rows),
    }


def _trial(number: int, line: Mapping[str, Any], best: float, unit: str) -> dict[str, Any]:
    value = float(line.get("value") or 0.0)
    return {
        **{name: each for name, each in line.items() if name not in ("kind", "boot")},
        "number": number,
        "shown": board.value_text(value, float(line.get("error") or 0.0), unit) if line["status"] == "passed" else "",
        "against": value / best - 1 if line["status"] == "passed" and best > 0 and value > 0 else None,
    }


def _choice(
    chosen: order.Choice, space: Space, base_backends: Mapping[str, Any], base_environment: Mapping[str, Any]
) -> dict[str, Any]:
    settings, environment = space.layers(chosen.candidate)
    lines: dict[str, Any] = {"sglang_profile": chosen.candidate.profile}
    if settings:
        lines["sglang_backends"] = {**base_backends, **settings}
    if environment:
        lines["sglang_environment"] = {**base_environment, **environment}
    return {
        "key": chosen.candidate.key,
        "identity": chosen.identity,
        "profile": chosen.candidate.profile,
        "settings": settings,
        "environment": environment,
        "value": chosen.value,
        "error": chosen.error,
        "measured": chosen.measured,
        "tied": [candidate.key for candidate in chosen.tied],
        "group_vars": yaml.safe_dump(lines, sort_keys=False, allow_unicode=True).rstrip().splitlines(),
    }


def blame(state: order.State) -> list[dict[str, Any]]:
    """Values that failed: in which surroundings, and whether they are to blame.

    A value is blamed where it failed beside two different sets of others and never passed. One that passed elsewhere is
    left out where the trials that failed have another value that never passed.
    """
    first = [trial for trial in state.trials if trial.status in order.LAUNCHED and not trial.again]
    passed_with = {change for trial in first if trial.status == "passed" for change in trial.candidate.changes}
    found = []
    for dimension in state.space.dimensions:
        for value in dimension.values:
            change = (dimension.name, value.label)
            failed = [trial for trial in first if trial.status != "passed" and change in trial.candidate.changes]
            if change in passed_with:
                failed = [trial for trial in failed if passed_with.issuperset(trial.candidate.changes)]
            if not failed:
                continue
            passed = [
                trial.candidate.key for trial in first if trial.status == "passed" and change in trial.candidate.changes
            ]
            alone = "to blame" if len(failed) > 1 else "failed once, not tried elsewhere"
            found.append(
                {
                    "name": dimension.name,
                    "label": value.label,
                    "failed": [trial.candidate.key for trial in failed],
                    "passed": passed,
                    "verdict": "only beside some others" if passed else alone,
                }
            )
    return found


def by_users(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The best trial at every number of users: by output rate, the ones that failed left out."""
    best: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["status"] != "passed" or row.get("again"):
            continue
        for level in row["measured"]["levels"]:
            users = int(level["users"])
            if users not in best or level["output_rate"] > best[users]["output_rate"]:
                best[users] = {"users": users, "trial": row["number"], "said": row["said"], **level}
    return [best[users] for users in sorted(best)]


def summary(made: Mapping[str, Any]) -> list[str]:
    """The end of a sweep, on screen."""
    counted = {name: sum(row["status"] == name for row in made["trials"]) for name in ("passed", "failed", "wrong", "died")}
    told = ", ".join(f"{number} {name}" for name, number in counted.items() if number)
    lines = [f"{len(made['trials'])} trials ({told}) in {board.spell(made['seconds'])}"]
    lines += [f"{each['name']} {each['label']}: {each['verdict']}" for each in made["blame"]]
    best: dict[int, list[str]] = {}
    said: dict[int, str] = {}
    for each in made["by_users"]:
        best.setdefault(each["trial"], []).append(f"{each['output_rate']:.1f} tok/s at {each['users']} users")
        said[each["trial"]] = each["said"]
    lines += [f"trial {trial} ({said[trial]}) is the best with {', '.join(rates)}" for trial, rates in best.items()]
    choice = made["choice"]
    if not choice:
        return [*lines, "No candidate passed, so there is nothing to choose."]
    value = board.value_text(choice["value"], choice["error"], made["unit"])
    lines.append(f"chosen: {choice['key']}, {value}, launches measured: {choice['measured']}")
    if choice["tied"]:
        lines.append(f"as good within noise, and not simpler: {'; '.join(choice['tied'])}")
    return [*lines, "in group_vars:", *(f"    {line}" for line in choice["group_vars"])]


def pin_text(made: Mapping[str, Any], evidence: str, path: Path, project: Path) -> str:
    """The pin's file, for the choice. `evidence` is the text of sweep.json at `path`, of which the pin has the hash."""
    choice = made["choice"]
    shown = path.relative_to(project) if path.is_relative_to(project) else path
    made_pin = pin.Pin(
        profile=choice["profile"],
        settings=choice["settings"],
        environment=choice["environment"],
        facts=made["facts"],
        evidence={
            "sha256": hashlib.sha256(evidence.encode()).hexdigest(),
            "file": str(shown),
            "date": made["date"],
            "trials": len(made["trials"]),
            "objective": f"{made['objective']['kind']} at {made['objective']['users']} users",
            "value": f"{choice['value']:.4g}",
            "unit": made["unit"],
        },
    )
    head = (
        f"The best of a sweep of {made['instance']} on {made['host']}, {made['date']}. deploy-glm5.yml reads it and\n"
        "lays it over group_vars. Remove the file to go by group_vars alone."
    )
    return pin.text(made_pin, head)


# The page

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 340, 64, 44, 16, 20


def html(made: Mapping[str, Any], template: str) -> str:
    """The page: one file, with its styles and drawings, that asks for nothing else."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        spell=board.spell, percent=lambda value: f"{value:+.1%}", number=lambda value: f"{value:,.1f}"
    )
    return environment.from_string(template).render(made=made, chart=chart(made), bars=bars(made))


def chart(made: Mapping[str, Any]) -> dict[str, Any]:
    """Throughput against latency: a point for each trial at each number of users, and the frontier, in SVG's units."""
    points = []
    for row in made["trials"]:
        if row["status"] == "passed":
            for level in row["measured"]["levels"]:
                points.append(
                    {
                        "x": float(level["e2e_p50_ms"]),
                        "y": float(level["output_rate"]),
                        "trial": row["number"],
                        "users": level["users"],
                        "said": row["said"],
                        "again": bool(row.get("again")),
                        "chosen": row["identity"] == made["choice"].get("identity"),
                    }
                )
    if not points:
        return {"points": []}
    x_ticks = _ticks(max(point["x"] for point in points))
    y_ticks = _ticks(max(point["y"] for point in points))
    scale_x, scale_y = (WIDTH - LEFT - RIGHT) / x_ticks[-1], (HEIGHT - TOP - BOTTOM) / y_ticks[-1]
    for point in points:
        point["left"] = round(LEFT + point["x"] * scale_x, 1)
        point["top"] = round(HEIGHT - BOTTOM - point["y"] * scale_y, 1)
    return {
        "points": points,
        "frontier": " ".join(f"{point['left']},{point['top']}" for point in frontier(points)),
        "x_ticks": [(round(LEFT + tick * scale_x, 1), f"{tick:g}") for tick in x_ticks],
        "y_ticks": [(round(HEIGHT - BOTTOM - tick * scale_y, 1), f"{tick:g}") for tick in y_ticks],
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "bottom": HEIGHT - BOTTOM,
        "right": WIDTH - RIGHT,
        "top": TOP,
    }


def frontier(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The points of which no other has both less latency (x) and more throughput (y), the fastest first."""
    best, kept = -math.inf, []
    for point in sorted(points, key=lambda each: (each["x"], -each["y"])):
        if point["y"] > best:
            best = point["y"]
            kept.append(point)
    return kept


def _ticks(most: float, count: int = 5) -> list[float]:
    """Round numbers from 0 to a little above `most`."""
    raw = most / count or 1.0
    power: float = 10 ** math.floor(math.log10(raw))
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= raw)
    return [round(step * number, 10) for number in range(math.ceil(most / step) + 1)]


def bars(made: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The effects as bars with their uncertainty, in percent of the drawing's width around its middle."""
    compared = [each for each in made["effects"] if each["pairs"]]
    most = max((abs(each["share"]) + each["error"] for each in compared), default=0.0) or 1.0
    drawn = []
    for each in made["effects"]:
        low, high = (50 + 48 * (each["share"] + side * each["error"]) / most for side in (-1, 1))
        end = 50 + 48 * each["share"] / most
        drawn.append(
            {
                **each,
                "start": round(min(50.0, end), 2),
                "width": round(abs(end - 50), 2),
                "low": round(low, 2),
                "span": round(high - low, 2),
            }
        )
    return drawn
