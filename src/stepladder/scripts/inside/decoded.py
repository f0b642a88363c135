"""Keep what a dataset reads before it draws random numbers.

`rungs/decoded_in_memory.py` has it as lines of a diff.
"""

from __future__ import annotations
import __future__

import copy
import functools
import inspect
import operator
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter
from types import FunctionType
from typing import Any, Final

from stepladder.records.script import FirstPart, Place
from stepladder.scripts.inside.deterministic import (
    RandomStates,
    is_same,
    seed_all,
    size_of,
    some_of,
)
from stepladder.scripts.split import KEPT, READ
from stepladder.watching.script.own_code import OwnCode

_SEEDS: Final = (1, 2)
_MAX_S: Final = 5.0
_FUTURE: Final = __future__.annotations.compiler_flag
_GETITEM: Final = "__getitem__"


def kept_in_memory(read: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Keep what a method of a dataset reads; each call returns a copy."""

    @functools.wraps(read)
    def wrapper(self: Any, idx: Any) -> Any:
        kept, at = vars(self).setdefault("_kept", {}), operator.index(idx)
        if at not in kept:
            kept[at] = read(self, idx)
        return copy.deepcopy(kept[at])

    return wrapper


def read_all(dataset: Any) -> Any:
    """Read all examples now, so that worker processes share them; return the dataset."""
    inner = dataset
    while not hasattr(inner, READ):
        inner = inner.dataset
    for idx in range(len(inner)):
        getattr(inner, READ)(idx)
    return dataset


@dataclass(frozen=True)
class _Method:
    """The `__getitem__` of a dataset, in the script's own code.

    Attributes:
        dataset: the loader's, or the one inside it, as in a `Subset`.
        owner: the class that defines it.
    """

    dataset: Any
    owner: type
    function: FunctionType


def _method_of(dataset: Any, own: OwnCode) -> _Method | None:
    while dataset is not None:
        for kind in type(dataset).__mro__:
            function = vars(kind).get(_GETITEM)
            if function is None:
                continue
            is_function = isinstance(function, FunctionType)
            if is_function and own.is_own(function.__code__.co_filename):
                return _Method(dataset, kind, function)
            break
        dataset = getattr(dataset, "dataset", None)
    return None


def first_part_of(
    dataset: Any, datasets: Iterable[Any], own: OwnCode, most_bytes: float
) -> FirstPart | str:
    """Return the longest first part of reading an example that can be kept, or why it cannot.

    A few examples are read with two seeds, by the method and by its two parts, and compared. The
    random states are afterwards as before.

    Args:
        dataset: of a loader.
        datasets: of all loaders; those with the same method keep their examples too.
        most_bytes: that all examples may take.
    """
    method = _method_of(dataset, own)
    if method is None:
        return "the script has no __getitem__ of its own for it"
    if method.function.__closure__ or hasattr(method.owner, READ):
        return "its __getitem__ uses variables of a function around it, or super()"
    num_examples = _num_with(method, datasets, own)
    why_not = "no first part of its __getitem__ reads the same each time"
    began = perf_counter()
    try:
        for num, column, reads, rest in _parts(method.function):
            tried = _tried(method, reads, rest)
            if tried is not None and tried[0] * num_examples <= most_bytes:
                return FirstPart(
                    place=_place(method.function, column),
                    num_statements=num,
                    num_bytes=tried[0],
                    share=tried[1],
                    num_examples=num_examples,
                )
            if tried is not None:
                why_not = "what it reads takes more than half of the free memory"
            if perf_counter() - began > _MAX_S:
                break
    except Exception as error:  # such as a text that is not known, or names that it needs
        return f"its __getitem__ cannot be split ({type(error).__name__})"
    return why_not


def _num_with(method: _Method, datasets: Iterable[Any], own: OwnCode) -> int:
    """Return the examples of all datasets that are read by a method."""
    found = [_method_of(one, own) for one in datasets]
    inner = {
        id(one.dataset): one.dataset
        for one in [method, *found]
        if one is not None and one.function is method.function
    }
    return sum(len(one) for one in inner.values())


def _place(function: FunctionType, column: int) -> Place:
    line = function.__code__.co_firstlineno
    return Place(
        file=os.path.realpath(function.__code__.co_filename),
        line=line,
        column=column,
        end_line=line,
        end_column=column,
        is_direct=True,
    )


def _parts(function: FunctionType) -> Iterator[tuple[int, int, FunctionType, FunctionType]]:
    """Yield splits of a method, the longest first part first: statements, column, both parts."""
    import libcst as cst

    from stepladder.scripts.split import num_statements, split

    source = inspect.getsource(function)
    column = len(source) - len(source.lstrip())
    node = cst.parse_module(textwrap.dedent(source)).body[0]
    if not isinstance(node, cst.FunctionDef):
        return
    for num in range(num_statements(node) - 1, 0, -1):
        if (both := split(node, num)) is not None:
            lines = "\n" * (function.__code__.co_firstlineno - 1)  # about where they are
            code = compile(
                lines + cst.Module(both).code,
                function.__code__.co_filename,
                "exec",
                flags=function.__code__.co_flags & _FUTURE,
                dont_inherit=True,
            )
            scope: dict[str, Any] = {KEPT: kept_in_memory}
            exec(code, function.__globals__, scope)
            yield num, column, scope[READ], scope[_GETITEM]


def _tried(method: _Method, reads: FunctionType, rest: FunctionType) -> tuple[float, float] | None:
    """Return the bytes that a first part reads, and its share of the time; None: it is not same."""
    saved, dataset = RandomStates(), method.dataset
    sizes, seconds, of_first = [], 0.0, 0.0
    setattr(method.owner, READ, reads)
    try:
        for idx in some_of(len(dataset)):
            for seed in _SEEDS:
                seed_all(seed)
                before = RandomStates()
                began = perf_counter()
                size = size_of(inspect.unwrap(reads)(dataset, idx))
                of_first += perf_counter() - began
                if size is None or not before.is_unchanged():
                    return None
                sizes.append(size)
                began = perf_counter()
                example = method.function(dataset, idx)
                seconds += perf_counter() - began
                after = RandomStates()
                seed_all(seed)
                if not is_same(example, rest(dataset, idx)) or not after.is_unchanged():
                    return None
    except Exception:
        return None
    finally:
        delattr(method.owner, READ)
        vars(dataset).pop("_kept", None)
        saved.restore()
    return sum(sizes) / len(sizes), min(1.0, of_first / seconds)


def keep_decoded(dataset: Any, own: OwnCode, place: str, num: int) -> bool:
    """Split the `__getitem__` of a loader's dataset, and keep what the first part reads.

    Args:
        place: key of the method's place.
        num: statements of the first part.

    Returns:
        Whether it is split.
    """
    method = _method_of(dataset, own)
    if method is None:
        return False
    if hasattr(method.owner, READ):
        return True
    for at, column, reads, rest in _parts(method.function):
        if at == num and _place(method.function, column).key == place:
            setattr(method.owner, READ, reads)
            setattr(method.owner, _GETITEM, rest)
            return True
    return False
