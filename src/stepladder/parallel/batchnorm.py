"""BatchNorm over the examples of all ranks, also on a CPU, where torch's own needs a GPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from stepladder.parallel.world import World


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
    """

    is_counted = True

    def _check_input_dim(self, inputs: Tensor) -> None:
        if inputs.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, not {inputs.dim()}")

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the normalised inputs (n, C, ...)."""
        if not self.training:
            return super().forward(inputs)
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

    Source: Ioffe and Szegedy 2015, "Batch Normalization", arXiv:1502.03167, section 3.
    """
    if world.is_alone:
        return
    for name, child in model.named_children():
        if isinstance(child, _BatchNorm) and not isinstance(child, SyncedBatchNorm):
            if device.type == "cuda":
                converted = nn.SyncBatchNorm.convert_sync_batchnorm(child)  # type: ignore[no-untyped-call]
            else:
                converted = _converted(child)
            setattr(model, name, converted)
        else:
            sync_batchnorm(child, world, device)


def _converted(norm: _BatchNorm) -> SyncedBatchNorm:
    synced = SyncedBatchNorm(
        norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
    )
    if norm.affine:
        synced.weight, synced.bias = norm.weight, norm.bias
    synced.running_mean, synced.running_var = norm.running_mean, norm.running_var
    synced.num_batches_tracked = norm.num_batches_tracked
    synced.training = norm.training
    return synced


def set_counted(model: nn.Module, is_counted: bool) -> None:
    """Set whether this rank's examples count in the means of synchronised layers."""
    for module in model.modules():
        if isinstance(module, SyncedBatchNorm):
            module.is_counted = is_counted
