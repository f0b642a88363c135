"""Build records from JSON by the types of the dataclass; the inverse of `to_json`."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from stepladder.errors import DataError
from stepladder.records.files import read_json

T = TypeVar("T")

_NOT_FINITE = frozenset({"nan", "inf", "-inf"})  # the strings of to_json
_LARGEST = 2**64  # limit of an int; arithmetic with floats fails beyond it
_SCALARS: tuple[type, ...] = (bool, int, float, str, type(None))


def from_json(kind: type[T], value: object) -> T:
    """Build a record from plain JSON, as returned by `to_json`.

    Unknown keys are ignored, as a later version may have written them.

    Raises:
        DataError: if a key is missing or a value has the wrong type; has its path in the record.
    """
    built: T = _read(kind, value, kind.__name__)
    return built


def read_record(kind: type[T], path: Path) -> T:
    """Read a record from a JSON file.

    Raises:
        DataError: if the file is missing or damaged; names it, and the place in it.
    """
    value = read_json(path)
    try:
        return from_json(kind, value)
    except DataError as error:
        place = (error.where or "").removeprefix(kind.__name__).lstrip(".")
        raise DataError(
            error.what,
            where=f"{path}: {place}" if place else str(path),
            why="The file is damaged, or was changed by hand.",
            fix="Restore it from a copy, or repeat the command that wrote it.",
        ) from None


def _read(kind: Any, value: object, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _record(kind, value, where)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(kind, value, where)
    if origin is tuple:
        return _tuple(typing.get_args(kind), value, where)
    if origin is list:
        return list(_tuple((typing.get_args(kind)[0], ...), value, where))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(typing.get_args(kind), value, where)
    return _plain(kind, value, where)


def _record(kind: Any, value: object, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(kind, value, where)
    hints = _hints(kind)
    found = {}
    for item in dataclasses.fields(kind):
        if item.name in value:
            found[item.name] = _read(hints[item.name], value[item.name], f"{where}.{item.name}")
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise DataError("the key is missing", where=f"{where}.{item.name}")
    return kind(**found)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _union(kind: Any, value: object, where: str) -> Any:
    choices = typing.get_args(kind)
    if value is None and type(None) in choices:
        return None
    if type(value) in choices and type(value) in _SCALARS:  # an int is also a float
        return _plain(type(value), value, where)
    problem = _wrong(kind, value, where)
    for choice in (choice for choice in choices if choice is not type(None)):
        try:
            return _read(choice, value, where)
        except DataError as error:
            problem = error
    if len(choices) == 2 and type(None) in choices:
        raise problem  # an optional record: its own error is more specific
    raise _wrong(kind, value, where)


def _tuple(items: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _wrong(tuple, value, where)
    if len(items) == 2 and items[1] is Ellipsis:
        items = (items[0],) * len(value)
    if len(items) != len(value):
        raise DataError(f"expected {len(items)} items, got {len(value)}", where=where)
    return tuple(
        _read(item, part, f"{where}[{idx}]")
        for idx, (item, part) in enumerate(zip(items, value, strict=True))
    )


def _mapping(kinds: tuple[Any, ...], value: object, where: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(dict, value, where)
    key_kind, item_kind = kinds
    return {
        _key(key_kind, key, where): _read(item_kind, item, f"{where}[{key!r}]")
        for key, item in value.items()
    }


def _key(kind: Any, key: object, where: str) -> Any:
    """Read a key; numbers are strings in JSON."""
    if kind in (int, float) and isinstance(key, str):
        try:
            return kind(key)
        except ValueError:
            raise _wrong(kind, key, where) from None
    return _read(kind, key, where)


def _plain(kind: Any, value: object, where: str) -> Any:
    if kind is float and isinstance(value, str) and value in _NOT_FINITE:
        return float(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return _float(value, where)
    if not isinstance(kind, type):  # a forward reference to Json: any JSON is valid
        return value
    if issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            names = ", ".join(str(item.value) for item in kind)
            raise DataError(f"{value!r} is not one of {names}", where=where) from None
    if issubclass(kind, Path) and isinstance(value, str):
        return Path(value)
    is_too_large = isinstance(value, int) and abs(value) >= _LARGEST
    if kind in _SCALARS and type(value) is kind and not is_too_large:
        return value
    raise _wrong(kind, value, where)


def _float(value: int, where: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise _wrong(float, value, where) from None


def _wrong(kind: Any, value: object, where: str) -> DataError:
    wanted = getattr(kind, "__name__", None) or str(kind)
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
    return DataError(f"expected {wanted}, got {shown}", where=where)
