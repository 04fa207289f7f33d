"""The launch spec: everything that decides how an instance runs, resolved to one dictionary with a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .catalog import Catalog, Profile, Stack
from .consistency import check
from .dialect import Dialect, Given, SettingError, Value, text_of
from .names import environment_name_problem, instance_problem, suggest, text_problem
from .secrets import variable_problem

SCHEMA = 1
HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")  # as huggingface_hub reads them
Layer = tuple[str, Mapping[str, Any]]  # where it comes from, and its entries; null takes an entry out


@dataclass(frozen=True)
class Request:
    """What is asked for. Layers are ordered, a later one wins over an earlier one.

    The whole order is: `default_settings`, the stack, the profile, `model`, `revision`, `layers` (group_vars,
    host_vars, -e). Environment layers alike. `release` is the id of the built release, None before it is built.
    `dialect` is the release's own option list, or a recorded one.
    """

    instance: str
    stack: str
    profile: str
    model: str
    dialect: Dialect
    release: str | None = None
    revision: str | None = None
    default_settings: Mapping[str, Any] = field(default_factory=dict)
    default_environment: Mapping[str, Any] = field(default_factory=dict)
    layers: Sequence[Layer] = ()
    environment_layers: Sequence[Layer] = ()
    extra_args: Sequence[str] = ()


@dataclass(frozen=True)
class Problem:
    """One thing that cannot run: what (setting, environment, extra_args ...), where it came from, why, and the fix."""

    what: str
    source: str
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what} (from {self.source}): {self.reason}; {self.fix}"


class LaunchSpecError(ValueError):
    """The request cannot be resolved. `problems` lists everything that is wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Choice:
    """A setting's value, where it came from, and the arguments that it becomes (none where the server needs none)."""

    value: Value
    source: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Variable:
    """An environment variable's value and where it came from."""

    value: str
    source: str


@dataclass(frozen=True)
class LaunchSpec:
    """A resolved request. `argv` holds options only; the interpreter belongs to the release."""

    instance: str
    stack: str
    sglang_version: str
    release: str | None
    profile: str
    model: str
    settings: Mapping[str, Choice]
    extra_args: tuple[str, ...]
    environment: Mapping[str, Variable]

    @property
    def argv(self) -> tuple[str, ...]:
        return (*(word for choice in self.settings.values() for word in choice.options), *self.extra_args)

    @property
    def variables(self) -> dict[str, str]:
        """The environment, names to values."""
        return {name: variable.value for name, variable in self.environment.items()}

    @property
    def hash(self) -> str:
        """SHA-256 over what decides how the instance runs: release, arguments, environment. Provenance does not
        count.
        """
        deciding = {"release": self.release, "argv": list(self.argv), "environment": self.variables}
        return hashlib.sha256(json.dumps(deciding, sort_keys=True, ensure_ascii=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form, as it stands in spec.json."""
        return {
            "schema": SCHEMA,
            "instance": self.instance,
            "stack": self.stack,
            "sglang_version": self.sglang_version,
            "release": self.release,
            "profile": self.profile,
            "model": self.model,
            "settings": {
                name: {"value": choice.value, "source": choice.source, "options": list(choice.options)}
                for name, choice in self.settings.items()
            },
            "extra_args": list(self.extra_args),
            "argv": list(self.argv),
            "environment": {
                name: {"value": variable.value, "source": variable.source} for name, variable in self.environment.items()
            },
            "hash": self.hash,
        }


def resolve(catalog: Catalog, request: Request) -> LaunchSpec:
    """Resolve a request against the catalog and the release's options. Raises LaunchSpecError listing every problem."""
    problems: list[Problem] = []
    if problem := instance_problem(request.instance):
        problems.append(Problem("instance", "the request", problem, "rename the instance"))
    stack = catalog.stacks.get(request.stack)
    if stack is None:
        problems.append(_unknown("stack", request.stack, catalog.stacks))
    else:
        problems.extend(
            Problem(
                "stack",
                request.stack,
                found.reason,
                found.remedy + (f", or take {found.nearest}" if found.nearest else ""),
            )
            for found in check(stack, catalog)
        )
    profile = catalog.profiles.get(request.profile)
    if profile is None:
        problems.append(_unknown("profile", request.profile, catalog.profiles))
    elif stack is not None:
        problems.extend(_range_problems(catalog, stack, profile))
    settings = _settings(catalog, request, stack, profile, problems)
    extra = _extra_args(catalog, request, settings, problems)
    environment = _environment(request, stack, profile, problems)
    if problems or stack is None or profile is None:
        raise LaunchSpecError(problems)
    return LaunchSpec(
        instance=request.instance,
        stack=stack.name,
        sglang_version=stack.sglang,
        release=request.release,
        profile=profile.name,
        model=request.model,
        settings=settings,
        extra_args=extra,
        environment=environment,
    )


def _unknown(what: str, name: str, known: Mapping[str, Any]) -> Problem:
    return Problem(what, "the request", f"{name!r} is not known", suggest(str(name), known))


def _range_problems(catalog: Catalog, stack: Stack, profile: Profile) -> list[Problem]:
    device = "cpu" if stack.cuda is None else "cuda"
    if profile.covers(stack.sglang) and profile.fits.device == device:
        return []
    fitting = [
        other.name
        for other in catalog.profiles.values()
        if other.covers(stack.sglang) and other.fits.device == device and other.status != "refuted"
    ]
    return [
        Problem(
            "profile",
            profile.name,
            f"it is for SGLang {profile.fits.sglang} on {profile.fits.device}, "
            f"and stack {stack.name} has {stack.sglang} on {device}",
            f"take one of {', '.join(fitting)}" if fitting else "take another stack",
        )
    ]


def _settings(
    catalog: Catalog, request: Request, stack: Stack | None, profile: Profile | None, problems: list[Problem]
) -> dict[str, Choice]:
    own: dict[str, Any] = {"model_path": request.model}
    if request.revision is not None:
        own["revision"] = request.revision
    layers: list[Layer] = [("default", request.default_settings)]
    if stack is not None:
        layers.append((f"stack {stack.name}", stack.settings))
    if profile is not None:
        layers.append((f"profile {profile.name}", profile.settings))
    layers += [("model", own), *request.layers]
    merged: dict[str, tuple[str, Any]] = {}
    for source, entries in layers:
        if not isinstance(entries, Mapping):
            problems.append(Problem("settings", source, f"{entries!r} is not a mapping", "write names and values"))
            continue
        for name, value in entries.items():
            if catalog.options.get(name) is None:
                fix = suggest(str(name), catalog.options.names)
                option = request.dialect.find("--" + str(name).lstrip("-").replace("_", "-"))
                if option is not None and catalog.options.reserved_reason(option) is None:
                    fix += f" An option without a logical name goes into extra_args: {option.flags[0]}"
                problems.append(Problem(f"setting {name}", source, "it is not known", fix))
            elif value is None:
                merged.pop(name, None)
            else:
                merged[name] = (source, value)
    return _spell(catalog, request, merged, problems)


def _spell(
    catalog: Catalog, request: Request, merged: Mapping[str, tuple[str, Any]], problems: list[Problem]
) -> dict[str, Choice]:
    settings: dict[str, Choice] = {}
    taken: dict[str, tuple[str, str]] = {}  # what an option sets -> the setting that gave it, and its source
    for setting in catalog.options.settings:
        if setting.name not in merged:
            continue
        source, value = merged[setting.name]
        try:
            normal = setting.normalise(value)
            words = setting.spell(normal, request.dialect)
        except SettingError as error:
            problems.append(Problem(f"setting {setting.name}", source, error.problem, error.fix))
            continue
        for option in filter(None, map(request.dialect.find, words)):
            other, other_source = taken.setdefault(option.dest, (setting.name, source))
            if other != setting.name:
                problems.append(
                    Problem(
                        f"setting {setting.name}",
                        source,
                        f"it becomes {option.flags[0]}, which {other} (from {other_source}) already gives",
                        "take one of the two out (null)",
                    )
                )
        settings[setting.name] = Choice(normal, source, words)
    if "model_path" not in merged:
        problems.append(Problem("model", "the request", "no model is given", "give its directory or its Hugging Face name"))
    return settings


def _extra_args(
    catalog: Catalog, request: Request, settings: Mapping[str, Choice], problems: list[Problem]
) -> tuple[str, ...]:
    def refuse(reason: str, fix: str) -> None:
        problems.append(Problem("extra_args", "extra_args", reason, fix))

    listed = request.extra_args
    if not isinstance(listed, (list, tuple)) or not all(isinstance(word, (str, int, float)) for word in listed):
        refuse("it is not a list of words", 'write a list: ["--option", "value"]')
        return ()
    words = tuple(text_of(word) for word in listed)
    for word in words:
        if problem := text_problem(word):
            refuse(f"{word!r}: {problem}", "correct the value")
    split = request.dialect.split(words)
    for problem in split.problems:
        refuse(problem, "correct it or take it out")
    for word in split.positional:
        refuse(f"{word!r} belongs to no option", "write the option before its value, each as its own word")
    given: dict[str, str] = {
        option.dest: name
        for name, choice in settings.items()
        for option in filter(None, map(request.dialect.find, choice.options))
    }
    seen: set[str] = set()
    for item in split.given:
        reason = catalog.options.reserved_reason(item.option)
        line = _as_setting(catalog, item, request.dialect)
        if reason:
            refuse(f"{item.flag} may not be given. {reason}", "take it out")
        elif line:
            refuse(f"{item.written} is managed", f"write the setting {line}")
        elif item.option.dest in given:
            refuse(f"{item.written} is already given by the setting {given[item.option.dest]}", "take one of the two out")
        elif item.option.dest in seen:
            refuse(f"{item.written} is given twice", "take one of the two out")
        elif item.abbreviated:
            refuse(f"{item.written} is an abbreviation", f"write {item.flag}")
        seen.add(item.option.dest)
    return words


def _as_setting(catalog: Catalog, item: Given, dialect: Dialect) -> str | None:
    """The setting that says the same as an extra argument, as a line of YAML."""
    if item.option.problem(item.values):
        return None
    try:
        found, _ = catalog.options.settings_of([item], dialect)
    except SettingError:
        return None
    return next((f"{name}: {text_of(value)}" for name, value in found.items()), None)


def _environment(
    request: Request, stack: Stack | None, profile: Profile | None, problems: list[Problem]
) -> dict[str, Variable]:
    layers: list[Layer] = [("default", request.default_environment)]
    if stack is not None:
        layers.append((f"stack {stack.name}", stack.environment))
    if profile is not None:
        layers.append((f"profile {profile.name}", profile.environment))
    merged: dict[str, Variable] = {}
    for source, entries in [*layers, *request.environment_layers]:
        if not isinstance(entries, Mapping):
            problems.append(Problem("environment", source, f"{entries!r} is not a mapping", "write names and values"))
            continue
        for name, value in entries.items():
            if problem := environment_name_problem(name):
                problems.append(Problem("environment", source, problem, "rename or remove it"))
            elif value is None:
                merged.pop(name, None)
            elif not isinstance(value, (str, int, float)):
                problems.append(Problem(f"environment {name}", source, f"{value!r} is not text", "put the value in quotes"))
            elif problem := text_problem(text_of(value)):
                problems.append(Problem(f"environment {name}", source, problem, "correct the value"))
            elif problem := variable_problem(name):
                fix = "set sglang_hf_token" if name in HUB_TOKENS else "take it out; keys go into sglang_api_key"
                problems.append(Problem(f"environment {name}", source, problem, fix))
            else:
                merged[name] = Variable(_environment_text(value), source)
    return dict(sorted(merged.items()))


def _environment_text(value: str | int | float) -> str:
    # Programs read 1 and 0 (NCCL's do not know true), so a YAML boolean becomes that.
    return str(int(value)) if isinstance(value, bool) else text_of(value)
