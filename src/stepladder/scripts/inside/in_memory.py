"""Datasets that keep their examples; `rungs/examples_in_memory.py` has them as lines of a diff."""

from __future__ import annotations

import copy
import functools
import io
import multiprocessing
import pickle
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

_MOST: Final = 0.9  # of the examples are kept: the others are read as well


class InMemory(Dataset[Any]):
    """Keeps each example after its first read."""

    def __init__(self, examples: Any) -> None:
        self.examples = examples
        self.kept: dict[Any, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["examples"], name)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, idx: Any) -> Any:
        if idx not in self.kept:
            self.kept[idx] = self.examples[idx]
        return self.kept[idx]


class RowsInMemory(InMemory):
    """Takes batches as rows of whole columns, once most examples are kept.

    The loader's `collate_fn` has to be `collate`.

    Attributes:
        readers: processes that read all examples before the first batch; 0: none does, and each is
            read when it is needed.
    """

    columns: Any = None

    def __init__(self, examples: Any, readers: int = 0) -> None:
        super().__init__(examples)
        self.readers = readers

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return the examples of a batch, or what returns the batch itself."""
        if self.columns is None and self.readers:
            self.columns = columns_of(self.examples, self.readers)
        if self.columns is None and len(self.kept) < _MOST * len(self):
            return [self[idx] for idx in indices]
        if self.columns is None:
            self.columns = default_collate([self[idx] for idx in range(len(self))])
            self.kept.clear()
        return functools.partial(rows_of, self.columns, torch.as_tensor(indices))

    @staticmethod
    def collate(batch: Any) -> Any:
        """Return the batch."""
        return batch() if callable(batch) else default_collate(batch)


def columns_of(examples: Any, readers: int) -> Any:
    """Return all examples as columns, read in several processes."""
    loader = DataLoader(
        examples,
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
    return torch.cat(list(parts))


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

    It must hold no open file or connection, whose position they would share.
    """
    if multiprocessing.get_start_method() != "fork":
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
