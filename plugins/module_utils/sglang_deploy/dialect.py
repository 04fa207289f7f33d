"""Option dialects: which options a release of SGLang accepts, and how logical settings are spelled with them.

A dialect is the option list of one release, dumped from its own parser. Recorded ones stand in `catalog/dialects/`, a
built release has its own in `options.json`. Both have this form (JSON, one option a line):

    {"schema": 1, "sglang": "0.5.9", "options": [
    {"flags": ["--model-path", "--model"], "dest": "model_path", "kind": "StoreAction", "type": "str"},
    {"flags": ["--tokenizer-mode"], "dest": "tokenizer_mode", "kind": "StoreAction", "choices": ["auto", "slow"]},
    {"flags": ["--old"], "dest": "old", "kind": "DeprecatedStoreTrueAction", "nargs": 0, "deprecated": true}
    ]}

flags       option strings in the parser's order
dest        the attribute that the option sets
kind        class of the argparse action, without a leading underscore
nargs       argparse's nargs: null, 0, a number, "?", "*" or "+"; 0 means that no value follows
type        name of the converter, or null
choices     allowed values (strings or numbers), or null
deprecated  true where the action's class or the help text says so

`nargs`, `type`, `choices` and `deprecated` may be left out: null and false. Positional arguments, `--help` and
`--version` are not listed.

This module needs the standard library alone, so it also runs on a managed host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .names import suggest, text_problem

SCHEMA = 1
VALUE = "{value}"  # stands for the value in a spelling of several arguments
Value = Any  # str, int, float, bool, or what JSON can hold for type json
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")  # argparse takes these as values, not as options
_SUFFIXED = re.compile(r"(\d+(?:\.\d+)?)(k|M|G|Ki|Mi|Gi)")
_SCALE = {"k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


class DialectError(ValueError):
    """An option list that cannot be used; the message names the file."""


class SettingError(ValueError):
    """A setting that cannot be rendered. `problem` says what is wrong, `fix` what to write instead."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}: {fix}")
        self.problem = problem
        self.fix = fix


@dataclass(frozen=True)
class Option:
    """One option of a release's parser."""

    flags: tuple[str, ...]
    dest: str
    kind: str
    nargs: int | str | None = None
    type: str | None = None
    choices: tuple[str, ...] | None = None
    deprecated: bool = False

    @property
    def takes_value(self) -> bool:
        return self.nargs != 0

    def problem(self, values: Sequence[str]) -> str | None:
        """Why the parser would refuse these values, or None."""
        least, most = _arity(self.nargs)
        if len(values) < least:
            return "no value follows" if not values else f"{least} values must follow"
        if most is not None and len(values) > most:
            return "it takes no value" if most == 0 else f"at most {most} value may follow, not {len(values)}"
        for value in values:
            if self.type == "int" and not re.fullmatch(r"\s*[+-]?\d+(_\d+)*\s*", value):
                return f"{value!r} is not a whole number"
            if self.type == "human_readable_int" and not re.fullmatch(r"\s*[+-]?\d+\s*|\d+(\.\d+)?[kMGT]|\d+[KMGT]i", value):
                return f"{value!r} is not a whole number (suffixes k, M, G, T and Ki, Mi, Gi, Ti are allowed)"
            if self.type == "float" and not _is_float(value):
                return f"{value!r} is not a number"
            if self.type in ("loads", "json_list_type") and not _is_json(value):
                return f"{value!r} is not JSON"
            if self.choices is not None and value not in self.choices:
                return f"{value!r} is not one of its choices ({', '.join(self.choices)})"
        return None


@dataclass(frozen=True)
class Given:
    """An option as somebody wrote it: `written` is the flag's text, `flag` the full spelling that it stands for."""

    written: str
    flag: str
    option: Option
    values: tuple[str, ...]

    @property
    def abbreviated(self) -> bool:
        return self.written != self.flag


@dataclass(frozen=True)
class Split:
    """An argument list, split by a dialect: options in their order, loose words, and what the parser would refuse."""

    given: tuple[Given, ...]
    positional: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Dialect:
    """The options of one release. `source` names where the list came from, for messages."""

    sglang: str
    options: tuple[Option, ...]
    source: str = ""

    @cached_property
    def _by_flag(self) -> dict[str, Option]:
        return {flag: option for option in self.options for flag in option.flags}

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(self._by_flag)

    def find(self, flag: str) -> Option | None:
        """The option with exactly this spelling."""
        return self._by_flag.get(flag)

    def expand(self, written: str) -> list[str]:
        """The spellings that `written` stands for: itself where it exists, else those that it abbreviates."""
        if written in self._by_flag:
            return [written]
        if not written.startswith("--"):
            return []
        return [flag for flag in self._by_flag if flag.startswith(written)]

    def split(self, args: Sequence[str]) -> Split:
        """Split an argument list as argparse would: exact names, unique abbreviations, `--flag=value`, nargs."""
        given: list[Given] = []
        positional: list[str] = []
        problems: list[str] = []
        rest = list(args)
        while rest:
            word = rest.pop(0)
            if not self._is_option(word):
                positional.append(word)
                continue
            written, attached, text = word, False, ""
            if word not in self._by_flag and "=" in word:
                written, _, text = word.partition("=")
                attached = True
            candidates = self.expand(written)
            if len(candidates) != 1:
                problems.append(
                    f"{written} is ambiguous: it abbreviates {', '.join(candidates)}"
                    if candidates
                    else f"{written} is not an option of SGLang {self.sglang}: {suggest(written, self._by_flag)}"
                )
                while rest and not self._is_option(rest[0]):
                    rest.pop(0)
                continue
            option = self._by_flag[candidates[0]]
            values = [text] if attached else []
            _, most = _arity(option.nargs)
            while not attached and rest and (most is None or len(values) < most) and not self._is_option(rest[0]):
                values.append(rest.pop(0))
            problem = option.problem(values)
            if problem:
                problems.append(f"{written}: {problem}")
            given.append(Given(written, candidates[0], option, tuple(values)))
        return Split(tuple(given), tuple(positional), tuple(problems))

    def _is_option(self, word: str) -> bool:
        if len(word) < 2 or word[0] != "-" or _NEGATIVE_NUMBER.fullmatch(word):
            return False
        return " " not in word or bool(self.expand(word.partition("=")[0]))


def parse(data: object, source: str) -> Dialect:
    """A dialect from parsed JSON of the form above. Raises DialectError naming `source`."""
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA or not isinstance(data.get("options"), list):
        raise DialectError(f"{source}: not an option list of schema {SCHEMA}; build the release again")
    try:
        options = tuple(
            Option(
                flags=tuple(str(flag) for flag in item["flags"]),
                dest=str(item["dest"]),
                kind=str(item["kind"]),
                nargs=item.get("nargs"),
                type=item.get("type"),
                choices=None if item.get("choices") is None else tuple(str(choice) for choice in item["choices"]),
                deprecated=bool(item.get("deprecated", False)),
            )
            for item in data["options"]
        )
        version = str(data["sglang"])
    except (KeyError, TypeError, AttributeError) as error:
        raise DialectError(
            f"{source}: an option lacks a field or has a wrong one ({error}); build the release again"
        ) from error
    return Dialect(version, options, source)


def read(path: Path) -> Dialect:
    """A dialect from a file. Raises DialectError where it is missing or not of the form above."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DialectError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DialectError(f"{path}: is not JSON ({error})") from error
    return parse(data, str(path))


@dataclass(frozen=True)
class Setting:
    """A logical setting and its spellings, each newest first; see catalog/README.md for the fields."""

    name: str
    type: str
    summary: str
    options: tuple[tuple[str, ...], ...] = ()
    if_true: tuple[tuple[str, ...], ...] = ((),)
    if_false: tuple[tuple[str, ...], ...] = ((),)
    min: float | None = None
    max: float | None = None
    unit: str | None = None
    backend: bool = False

    def normalise(self, value: object) -> Value:
        """The value in the setting's own type. Text such as '8000', as `-e` gives it, is converted. Raises
        SettingError.
        """
        if self.type == "json":
            return self._json(value)
        if self.type in ("bool", "string_or_bool"):
            if isinstance(value, bool):
                return value
            if isinstance(value, str) and value.lower() in (*_TRUE, *_FALSE):
                return value.lower() in _TRUE
            if self.type == "bool":
                raise SettingError(f"{value!r} is not true or false", "write true or false")
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise SettingError(f"{value!r} is not {_ARTICLE[self.type]}", f"write {_ARTICLE[self.type]}")
        return self._string(value) if self.type in ("string", "string_or_bool") else self._number(value)

    def spell(self, value: object, dialect: Dialect) -> tuple[str, ...]:
        """The arguments that give this setting the (normalised) value in the dialect.

        Takes the first spelling that exists and is not deprecated, else the first that exists. Raises SettingError
        where the release has no option for it or the option refuses the value.
        """
        deprecated: tuple[str, ...] | None = None
        refusal: SettingError | None = None
        for spelling in self._spellings(value):
            options = [dialect.find(word) for word in spelling if word.startswith("--")]
            if any(option is None for option in options):
                continue
            words = tuple(text_of(value) if word == VALUE else word for word in spelling)
            problem = _refusal(words, dialect)
            if problem:
                refusal = refusal or problem
            elif not any(option is not None and option.deprecated for option in options):
                return words
            elif deprecated is None:
                deprecated = words
        if deprecated is not None:
            return deprecated
        raise refusal or SettingError(
            f"SGLang {dialect.sglang} has no option for {self.name}: {text_of(value)}",
            "take the setting out (null), or use a stack whose release has it",
        )

    def _spellings(self, value: object) -> Iterable[tuple[str, ...]]:
        if isinstance(value, bool):
            return self.if_true if value else self.if_false
        return self.options

    def _string(self, value: str | int | float) -> str:
        text = value if isinstance(value, str) else text_of(value)
        problem = text_problem(text)
        if problem:
            raise SettingError(problem, "correct the value")
        if not text.strip():
            raise SettingError("the value is empty", "write null to take the setting out")
        if text.startswith("-"):
            raise SettingError(
                f"{text!r} starts with a hyphen, the server would read it as an option", "write a value without it"
            )
        return text

    def _number(self, value: str | int | float) -> int | float:
        number: int | float
        try:
            if self.type == "float":
                number = float(value)
            elif isinstance(value, str) and self.unit == "tokens" and (found := _SUFFIXED.fullmatch(value.strip())):
                number = _whole(float(found[1]) * _SCALE[found[2]])
            elif isinstance(value, str):
                number = int(value)
            else:
                number = _whole(value)
        except (ValueError, OverflowError) as error:
            raise SettingError(
                f"{value!r} is not {_ARTICLE[self.type]}", f"write {_ARTICLE[self.type]}{self._range()}"
            ) from error
        if number != number or (self.min is not None and number < self.min) or (self.max is not None and number > self.max):
            raise SettingError(f"{text_of(number)} is out of range", f"write {_ARTICLE[self.type]}{self._range()}")
        return number

    def _range(self) -> str:
        if self.min is None:
            return ""
        return (
            f" from {text_of(self.min)} to {text_of(self.max)}"
            if self.max is not None
            else f" of {text_of(self.min)} or more"
        )

    def _json(self, value: object) -> Value:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise SettingError(f"{value!r} is not JSON ({error})", "write a mapping, or JSON in quotes") from error
        if not isinstance(value, (dict, list)):
            raise SettingError(f"{value!r} is not a mapping or list", "write a mapping, or JSON in quotes")
        try:
            return json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise SettingError(
                f"the value cannot be written as JSON ({error})", "use text, numbers, true, false and null only"
            ) from error


_ARTICLE = {"string": "text", "string_or_bool": "text, true or false", "int": "a whole number", "float": "a number"}


@dataclass(frozen=True)
class OptionMap:
    """All logical settings in the order in which they are rendered, and the options that may not be given at all."""

    settings: tuple[Setting, ...]
    reserved: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _by_name(self) -> dict[str, Setting]:
        return {setting.name: setting for setting in self.settings}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def get(self, name: str) -> Setting | None:
        return self._by_name.get(name)

    def reserved_reason(self, option: Option) -> str | None:
        """Why this option may not be given, or None."""
        return next((self.reserved[flag] for flag in option.flags if flag in self.reserved), None)

    def settings_of(self, given: Sequence[Given], dialect: Dialect) -> tuple[dict[str, Value], list[Given]]:
        """The logical settings that given options mean, and the options that no setting expresses.

        The reverse of `Setting.spell`; aliases and deprecated spellings count. Of an option given twice the last
        counts, as with argparse, and the earlier ones are among the rest. Raises SettingError for a value of the
        wrong type.
        """
        last = {id(item.option): item for item in given}
        found: dict[str, Value] = {}
        used: set[int] = set()
        candidates = [(setting, value, words) for setting in self.settings for value, words in _forms(setting) if words]
        # A spelling of several options says more than each of them alone, and a fixed value more than an open one.
        candidates.sort(key=lambda item: (-sum(word.startswith("--") for word in item[2]), VALUE in item[2]))
        for setting, value, words in candidates:
            if setting.name in found:
                continue
            matched = _match(words, last, used, dialect)
            if matched is not None:
                options, text = matched
                found[setting.name] = setting.normalise(text) if text is not None else value
                used |= options
        rest = [item for item in given if id(item.option) not in used or last[id(item.option)] is not item]
        return {name: found[name] for name in self.names if name in found}, rest


def text_of(value: object) -> str:
    """A value as it stands in an argument list: numbers in full, true or false, compact JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, (dict, list)):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return str(value)


def _forms(setting: Setting) -> Iterable[tuple[Value, tuple[str, ...]]]:
    yield from ((None, words) for words in setting.options)
    yield from ((True, words) for words in setting.if_true)
    yield from ((False, words) for words in setting.if_false)


def _match(
    words: Sequence[str], last: Mapping[int, Given], used: set[int], dialect: Dialect
) -> tuple[set[int], str | None] | None:
    """Whether every option of a spelling was given with the spelling's values: the options, and the text at {value}."""
    options: set[int] = set()
    text: str | None = None
    for flag, expected in _pairs(words):
        option = dialect.find(flag)
        item = last.get(id(option)) if option is not None else None
        if item is None or id(item.option) in used or len(item.values) != len(expected):
            return None
        # Two spellings of a BooleanOptionalAction are one option with opposite meanings.
        if not item.values and item.flag != flag and item.option.kind == "BooleanOptionalAction":
            return None
        for want, got in zip(expected, item.values, strict=True):
            if want == VALUE:
                text = got
            elif want != got:
                return None
        options.add(id(item.option))
    return options, text


def _pairs(words: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    pairs: list[tuple[str, tuple[str, ...]]] = []
    for word in words:
        if word.startswith("--"):
            pairs.append((word, ()))
        else:
            pairs[-1] = (pairs[-1][0], (*pairs[-1][1], word))
    return pairs


def _refusal(words: Sequence[str], dialect: Dialect) -> SettingError | None:
    for flag, values in _pairs(words):
        option = dialect.find(flag)
        if option is None:
            continue
        if option.choices is not None and values and values[0] not in option.choices:
            return SettingError(
                f"SGLang {dialect.sglang} does not know {flag} {values[0]}",
                f"its choices are {', '.join(option.choices)}",
            )
        problem = option.problem(values)
        if problem:
            return SettingError(f"SGLang {dialect.sglang} refuses {flag}", problem)
    return None


def _arity(nargs: int | str | None) -> tuple[int, int | None]:
    if isinstance(nargs, int):
        return nargs, nargs
    return {None: (1, 1), "?": (0, 1), "*": (0, None), "+": (1, None)}.get(nargs, (0, None))


def _whole(value: float) -> int:
    if value != int(value):
        raise ValueError(value)
    return int(value)


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
