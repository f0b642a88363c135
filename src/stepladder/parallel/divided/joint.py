"""Groups of ranks that compute the losses of their examples together."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from stepladder.data.batch import Batch
from stepladder.errors import DataError
from stepladder.parallel.world import World
from stepladder.task.contract import Metrics

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_DATA, _PARTS = "data", "parts"


class Groups:
    """The ranks in rows: those of a row hold the parts of one copy of the model.

    Rank = row x parts + part, so that the examples of a row follow one another.

    Args:
        num_parts: a divisor of the number of ranks.

    Attributes:
        row, part: of this rank.
    """

    def __init__(self, world: World, num_parts: int, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        self.num_rows, self.num_parts = world.size // num_parts, num_parts
        self.row, self.part = divmod(world.rank, num_parts)
        shape = (self.num_rows, num_parts)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=(_DATA, _PARTS))
        self.data: DeviceMesh = mesh[_DATA]
        self.parts: DeviceMesh = mesh[_PARTS]

    def rank_of(self, part: int) -> int:
        """Return the rank that holds a part in this rank's row."""
        return self.row * self.num_parts + part


@dataclass(frozen=True, kw_only=True)
class Joined:
    """The examples of a row of ranks.

    Attributes:
        batch: of all ranks, in their order; of substitutes only one, if there is nothing else.
        counts: examples of each rank that are in it.
        start, stop: of this rank's examples.
        is_stand_in: this rank has none.
        has_sums: this rank counts for all of them; no rank does if all have substitutes.
    """

    batch: Batch
    counts: tuple[int, ...]
    start: int
    stop: int
    is_stand_in: bool
    has_sums: bool

    def own(self, values: Tensor) -> Tensor:
        """Return the rows of this rank's examples; the first row if it has none."""
        return values[:1] if self.is_stand_in else values[self.start : self.stop]

    def own_metrics(self, metrics: Metrics) -> Metrics:
        """Return metrics with the losses and outputs of this rank's examples."""
        outputs = metrics.outputs
        sums = (metrics.sums, metrics.counts) if self.has_sums else ({}, {})
        return replace(
            metrics,
            sums=sums[0],
            counts=sums[1],
            losses=self.own(metrics.losses),
            outputs=None if outputs is None else self.own(outputs),
        )

    def own_logs(self, logs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the values of this rank's examples."""
        return {name: self.own(values) for name, values in logs.items()}


def join(batch: Batch, groups: Groups, *, is_stand_in: bool) -> Joined:
    """Gather the examples of a row of ranks; a collective.

    Args:
        batch: this rank's examples.
        is_stand_in: they are a substitute, used only if no rank of the row has any.

    Raises:
        DataError: if the examples of the ranks have different shapes.
    """
    leaves, tree = tree_flatten((batch.inputs, batch.targets, batch.ids))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    _require_rows(leaves, batch.ids.numel())
    num = 0 if is_stand_in else batch.ids.numel()
    shapes = zlib.crc32(repr([(t.dtype, tuple(t.shape[1:])) for t in tensors]).encode())
    device = _device_of(groups)
    told = _all_gather(torch.tensor([num, shapes], device=device), groups)
    if len({int(one[1]) for one in told}) > 1:
        raise DataError(
            "the examples of several devices have different shapes, and cannot be put together",
            where=f"rank {dist.get_rank()}",
            why="Devices that share a model compute the examples of all of them at once.",
            fix="Pad or crop all examples to one shape, or leave out device.tensor_parallel and "
            "device.pipeline_stages.",
        )
    counts = [int(one[0]) for one in told]
    has_sums = groups.part == 0 and any(counts)
    if not any(counts):
        counts[0] = batch.ids.numel()
    joined = [_rows(leaf, counts, groups) for leaf in leaves]
    start = sum(counts[: groups.part])
    return Joined(
        batch=Batch(*tree_unflatten(joined, tree)),
        counts=tuple(counts),
        start=start,
        stop=start + counts[groups.part],
        is_stand_in=is_stand_in,
        has_sums=has_sums,
    )


def _rows(leaf: Tensor | None, counts: list[int], groups: Groups) -> Tensor | None:
    """Return a tensor of all ranks, on its device."""
    if leaf is None:
        return None
    return gather_rows(leaf.to(_device_of(groups)), counts, groups).to(leaf.device)


def gather_rows(own: Tensor, counts: list[int] | tuple[int, ...], groups: Groups) -> Tensor:
    """Return the rows of all ranks of a row, in their order; a collective.

    Args:
        own: at least as many rows as this rank has in counts.
    """
    shape = own.shape[1:]
    width = shape.numel()
    padded = own.new_zeros((max(counts), max(1, width)))
    num = counts[groups.part]
    padded[:num, :width] = own[:num].reshape(num, width)
    # as bytes: gloo does not send all types
    parts = _all_gather(padded.view(torch.uint8), groups)
    joined = torch.cat([part[:num] for part, num in zip(parts, counts, strict=True)])
    return joined.view(own.dtype)[:, :width].reshape(-1, *shape)


def _require_rows(leaves: list[Any], num: int) -> None:
    """Check that each value of a batch is a tensor with a row for each example.

    Raises:
        DataError: if not.
    """
    for leaf in leaves:
        if leaf is None or (isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == num):
            continue
        kind = f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else repr(leaf)
        raise DataError(
            f"a batch of {num} examples has {kind[:80]}, whose parts belong to no single example",
            why="Devices that share a model exchange their examples, row by row.",
            fix="Return tensors with one row for each example, or leave out "
            "device.tensor_parallel and device.pipeline_stages.",
        )


def _all_gather(tensor: Tensor, groups: Groups) -> list[Tensor]:
    found = [torch.empty_like(tensor) for _ in range(groups.num_parts)]
    dist.all_gather(found, tensor.contiguous(), group=groups.parts.get_group())
    return found


def _device_of(groups: Groups) -> torch.device:
    kind = groups.parts.device_type
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


class OwnRows(torch.autograd.Function):
    """The losses of this rank's examples, of those that all ranks of a row have computed.

    Backward, the gradients of all ranks are put together, so that each of them computes that of all
    examples. It is divided by the number of ranks, since a mean over all ranks counts each of them.
    """

    @staticmethod
    def forward(ctx: Any, losses: Tensor, joined: Joined, groups: Groups) -> Tensor:
        """Return this rank's losses."""
        ctx.joined, ctx.groups = joined, groups
        return joined.own(losses).clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradients of all losses."""
        whole = gather_rows(grads[0], ctx.joined.counts, ctx.groups)
        return whole / ctx.groups.num_parts, None, None
