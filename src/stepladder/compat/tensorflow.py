"""Batches for TensorFlow."""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from stepladder.data.reading.loader import Loader
from stepladder.data.tables.columns import LENGTHS
from stepladder.errors import UsageError

_Shapes = Mapping[str, tuple[int | None, ...]]


@contextmanager
def dataset_of(loader: Loader, *, prefetch: int | None) -> Iterator[Any]:
    """Yield a tf.data.Dataset of named tuples, for a `with` block.

    Raises:
        UsageError: if TensorFlow is not installed, or a column name is not a valid identifier.
    """
    try:
        import tensorflow as tf
    except ModuleNotFoundError:
        raise UsageError(
            "make_tf_dataset needs TensorFlow, which is not installed",
            fix="pip install tensorflow",
        ) from None
    source = loader.dataset
    example = source.read(np.zeros(1, dtype=np.int64)).inputs
    row = _row(list(example))
    shapes: _Shapes = getattr(source, "cell_shapes", {})
    signature = row(**{name: _spec(tf, name, example, shapes) for name in example})
    batches = _Batches(loader, row)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    try:
        yield dataset.prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)
    finally:
        batches.close()


class _Batches:
    """Batches for the threads of TensorFlow; safe to use while the `with` block ends."""

    def __init__(self, loader: Loader, row: Callable[..., Any]) -> None:
        self._loader = loader
        self._row = row
        self._turn = threading.Lock()
        self._is_closed = False

    def __call__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        while (batch := self._next(batches)) is not None:
            yield self._row(**{name: _plain(values) for name, values in batch.items()})

    def close(self) -> None:
        """Wait for the current batch, and return no more batches."""
        with self._turn:
            self._is_closed = True
            self._loader.close()

    def _next(self, batches: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        with self._turn:
            if self._is_closed:
                raise UsageError(
                    "the dataset can be read only inside the with block that created it, which has "
                    "ended",
                    where="make_tf_dataset",
                    fix="Move the code that reads batches into the block `with "
                    "converter.make_tf_dataset(…) as dataset:`.",
                )
            return next(batches, None)


def _row(names: list[str]) -> Any:
    """Return the class of the named tuples."""
    try:
        return namedtuple("Row", names)
    except ValueError as error:
        raise UsageError(
            f"a column name is not a valid field of a named tuple ({error})",
            where="make_tf_dataset",
            fix="Rename the column in the DataFrame, or leave it out with schema_fields.",
        ) from None


def _plain(values: Tensor | list[Any]) -> Any:
    return values.numpy() if isinstance(values, Tensor) else values


def _spec(tf: Any, name: str, example: Mapping[str, Any], shapes: _Shapes) -> Any:
    """Return the TensorSpec of a column: its type, and the shape of its cells."""
    values = example[name]
    if not isinstance(values, Tensor):
        return tf.TensorSpec((None,), tf.string)
    shape: tuple[int | None, ...] = (None,) if name + LENGTHS in example else values.shape[1:]
    known = shapes.get(name, shape)
    if len(known) == values.ndim - 1:
        shape = known
    return tf.TensorSpec((None, *shape), tf.as_dtype(values.numpy().dtype))
