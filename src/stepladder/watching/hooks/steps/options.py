"""Watch which of a script's options optimizers get as their learning rate."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

import torch
from torch.optim.optimizer import Optimizer

from stepladder.watching.hooks.losses.lost_terms import value_of
from stepladder.watching.script.options import (
    RATES,
    Passed,
    is_read,
    may_pass,
    normalised,
    passed_as_rate,
)
from stepladder.watching.seen.steps import OptionSeen
from stepladder.watching.watcher import Watcher

_MAX_PLACES: Final = 16  # lines that create optimizers
_MAX_LINES: Final = 1500  # of a file
_MAX_NAMES: Final = 2000


class OptionWatch:
    """Reads the source of the calls that create optimizers."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._known: set[tuple[str, int]] = set()

    def install(self, watcher: Watcher) -> None:
        """Install the wrapper."""
        self._watcher = watcher
        watcher.patches.wrap(Optimizer, "__init__", after=self._built)

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def _built(self, _note: Any, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        frame = self._watcher.own.frame()
        if frame is None or len(self._known) >= _MAX_PLACES:
            return
        place = frame.f_code.co_filename, frame.f_lineno
        if place in self._known:
            return
        self._known.add(place)
        lines = linecache.getlines(place[0])
        if not 0 < len(lines) <= _MAX_LINES or not may_pass("".join(lines)):
            return
        try:
            tree = ast.parse("".join(lines))
        except (SyntaxError, ValueError, RecursionError):  # a magic command of a notebook
            return
        kind = type(args[0]).__name__
        one = passed_as_rate(tree, place[1], kind)
        value = None if one is None else _number(value_of(one.value, frame))
        if one is None or value is None or value != args[0].param_groups[0].get("lr"):
            return
        found = {name: rate for name, rate in _rates(one, frame) if rate != value}
        is_local = one.owner is None and not set(found) - set(frame.f_code.co_varnames)
        if not found or any(is_read(tree, one, name, is_local=is_local) for name in found):
            return
        name, rate = next(iter(found.items()))
        file = self._watcher.own.name_of(place[0])
        self._watcher.seen.options.append(
            OptionSeen(
                where=f"{file}:{one.line}",
                kind=kind,
                passed=ast.unparse(one.value),
                value=value,
                meant=_spelled(one, name),
                rate=rate,
            )
        )


def _rates(one: Passed, frame: FrameType) -> Iterator[tuple[str, float]]:
    """Yield the options beside the one that is passed that are learning rates by their names."""
    if one.owner is None:
        is_function = one.scope is not None and frame.f_code.co_name != "<module>"
        names = [*frame.f_code.co_varnames] if is_function else []
        names += list(frame.f_globals)[:_MAX_NAMES]
        pairs = ((name, value_of(ast.Name(name), frame)) for name in names if _is_rate(name))
    else:
        owner = value_of(one.owner, frame)
        if owner is None or isinstance(owner, (int, float, torch.Tensor)):
            return
        items: dict[Any, Any] = (
            owner
            if isinstance(owner, dict)
            else {**vars(type(owner)), **getattr(owner, "__dict__", {})}
        )
        pairs = ((name, items[name]) for name in list(items)[:_MAX_NAMES] if _is_rate(name))
    for name, value in pairs:
        if (rate := _number(value)) is not None:
            yield name, rate


def _is_rate(name: Any) -> bool:
    return isinstance(name, str) and normalised(name) in RATES


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) else None


def _spelled(one: Passed, name: str) -> str:
    """Return an option as the script would write it."""
    if one.owner is None:
        return name
    owner = ast.unparse(one.owner)
    return f'{owner}["{name}"]' if isinstance(one.value, ast.Subscript) else f"{owner}.{name}"
