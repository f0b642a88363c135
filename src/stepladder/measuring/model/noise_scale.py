"""Gradient noise scale: about how many examples a batch may hold before more say little new."""

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
"""Share of the training examples that the larger batch may hold: beyond it, batches of a finite
set are too alike, and the noise comes out too small."""


TOO_FEW = (
    f"the larger batch would be more than {100 * MAX_LARGE_FRAC:.0f} % of the training examples"
)
_DROWNED = "by the gradients of two batch sizes, the signal or the noise is not above 0"


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """The noise scale, or why it is unknown.

    Attributes:
        examples: None where it is unknown.
        unknown_because: in words; None where it is known.
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

    Both are unbiased; the ratio is taken of their means, as a mean of ratios is biased upwards.

    Args:
        small_sq_norms, large_sq_norms: |G_b|^2 and |G_B|^2 of each pair.
        small, large: b and B, in examples.

    Returns:
        Examples; None where either mean is not above 0, so that nothing can be said.

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

    The weights stay as they are; wrap the call in `untouched` where BatchNorm learns or dropout
    draws. Dropout and augmentation count as noise, as they do in training.

    Args:
        batches: equally large, on the device; each gives one pair.
        num_examples: size of the training set.
        small: examples in a part, fewer than in a batch.

    Returns:
        Unknown among others where the larger batch exceeds a quarter of the training set.
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
