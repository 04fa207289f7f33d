"""The catalog: stacks, profiles, logical options, upstream's pins and the recorded dialects.

`load` reads the project's files, lays a user's own stacks and profiles over them and checks everything alike. It
runs on the controller (PyYAML, packaging). Whether the versions of a stack fit each other is the business of
`consistency`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from . import dialect as dialects
from .dialect import VALUE, Dialect, OptionMap, Setting, SettingError
from .fields import FieldError, build
from .names import MOVING_REFS, environment_name_problem, suggest, text_problem
from .problems import Problems
from .release_git import UPSTREAM

SOURCE_KINDS = ("index", "git", "wheelhouse")
STATUSES = ("works", "refuted", "untried")
PROOFS = ("sm120_extend_block_size",)
MOVING = Version("9999")  # what a moving ref counts as: newer than any release
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, ten times as fast, where PyYAML has it
_TYPES = ("string", "int", "float", "bool", "json", "string_or_bool")


class CatalogError(Problems):
    """The catalog, or a user's entry in it, is wrong. `problems` lists everything, each with its place and the fix."""


@dataclass(frozen=True)
class Evidence:
    """One fact, where it was read or tried, and when (year and month)."""

    fact: str
    source: str
    date: str


@dataclass(frozen=True)
class Source:
    """Where SGLang itself comes from: an index (package, version), git (url, ref, subdirectory) or a wheelhouse."""

    kind: str = field(metadata={"choices": SOURCE_KINDS})
    package: str | None = None
    version: str | None = None
    url: str | None = None
    ref: str | None = None
    subdirectory: str | None = None


@dataclass(frozen=True)
class Stack:
    """Versions that belong together. `sglang` is a release number, or a moving ref such as main."""

    name: str
    summary: str
    sglang: str
    source: Source
    python: str
    evidence: tuple[Evidence, ...]
    cuda: str | None = None
    driver: str | None = None
    capabilities: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    torch: str | None = None
    transformers: str | None = None
    kernel: str | None = None
    flashinfer: str | None = None
    deep_gemm: str | None = None
    requirements: tuple[str, ...] = ()
    requirements_no_deps: tuple[str, ...] = ()
    system_site_packages: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    constraints: str | None = None
    proofs: tuple[str, ...] = field(default=(), metadata={"choices": PROOFS})
    disk_mib: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def at(self, ref: str, url: str | None = None) -> Stack:
        """The stack built from another git ref: a release tag or a moving ref also changes which SGLang it is.

        `url` is another repository than the stack's own; a stack that comes from an index takes upstream's.
        """
        tag = ref.removeprefix("v")
        known = tag if version_key(tag) != MOVING else ref if ref in MOVING_REFS else self.sglang
        own = self.source if self.source.kind == "git" else Source("git", url=UPSTREAM, subdirectory="python")
        return replace(self, sglang=known, source=replace(own, ref=ref, url=url or own.url))

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form, as the release builder takes it."""
        return asdict(self)


@dataclass(frozen=True)
class Scope:
    """What a profile is for. Empty means any; `sglang` is a version range."""

    architectures: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    device: str = field(default="cuda", metadata={"choices": ("cuda", "cpu")})
    sglang: str = ">=0"


@dataclass(frozen=True)
class Profile:
    """A named set of serving choices with its evidence. After loading, `settings` and `environment` hold what it
    inherits.
    """

    name: str
    summary: str
    status: str = field(metadata={"choices": STATUSES})
    evidence: tuple[Evidence, ...]
    extends: str | None = None
    scope: Scope | None = field(default=None, metadata={"key": "for"})
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)
    faults: tuple[str, ...] = ()

    @property
    def fits(self) -> Scope:
        return self.scope or Scope()

    def covers(self, sglang: str) -> bool:
        """Whether a version of SGLang lies in the profile's range; a moving ref counts as newer than any release."""
        return version_key(sglang) in SpecifierSet(self.fits.sglang, prereleases=True)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Upstream:
    """What one release of SGLang asks for. `cuda_min` is the oldest toolkit that upstream published builds for."""

    sglang: str
    released: str
    python: str
    transformers: str
    torch: str
    kernel: str
    flashinfer: str
    cuda: str
    cuda_min: str
    deep_gemm: str | None = None


@dataclass(frozen=True)
class Catalog:
    """Everything that `load` read. `root` is the catalog directory."""

    root: Path
    stacks: Mapping[str, Stack]
    profiles: Mapping[str, Profile]
    options: OptionMap
    upstream: tuple[Upstream, ...]

    def upstream_for(self, sglang: str) -> Upstream | None:
        """What the release asks for: the listed one, or the newest listed one before it. None before the first."""
        wanted = version_key(sglang)
        older = [entry for entry in self.upstream if Version(entry.sglang) <= wanted]
        return older[-1] if older else None

    @cached_property
    def recorded(self) -> tuple[str, ...]:
        """The versions with a recorded dialect, oldest first."""
        return tuple(sorted((path.stem for path in (self.root / "dialects").glob("*.json")), key=Version))

    def dialect(self, sglang: str) -> Dialect:
        """The recorded dialect of a version, or of the newest recorded one before it (the oldest where none is
        before it).

        `Dialect.sglang` says which one it is. A built release has its own list, which is to be preferred.
        """
        wanted = version_key(sglang)
        older = [version for version in self.recorded if Version(version) <= wanted]
        return dialects.read(self.root / "dialects" / f"{older[-1] if older else self.recorded[0]}.json")


def version_key(version: str) -> Version:
    """A version for comparison. What is not a release number (main, a commit) is taken as newer than any release."""
    try:
        return Version(version)
    except InvalidVersion:
        return MOVING


def load(root: Path, stacks: Mapping[str, Any] | None = None, profiles: Mapping[str, Any] | None = None) -> Catalog:
    """Read the catalog directory `root` and lay a user's own entries over it (same form; same name replaces).

    Raises CatalogError with every problem found.
    """
    problems: list[str] = []
    options = _options(_read(root / "options.yml", dict), problems)
    upstream = tuple(
        entry
        for number, data in enumerate(_read(root / "upstream.yml", list), 1)
        if (entry := _entry(Upstream, data, f"upstream.yml, entry {number}", problems)) is not None
    )
    found_stacks: dict[str, Stack] = {}
    found_profiles: dict[str, Profile] = {}
    shipped, own = _read(root / "stacks.yml", dict), _mapping(stacks or {}, "sglang_stacks", problems)
    written = {**shipped, **own}
    for where, entries in (("stacks.yml", shipped), ("sglang_stacks", own)):
        for name, data in entries.items():
            whole = _extended(name, data, written, f"{where}, {name}", problems)
            stack = None if whole is None else _entry(Stack, whole, f"{where}, {name}", problems, name=str(name))
            if stack is not None:
                problems.extend(_stack_problems(stack, f"{where}, {name}", options, root))
                found_stacks[stack.name] = stack
    places: dict[str, str] = {}
    for where, entries in (("profiles.yml", _read(root / "profiles.yml", dict)), ("sglang_profiles", profiles or {})):
        for name, data in _mapping(entries, where, problems).items():
            profile = _entry(Profile, data, f"{where}, {name}", problems, name=str(name))
            if profile is not None:
                places[profile.name] = f"{where}, {name}"
                problems.extend(_profile_problems(profile, places[profile.name], options))
                found_profiles[profile.name] = profile
    resolved = {
        name: merged for name in found_profiles if (merged := _inherit(name, found_profiles, places, problems)) is not None
    }
    if problems:
        raise CatalogError(problems)
    return Catalog(root, found_stacks, resolved, options, tuple(sorted(upstream, key=lambda item: Version(item.sglang))))


def _read(path: Path, kind: type) -> Any:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - a safe loader either way
    except OSError as error:
        raise CatalogError([f"{path}: cannot be read ({error.strerror})"]) from error
    except yaml.YAMLError as error:
        raise CatalogError([f"{path}: is not YAML ({str(error).splitlines()[0]} ...)"]) from error
    if not isinstance(data, kind):
        raise CatalogError([f"{path}: should hold a {'mapping' if kind is dict else 'list'} of entries"])
    return data


def _mapping(entries: object, where: str, problems: list[str]) -> Mapping[Any, Any]:
    if isinstance(entries, Mapping):
        return entries
    problems.append(f"{where}: should be a mapping of names to entries")
    return {}


def _entry(cls: type[Any], data: object, where: str, problems: list[str], **given: Any) -> Any:
    try:
        return build(cls, data, where, **given)
    except FieldError as error:
        problems.extend(error.problems)
        return None


def _extended(name: object, data: object, entries: Mapping[Any, Any], where: str, problems: list[str]) -> object:
    """A stack's entry laid over the one that it extends: lists are added to, settings and environment laid over, all else
    replaced. None where that one cannot be told, which is then among the problems.
    """
    chain, names = [data], [name]
    while isinstance(link := chain[-1], Mapping) and "extends" in link:
        parent = link["extends"]
        if parent in names:
            way = " -> ".join(map(str, [*names, parent]))
            problems.append(f"{where}: extends itself: {way}; what extends a stack has a name of its own")
            return None
        if not isinstance(parent, str) or parent not in entries:
            problems.append(f"{where}, extends: unknown stack {parent!r}; {suggest(str(parent), entries)}")
            return None
        names.append(parent)
        chain.append(entries[parent])
    whole = chain.pop()
    for link in reversed(chain):
        if isinstance(whole, Mapping) and isinstance(link, Mapping):
            whole = {**whole, **{key: _laid_over(key, value, whole.get(key)) for key, value in link.items()}}
            del whole["extends"]
    return whole


def _laid_over(key: str, value: object, below: object) -> object:
    if isinstance(value, list) and isinstance(below, list):
        return [*below, *value]
    if key in ("settings", "environment") and isinstance(value, Mapping) and isinstance(below, Mapping):
        return {**below, **value}
    return value


def _options(data: Mapping[str, Any], problems: list[str]) -> OptionMap:
    where = "options.yml"
    problems.extend(
        f"{where}: unknown field {key!r}; known: reserved, settings" for key in data if key not in ("settings", "reserved")
    )
    settings: list[Setting] = []
    spelled: dict[tuple[str, ...], str] = {}
    for name, entry in _mapping(data.get("settings"), f"{where}, settings", problems).items():
        place = f"{where}, {name}"
        if isinstance(entry, dict):
            lists = {key: _spellings(entry[key], key) for key in ("options", "if_true", "if_false") if key in entry}
            entry = {**entry, **lists}
        setting = _entry(Setting, entry, place, problems, name=str(name))
        if setting is None:
            continue
        if setting.type not in _TYPES:
            problems.append(f"{place}, type: {setting.type!r} is not known; {suggest(setting.type, _TYPES)}")
        if (setting.type == "bool") == bool(setting.options):
            problems.append(f"{place}: a bool takes if_true and if_false, any other type takes options")
        for words in (*setting.options, *setting.if_true, *setting.if_false):
            if words and not words[0].startswith("--"):
                problems.append(f"{place}: a spelling starts with an option, not with {words[0]!r}")
            if words and spelled.setdefault(words, setting.name) != setting.name:
                problems.append(f"{place}: {' '.join(words)} already belongs to {spelled[words]}")
        settings.append(setting)
    reserved = _mapping(data.get("reserved", {}), f"{where}, reserved", problems)
    return OptionMap(tuple(settings), {str(flag): str(reason) for flag, reason in reserved.items()})


def _spellings(entries: object, key: str) -> object:
    """Write out a bare option: followed by the value under `options`, alone under if_true and if_false."""
    if not isinstance(entries, list):
        return entries
    follows = [VALUE] if key == "options" else []
    return [[entry, *follows] if isinstance(entry, str) else entry for entry in entries]


def settings_problems(settings: Mapping[str, Any], where: str, options: OptionMap) -> list[str]:
    """What is wrong with settings by their logical names and choices; `where` says where they stand."""
    problems = []
    for name, value in settings.items():
        setting = options.get(name)
        if setting is None:
            problems.append(f"{where}: unknown setting {name!r}; {suggest(name, options.names)}")
        elif value is not None:
            try:
                setting.normalise(value)
            except SettingError as error:
                problems.append(f"{where}, {name}: {error}")
    return problems


def _environment_problems(environment: Mapping[str, str | None], where: str) -> list[str]:
    found = [
        (name, environment_name_problem(name) or (None if value is None else text_problem(value)))
        for name, value in environment.items()
    ]
    return [f"{where}, environment, {name}: {problem}" for name, problem in found if problem]


def _range_problem(text: str | None, where: str) -> list[str]:
    try:
        SpecifierSet(text or "")
    except InvalidSpecifier:
        return [f'{where}: {text!r} is not a version range; write one such as ">=0.5.9,<0.5.17"']
    return []


def _stack_problems(stack: Stack, where: str, options: OptionMap, root: Path) -> list[str]:
    problems = [
        *settings_problems(stack.settings, f"{where}, settings", options),
        *_environment_problems(stack.environment, where),
        *_range_problem(stack.python, f"{where}, python"),
        *_range_problem(stack.driver, f"{where}, driver"),
    ]
    if not stack.evidence:
        problems.append(f"{where}: evidence is missing; say where each version is known from (fact, source, date)")
    needed = {"index": ("package", "version"), "git": ("url", "ref"), "wheelhouse": ("package", "version")}[
        stack.source.kind
    ]
    problems.extend(
        f"{where}, source: a source of kind {stack.source.kind} needs {key!r}"
        for key in needed
        if getattr(stack.source, key) is None
    )
    if stack.constraints is not None and not (root / stack.constraints).is_file():
        problems.append(f"{where}, constraints: there is no file {stack.constraints} in {root}")
    return problems


def _profile_problems(profile: Profile, where: str, options: OptionMap) -> list[str]:
    problems = [
        *settings_problems(profile.settings, f"{where}, settings", options),
        *_environment_problems(profile.environment, where),
        *_range_problem(profile.fits.sglang, f"{where}, for, sglang"),
    ]
    if profile.status != "untried" and not profile.evidence:
        problems.append(f"{where}: status {profile.status} needs evidence (fact, source, date); without it write untried")
    if profile.status == "refuted" and not profile.faults:
        problems.append(f"{where}: status refuted needs faults: say what is wrong with it")
    return problems


def _inherit(name: str, profiles: Mapping[str, Profile], places: Mapping[str, str], problems: list[str]) -> Profile | None:
    """The profile with the settings, environment, scope and faults of what it extends under its own; null takes one
    out.
    """
    chain = [profiles[name]]
    while (parent := chain[-1].extends) is not None:
        if parent in (link.name for link in chain):
            problems.append(f"{places[name]}: extends itself: {' -> '.join([*(link.name for link in chain), parent])}")
            return None
        if parent not in profiles:
            problems.append(f"{places[chain[-1].name]}, extends: unknown profile {parent!r}; {suggest(parent, profiles)}")
            return None
        chain.append(profiles[parent])
    settings: dict[str, Any] = {}
    environment: dict[str, str | None] = {}
    for link in reversed(chain):
        settings.update(link.settings)
        environment.update(link.environment)
    return replace(
        profiles[name],
        scope=next((link.scope for link in chain if link.scope is not None), None),
        settings={key: value for key, value in settings.items() if value is not None},
        environment={key: value for key, value in environment.items() if value is not None},
        faults=tuple(fault for link in chain for fault in link.faults),
    )
