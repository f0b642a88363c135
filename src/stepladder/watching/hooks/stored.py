"""Counts how many of the examples that a data set holds in memory differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from stepladder.watching.hooks.tensors import is_finite, is_plain

_MIN_STORED: Final = 64
_MAX_STORED: Final = 512
_NUM_BLOCKS: Final = 8
_MIN_FEATURES: Final = 16
_FEW_FEATURES: Final = 16
_MAX_ROWS: Final = 8192  # that are looked at where those seem to be copies
_MAX_FEATURES: Final = 256
_MIN_VALUES: Final = 16  # that a measurement takes: fewer are a board's or a questionnaire's
_MAX_ATTRIBUTES: Final = 32
_FACTOR: Final = 0x9E3779B1  # Knuth's, of multiplicative hashing


def count_stored(dataset: Any) -> tuple[int, int]:
    """Count examples and distinct ones among the inputs of a data set that holds them as one array.

    Nothing is asked of the data set itself, as that may draw random numbers: a TensorDataset's
    first tensor is looked at, or the first array among its attributes with a row for each example.
    Some blocks of neighbours are compared, by some of their numbers, and more where they agree.

    Returns:
        Examples that were looked at, and how many of them differ; (0, 0): there is no such array,
        or it is a whole set that was stacked several times, which is done on purpose.
    """
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    held = next(_arrays(dataset), None)
    if held is None or len(held) < _MIN_STORED or held[0].numel() < _MIN_FEATURES:
        return 0, 0
    rows = _blocks(held)
    few = rows[:: max(1, len(rows) // _NUM_BLOCKS)].flatten().tolist()
    if len(set(few)) < _MIN_VALUES or not is_finite(rows):
        return 0, 0
    marks = _marks(rows)
    if len(set(marks)) >= 0.5 * len(marks):
        return len(marks), len(set(marks))
    # More is looked at: the few numbers may be alike, as those at the rim of a picture are.
    marks = _marks(_thinned(held[:_MAX_ROWS], _MAX_FEATURES))
    num = len(set(marks))
    is_stacked = num < len(marks) and marks[num:] == marks[:-num]
    return (0, 0) if is_stacked else (len(marks), num)


def _arrays(dataset: Any) -> Iterator[Tensor]:
    """Yield the floating arrays of a data set that have a row for each example."""
    if isinstance(dataset, TensorDataset):
        found: list[Any] = list(dataset.tensors[:1])
    else:
        found = (
            list(vars(dataset).values())[:_MAX_ATTRIBUTES] if hasattr(dataset, "__dict__") else []
        )
    try:
        num = len(dataset)
    except (TypeError, NotImplementedError):
        return
    for value in found:
        is_array = isinstance(value, np.ndarray) and not isinstance(value, np.memmap)
        if is_array and value.dtype in (np.float32, np.float64) and value.flags.writeable:
            value = torch.from_numpy(value)  # shares its memory
        if not is_plain(value) or value.device.type != "cpu" or not value.is_floating_point():
            continue
        if value.dim() >= 2 and len(value) == num:
            yield value


def _blocks(held: Tensor) -> Tensor:
    """Give some blocks of neighbouring rows, and few numbers of each row."""
    if len(held) <= _MAX_STORED or not held.is_contiguous():
        return _thinned(held[:_MAX_STORED], _FEW_FEATURES)
    size = _MAX_STORED // _NUM_BLOCKS
    starts = [i * (len(held) - size) // (_NUM_BLOCKS - 1) for i in range(_NUM_BLOCKS)]
    return torch.cat([_thinned(held[at : at + size], _FEW_FEATURES) for at in starts])


def _thinned(held: Tensor, most: int) -> Tensor:
    """Give numbers of each row that lie evenly apart."""
    rows = held.detach().flatten(1)
    return rows[:, rows.shape[1] // (2 * most) :: max(1, rows.shape[1] // most)].float()


def _marks(rows: Tensor) -> list[int]:
    """Give for each row a number that is the same for the same row, to the bit, and seldom else."""
    weights = torch.arange(1, rows.shape[1] + 1) * _FACTOR
    found: list[int] = (rows.contiguous().view(torch.int32).long() * weights).sum(1).tolist()
    return found
