"""Normalize pixels as in the training of a trunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn


class Normalize(nn.Module):
    """Subtract a mean and divide by a standard deviation, per channel.

    Part of the model, so that weights and their statistics stay together. Under `half()` etc. the
    statistics stay float32, and only the result is half.

    Args:
        mean, std: per channel, on the scale of 0 to 255.

    Attributes:
        dtype: of the result.

    Shapes: x (n, c, h, w), uint8 or a float type, 0 to 255; the result is as large.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.dtype = torch.float32
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return (x - mean) / std."""
        y = x.to(torch.float32)
        y = y - self.mean if y is x else y.sub_(self.mean)  # in place, in cached memory
        return y.div_(self.std).to(self.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        exact = (self.mean, self.std)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.dtype = self.mean.dtype
        self.mean, self.std = (value.to(self.mean.device) for value in exact)
        return self
