"""Batches for TensorFlow, where it is installed."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from stepladder.data.loader import Loader
from stepladder.errors import UsageError


def dataset_of(loader: Loader, *, prefetch: int | None) -> Any:
    """Give a tf.data.Dataset of named tuples.

    Raises:
        UsageError: if TensorFlow is not installed.
    """
    try:
        import tensorflow as tf
    except ModuleNotFoundError:
        raise UsageError(
            "make_tf_dataset needs TensorFlow, which is not installed",
            fix="pip install tensorflow",
        ) from None
    example = loader.dataset.read(np.zeros(1, dtype=np.int64)).inputs
    row = namedtuple("Row", list(example))  # type: ignore[misc]

    def batches() -> Iterator[Any]:
        for batch in loader:
            yield row(**{name: _plain(values) for name, values in batch.items()})

    signature = row(**{name: _spec(tf, name, example) for name in example})
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)


def _plain(values: Tensor | list[Any]) -> Any:
    return values.numpy() if isinstance(values, Tensor) else values


def _spec(tf: Any, name: str, example: dict[str, Any]) -> Any:
    values = example[name]
    if not isinstance(values, Tensor):
        return tf.TensorSpec((None,), tf.string)
    is_padded = f"{name}_lengths" in example
    shape = (None, None) if is_padded else (None, *values.shape[1:])
    return tf.TensorSpec(shape, tf.as_dtype(values.numpy().dtype))
