"""Datasets that keep their examples; `rungs/examples_in_memory.py` has them as lines of a diff."""

from __future__ import annotations

import copy
import functools
import io
import multiprocessing
import operator
import pickle
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from stepladder.scripts.inside.deterministic import without_draws
from stepladder.scripts.inside.state import generators_of, read_files

_OTHER_TYPES: Final = "some examples have other types of numbers than others"
_MOST: Final = 0.9  # of the examples are kept: the others are read as well


class InMemory(Dataset[Any]):
    """Keeps each example after its first read; what is returned may be changed.

    Args:
        examples: a dataset.
        problems: gets a sentence when reading an example draws random numbers.
    """

    def __init__(self, examples: Any, problems: list[str] | None = None) -> None:
        self.examples = examples
        self.kept: dict[Any, Any] = {}
        self.read = without_draws(examples.__getitem__, generators_of(examples), problems)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["examples"], name)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, idx: Any) -> Any:
        try:
            at = operator.index(idx)
        except TypeError:  # a slice, or several
            return self.read(idx)
        if at not in self.kept:
            self.kept[at] = self.read(idx)
        return copy.deepcopy(self.kept[at])


class RowsInMemory(InMemory):
    """Takes batches as rows of whole columns, once most examples are kept.

    The loader's `collate_fn` has to be `collate`.

    Attributes:
        readers: processes that read all examples before the first batch; 0: none does, and each is
            read when it is needed.
    """

    columns: Any = None

    def __init__(self, examples: Any, readers: int = 0, problems: list[str] | None = None) -> None:
        super().__init__(examples, problems)
        self.readers = readers

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return the examples of a batch, or what returns the batch itself."""
        if self.columns is None and self.readers:
            self.columns = columns_of(self.examples, self.readers)
        if self.columns is None and len(self.kept) < _MOST * len(self):
            return [self[idx] for idx in indices]
        if self.columns is None:
            examples = [self[idx] for idx in range(len(self))]
            if len({str(_kinds_of(one)) for one in examples}) > 1:
                raise TypeError(_OTHER_TYPES)
            self.columns = default_collate(examples)
            self.kept.clear()
        return functools.partial(rows_of, self.columns, torch.as_tensor(indices))

    @staticmethod
    def collate(batch: Any) -> Any:
        """Return the batch."""
        return batch() if callable(batch) else default_collate(batch)


class _Undrawn(Dataset[Any]):
    """Raises an error where reading an example draws random numbers."""

    def __init__(self, examples: Any) -> None:
        self._problems: list[str] = []
        self._num = len(examples)
        self._read = without_draws(examples.__getitem__, generators_of(examples), self._problems)

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, idx: Any) -> Any:
        found = self._read(idx)
        if self._problems:
            raise ValueError(self._problems[0])
        return found


def columns_of(examples: Any, readers: int) -> Any:
    """Return all examples as columns, read in several processes.

    Raises:
        ValueError: if reading one draws random numbers.
    """
    loader = DataLoader(
        _Undrawn(examples),
        batch_size=64,
        num_workers=readers,
        multiprocessing_context="fork",
        generator=torch.Generator(),
    )
    return joined([copy.deepcopy(batch) for batch in loader])  # copied out of shared memory


def joined(parts: Sequence[Any]) -> Any:
    """Return the columns of several batches."""
    if isinstance(parts[0], dict):
        return {name: joined([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], list):
        return [joined(ones) for ones in zip(*parts, strict=True)]
    if len({part.dtype for part in parts}) > 1:
        raise TypeError(_OTHER_TYPES)
    return torch.cat(list(parts))


def _kinds_of(example: Any) -> Any:
    """Return the types of the parts of an example."""
    if isinstance(example, dict):
        return {name: _kinds_of(one) for name, one in example.items()}
    if isinstance(example, (list, tuple)):
        return [_kinds_of(one) for one in example]
    return type(example), getattr(example, "dtype", None)


def rows_of(columns: Any, rows: Tensor) -> Any:
    """Return rows of each column."""
    if isinstance(columns, dict):
        return {name: rows_of(one, rows) for name, one in columns.items()}
    if isinstance(columns, list):
        return [rows_of(one, rows) for one in columns]
    return columns[rows]


def has_rows(examples: Sequence[Any]) -> bool:
    """Return whether batches of these examples are tensors, in lists and dictionaries."""
    try:
        return bool(examples) and _is_of_tensors(default_collate(list(examples)))
    except (RuntimeError, TypeError, KeyError, ValueError, AttributeError):
        return False


def _is_of_tensors(batch: Any) -> bool:
    if type(batch) is dict:
        return all(_is_of_tensors(one) for one in batch.values())
    if type(batch) is list:
        return all(_is_of_tensors(one) for one in batch)
    is_plain = type(batch) is Tensor and batch.layout == torch.strided
    return is_plain and not batch.requires_grad


def can_be_read_apart(dataset: Any) -> bool:
    """Return whether forked processes may read a dataset at once.

    It must hold no open file or connection, whose position they would share; files that are open
    somewhere else count as well.
    """
    if multiprocessing.get_start_method() != "fork" or read_files():
        return False
    try:
        _Held(_Nowhere()).dump(dataset)
    except Exception:  # whatever an object raises that cannot be copied to another process
        return False
    return True


class _Nowhere(io.RawIOBase):
    def write(self, data: Any) -> int:
        return len(data)


class _Held(pickle.Pickler):
    """Visits what an object holds, but for arrays and code."""

    def persistent_id(self, obj: Any) -> str | None:
        return "array" if isinstance(obj, (Tensor, np.ndarray)) else None

    def reducer_override(self, obj: Any) -> Any:
        is_code = isinstance(obj, (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type))
        return (int, ()) if is_code and obj is not int else NotImplemented
