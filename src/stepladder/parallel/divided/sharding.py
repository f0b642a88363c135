"""Divide weights, gradients and the optimizer's state among ranks, by torch's fully_shard (FSDP2).

Each rank keeps a part of every weight. A unit, such as a block of a transformer, is put together
right before it computes and divided again afterwards, so that at no time one rank has all weights.

Source: Zhao et al. 2023, "PyTorch FSDP", arXiv:2304.11277; Rajbhandari et al. 2020, "ZeRO",
arXiv:1910.02054, stage 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
from torch import nn

from stepladder.data.batch import Batch
from stepladder.parallel.divided.contract import DividedModel, Losses
from stepladder.parallel.world import World

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")
_LEAST_FRAC: Final = 1 / 64  # of all bytes: a smaller part is sent with the rest
_MOST_FRAC: Final = 1 / 4  # a larger part is divided, if it has parts


class ShardedModel(DividedModel):
    """A model whose weights are divided among all ranks.

    Args:
        model: with equal weights on all ranks; its parameters become DTensors.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        super().__init__(model, world)
        self._calls = ShardedCalls(model)

    def losses(self, losses: Losses, batch: Batch, *, weight: float, is_last: bool) -> Any:
        """Return the losses of this rank's examples; a collective."""
        del weight  # is in the backward pass
        self._calls.send_gradients(is_last)
        return self._calls(losses, batch)

    def metrics(
        self, metrics: Callable[[nn.Module, Batch], Any], batch: Batch, *, is_stand_in: bool
    ) -> Any:
        """Return the metrics of this rank's examples; a collective."""
        found = self._calls(metrics, self.model, batch)
        return replace(found, sums={}, counts={}) if is_stand_in else found


class ShardedCalls(nn.Module):
    """Calls functions that use a model whose weights are divided among ranks.

    Everything that uses the model goes through `forward`, which puts together the weights that are
    in no unit.

    Args:
        model: its parameters become DTensors.
        mesh: the ranks; None: all of them.
    """

    def __init__(self, model: nn.Module, mesh: DeviceMesh | None = None) -> None:
        from torch.distributed.fsdp import fully_shard

        super().__init__()
        self.model = model
        if any(isinstance(one, nn.TransformerEncoderLayer) for one in model.modules()):
            torch.backends.mha.set_fastpath_enabled(False)  # it takes the weights from the layers
        for unit in units_of(model):
            fully_shard(unit, mesh=mesh)
        fully_shard(self, mesh=mesh)

    def forward(self, call: Callable[..., T], *args: Any) -> T:
        """Return what a function returns that uses the model."""
        return call(*args)

    def send_gradients(self, is_last: bool) -> None:
        """Add up gradients in the next backward pass, or keep them for a later one."""
        module: Any = self
        module.set_requires_gradient_sync(is_last)


def units_of(model: nn.Module) -> list[nn.Module]:
    """Return the parts of a model that are put together one at a time; none shares a weight."""
    shared, total = shared_weights(model), _num_bytes(model)

    def walk(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            size = _num_bytes(child)
            if size < _LEAST_FRAC * total:
                continue
            is_shared = any(id(weight) in shared for weight in child.parameters())
            is_container = isinstance(child, (nn.Sequential, nn.ModuleList, nn.ModuleDict))
            # attention uses the weights of its parts without calling them
            has_parts = any(True for _ in child.children()) and not isinstance(
                child, nn.MultiheadAttention
            )
            if is_shared or (has_parts and (is_container or size > _MOST_FRAC * total)):
                yield from walk(child)
            else:
                yield child

    return list(walk(model))


def shared_weights(model: nn.Module) -> set[int]:
    """Return the ids of weights that more than one module uses."""
    uses = Counter(id(w) for one in model.modules() for w in one.parameters(recurse=False))
    return {weight for weight, num in uses.items() if num > 1}


def _num_bytes(module: nn.Module) -> int:
    return sum(weight.nbytes for weight in module.parameters())
