"""Some rows of several sources, read as one source."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepladder.data.features.feature_source import FeatureSource
from stepladder.data.reading.examples import Examples, PictureSource, ReadCost, Source


class Rows(Source):
    """Rows of several concatenated sources.

    Args:
        parts: sources of one kind.
        rows: indices into the concatenation; row i of this source is rows[i] of it.
    """

    def __init__(self, parts: Sequence[Source], rows: NDArray[np.int64]) -> None:
        self.parts = tuple(parts)
        self.rows = rows
        self._starts = np.cumsum([0, *(len(part) for part in parts)])
        self.fingerprint = _fingerprint(self.parts, rows)
        labels = [part.labels for part in self.parts if part.labels is not None]
        if len(labels) == len(self.parts):
            self.labels = np.concatenate(labels)[rows]
        self.default_threads = self.parts[0].default_threads
        self.rows_per_task = self.parts[0].rows_per_task

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: np.ndarray) -> Examples:
        """Read and collate rows, in the given order."""
        inputs, targets, places = [], [], []
        for part, at, where in self.located(rows):
            examples = part.read(at)
            inputs.append(examples.inputs)
            targets.append(examples.targets)
            places.append(where)
        back = np.argsort(np.concatenate(places))
        return Examples(_join(inputs, back), _join(targets, back))

    def describe(self, row: int) -> str:
        """Describe a row like its source."""
        ((part, at, _),) = self.located(np.array([row]))
        return part.describe(int(at[0]))

    def located(self, rows: np.ndarray) -> list[tuple[Source, NDArray[np.int64], NDArray[np.intp]]]:
        """Return (part, rows in the part, their indices in `rows`) for each part in use."""
        chosen = self.rows[rows]
        found = []
        for part, start, stop in zip(self.parts, self._starts, self._starts[1:], strict=False):
            where = np.flatnonzero((chosen >= start) & (chosen < stop))
            if where.size:
                found.append((part, chosen[where] - start, where))
        return found


class PictureRows(Rows, PictureSource):
    """Rows of sources of pictures."""

    def __init__(self, parts: Sequence[PictureSource], rows: NDArray[np.int64]) -> None:
        super().__init__(parts, rows)
        self.picture_shape = parts[0].picture_shape

    def read(self, rows: np.ndarray) -> Examples:
        """Read rows: uint8 (n, h, w, c) and int64 (n,)."""
        return PictureSource.read(self, rows)

    def read_into(self, rows: np.ndarray, out: np.ndarray) -> ReadCost:
        """Fill `out` with the pictures of these rows."""
        cost = ReadCost()
        for part, at, where in self.located(rows):
            assert isinstance(part, PictureSource)
            pictures = np.empty((len(at), *self.picture_shape), dtype=np.uint8)
            more = part.read_into(at, pictures)
            out[where] = pictures
            cost = ReadCost(
                fetch_s=cost.fetch_s + more.fetch_s,
                decode_s=cost.decode_s + more.decode_s,
                num_bytes=cost.num_bytes + more.num_bytes,
            )
        return cost


class FeatureRows(Rows, FeatureSource):
    """Rows of feature sources."""

    def __init__(self, parts: Sequence[FeatureSource], rows: NDArray[np.int64]) -> None:
        Rows.__init__(self, parts, rows)
        self.is_held = all(part.is_held for part in parts)


def rows_of(parts: Sequence[Source], rows: NDArray[np.int64]) -> Source:
    """Return some rows of sources as a source of their kind."""
    if all(isinstance(part, FeatureSource) for part in parts):
        return FeatureRows([part for part in parts if isinstance(part, FeatureSource)], rows)
    pictures = [part for part in parts if isinstance(part, PictureSource)]
    return PictureRows(pictures, rows) if len(pictures) == len(parts) else Rows(parts, rows)


def _fingerprint(parts: tuple[Source, ...], rows: NDArray[np.int64]) -> str:
    digest = hashlib.sha256("\n".join(part.fingerprint for part in parts).encode())
    digest.update(np.ascontiguousarray(rows, dtype="<i8").tobytes())
    return digest.hexdigest()


def _join(values: list[Any], back: NDArray[np.intp]) -> Any:
    """Concatenate the parts of a batch and reorder them by `back`."""
    first = values[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return torch.cat(values)[torch.from_numpy(back)]
    if isinstance(first, np.ndarray):
        return np.concatenate(values)[back]
    if isinstance(first, Mapping):
        return {key: _join([value[key] for value in values], back) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(_join(list(part), back) for part in zip(*values, strict=True)))
    if isinstance(first, (list, tuple)):
        return type(first)(_join_list(values, back))
    raise TypeError(f"cannot concatenate batches of {type(first).__name__}")


def _join_list(values: list[Any], back: NDArray[np.intp]) -> list[Any]:
    """Join item by item; a list of strings, one per example, is reordered directly."""
    if values[0] and isinstance(values[0][0], str):
        words = list(itertools.chain.from_iterable(values))
        return [words[place] for place in back.tolist()]
    return [_join(list(items), back) for items in zip(*values, strict=True)]
