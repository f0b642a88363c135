"""Gradient noise scale: the batch size above which more examples add little information."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn

from stepladder.config.choices import Precision
from stepladder.data.batch import Batch
from stepladder.task.contract import Task
from stepladder.training.step import autocast, split_batch

MAX_LARGE_FRAC = 0.25
"""Maximum size of the larger batch, as a fraction of the training examples: above it, batches of a
finite set are too similar, and the noise is underestimated."""


TOO_FEW = (
    f"the larger batch would be more than {100 * MAX_LARGE_FRAC:.0f} % of the training examples"
)
_DROWNED = "the signal or the noise estimated from two batch sizes is not above 0"


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """The noise scale, or why it is unknown.

    Attributes:
        examples: None if unknown.
        unknown_because: the reason, as text; None if known.
    """

    examples: float | None = None
    unknown_because: str | None = None


def noise_scale(
    small_sq_norms: Sequence[float], large_sq_norms: Sequence[float], *, small: int, large: int
) -> float | None:
    """Estimate tr(Sigma) / |G|^2 from squared gradient norms at two batch sizes.

    With b < B and means over pairs:

        |G|^2     = (B |G_B|^2 - b |G_b|^2) / (B - b)
        tr(Sigma) = (|G_b|^2 - |G_B|^2) / (1/b - 1/B)

    Both are unbiased; the ratio of their means is used, because a mean of ratios is biased upwards.

    Args:
        small_sq_norms, large_sq_norms: |G_b|^2 and |G_B|^2 of each pair.
        small, large: b and B, in examples.

    Returns:
        Examples; None if either mean is not above 0, so that it cannot be estimated.

    Source: McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", appendix A.1,
    arXiv:1812.06162.
    """
    if not small_sq_norms or small >= large:
        return None
    at_small, at_large = fmean(small_sq_norms), fmean(large_sq_norms)
    signal = (large * at_large - small * at_small) / (large - small)
    noise = (at_small - at_large) / (1 / small - 1 / large)
    return noise / signal if signal > 0 and noise > 0 else None


def measure_noise_scale(
    task: Task,
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    num_examples: int,
    small: int,
    device: torch.device,
    precision: Precision = Precision.FP32,
) -> NoiseScale:
    """Estimate the noise scale from the gradients of whole batches and of their parts.

    The weights do not change; wrap the call in `untouched` if BatchNorm or dropout is in train
    mode. Dropout and augmentation count as noise, as in training.

    Args:
        batches: of equal size, on the device; each yields one pair.
        num_examples: size of the training set.
        small: examples in a part, fewer than in a batch.

    Returns:
        The noise scale; unknown for example if a batch exceeds a quarter of the training set.
    """
    learning = [weight for weight in model.parameters() if weight.requires_grad]

    def gradient(part: Batch) -> list[Tensor]:
        with autocast(device, precision):
            result = task.loss(model, part)
        losses = result[0] if isinstance(result, tuple) else result
        found = torch.autograd.grad(losses.float().mean(), learning, allow_unused=True)
        return [
            torch.zeros_like(weight, dtype=torch.float32) if grad is None else grad.float()
            for weight, grad in zip(learning, found, strict=True)
        ]

    small_norms: list[float] = []
    large_norms: list[float] = []
    large = 0
    for batch in batches:
        large = batch.ids.numel()
        if large > MAX_LARGE_FRAC * num_examples or large % small:
            return NoiseScale(unknown_because=TOO_FEW)
        parts = [gradient(part) for part in split_batch(batch, small)]
        whole = [torch.stack(members).mean(0) for members in zip(*parts, strict=True)]
        small_norms.append(fmean(_sq_norm(part) for part in parts))
        large_norms.append(_sq_norm(whole))
    found = noise_scale(small_norms, large_norms, small=small, large=large)
    return NoiseScale(examples=found, unknown_because=_DROWNED if found is None else None)


def _sq_norm(gradient: list[Tensor]) -> float:
    return float(sum(part.square().sum(dtype=torch.float64) for part in gradient))
