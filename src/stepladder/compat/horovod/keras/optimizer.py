"""`hvd.DistributedOptimizer` for Keras: averages the gradients of all ranks before each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepladder.compat.horovod.collectives import (
    Average,
    ReduceOp,
    begin_reduction,
    chosen_op,
    require_all,
    synchronize,
)
from stepladder.compat.horovod.compression import Compression
from stepladder.compat.horovod.keras.backend import import_keras
from stepladder.compat.horovod.optimizer import distribute
from stepladder.compat.horovod.session import current
from stepladder.errors import UsageError

keras = import_keras()


class Distributed:
    """What an optimizer of Keras becomes: its gradients are averaged before they are applied."""

    hvd_op: ReduceOp
    hvd_compression: Any
    hvd_predivide: float

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """Average gradients over ranks, and take a step."""
        if trainable_variables is None:
            trainable_variables = self._trainable_variables  # type: ignore[attr-defined]
        trainable_variables = list(trainable_variables)
        reduced = self._reduced([_tensor(grad) for grad in grads], trainable_variables)
        return super().apply(reduced, trainable_variables)  # type: ignore[misc]

    @torch.no_grad()
    def _reduced(self, grads: list[Tensor | None], variables: list[Any]) -> list[Tensor | None]:
        """Return the gradients of all ranks; None: no rank has one, and it counts as zero."""
        session = current()
        if session.size == 1:
            return grads
        pre, post = 1.0, 1.0
        if self.hvd_op == Average and self.hvd_predivide != 1.0:
            pre, post = 1 / self.hvd_predivide, self.hvd_predivide
        results = list(grads)
        channel = session.channels[0]
        nums = torch.tensor([float(grad is not None) for grad in grads])
        begun = begin_reduction(channel, nums, ReduceOp.SUM)
        values = [_value(variable) for variable in variables]
        for dtype in sorted({value.dtype for value in values}, key=str):
            idxs = [idx for idx, value in enumerate(values) if value.dtype == dtype]
            flat = torch.cat([_flat(grads[idx], values[idx]) for idx in idxs])
            small, full = self.hvd_compression.compress(flat)
            sent = begin_reduction(channel, small, self.hvd_op, prescale=pre, postscale=post)
            flat = self.hvd_compression.decompress(synchronize(sent), full)
            parts = flat.split([values[idx].numel() for idx in idxs])
            for idx, part in zip(idxs, parts, strict=True):
                results[idx] = part.view(values[idx].shape)
        counts = synchronize(begun).tolist()
        return [value if num else None for value, num in zip(results, counts, strict=True)]


def _tensor(grad: Any) -> Tensor | None:
    return None if grad is None else torch.as_tensor(_value(grad))


def _value(variable: Any) -> Tensor:
    """Return the tensor of a variable of Keras, or a tensor unchanged."""
    value: Tensor = variable if isinstance(variable, Tensor) else variable.value
    return value.detach()


def _flat(grad: Tensor | None, value: Tensor) -> Tensor:
    return (torch.zeros_like(value) if grad is None else grad.to(value.dtype)).reshape(-1)


def DistributedOptimizer(  # noqa: N802  (the name is Horovod's)
    optimizer: Any,
    name: Any = None,
    *_devices: Any,
    compression: Any = Compression.none,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    process_set: Any = None,
    **options: Any,
) -> Any:
    """Make an optimizer average the gradients of all ranks before each step, and return it.

    Args:
        optimizer: of Keras; its state and learning rate stay. Or of torch, for which another one
            is returned, as `DistributedOptimizer` of `stepladder.compat.horovod.torch` does.
        name: has no effect, as Horovod's options of TensorFlow.
        compression: `Compression.fp16` sends 16 bits.
        gradient_predivide_factor: a part of the average is divided before the sum.
        op: Average or Sum.
        backward_passes_per_step: only 1; Keras's optimizers accumulate gradients themselves.
        process_set: only the global one.

    Raises:
        UsageError: if it is no optimizer, averages already, or an option is not available.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        named = options.pop("named_parameters", None if isinstance(name, str) else name)
        return distribute(
            optimizer,
            named_parameters=named,
            compression=compression,
            backward_passes_per_step=backward_passes_per_step,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            process_set=process_set,
        )
    require_all(process_set)
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            f"{type(optimizer).__name__} is not an optimizer of Keras",
            where="DistributedOptimizer",
            fix="Pass one such as keras.optimizers.Adam(), or one of torch.optim.",
        )
    if isinstance(optimizer, Distributed):
        raise UsageError(
            "this optimizer averages gradients already",
            where="DistributedOptimizer",
            fix="Call DistributedOptimizer once.",
        )
    if backward_passes_per_step != 1:
        raise UsageError(
            f"backward_passes_per_step={backward_passes_per_step} is not available for Keras",
            where="DistributedOptimizer",
            fix=f"Use {type(optimizer).__name__}(gradient_accumulation_steps="
            f"{backward_passes_per_step}), which averages over the batches.",
        )
    own = type(optimizer)
    # a saved model names the class of Keras: it loads where stepladder is not installed
    names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
    optimizer.__class__ = type(own.__name__, (Distributed, own), names)
    optimizer.hvd_op = chosen_op(None, op)
    optimizer.hvd_compression = compression
    optimizer.hvd_predivide = float(gradient_predivide_factor)
    return optimizer


def require_agreed_scaling(optimizer: Any) -> None:
    """Refuse a loss scaling by which one rank alone may skip a step.

    Raises:
        UsageError: if Keras scales the loss around the optimizer that averages.
    """
    if isinstance(getattr(optimizer, "inner_optimizer", None), Distributed):
        raise UsageError(
            "mixed_float16 skips steps by the gradients of one rank, and the ranks would differ",
            where="DistributedOptimizer",
            fix="hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)), or use "
            "mixed_bfloat16.",
        )
