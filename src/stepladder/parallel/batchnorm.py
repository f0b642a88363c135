"""BatchNorm over the examples of all ranks, also on a CPU, where torch's own needs a GPU."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from stepladder.errors import UsageError
from stepladder.parallel.world import World

_AFTER: Final = ("drop", "act")
"""What timm's BatchNormAct2d applies to its normalised inputs, in this order."""


class _Statistics(NamedTuple):
    """What inputs are normalised by.

    Attributes:
        mean, var: (C,) over the examples of all ranks.
        share: what an element of this rank has of a channel's mean: 1 / number of elements, or 0
            for an example that only replaces an empty part.
    """

    mean: Tensor
    var: Tensor
    share: Tensor
    eps: float


class _Normalised(torch.autograd.Function):
    """Inputs, normalised by the mean and variance over all ranks.

    Each pass sends one message, of two numbers per channel. The sums over this rank's own examples
    are those of torch's kernels for one rank.

    Source: Ioffe and Szegedy 2015, "Batch Normalization", arXiv:1502.03167, section 3.
    """

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        over: _Statistics,
    ) -> Tensor:
        """Return the normalised values (n, C, ...)."""
        mean, var, eps = over.mean, over.var, over.eps
        ctx.save_for_backward(values, weight, mean, var, over.share)
        ctx.eps = eps
        return functional.batch_norm(values, mean, var, weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients: also through mean and variance, which all ranks' losses use."""
        values, weight, mean, var, share = ctx.saved_tensors
        inverse = torch.rsqrt(var + ctx.eps)
        found, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
            grad, values, weight, mean, var, mean, inverse, False, ctx.eps, [True, True, True]
        )
        sums = torch.cat([by_bias, by_weight])
        dist.all_reduce(sums)
        scale = (inverse if weight is None else inverse * weight) * share
        of_mean, of_var = (scale * part for part in sums.chunk(2))
        shape = _by_channel(values)
        through_var = (values - mean.view(shape)).mul_((of_var * inverse).view(shape))
        found = found.sub_(through_var).sub_(of_mean.view(shape))
        is_affine = weight is not None
        return found, *((by_weight, by_bias) if is_affine else (None, None)), None


def _by_channel(values: Tensor) -> list[int]:
    """Return the shape of one number per channel, for values (n, C, ...)."""
    return [1, -1, *([1] * (values.dim() - 2))]


def _moments(values: Tensor, is_counted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, biased variance (C,) and number of elements per channel over all ranks.

    Means and squares around them are put together in the order of the ranks, so that large means
    cost no digits and all ranks get the same numbers.

    Source: Chan, Golub and LeVeque 1983, "Algorithms for Computing the Sample Variance".
    """
    own_mean, own_var = torch.batch_norm_update_stats(values, None, None, 0.0)
    num = own_mean.new_full((1,), is_counted * values.numel() / values.shape[1])
    own = torch.cat([own_mean, own_var, num])
    of_all = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(of_all, own)
    gathered = torch.stack(of_all)
    nums = gathered[:, -1:]
    means, variances = gathered[:, :-1].chunk(2, dim=1)
    count = nums.sum()
    mean = (nums * means).sum(0) / count
    var = (nums * (variances + (means - mean).square())).sum(0) / count
    return mean, var, count


class SyncedBatchNorm(_BatchNorm):
    """Normalises by the mean and variance over the examples of all ranks.

    One rank and several give the same numbers up to the order of a sum.

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
        with torch.no_grad():
            mean, var, count = _moments(values, self.is_counted)
            self._track(mean, var * (count / (count - 1).clamp_min(1)))
        over = _Statistics(mean, var, self.is_counted / count, self.eps)
        affine = (self.weight.float(), self.bias.float()) if self.affine else (None, None)
        normed: Tensor = _Normalised.apply(values, *affine, over)  # type: ignore[no-untyped-call]
        return normed.to(inputs.dtype)

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
