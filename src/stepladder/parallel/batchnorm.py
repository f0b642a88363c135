"""BatchNorm over the examples of all ranks, also on a CPU, where torch's own needs a GPU."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from stepladder.errors import UsageError
from stepladder.parallel.world import World

_AFTER: Final = ("drop", "act")
"""What timm's BatchNormAct2d applies to its normalised inputs, in this order."""


class _Sum(torch.autograd.Function):
    """The sum of a tensor over ranks; its gradient is summed likewise."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:  # noqa: ARG004
        """Return the sum."""
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # noqa: ARG004
        """Return the sum of the gradients."""
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        return total


def _summed(value: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(value)  # type: ignore[no-untyped-call]
    return total


class SyncedBatchNorm(_BatchNorm):
    """Normalises by the mean and variance over the examples of all ranks.

    Mean and variance are computed in two passes, as in BatchNorm, so that one rank and several give
    the same numbers up to the order of a sum.

    Attributes:
        is_counted: whether this rank has examples; a batch that only replaces an empty one has
            none.
        is_exchanged: False: normalise by the examples of this rank, as BatchNorm does.
    """

    is_counted = True
    is_exchanged = True

    def _check_input_dim(self, inputs: Tensor) -> None:
        if inputs.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, not {inputs.dim()}")

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the normalised inputs (n, C, ...)."""
        is_synced = self.training and self.is_exchanged
        normed = self._normed(inputs) if is_synced else super().forward(inputs)
        for name in _AFTER:  # layers of timm apply these as well
            if hasattr(self, name):
                normed = getattr(self, name)(normed)
        return normed

    def _normed(self, inputs: Tensor) -> Tensor:
        self._check_input_dim(inputs)
        values = inputs.float()
        dims = [0, *range(2, values.dim())]
        shape = [1, -1, *([1] * (values.dim() - 2))]
        share = float(self.is_counted)
        num = values.new_full((1,), share * values.numel() / values.shape[1])
        sums = _summed(torch.cat([share * values.sum(dims), num]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = values - mean.view(shape)
        squares = _summed(share * centred.square().sum(dims))
        var = squares / count
        self._track(mean.detach(), squares.detach() / (count - 1).clamp_min(1))
        normed = centred * torch.rsqrt(var + self.eps).view(shape)
        if self.affine:
            normed = normed * self.weight.view(shape) + self.bias.view(shape)
        result: Tensor = normed.to(inputs.dtype)
        return result

    def _track(self, mean: Tensor, unbiased_var: Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased_var.to(self.running_var.dtype), share)


def sync_batchnorm(model: nn.Module, world: World, device: torch.device) -> None:
    """Replace BatchNorm layers by layers that normalise over all ranks; weights and names stay.

    Raises:
        UsageError: if a layer derives from BatchNorm and computes something else.

    Source: Ioffe and Szegedy 2015, "Batch Normalization", arXiv:1502.03167, section 3.
    """
    if world.is_alone:
        return
    for name, child in model.named_children():
        if isinstance(child, _BatchNorm) and not isinstance(child, SyncedBatchNorm):
            _require_known(child, name)
            setattr(model, name, _on_cuda(child) if device.type == "cuda" else _converted(child))
        else:
            sync_batchnorm(child, world, device)


def _require_known(norm: _BatchNorm, name: str) -> None:
    """Check that a layer computes what its replacement does."""
    kind = type(norm)
    is_plain = kind.forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward)
    if is_plain or _is_of_timm(kind):
        return
    raise UsageError(
        f"the layer {name} ({kind.__name__}) has its own forward, so its BatchNorm cannot be "
        "synchronised over several devices",
        where="device.sync_batchnorm",
        fix="Type --device.no-sync-batchnorm: each device then uses the statistics of its own part "
        "of a batch.",
    )


def _is_of_timm(kind: type) -> bool:
    """Return True for timm's BatchNorm with an activation, without importing timm."""
    return kind.__module__ == "timm.layers.norm_act" and kind.__name__ == "BatchNormAct2d"


def _on_cuda(norm: _BatchNorm) -> nn.Module:
    if not _is_of_timm(type(norm)):
        plain: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(norm)  # type: ignore[no-untyped-call]
        return plain
    from timm.layers.norm_act import convert_sync_batchnorm

    with_act: nn.Module = convert_sync_batchnorm(norm)  # type: ignore[no-untyped-call]
    return with_act


def _converted(norm: _BatchNorm) -> SyncedBatchNorm:
    synced = SyncedBatchNorm(
        norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
    )
    if norm.affine:
        synced.weight, synced.bias = norm.weight, norm.bias
    synced.running_mean, synced.running_var = norm.running_mean, norm.running_var
    synced.num_batches_tracked = norm.num_batches_tracked
    for name in _AFTER:
        if hasattr(norm, name):
            setattr(synced, name, getattr(norm, name))
    synced.training = norm.training
    return synced


def set_counted(model: nn.Module, is_counted: bool) -> None:
    """Set whether this rank's examples count in the means of synchronised layers."""
    for module in model.modules():
        if isinstance(module, SyncedBatchNorm):
            module.is_counted = is_counted


def set_exchanged(model: nn.Module, is_exchanged: bool) -> None:
    """Set whether synchronised layers use the examples of all ranks, or only of this one."""
    for module in model.modules():
        if isinstance(module, SyncedBatchNorm):
            module.is_exchanged = is_exchanged
        elif isinstance(module, nn.SyncBatchNorm):
            module.process_group = None if is_exchanged else _alone_group()


@cache
def _alone_group() -> dist.ProcessGroup:
    """Return a process group of only this rank; torch's layer exchanges nothing in it."""
    group: dist.ProcessGroup = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    return group
