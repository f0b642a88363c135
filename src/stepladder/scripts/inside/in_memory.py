"""Datasets that keep their examples; `rungs/examples_in_memory.py` has them as lines of a diff."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

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
    """

    columns: Any = None

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return the examples of a batch, or what returns the batch itself."""
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
