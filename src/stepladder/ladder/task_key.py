"""What a user's own Task is made of: its arguments, its model, and code that lies in no file."""

from __future__ import annotations

import copy
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
from stepladder.measure.probe import untouched
from stepladder.records import Json
from stepladder.task.contract import Task
from stepladder.task.image_classification import ImageClassification

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
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

    Methods by their instructions, constants and defaults; plain values by what they are. Sorted.
    """
    found: dict[str, str] = {}
    left: list[object] = [start]
    while left:
        value = left.pop()
        name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        if name in found:
            continue
        if isinstance(value, type):
            own = vars(value) if _is_loose(value) else {}
            left += value.__mro__[1:]
        elif isinstance(value, FunctionType) and _is_loose(value):
            own = dict(_named_by(value))
            found[name] = _code_words(value)
        else:
            continue
        found.setdefault(name, "")
        for key, item in own.items():
            if isinstance(item, _SCALARS) and not key.startswith("__"):
                found[f"{name}: {key}"] = repr(item)
            left += _functions_in(item)
    return sorted(f"{name} {words}" for name, words in found.items() if words)


def _is_loose(value: type | FunctionType) -> bool:
    """Say whether the module of a definition is no file: that of a notebook, or of a prompt."""
    module = sys.modules.get(value.__module__)
    return module is None or (
        getattr(module, "__file__", None) is None
        and value.__module__ not in sys.builtin_module_names
    )


def _functions_in(item: object) -> list[object]:
    if isinstance(item, property):
        return [part for part in (item.fget, item.fset) if part is not None]
    if isinstance(item, staticmethod | classmethod):
        return [item.__func__]
    return [item] if isinstance(item, type | FunctionType) else []


def _named_by(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield what a function names in its module and around it."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    yield from ((name, function.__globals__[name]) for name in names & set(function.__globals__))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
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
    if isinstance(value, frozenset):
        return f"{sorted(map(repr, value))}"
    return _ADDRESS.sub("", repr(value))


def _arguments(task: Task) -> dict[str, Json]:
    kept: Mapping[str, object] = getattr(task, "__dict__", {})
    names = inspect.signature(type(task)).parameters
    found = {name: _plain(kept[name]) for name in names if name in kept}
    return {name: value for name, value in found.items() if value is not None}


def _plain(value: object) -> str | None:
    """Give a value in words that are the same for equal values; None: it has no such words."""
    if isinstance(value, Path):
        return None
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, torch.Tensor):
        value = value.tolist() if value.dtype is torch.bfloat16 else value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, Mapping):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple):
        parts = [_plain(item) for item in value]
        return None if None in parts else f"[{', '.join(map(str, parts))}]"
    return None


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
