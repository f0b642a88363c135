"""`hvd.DistributedOptimizer`, for optimizers of torch and of Keras."""

from __future__ import annotations

from typing import Any

from stepladder.compat.horovod.collectives import Average
from stepladder.compat.horovod.compression import Compression
from stepladder.compat.horovod.optimizer import distribute


def DistributedOptimizer(  # noqa: N802, PLR0917  (name and arguments are Horovod's)
    optimizer: Any,
    named_parameters: Any = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,  # noqa: ARG001
    groups: Any = None,  # noqa: ARG001
    sparse_as_dense: bool = False,  # noqa: ARG001
    process_set: Any = None,
) -> Any:
    """Return an optimizer of the same class that averages gradients over all ranks.

    Gradients are sent in buckets while the backward pass runs. State and parameter groups are those
    of the given optimizer.

    Args:
        optimizer: of torch; or of Keras, which becomes what `DistributedOptimizer` of
            `stepladder.compat.horovod.keras` makes of it.
        named_parameters: names of the parameters; they are checked. Has no effect for Keras.
        compression: `Compression.fp16` sends 16 bits.
        backward_passes_per_step: passes whose gradients add up before a step.
        op: Average or Sum.
        gradient_predivide_factor: divides before the sum, and multiplies after it; for Average.
        num_groups, groups, sparse_as_dense: have no effect; gradients are always sent in groups,
            and sparse ones as dense ones.
        process_set: only the global one.

    Raises:
        UsageError: for Adasum, names that do not cover all parameters, names that repeat, or what
            is no optimizer.
    """
    if _is_of_keras(optimizer):
        from stepladder.compat.horovod.keras import optimizer as of_keras

        return of_keras.DistributedOptimizer(
            optimizer,
            compression=compression,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            process_set=process_set,
        )
    return distribute(
        optimizer,
        named_parameters=named_parameters,
        compression=compression,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        process_set=process_set,
    )


def _is_of_keras(optimizer: Any) -> bool:
    """Return True for an optimizer of Keras, without importing Keras."""
    return any(cls.__module__.partition(".")[0] == "keras" for cls in type(optimizer).__mro__)
