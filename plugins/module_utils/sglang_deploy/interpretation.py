"""What a parsed launch command means to a release: logical settings, further options, and what the parser would refuse.

`interpret` reads a `ParsedCommand` with a release's option list; `group_vars` writes the settings that reproduce it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .command import NotSglang, Option, ParsedCommand
from .dialect import Dialect, Given, OptionMap, SettingError, Value
from .names import suggest

# What stands for a value in documentation and scripts: <X>, $X, ${X}, 10|30, 2*ISL, ISL+OSL+20, max(A,8), x (optional)
PLACEHOLDER = re.compile(
    r".*<[A-Za-z][^<>]*>.*|.*\$\{?\w+.*|[\w.]+(\|[\w.]+)+|.*\((optional|default|e\.g\.).*\)|(min|max)\(.*\)"
    r"|[A-Z0-9]+([*+/-][A-Z0-9]+)+",
    re.DOTALL,
)
_STAND_IN = {"int": "1", "human_readable_int": "1", "float": "0.5", "loads": "{}", "json_list_type": "[]"}


BARE_PROFILE = "bare"
SGLANG_PORT = 30000  # where a command without --port listens
_OWN_VARIABLES = {
    "model_path": "sglang_model",
    "revision": "sglang_model_revision",
    "served_model_name": "sglang_served_model_name",
    "host": "sglang_host",
    "port": "sglang_port",
}


@dataclass(frozen=True)
class CommandProblem:
    """Something that the release's parser would refuse, or that the command says twice.

    kind: unknown (no such option), choice, value (wrong type or count), ambiguous, stray (a word without an option),
    twice, range (a value that no setting takes), missing (no model).
    """

    kind: str
    text: str
    fix: str = ""
    flag: str = ""

    def __str__(self) -> str:
        return f"{self.text}; {self.fix}" if self.fix else self.text


@dataclass(frozen=True)
class Interpretation:
    """A command in the project's words, for the release `sglang`.

    `extra_args` are options that no setting expresses. `unresolved` names settings and options whose value is a
    placeholder. `abbreviations` pairs what was written with the full spelling, `deprecated` lists old spellings.
    """

    sglang: str
    settings: Mapping[str, Value]
    extra_args: tuple[str, ...]
    options: Mapping[str, Any]
    environment: Mapping[str, str]
    unresolved: frozenset[str]
    secrets: tuple[str, ...]
    abbreviations: tuple[tuple[str, str], ...]
    deprecated: tuple[str, ...]
    problems: tuple[CommandProblem, ...]


def interpret(command: ParsedCommand, dialects: Sequence[Dialect], options: OptionMap) -> Interpretation:
    """Read a command with the option lists that may be the release's; the one that refuses least is taken.

    Raises:
        NotSglang: the command starts another engine.
    """
    if command.engine != "sglang":
        raise NotSglang("this starts vLLM, not SGLang; its options have other names and meanings")
    readings: list[Interpretation] = []
    for dialect in dialects:
        reading = _read(command, dialect, options)
        if not reading.problems:
            return reading
        readings.append(reading)
    at = min(range(len(readings)), key=lambda index: len(readings[index].problems))
    return _with_suggestions(readings[at], dialects[at])


def _with_suggestions(reading: Interpretation, dialect: Dialect) -> Interpretation:
    """The nearest names of unknown options, looked up for the reading that counts alone: it takes long."""
    problems = tuple(
        replace(problem, fix=suggest(problem.flag, dialect.flags)) if problem.kind == "unknown" else problem
        for problem in reading.problems
    )
    return replace(reading, problems=problems)


def group_vars(reading: Interpretation, options: OptionMap) -> dict[str, Any]:
    """The group_vars that reproduce a command, on the profile `bare`, which adds nothing. Secrets are left out."""
    settings = dict(reading.settings)
    variables: dict[str, Any] = {"sglang_profile": BARE_PROFILE}
    if "model_path" in settings:
        variables["sglang_model_source"] = "local" if str(settings["model_path"]).startswith("/") else "server"
    variables |= {variable: settings.pop(name, None) for name, variable in _OWN_VARIABLES.items()}
    variables["sglang_port"] = variables["sglang_port"] or SGLANG_PORT
    backends = {name for name in settings if (found := options.get(name)) is not None and found.backend}
    variables["sglang_backends"] = {name: value for name, value in settings.items() if name in backends}
    variables["sglang_settings"] = {name: value for name, value in settings.items() if name not in backends}
    variables["sglang_extra_args"] = list(reading.extra_args)
    variables["sglang_environment"] = dict(reading.environment)
    return {name: value for name, value in variables.items() if value}


def _read(command: ParsedCommand, dialect: Dialect, options: OptionMap) -> Interpretation:
    reader = _Reader(dialect, options)
    for option in command.options:
        reader.option(option)
    if command.positional:
        reader.option(Option("--model-path", command.positional))
    for word in command.not_understood:
        reader.problems.append(CommandProblem("stray", f"{word!r} belongs to no option", "remove it, or quote the value"))
    return reader.finish(command)


class _Reader:
    def __init__(self, dialect: Dialect, options: OptionMap) -> None:
        self.dialect = dialect
        self.options = options
        self.given: list[Given] = []
        self.problems: list[CommandProblem] = []
        self.unresolved: set[str] = set()
        self.secrets: list[str] = []
        self.abbreviations: list[tuple[str, str]] = []
        self.unknown: list[str] = []
        self.placeholders: dict[int, tuple[str, ...]] = {}

    def option(self, option: Option) -> None:
        """Take one option as written: resolve its flag, check its values."""
        full = self.dialect.expand(option.flag)
        found = self.dialect.find(full[0]) if len(full) == 1 else None
        if found is None:
            self.unknown += option.words()
            if full:
                text = f"{option.flag} is ambiguous in SGLang {self.dialect.sglang}"
                self.problems.append(CommandProblem("ambiguous", text, f"write one of {', '.join(full)}"))
            else:
                text = f"SGLang {self.dialect.sglang} has no option {option.flag}"
                self.problems.append(CommandProblem("unknown", text, flag=option.flag))
            return
        if self.options.reserved_reason(found) is not None:
            self.secrets.append(full[0])
            return
        stand_ins = tuple(
            _stand_in(found.choices, found.type, value) if PLACEHOLDER.fullmatch(value) else value for value in option.values
        )
        split = self.dialect.split(Option(full[0], stand_ins, option.joined).words())
        for text in split.problems:
            kind = "choice" if "one of its choices" in text else "value"
            self.problems.append(CommandProblem(kind, text))
        for word in split.positional:
            text = f"{word!r} after {option.flag} belongs to no option"
            self.problems.append(CommandProblem("stray", text, "remove it, or quote the value"))
        if split.problems:
            self.unknown += option.words()
            return
        item = Given(option.flag, full[0], found, split.given[0].values)
        if item.abbreviated:
            self.abbreviations.append((item.written, item.flag))
        if any(PLACEHOLDER.fullmatch(value) for value in option.values):
            self.placeholders[id(item)] = option.values
        self.given.append(item)

    def finish(self, command: ParsedCommand) -> Interpretation:
        settings, rest = self.settings()
        if "model_path" not in settings:
            text, fix = "the command names no model", "write --model-path"
            self.problems.append(CommandProblem("missing", text, fix))
        written: dict[str, str] = {}
        for item in self.given:
            before = written.get(item.option.dest)
            if before is not None:
                text = (
                    f"{item.written} is given twice"
                    if before == item.written
                    else f"{before} and {item.written} set the same"
                )
                self.problems.append(CommandProblem("twice", text, "keep one"))
            written[item.option.dest] = item.written
        extra: dict[str, Any] = {}
        for item in rest:
            extra[item.option.dest] = (item.values[0] if len(item.values) == 1 else list(item.values)) or True
            if id(item) in self.placeholders:
                self.unresolved.add(item.option.dest)
        extra.update(self.fork_options())
        environment = command.env()
        self.unresolved.update(name for name, value in environment.items() if PLACEHOLDER.fullmatch(value))
        words = [word for item in rest for word in (item.flag, *self.placeholders.get(id(item), item.values))]
        return Interpretation(
            sglang=self.dialect.sglang,
            settings=settings,
            extra_args=(*words, *self.unknown),
            options=extra,
            environment=environment,
            unresolved=frozenset(self.unresolved),
            secrets=tuple(self.secrets),
            abbreviations=tuple(self.abbreviations),
            deprecated=tuple(item.flag for item in self.given if item.option.deprecated),
            problems=tuple(self.problems),
        )

    def settings(self) -> tuple[dict[str, Value], list[Given]]:
        """Logical settings of all options; values that a setting refuses become problems and stay among the rest."""
        refused: list[Given] = []
        taken = list(self.given)
        for item in self.given:
            try:
                names, _ = self.options.settings_of([item], self.dialect)
            except SettingError as error:
                self.problems.append(CommandProblem("range", f"{item.written}: {error.problem}", error.fix))
                refused.append(item)
                taken.remove(item)
                continue
            if id(item) in self.placeholders:
                self.unresolved.update(names)
        settings, rest = self.options.settings_of(taken, self.dialect)
        for item in taken:
            if id(item) in self.placeholders:
                names, _ = self.options.settings_of([item], self.dialect)
                for name in names:
                    settings[name] = " ".join(self.placeholders[id(item)])
        return settings, [*rest, *refused]

    def fork_options(self) -> dict[str, Any]:
        """Options that this release does not have, by name, so that a rule can speak of them."""
        found: dict[str, Any] = {}
        for word in self.unknown:
            if word.startswith("--"):
                flag, equals, value = word.partition("=")
                found[flag.lstrip("-").replace("-", "_")] = value if equals else True
        return found


def _stand_in(choices: Sequence[str] | None, kind: str | None, value: str) -> str:
    """A value that the parser takes where a placeholder stands."""
    return choices[0] if choices else _STAND_IN.get(kind or "", value)
