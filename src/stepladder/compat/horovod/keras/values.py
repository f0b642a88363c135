"""Collectives on arrays, numbers and tensors, as Horovod has them for Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stepladder.compat.horovod import collectives
from stepladder.compat.horovod.keras.backend import import_keras
from stepladder.compat.horovod.keras.optimizer import DistributedOptimizer

keras = import_keras()


def _sent(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    array = keras.ops.convert_to_numpy(value) if hasattr(value, "value") else np.asarray(value)
    return torch.from_numpy(np.array(array))


def _like(value: Any, result: torch.Tensor) -> Any:
    return result if isinstance(value, torch.Tensor) else result.numpy()


def allreduce(value: Any, name: str | None = None, average: bool | None = None, **how: Any) -> Any:
    """Return the average, or another reduction, of a value over all ranks."""
    return _like(value, collectives.allreduce(_sent(value), average, name, **how))


def allgather(value: Any, name: str | None = None) -> Any:
    """Return the rows of all ranks' values, in the order of ranks."""
    return _like(value, collectives.allgather(_sent(value), name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the value of one rank, on all ranks."""
    return _like(value, collectives.broadcast(_sent(value), root_rank, name))


def load_model(
    filepath: Any, custom_optimizers: Any = None, custom_objects: Any = None, **options: Any
) -> Any:
    """Load a model of Keras; its optimizer averages gradients over ranks.

    Args:
        filepath: of `model.save`.
        custom_optimizers: classes of optimizers that Keras does not have.
        custom_objects: other classes, by name.
        options: of `DistributedOptimizer`, such as compression.
    """
    own = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.saving.load_model(filepath, custom_objects={**own, **(custom_objects or {})})
    if model.optimizer is not None:
        DistributedOptimizer(model.optimizer, **options)
    return model
