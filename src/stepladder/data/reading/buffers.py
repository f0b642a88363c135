"""Memory for batches that is used again once nobody holds it.

A fresh 17 MB allocation is page-faulted in, which halves the speed of reading.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import torch
from torch import Tensor


class Buffers:
    """Lend uint8 tensors; one comes back by itself when the last tensor that shares it is gone.

    Args:
        shape: of the largest loan.
        capacity: free buffers kept at most.
        is_pinned: lend page-locked memory. It then comes from torch's own cache, which knows
            whether a copy to the device is still under way; ours could not.
    """

    def __init__(self, shape: tuple[int, ...], *, capacity: int, is_pinned: bool) -> None:
        self._shape = shape
        self._is_pinned = is_pinned
        self._free: deque[np.ndarray] = deque(maxlen=capacity)

    def lend(self, num_rows: int) -> Tensor:
        """Give a tensor of the first `num_rows` rows, with any content."""
        if self._is_pinned:
            return torch.empty((num_rows, *self._shape[1:]), dtype=torch.uint8, pin_memory=True)
        try:
            block = self._free.pop()
        except IndexError:
            block = np.empty(self._shape, dtype=np.uint8)
        loan = block[:num_rows]  # the tensor's storage holds this view, and nothing else does
        # Runs in whatever thread drops the last reference: append alone, which needs no lock.
        weakref.finalize(loan, self._free.append, block).atexit = False
        return torch.from_numpy(loan)
