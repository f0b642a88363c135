"""The tensors that server and workers send each other, as one flat buffer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Flat:
    """Copies tensors to a float32 buffer and back: integers up to 2**24 are exact.

    Args:
        tensors: whose shapes every buffer has.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._shapes = [tensor.shape for tensor in tensors]
        self._sizes = [tensor.numel() for tensor in tensors]
        self.num = sum(self._sizes)

    def empty(self) -> Tensor:
        """Return a buffer."""
        return torch.zeros(self.num)

    def views(self, buffer: Tensor) -> list[Tensor]:
        """Return the parts of a buffer in the shapes of the tensors."""
        parts = torch.split(buffer, self._sizes) if self._sizes else ()
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    @torch.no_grad()
    def gather(self, tensors: Sequence[Tensor | None], buffer: Tensor) -> Tensor:
        """Copy tensors into a buffer, zeros for None, and return it."""
        for view, tensor in zip(self.views(buffer), tensors, strict=True):
            if tensor is None:
                view.zero_()
            else:
                view.copy_(tensor)
        return buffer

    @torch.no_grad()
    def scatter(self, buffer: Tensor, tensors: Sequence[Tensor]) -> None:
        """Copy a buffer into tensors; integers are rounded."""
        for view, tensor in zip(self.views(buffer), tensors, strict=True):
            tensor.copy_(view if tensor.is_floating_point() else view.round())
