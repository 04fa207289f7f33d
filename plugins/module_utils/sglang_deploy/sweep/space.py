"""What a sweep may vary: profiles as starting points, and lists of values for settings and environment variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..catalog import Catalog, Evidence, settings_problems
from ..dialect import text_of
from ..fields import FieldError, build
from ..names import environment_name_problem, suggest, text_problem

UNSET = "unset"
"""The label of null: the setting is taken out, so SGLang's own default stands."""


class SpaceError(ValueError):
    """A space cannot be used. The message names each problem with its place and what to write."""


@dataclass(frozen=True)
class Value:
    """One value of a dimension: its label, and the settings and environment that it sets. None takes one out."""

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Dimension:
    """Something that is varied by itself: a setting, an environment variable, or settings that only change together."""

    name: str
    values: tuple[Value, ...]

    def value(self, label: str) -> Value:
        """The value with that label. Raises KeyError."""
        for value in self.values:
            if value.label == label:
                return value
        raise KeyError(label)


@dataclass(frozen=True)
class Entry:
    """A space as it is written in catalog/sweeps.yml. `minutes` are guesses for a first estimate: start, measure."""

    summary: str
    profiles: tuple[str, ...]
    vary: Mapping[str, Any]
    evidence: tuple[Evidence, ...] = ()
    minutes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """A point of a space: a profile, and what is changed on it, dimension by dimension in the space's order."""

    profile: str
    changes: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """A text that names the candidate, the same in every run: `profile` or `profile + name=value + ...`."""
        return " + ".join([self.profile, *(f"{name}={label}" for name, label in self.changes)])

    def label(self, name: str) -> str | None:
        """What the candidate changes a dimension to; None where the profile stands."""
        return dict(self.changes).get(name)


@dataclass(frozen=True)
class Space:
    """A checked space. `minutes` are the guessed lengths of a start and of measuring one trial."""

    name: str
    profiles: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    start_minutes: float = 1.0
    measure_minutes: float = 1.0

    @property
    def size(self) -> int:
        """Points of the full product; every dimension can also stay as the profile has it."""
        product = len(self.profiles)
        for dimension in self.dimensions:
            product *= len(dimension.values) + 1
        return product

    def dimension(self, name: str) -> Dimension:
        """The dimension of that name. Raises KeyError."""
        for dimension in self.dimensions:
            if dimension.name == name:
                return dimension
        raise KeyError(name)

    def change(self, candidate: Candidate, name: str, label: str | None) -> Candidate:
        """The candidate with one dimension at another value; None leaves it to the profile."""
        changed = {**dict(candidate.changes), name: label}
        order = [dimension.name for dimension in self.dimensions]
        return Candidate(candidate.profile, tuple((each, text) for each in order if (text := changed.get(each)) is not None))

    def layers(self, candidate: Candidate) -> tuple[dict[str, Any], dict[str, str | None]]:
        """The settings and the environment that a candidate lays over its profile."""
        settings: dict[str, Any] = {}
        environment: dict[str, str | None] = {}
        for name, label in candidate.changes:
            value = self.dimension(name).value(label)
            settings.update(value.settings)
            environment.update(value.environment)
        return settings, environment

    def parse(self, key: str) -> Candidate | None:
        """The candidate that a key names; None where the space has changed and no longer has it."""
        profile, *changes = key.split(" + ")
        pairs = tuple((name, label) for name, _, label in (change.partition("=") for change in changes))
        try:
            for name, label in pairs:
                self.dimension(name).value(label)
        except KeyError:
            return None
        return Candidate(profile, pairs) if profile in self.profiles else None


def load(
    path: Path,
    catalog: Catalog,
    name: str,
    own: Mapping[str, Any] | None = None,
    vary: Mapping[str, Any] | None = None,
    profiles: Iterable[str] = (),
) -> Space:
    """The space `name` of a file, with a user's own spaces (`own`, same form) laid over the file's.

    vary: dimensions over those of the space; null takes one out. profiles: starting points instead of the space's.
    A space without a name holds `vary` and `profiles` alone. Raises SpaceError with every problem.
    """
    try:
        entries = {**yaml.safe_load(path.read_text(encoding="utf-8")), **(own or {})}
    except (OSError, yaml.YAMLError) as error:
        raise SpaceError(f"{path}: cannot be read: {error}") from error
    if name and name not in entries:
        raise SpaceError(f"sweep_space: {name!r} is not known; {suggest(name, entries)}")
    where = f"{'sweep_spaces' if name in (own or {}) else path.name}, {name}"
    try:
        entry = build(Entry, entries[name], where) if name else Entry("", (), {})
    except FieldError as error:
        raise SpaceError(str(error)) from error
    wanted = {**entry.vary, **(vary or {})}
    starts = tuple(profiles) or entry.profiles
    problems = [
        f"sweep_profiles: {each!r} is not known; {suggest(each, catalog.profiles)}"
        for each in starts
        if each not in catalog.profiles
    ]
    if not starts:
        problems.append("sweep_profiles: no starting point is given; name profiles, the one to compare with first")
    dimensions = []
    for dimension, values in wanted.items():
        if values is None:
            continue
        found, wrong = _dimension(str(dimension), values, catalog)
        problems.extend(wrong)
        dimensions.append(found)
    if problems:
        raise SpaceError("\n".join(problems))
    return Space(
        name or "own",
        starts,
        tuple(dimensions),
        entry.minutes.get("start", 1.0),
        entry.minutes.get("measure", 1.0),
    )


def _dimension(name: str, values: Any, catalog: Catalog) -> tuple[Dimension, list[str]]:
    """A dimension, and what is wrong with it. A name in capitals is an environment variable."""
    problems: list[str] = []
    where = f"vary, {name}"
    found: list[Value] = []
    if name.isupper() and catalog.options.get(name) is None:
        if problem := environment_name_problem(name):
            problems.append(f"{where}: {problem}")
        for value in values if isinstance(values, list) else []:
            text = None if value is None else _environment_text(value)
            if text is not None and (problem := text_problem(text)):
                problems.append(f"{where}: {problem}")
            found.append(Value(UNSET if text is None else text, environment={name: text}))
    elif isinstance(values, Mapping):
        for label, settings in values.items():
            if isinstance(settings, Mapping):
                settings = {str(each): value for each, value in settings.items()}
                problems.extend(settings_problems(settings, f"{where}, {label}", catalog.options))
                found.append(Value(str(label), settings=settings))
            else:
                problems.append(f"{where}, {label}: should be a mapping of settings that change together")
    else:
        for value in values if isinstance(values, list) else []:
            problems.extend(settings_problems({name: value}, where, catalog.options))
            found.append(Value(UNSET if value is None else text_of(value), settings={name: value}))
    if not found:
        problems.append(f"{where}: should be a list of values, or a mapping of labels to settings that change together")
    labels = [value.label for value in found]
    problems.extend(
        f"{where}: the value {each} stands there twice" for each in dict.fromkeys(labels) if labels.count(each) > 1
    )
    problems.extend(f"{where}: {each!r} may not contain ' + '" for each in labels if " + " in each)
    return Dimension(name, tuple(found)), problems


def _environment_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else text_of(value)
