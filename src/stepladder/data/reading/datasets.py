"""Wrap a torch Dataset as a Source."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from stepladder.data.reading.examples import ArrivalSource, Examples, Source
from stepladder.errors import DataError, StepladderError, UsageError

NUM_PROBED = 16
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
RANDOM_WARNING = (
    "The dataset returns different values when an example is read twice: examples are read in "
    "the main thread, and a resumed run is not bitwise identical."
)
ARRIVAL_WARNING = (
    "An IterableDataset has its own order: it is not shuffled, and a resumed run may repeat or "
    "skip examples."
)


class DatasetSource(Source):
    """A map-style Dataset; examples are collated by torch's `default_collate`.

    Prefetched by one thread unless the user sets more, as a Dataset may not be thread-safe. A
    Dataset with random examples is read in the main thread, so that its random numbers are drawn in
    a fixed order.

    Attributes:
        some_examples: a digest of sixteen examples; None if they are random. It detects most
            changes of the data that the fingerprint, of class and length, does not.
    """

    def __init__(self, data: Dataset[Any]) -> None:
        self.data = data
        self._num_rows = _length(data)
        self.labels = _labels(data, self._num_rows)
        self.fingerprint = _fingerprint(data, self._num_rows)
        self.default_threads = 1
        self.some_examples = _digest_of_some(self)
        self.is_stochastic = self.some_examples is None
        if self.is_stochastic:
            self.default_threads = 0
            self.warning = RANDOM_WARNING

    def __len__(self) -> int:
        return self._num_rows

    def item(self, row: int) -> Any:
        """Read one example.

        Raises:
            DataError: if the Dataset raises; has the row.
        """
        try:
            return self.data[row]
        except StepladderError:
            raise
        except Exception as error:
            raise DataError(
                "the dataset raised an error when this example was read "
                f"({type(error).__name__}: {error})",
                where=f"{type(self.data).__name__}: {self.describe(row)}",
                fix="Correct __getitem__ of the dataset; the option --debug prints the traceback.",
            ) from error

    def read(self, rows: np.ndarray) -> Examples:
        """Collate examples: (x, y) items become inputs and targets, others only inputs."""
        return _collate([self.item(row) for row in rows.tolist()])

    def describe(self, row: int) -> str:
        """Describe a row by the Dataset's own method `describe`, if it has one."""
        own = getattr(self.data, "describe", None)
        return str(own(row)) if callable(own) else f"row {row}"


class IterableSource(ArrivalSource):
    """An IterableDataset: not shuffled and not exactly resumable; `warning` has the details."""

    warning = ARRIVAL_WARNING
    default_threads = 0

    def __init__(self, data: IterableDataset[Any]) -> None:
        self.data = data
        self._num_rows = _length(data)
        self.fingerprint = _fingerprint(data, self._num_rows)

    def __len__(self) -> int:
        return self._num_rows

    def arrivals(self) -> Iterator[Any]:
        """Iterate over single examples from the start."""
        return iter(self.data)

    def collate(self, items: list[Any]) -> Examples:
        """Collate examples."""
        return _collate(items)


def as_source(data: Source | Any) -> Source:
    """Return a Source unchanged, or wrap a Dataset.

    Raises:
        UsageError: if it is neither, such as a path, or has no length.
    """
    if isinstance(data, Source):
        return data
    if isinstance(data, (str, bytes, PurePath)):
        raise UsageError(
            f"{data!r} is a path, not a dataset",
            fix="Open it with stepladder.data.open_table(path) for a table, or "
            "Store.open(path).split(Split.TRAIN) for a store.",
        )
    if isinstance(data, IterableDataset):
        return IterableSource(data)
    if hasattr(data, "__getitem__"):
        return DatasetSource(data)
    if data is None:
        raise UsageError(
            "the data are None instead of a dataset",
            why="Store.split() returns None if the store has no pictures in this split.",
            fix="Use another split, or prepare the store again from a source that has this split.",
        )
    raise UsageError(
        f"the data are of type {type(data).__name__}, which is not a dataset",
        fix="Pass a split of a Store, such as Store.open(path).split(Split.TRAIN), or a torch "
        "Dataset with __len__ and __getitem__.",
    )


def is_stochastic(source: Source) -> bool:
    """Return True if examples differ when read again; reads sixteen of them twice.

    Preserves the global random states of Python, NumPy and torch.
    """
    return isinstance(source, ArrivalSource) or _digest_of_some(source) is None


def _digest_of_some(source: Source) -> str | None:
    """Return a digest of sixteen examples; None if they differ when read again."""
    num_rows = min(NUM_PROBED, len(source))
    rows = np.linspace(0, len(source) - 1, num_rows).astype(np.int64)
    digest = hashlib.sha256()
    with _kept_random_states():
        for row in rows.reshape(-1, 1):
            found = source.read(row)
            if not _equal(found, source.read(row)):
                return None
            _add(digest, found)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """Add a value to a digest; equal values add the same bytes."""
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        with suppress(RuntimeError, TypeError):  # if the values cannot be read, use only the shape
            dense = value.detach().cpu().to_dense().resolve_conj().resolve_neg().reshape(-1)
            digest.update(dense.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest.update(f"{value.dtype} {value.shape}".encode())
        digest.update(value.tobytes())
    elif isinstance(value, dict):
        for key, item in value.items():
            digest.update(f"{key}:".encode())
            _add(digest, item)
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)}".encode())
        for item in value:
            _add(digest, item)
    else:
        digest.update(_ADDRESS.sub("", repr(value)).encode())


@contextmanager
def _kept_random_states() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _collate(items: list[Any]) -> Examples:
    batch = default_collate(items)
    is_pair = isinstance(items[0], (tuple, list)) and len(items[0]) == 2
    return Examples(batch[0], batch[1]) if is_pair else Examples(batch, None)


def _length(data: Dataset[Any]) -> int:
    try:
        return len(data)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        raise UsageError(
            f"the dataset {type(data).__name__} has no __len__, so its number of examples is not "
            "known",
            why="The length of an epoch and the learning-rate schedule depend on it.",
            fix="Define __len__ in the class (for an IterableDataset: examples per epoch).",
        ) from None


def _labels(data: Dataset[Any], num_rows: int) -> np.ndarray | None:
    """Return the labels in `targets` or `labels`, the names in torchvision's datasets."""
    for name in ("targets", "labels"):
        value = getattr(data, name, None)
        if value is not None and not callable(value):
            try:
                labels = np.asarray(value)
            except (TypeError, ValueError):
                continue
            if labels.shape == (num_rows,) and labels.dtype.kind in "iu":
                return labels.astype(np.int64)
    return None


def _fingerprint(data: Dataset[Any], num_rows: int) -> str:
    """Return the dataset's own fingerprint, or a hash of its class and length."""
    own = getattr(data, "fingerprint", None)
    if isinstance(own, str):
        return own
    name = f"{type(data).__module__}.{type(data).__qualname__}:{num_rows}"
    return hashlib.sha256(name.encode()).hexdigest()
