"""Weights that several processes of one machine change at the same time, without locks.

Source: Niu et al. 2011, "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient
Descent", arXiv:1106.5730.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class SharedWeights:
    """A flat float32 buffer and a counter, in files that all processes map.

    Attributes:
        weights: (num,).
    """

    weights: Tensor
    _count: Tensor

    @classmethod
    def open(cls, folder: Path, num: int) -> SharedWeights:
        """Map the files of a folder, which are made if they do not exist."""
        weights = torch.from_file(str(folder / "weights"), shared=True, size=num)
        count = torch.from_file(str(folder / "count"), shared=True, size=1, dtype=torch.int64)
        return cls(weights, count)

    @property
    def num_updates(self) -> int:
        """Number of updates so far; two at the same time may count as one."""
        return int(self._count)

    def count(self) -> None:
        """Count an update."""
        self._count.add_(1)
