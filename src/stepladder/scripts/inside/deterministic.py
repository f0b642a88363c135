"""Test whether a dataset returns the same example each time, without drawing random numbers."""

from __future__ import annotations

import dataclasses
import functools
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from stepladder.scripts.inside.state import generators_of

_NUM: Final = 6
_MAX_S: Final = 5.0
_OTHER_SEED: Final = 987_654_321
_OBJECT_BYTES: Final = 60.0
_DRAWS: Final = "reading an example draws random numbers"
_DIFFER: Final = "two reads of one example differ"


@dataclass(frozen=True, kw_only=True)
class ReadTwice:
    """What reading a few examples has shown.

    Attributes:
        num_bytes, seconds: of an example, means; None: not read.
        why_not: why examples cannot be kept in memory; None: they can.
        varies: the two reads of an example differ, or draw random numbers.
        examples: those that were read.
    """

    num_bytes: float | None = None
    seconds: float | None = None
    why_not: str | None = None
    varies: bool = False
    examples: tuple[Any, ...] = ()


def read_twice(dataset: Any, num: int) -> ReadTwice:
    """Read a few examples twice, with different random states, and compare.

    The random states are afterwards as before.

    Args:
        num: of examples in the dataset, at least 1.
    """
    sizes: list[float] = []
    examples: list[Any] = []
    seconds: list[float] = []
    saved = RandomStates(generators_of(dataset))
    began = perf_counter()
    try:
        for idx in some_of(num):
            before = perf_counter()
            first = dataset[idx]
            seconds.append(perf_counter() - before)
            if not saved.is_unchanged():
                return ReadTwice(seconds=_mean(seconds), why_not=_DRAWS, varies=True)
            seed_all(_OTHER_SEED)
            second = dataset[idx]
            saved.restore()
            if not is_same(first, second):
                return ReadTwice(seconds=_mean(seconds), why_not=_DIFFER, varies=True)
            size = size_of(first)
            if size is None:
                return ReadTwice(
                    seconds=_mean(seconds),
                    why_not="examples have values other than tensors and numbers",
                )
            sizes.append(size)
            examples.append(first)
            if perf_counter() - began > _MAX_S:
                break
    except Exception as error:
        return ReadTwice(why_not=f"reading an example failed ({type(error).__name__})")
    finally:
        saved.restore()
    return ReadTwice(num_bytes=_mean(sizes), seconds=_mean(seconds), examples=tuple(examples))


def without_draws(
    read: Callable[..., Any], generators: Sequence[Any], problems: list[str] | None
) -> Callable[..., Any]:
    """Return a function that reads, and notes when that draws random numbers.

    Args:
        read: its last argument is the index of an example.
        generators: besides those of Python, NumPy and torch.
        problems: gets one sentence at most.
    """

    @functools.wraps(read)
    def wrapper(*args: Any) -> Any:
        before = RandomStates(generators)
        found = read(*args)
        if problems is not None and not problems and not before.is_unchanged():
            problems.append(f"{_DRAWS}, number {args[-1]}")
        return found

    return wrapper


def some_of(num: int) -> list[int]:
    """Return the indices of a few examples, from the first to the last.

    Args:
        num: of all examples, at least 1.
    """
    return sorted({at * (num - 1) // (_NUM - 1) for at in range(_NUM)})


def seed_all(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


class RandomStates:
    """The random states of Python, NumPy and torch on the CPU when it is made.

    Args:
        generators: further ones, of these libraries.
    """

    def __init__(self, generators: Sequence[Any] = ()) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state()
        self._others = [(one, _state_of(one)) for one in generators]

    def is_unchanged(self) -> bool:
        """Return whether no random number was drawn."""
        now: Any = np.random.get_state()
        return (
            torch.equal(self._torch, torch.get_rng_state())
            and self._python == random.getstate()
            and np.array_equal(self._numpy[1], now[1])
            and self._numpy[2:] == now[2:]
            and all(is_same(state, _state_of(one)) for one, state in self._others)
        )

    def restore(self) -> None:
        """Set them again."""
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        for one, state in self._others:
            _set_state(one, state)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def is_same(first: Any, second: Any) -> bool:
    """Return True if two examples are equal, number by number; NaN equals NaN."""
    if type(first) is not type(second):
        return False
    if isinstance(first, Tensor):
        return first.dtype == second.dtype and _are_equal(first, second)
    if isinstance(first, np.ndarray):
        is_float = first.dtype.kind in "fc"
        return first.dtype == second.dtype and np.array_equal(first, second, equal_nan=is_float)
    if is_series(first):
        return bool(first.equals(second))
    one, other = _parts_of(first), _parts_of(second)
    if one is not None and other is not None:
        keys = one.keys()
        return keys == other.keys() and all(is_same(one[key], other[key]) for key in keys)
    return bool(first == second) or (first != first and second != second)  # noqa: PLR0124 - NaN


def _parts_of(value: Any) -> dict[Any, Any] | None:
    """Return the parts of an example; None: it has none."""
    if is_sample(value):
        return dict(vars(value))
    if isinstance(value, Mapping):
        return dict(value)
    return dict(enumerate(value)) if isinstance(value, (list, tuple)) else None


def _are_equal(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors of a kind are equal, where NaN equals NaN."""
    if torch.equal(first, second):
        return True
    if first.shape != second.shape or not (first.is_floating_point() or first.is_complex()):
        return False
    return bool(((first == second) | (first.isnan() & second.isnan())).all())


def size_of(value: Any) -> float | None:
    """Return the bytes of an example; None: it has other parts than arrays and numbers."""
    parts = _parts_of(value)
    if parts is not None:
        sizes = [size_of(one) for one in parts.values()]
        known = [one for one in sizes if one is not None]
        return sum(known) + _OBJECT_BYTES if len(known) == len(sizes) else None
    size: float | None = None
    if isinstance(value, Tensor):
        size = _storage_bytes(value) + 4 * _OBJECT_BYTES
    elif isinstance(value, np.ndarray):
        size = value.nbytes + 2 * _OBJECT_BYTES
    elif value is None or isinstance(value, (bool, int, float, np.generic)):
        size = _OBJECT_BYTES
    elif isinstance(value, (str, bytes, PurePath)):
        size = len(str(value)) + _OBJECT_BYTES
    elif is_series(value):
        size = float(value.memory_usage(deep=True)) + 20 * _OBJECT_BYTES
    elif is_picture(value):
        size = value.width * value.height * len(value.getbands()) + 10 * _OBJECT_BYTES
    return size


def _storage_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor, or of what it is a view of, which a copy has too."""
    num_bytes = tensor.numel() * tensor.element_size()
    try:
        return max(num_bytes, tensor.untyped_storage().nbytes())
    except (RuntimeError, NotImplementedError):  # such as a sparse one
        return num_bytes


def is_series(value: Any) -> bool:
    """Return True for a row of a table of pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.Series)


def is_sample(value: Any) -> bool:
    """Return True for an object of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_picture(value: Any) -> bool:
    """Return True for a picture of Pillow."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
