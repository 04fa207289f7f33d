"""Dataclasses from parsed YAML: every field checked, unknown ones refused with the nearest known name."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from .names import suggest
from .problems import Problems

T = TypeVar("T")


class FieldError(Problems):
    """Entries that do not have the form they should. `problems` lists them all, each with its place."""


def build(cls: type[T], data: object, where: str, **given: Any) -> T:
    """An instance of the dataclass `cls` from a mapping.

    `where` names the place (file and entry) for messages; `given` holds fields that do not come from the mapping. A
    field's metadata may hold `choices`. Raises FieldError with every problem of the entry.
    """
    if not isinstance(data, Mapping):
        raise FieldError([f"{where}: is {_kind(data)}, should be a mapping"])
    hints = _hints(cls)  # type: ignore[arg-type]
    fields = {field.metadata.get("key", field.name): field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    open_fields = {key: field for key, field in fields.items() if field.name not in given}
    problems = [
        f"{where}: unknown field {key!r}; {suggest(str(key), open_fields)}" for key in data if key not in open_fields
    ]
    values = dict(given)
    for key, field in open_fields.items():
        if key not in data:
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                problems.append(f"{where}: field {key!r} is missing")
            continue
        try:
            value = _convert(data[key], hints[field.name], f"{where}, {key}")
        except FieldError as error:
            problems.extend(error.problems)
            continue
        choices = field.metadata.get("choices")
        if choices is not None:
            listed = value if isinstance(value, tuple) else (value,)
            problems.extend(
                f"{where}, {key}: {item!r} is not known; {suggest(str(item), choices)}"
                for item in listed
                if item is not None and item not in choices
            )
        values[field.name] = value
    if problems:
        raise FieldError(problems)
    return cls(**values)


@functools.cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _convert(value: object, hint: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        return _convert(value, next(option for option in options if option is not type(None)), where)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return build(typing.cast("type[Any]", hint), value, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise FieldError([f"{where}: is {_kind(value)}, should be a list"])
        item = typing.get_args(hint)[0]
        return tuple(_convert(entry, item, f"{where}[{number}]") for number, entry in enumerate(value, 1))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise FieldError([f"{where}: is {_kind(value)}, should be a mapping"])
        _, of = typing.get_args(hint)
        return {str(key): _convert(entry, of, f"{where}, {key}") for key, entry in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    quote = "; put it in quotes" if hint is str and value is not None else ""
    raise FieldError([f"{where}: is {_kind(value)} ({value!r}), should be {_NAMES.get(hint, hint)}{quote}"])


_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _kind(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, Mapping):
        return "a mapping"
    return {str: "text", int: "a number", float: "a number", list: "a list"}.get(type(value), type(value).__name__)
