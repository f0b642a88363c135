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
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from stepladder.scripts.inside.state import Snapshot, generators_of
from stepladder.scripts.split import READ
from stepladder.watching.script.own_code import OwnCode

_TIMES: Final = 3  # that each example is read in both ways
_MAX_S: Final = 5.0
_FUTURE: Final = __future__.annotations.compiler_flag
_GETITEM: Final = "__getitem__"
_MAX_DATASETS: Final = 4
_SEED: Final = 1234


def kept_in_memory(
    read: Callable[[Any, Any], Any], generators: Sequence[Any] = ()
) -> Callable[[Any, Any], Any]:
    """Keep what a method reads, until an attribute changes; each call returns a copy.

    What is read while a random number is drawn is not kept.

    Args:
        generators: of the dataset, besides those of Python, NumPy and torch.
    """

    @functools.wraps(read)
    def wrapper(self: Any, idx: Any) -> Any:
        try:
            at = operator.index(idx)
        except TypeError:  # a slice, or several
            return read(self, idx)
        now = [(name, value) for name, value in vars(self).items() if name != "_kept"]
        ids = (id(self), *((name, id(value)) for name, value in now))
        seen, _, kept = vars(self).get("_kept", (None, None, None))
        if seen != ids:
            kept = {}
            vars(self)["_kept"] = ids, now, kept
        if at not in kept:
            before, found = RandomStates(generators), read(self, idx)
            if not before.is_unchanged():
                return found
            kept[at] = found
        return copy.deepcopy(kept[at])

    return wrapper


def read_all(dataset: Any) -> Any:
    """Read all examples now, so that worker processes share them; return the dataset."""
    inner, indices = dataset, list(range(len(dataset)))
    while not hasattr(inner, READ):
        own = getattr(inner, "indices", None)  # of a Subset
        inner = inner.dataset
        indices = [own[idx] for idx in indices] if own is not None else list(range(len(inner)))
    for idx in indices:
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

    A few examples of each dataset that it concerns are read with several seeds, by the method and
    by its two parts, and compared; none may change what the dataset holds. The random states are
    afterwards as before.

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
    inner = _inner_datasets(method, datasets, own)
    num_examples = sum(map(len, inner))
    some = inner[:_MAX_DATASETS]
    why_not = "no first part of its __getitem__ reads the same each time"
    began = perf_counter()
    try:
        for num, column, reads, rest in _parts(method):
            if perf_counter() - began > _MAX_S:
                break
            tried = [_tried(method, one, reads, rest) for one in some]
            found = [one for one in tried if one is not None]
            if len(found) < len(tried):
                continue
            num_bytes = max(one[0] for one in found)
            if num_bytes * num_examples <= most_bytes:
                return FirstPart(
                    place=_place(method.function, column),
                    num_statements=num,
                    num_bytes=num_bytes,
                    share=found[0][1],
                    num_examples=num_examples,
                )
            why_not = "what it reads takes more than half of the free memory"
    except Exception as error:  # such as a text that is not known, or names that it needs
        return f"its __getitem__ cannot be split ({type(error).__name__})"
    return why_not


def _inner_datasets(method: _Method, datasets: Iterable[Any], own: OwnCode) -> list[Any]:
    """Return all datasets that are read by a method, its own first."""
    found = [_method_of(one, own) for one in datasets]
    inner = {
        id(one.dataset): one.dataset
        for one in [method, *found]
        if one is not None and one.function is method.function
    }
    return list(inner.values())


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


def _parts(method: _Method) -> Iterator[tuple[float, int, FunctionType, FunctionType]]:
    """Yield splits of a method, the longest first part first: statements, column, both parts."""
    import libcst as cst

    from stepladder.scripts.split import split, split_points

    function = method.function
    source = inspect.getsource(function)
    column = len(source) - len(source.lstrip())
    module = cst.parse_module(f"class {method.owner.__name__}:\n{source}")  # for names as self.__x
    kind = module.body[0]
    node = kind.body.body[0] if isinstance(kind, cst.ClassDef) else None
    if not isinstance(node, cst.FunctionDef) or not isinstance(kind, cst.ClassDef):
        return
    for num in split_points(node):
        if (both := split(node, num)) is not None:
            plain = both[0].with_changes(decorators=[])
            parts = kind.with_changes(body=kind.body.with_changes(body=[plain, both[1]]))
            lines = "\n" * (function.__code__.co_firstlineno - 2)  # about where they are
            code = compile(
                lines + module.with_changes(body=[parts]).code,
                function.__code__.co_filename,
                "exec",
                flags=function.__code__.co_flags & _FUTURE,
                dont_inherit=True,
            )
            scope: dict[str, Any] = {}
            exec(code, function.__globals__, scope)
            found = vars(scope[method.owner.__name__])
            yield num, column, found[READ], found[_GETITEM]


def _tried(
    method: _Method, dataset: Any, reads: FunctionType, rest: FunctionType
) -> tuple[float, float] | None:
    """Return the bytes that a first part reads, and its share of the time; None: it is not same."""
    generators = generators_of(dataset)
    saved = RandomStates(generators)
    indices = some_of(len(dataset))
    setattr(method.owner, READ, kept_in_memory(reads, generators))
    try:
        for idx in indices:
            method.function(dataset, idx)  # which may open files, or fill memories of its own
        held = Snapshot(dataset, indices)
        read = _read(dataset, indices, reads, generators)
        if read is None or not held.is_unchanged():
            return None
        for idx in indices:
            getattr(dataset, READ)(idx)  # all are kept before one is used
        seconds = _compared(method, dataset, indices[::-1], rest, generators)
        vars(dataset).pop("_kept", None)
        if seconds is None or not held.is_unchanged():
            return None
    except Exception:
        return None
    finally:
        delattr(method.owner, READ)
        vars(dataset).pop("_kept", None)
        saved.restore()
    return read[0], min(1.0, read[1] / seconds)


def _read(
    dataset: Any, indices: Sequence[int], reads: FunctionType, generators: Sequence[Any]
) -> tuple[float, float] | None:
    """Return bytes and seconds of what a first part reads; None: it may not be kept."""
    total, seconds = 0.0, 0.0
    for idx in indices:
        before = RandomStates(generators)
        began = perf_counter()
        found = reads(dataset, idx)
        seconds += perf_counter() - began
        size = size_of(found)
        if size is None or not before.is_unchanged():
            return None
        total += size
    return total / len(indices), seconds / len(indices)


def _compared(
    method: _Method,
    dataset: Any,
    indices: Sequence[int],
    rest: FunctionType,
    generators: Sequence[Any],
) -> float | None:
    """Return the seconds of reading an example; None where its two parts do not do the same."""
    seconds = 0.0
    tried = _TIMES * list(indices)
    for seed, idx in enumerate(tried):
        seed_all(_SEED + seed)
        before = RandomStates(generators)
        began = perf_counter()
        example = method.function(dataset, idx)
        seconds += perf_counter() - began
        after = RandomStates(generators)
        before.restore()
        if not is_same(example, rest(dataset, idx)) or not after.is_unchanged():
            return None
    return seconds / len(tried)


def keep_decoded(dataset: Any, own: OwnCode, place: str, num: float) -> bool:
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
    for at, column, reads, rest in _parts(method):
        if at == num and _place(method.function, column).key == place:
            setattr(method.owner, READ, kept_in_memory(reads, generators_of(dataset)))
            setattr(method.owner, _GETITEM, rest)
            return True
    return False
