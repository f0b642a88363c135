"""What a dataset holds: random generators, and data that reading an example may change."""

from __future__ import annotations

import dis
import functools
import io
import os
import random
import stat
import sysconfig
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

GENERATORS: Final = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_PLAIN: Final = (type(None), bool, int, str, bytes)
_SEQUENCES: Final = (list, tuple, deque)
_MAX_OBJECTS: Final = 5_000
_FEW: Final = 50
_MAX_BYTES: Final = 1 << 20
_OPAQUE: Final = {
    "PIL",
    "cv2",
    "datasets",
    "h5py",
    "lmdb",
    "logging",
    "pandas",
    "polars",
    "pyarrow",
    "sqlite3",
    "threading",
    "torch",
    "zarr",
}
"""Libraries whose objects may change within without any effect."""
_LOADS: Final = ("LOAD_GLOBAL", "LOAD_NAME")
_TORCHS_DATA: Final = "torch.utils.data"
_INSTALLED: Final = ("site-packages", "dist-packages")
_STANDARD: Final = sysconfig.get_paths()["stdlib"]
_OF_LIBRARIES: Final = ("builtins", "typing", "abc", "torch")


def roots_of(dataset: Any) -> list[Any]:
    """Return a dataset, the variables that its class has, and those that its methods use.

    Likewise for the objects and functions that it holds, but for those of libraries.
    """
    found, functions = [dataset], dict[FunctionType, None]()
    kinds: dict[type, None] = {}
    for one in held_by([dataset]):
        if isinstance(one, FunctionType) and not _is_of_library(one):
            functions[one] = None
        kinds |= dict.fromkeys(own_kinds(type(one)))
    for kind in kinds:
        for value in vars(kind).values():
            inner = value.fget if isinstance(value, property) else value
            inner = getattr(inner, "__func__", inner)
            if isinstance(inner, FunctionType):
                functions |= {} if _is_of_library(inner) else {inner: None}
            elif type(value).__module__.partition(".")[0] in ("builtins", "numpy", "torch"):
                found.append(value)
    for function in functions:
        for one in with_called(function):
            found += _variables_of(one)
    return found


def _is_of_library(function: FunctionType) -> bool:
    return _is_library(function.__code__.co_filename)


def is_installed(module: ModuleType) -> bool:
    """Return whether a module is Python's, or that of an installed package."""
    file = getattr(module, "__file__", None)
    return file is None or _is_library(file)


def _is_library(file: str) -> bool:
    is_installed = any(part in _INSTALLED for part in Path(file).parts)
    return is_installed or file.startswith((_STANDARD, "<frozen"))


def own_kinds(kind: type) -> Iterator[type]:
    """Yield a class and its bases, but for those of torch and of Python."""
    for one in kind.__mro__:
        if one.__module__.partition(".")[0] not in _OF_LIBRARIES:
            yield one


def _variables_of(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in globals_in_code(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def with_called(function: FunctionType) -> list[FunctionType]:
    """Return a function, and those of its file that it calls by a global name."""
    found: dict[FunctionType, None] = {}
    waiting = [function]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found[one] = None
        values = (one.__globals__.get(name) for name in globals_in_code(one.__code__))
        waiting += [
            value
            for value in values
            if isinstance(value, FunctionType) and value.__globals__ is one.__globals__
        ]
    return list(found)


def names_in_code(code: CodeType) -> set[str]:
    """Return the global names and the attributes that code uses, with its inner functions."""
    inner = (names_in_code(one) for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*inner)


def globals_in_code(code: CodeType) -> set[str]:
    """Return the global names that code uses, with its inner functions."""
    inner = (globals_in_code(one) for one in code.co_consts if isinstance(one, CodeType))
    own = {one.argval for one in dis.get_instructions(code) if one.opname in _LOADS}
    return own.union(*inner)


def held_by(roots: Iterable[Any], indices: Sequence[int] = ()) -> Iterator[Any]:
    """Yield objects and all that they hold, as far as it is data; of large ones, a part.

    Args:
        indices: of elements that are among this part.
    """
    waiting, seen = deque(roots), set[int]()
    while waiting and len(seen) < _MAX_OBJECTS:
        one = waiting.popleft()
        if isinstance(one, _PLAIN):
            yield one
        elif id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting.extend(_inside(one, indices))


def _inside(one: Any, indices: Sequence[int]) -> Iterable[Any]:
    if isinstance(one, (Tensor, np.ndarray, ModuleType, type, FunctionType, *GENERATORS)):
        return ()
    if isinstance(one, dict):
        return _some(list(one.values()), indices)
    if isinstance(one, _SEQUENCES):
        return _some(one, indices)
    if isinstance(one, MethodType):
        return (one.__self__,)
    if isinstance(one, functools.partial):
        return (one.func, *one.args, *one.keywords.values())
    return vars(one).values() if _is_open(one) else ()


def _is_open(one: Any) -> bool:
    """Return whether the attributes of an object are its data."""
    module = type(one).__module__
    is_opaque = module.partition(".")[0] in _OPAQUE and not module.startswith(_TORCHS_DATA)
    return hasattr(one, "__dict__") and not is_opaque


def _some(values: Sequence[Any], indices: Sequence[int]) -> list[Any]:
    num = len(values)
    if num <= 2 * _FEW:
        return list(values)
    chosen = {*range(_FEW), *range(num - _FEW, num), *(idx for idx in indices if idx < num)}
    return [values[idx] for idx in sorted(chosen)]


def generators_of(dataset: Any) -> list[Any]:
    """Return the random generators that a dataset holds, or that its methods use."""
    return [one for one in held_by(roots_of(dataset)) if isinstance(one, GENERATORS)]


class Snapshot:
    """What a dataset holds and uses when it is made, but for random generators.

    Args:
        dataset: with the variables of its code.
        indices: of examples that are read; of large containers and arrays, only parts are compared,
            which these belong to.
    """

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self._dataset = dataset
        self._indices = indices
        self._held = self._look()

    def is_unchanged(self) -> bool:
        """Return whether they hold the same; an iterator may have been advanced without a trace."""
        now = self._look()
        if any(_is_iterator(one) for one, _ in now):
            return False
        return len(now) == len(self._held) and all(
            mark == before and (one is other or isinstance(one, (*_PLAIN, float)))
            for (one, mark), (other, before) in zip(now, self._held, strict=True)
        )

    def _look(self) -> list[tuple[Any, Any]]:
        roots = roots_of(self._dataset)
        return [(one, _mark(one, self._indices)) for one in held_by(roots, self._indices)]


def _is_iterator(one: Any) -> bool:
    is_like = hasattr(type(one), "__next__") and not isinstance(one, io.IOBase)
    return is_like and type(one).__module__.partition(".")[0] not in _OPAQUE


def _mark(one: Any, indices: Sequence[int]) -> Any:
    """Return what is compared of an object itself."""
    mark: Any = None
    if isinstance(one, _PLAIN):
        mark = type(one), one
    elif isinstance(one, Tensor):
        mark = tuple(one.shape), _version(one), _sum(_array(one), indices)
    elif isinstance(one, np.ndarray):
        mark = one.shape, _sum(one, indices)
    elif isinstance(one, dict):
        mark = len(one), tuple(map(repr, _some(list(one), indices)))
    elif isinstance(one, (set, frozenset)):
        mark = len(one), hash(frozenset(one))
    elif isinstance(one, _SEQUENCES):
        mark = len(one)
    elif isinstance(one, (float, complex, np.generic)):
        mark = repr(one)
    elif _is_open(one) and not isinstance(one, type):
        mark = tuple(vars(one))
    return mark


def _version(tensor: Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # made in inference mode
        return 0


def _array(tensor: Tensor) -> np.ndarray[Any, Any] | None:
    try:
        return tensor.detach().numpy()
    except (RuntimeError, TypeError):  # on a GPU, sparse, or bfloat16
        return None


def _sum(array: np.ndarray[Any, Any] | None, indices: Sequence[int]) -> tuple[int, ...]:
    """Return checksums of an array: of all of it, or of some rows of a large one."""
    if array is None or array.dtype.hasobject:
        return ()
    if array.nbytes <= _MAX_BYTES:
        return (zlib.crc32(np.ascontiguousarray(array).data),)
    rows = [array[idx] for idx in indices if array.ndim > 1 and idx < len(array)]
    return tuple(
        zlib.crc32(np.ascontiguousarray(row).data) for row in rows if row.nbytes <= _MAX_BYTES
    )


def read_files() -> set[tuple[int, str]]:
    """Return the files that this process has open for reading: number and path."""
    found: set[tuple[int, str]] = set()
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    except OSError:  # no Linux
        return found
    for number in numbers:
        try:
            is_file = stat.S_ISREG(os.fstat(number).st_mode)
            path = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
            flags = Path(f"/proc/self/fdinfo/{number}").read_text(encoding="ascii").split("flags:")
        except (OSError, UnicodeDecodeError):  # closed by now
            continue
        is_read = len(flags) == 2 and int(flags[1].split()[0], 8) & os.O_ACCMODE != os.O_WRONLY
        if number > 2 and is_file and is_read and not path.endswith(" (deleted)"):
            found.add((number, path))
    return found
