"""How many examples training needs until it ends, with a larger batch."""

from __future__ import annotations

import math


def more_examples(batch: float, base: float, noise_scale: float | None) -> float:
    """Return the examples to the target over those with the base batch; 1 if not known.

        steps S = S_min (1 + B_noise / B),  examples E = E_min (1 + B / B_noise)

    Args:
        batch, base: B, and the batch of the job.
        noise_scale: B_noise, in examples; None: not known.

    Source: McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", arXiv:1812.06162.
    """
    if noise_scale is None or noise_scale <= 0:
        return 1.0
    return (1 + batch / noise_scale) / (1 + base / noise_scale)


def scaled_lr(batch: float, base: float, *, is_adaptive: bool, noise_scale: float | None) -> float:
    """Return the factor of the learning rate: linear for SGD, square root for Adam and its kin.

    Both are capped at the noise scale, beyond which a larger batch allows no larger steps.

    Source: Goyal et al. 2017, arXiv:1706.02677; Malladi et al. 2022, arXiv:2205.10287.
    """
    most = batch if noise_scale is None else min(batch, max(base, noise_scale))
    ratio = most / base
    return math.sqrt(ratio) if is_adaptive else ratio
