"""Convert user input to the value of an option, strictly: nothing is guessed.

PyYAML reads `no` as False, `010` as 8, `1:30` as 90, `1e-3` as text and `true` as an int. Here the
type of the option decides, and anything that is not clearly of that type is rejected.
"""

from __future__ import annotations

import difflib
import math
import re
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Any

import yaml

_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9_]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}
_YAML_NAMES = {
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "timestamp": "a date",
}


class UnfitValueError(Exception):
    """A value does not fit its option; has what to type instead."""

    def __init__(self, fix: str | None = None) -> None:
        super().__init__(fix)
        self.fix = fix


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The valid types of an option.

    Attributes:
        kinds: the types, tried in this order.
        is_optional: None is valid.
    """

    kinds: tuple[type, ...]
    is_optional: bool

    def __str__(self) -> str:
        words = [_words(kind) for kind in self.kinds] + ["none"] * self.is_optional
        return ", or ".join(words) if len(words) > 1 else words[0]

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of the enums among the types."""
        return tuple(
            item.value for kind in self.kinds if issubclass(kind, StrEnum) for item in kind
        )


def wanted_of(annotation: Any) -> Wanted:
    """Parse a field's type: bool, int, float, str, Path, a StrEnum, or a union of them and None.

    Raises:
        TypeError: if it is anything else.
    """
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    parts = typing.get_args(annotation) if is_union else (annotation,)
    kinds = tuple(part for part in parts if part is not type(None))
    if not all(kind in _WORDS or _is_enum(kind) for kind in kinds):
        raise TypeError(f"an option cannot be of type {annotation}")
    return Wanted(kinds=kinds, is_optional=len(kinds) < len(parts))


def from_yaml(node: yaml.ScalarNode, wanted: Wanted) -> Any:
    """Convert a scalar of a YAML file to the value of an option.

    Raises:
        UnfitValueError: if it does not fit.
    """
    text, is_plain = node.value, node.style is None
    kind = node.tag.rpartition(":")[2]  # as YAML 1.1 reads it
    is_none = kind == "null" or (is_plain and text.lower() == "none")
    if is_none and wanted.is_optional:
        return None
    for want in wanted.kinds:
        if want is bool and kind == "bool":
            return text.lower() in ("true", "yes", "on")
        if want is int and is_plain and _INT.fullmatch(text):
            return int(text)
        if want is float and is_plain and _FLOAT.fullmatch(text):
            return _finite(float(text))
        if kind == "str" and issubclass(want, (str, PurePath)):
            try:
                return _from_text(text, want, wanted)
            except ValueError:
                continue
    raise UnfitValueError(_yaml_fix(text, kind, is_plain=is_plain, wanted=wanted))


def from_python(value: object, wanted: Wanted) -> Any:
    """Convert a value from Python or from a flag to the value of an option.

    Raises:
        UnfitValueError: if it does not fit.
    """
    if value is None and wanted.is_optional:
        return None
    for want in wanted.kinds:
        if want in (bool, int) and type(value) is want:
            return value
        if want is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return _finite(float(value))
        if isinstance(value, want) and issubclass(want, StrEnum):
            return value
        if isinstance(value, (str, PurePath)) and issubclass(want, (str, PurePath)):
            if isinstance(value, PurePath) and not issubclass(want, PurePath):
                continue
            try:
                return _from_text(str(value), want, wanted)
            except ValueError:
                continue
    raise UnfitValueError(nearest(str(value), wanted.choices))


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return a hint: the closest name, or a list of all names; None without names."""
    known = list(names)
    plain = word.lower().replace("-", "_")
    close = difflib.get_close_matches(plain, known, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]}?"
    return f"Use one of {', '.join(known)}." if known else None


def _from_text(text: str, want: type, wanted: Wanted) -> Any:
    """Return an enum member, a path or a string; ValueError if the text is not a valid one."""
    if issubclass(want, StrEnum):
        return want(text)
    if issubclass(want, PurePath):
        _check_path(text, wanted)
        return Path(text)
    return text


def _check_path(text: str, wanted: Wanted) -> None:
    if not text:
        raise UnfitValueError("Write a path, such as . for the current folder.")
    if text.startswith("~"):
        raise UnfitValueError("Write the path without ~, which only the shell expands.")
    path = Path(text)
    if wanted.choices and not path.suffix and len(path.parts) < 2:
        hint = nearest(text, wanted.choices)
        raise UnfitValueError(f"{hint} (A file name needs its extension, such as .safetensors.)")


def _yaml_fix(text: str, kind: str, *, is_plain: bool, wanted: Wanted) -> str | None:
    """Return what to type instead of a scalar that does not fit."""
    if wanted.choices:
        return nearest(text, wanted.choices)
    takes_text = any(issubclass(want, (str, PurePath)) for want in wanted.kinds)
    fix = None
    if kind == "null":
        fix = "Write a value, or leave the line out."
    elif takes_text:
        fix = f'YAML reads this as {_YAML_NAMES.get(kind, kind)}; write "{text}", in quotes.'
    elif not is_plain and text:
        fix = "Remove the quotes."
    elif int in wanted.kinds and _FLOAT.fullmatch(text) and float(text).is_integer():
        fix = f"Write {int(float(text))}."
    elif bool not in wanted.kinds and kind == "int":
        fix = "Write it in decimal, without leading zeros."
    return fix


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise UnfitValueError("Write a finite number.")
    return value


def _is_enum(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, StrEnum)


def _words(kind: type) -> str:
    if issubclass(kind, StrEnum):
        return f"one of {', '.join(item.value for item in kind)}"
    return _WORDS[kind]
