"""What a user's own Task is made of: its arguments, its model, and code that lies in no file."""

from __future__ import annotations

import copy
import dis
import hashlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

import numpy as np
import torch
from torch import nn

from stepladder.config.recipe import Recipe
from stepladder.measuring.probe import untouched
from stepladder.records import Json
from stepladder.task.contract import Task
from stepladder.task.image_classification import ImageClassification

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_OF_THE_MODULE: Final = ("LOAD_GLOBAL", "LOAD_NAME")
_SCALARS: Final = (bool, int, float, str, bytes, type(None))


def task_facts(task: Task, recipe: Recipe) -> dict[str, Json]:
    """Give what tells one Task of a class from another; nothing of the built-in one.

    - `arguments`: of its constructor, as far as the Task keeps them under their own names and they
      are plain values, tensors or arrays; where a file lies does not count.
    - `model`: the layers that it builds, their options and shapes; None: it cannot be built, and
      whoever trains it next says why.
    - `loose_code`: what its class and all that it calls compile to, as far as a notebook or a
      prompt defined it. Code in files is counted with them.

    The Task and all random states stay as they were.
    """
    if type(task) is ImageClassification:
        return {}
    return {
        "arguments": _arguments(task),
        "model": _model(task, recipe),
        "loose_code": _digest("\n".join(loose_code(type(task)))),
    }


def loose_code(start: type) -> list[str]:
    """Give in words what a class compiles to where it lies in no file, and what it calls there.

    Methods by their instructions, constants and defaults; plain values by what they are; what a
    decorator wraps as well. Sorted, and the same in each process.
    """
    seen: dict[int, object] = {}  # keeps what is seen, so that no other takes its number
    words: list[str] = []
    left: list[object] = [start]
    while left:
        value = left.pop()
        if id(value) in seen or not isinstance(value, type | FunctionType):
            continue
        seen[id(value)] = value
        name = f"{value.__module__}.{value.__qualname__}"
        named: list[tuple[str, object]] = []
        if isinstance(value, type):
            named += vars(value).items() if _is_loose(value.__module__) else ()
            left += value.__mro__[1:]
        else:
            named += _closed_over(value)
            if _is_loose(value.__globals__.get("__name__")):
                words.append(f"{name} {_code_words(value)}")
                named += _named_by(value)
        for key, item in named:
            plain = None if key.startswith("__") else _plain(item)
            words += [f"{name}: {key} {plain}"] if plain is not None else []
            left += _callables_in(item)
    return sorted(words)


def _is_loose(module_name: object) -> bool:
    """Say whether a module is no file: that of a notebook, or of a prompt."""
    if module_name in sys.builtin_module_names:
        return False
    return getattr(sys.modules.get(str(module_name)), "__file__", None) is None


def _callables_in(item: object) -> tuple[object, ...]:
    if isinstance(item, property):
        return item.fget, item.fset, item.fdel
    return (item.__func__,) if isinstance(item, staticmethod | classmethod) else (item,)


def _named_by(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield what a function names in its module."""
    for code in _codes(function.__code__):
        for step in dis.get_instructions(code):
            if step.opname in _OF_THE_MODULE and step.argval in function.__globals__:
                yield step.argval, function.__globals__[step.argval]


def _closed_over(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield what a function was made around."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _code_words(function: FunctionType) -> str:
    """Give a function's instructions, constants and defaults in words, the same in each process."""
    parts = []
    for code in _codes(function.__code__):
        consts = [_words(const) for const in code.co_consts if not isinstance(const, CodeType)]
        parts.append(f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {consts}")
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return f"{parts} {[_words(value) for value in defaults]}"


def _words(value: object) -> str:
    if isinstance(value, set | frozenset):
        return f"{sorted(map(_words, value))}"
    if isinstance(value, tuple | list):
        return f"{[_words(item) for item in value]}"
    return _ADDRESS.sub("", repr(value))


def _arguments(task: Task) -> dict[str, Json]:
    kept: Mapping[str, object] = getattr(task, "__dict__", {})
    try:
        names = tuple(inspect.signature(type(task)).parameters)
    except (TypeError, ValueError):  # it is made in a way that cannot be read
        return {}
    found = {name: _plain(kept[name]) for name in names if name in kept}
    return {name: value for name, value in found.items() if value is not None}


def _plain(value: object) -> str | None:
    """Give a value in words that are the same for equal values; None: it has no such words."""
    if isinstance(value, Path):
        return None
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return _tensor_words(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, Mapping):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple):
        parts = [_plain(item) for item in value]
        return None if None in parts else f"[{', '.join(map(str, parts))}]"
    return None


def _tensor_words(value: torch.Tensor) -> str | None:
    try:
        dense = value.detach().cpu().to_dense().resolve_conj().resolve_neg().reshape(-1)
        numbers = dense.view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError, NotImplementedError):  # one without numbers, on meta
        numbers = b""
    return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(numbers).hexdigest()}"


def _model(task: Task, recipe: Recipe) -> str | None:
    try:
        with untouched():
            torch.manual_seed(recipe.seed)
            model = copy.copy(task).build_model(recipe)
        return _digest(_layers(model))
    except Exception:  # whoever builds it next says what is wrong
        return None


def _layers(model: nn.Module) -> str:
    tensors = {name: x for name, x in model.state_dict().items() if torch.is_tensor(x)}
    shapes = [(name, str(x.dtype), *x.shape) for name, x in tensors.items()]
    return f"{_ADDRESS.sub('', repr(model))}\n{shapes}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
