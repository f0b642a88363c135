"""The types in which gradients are sent."""

from __future__ import annotations

import torch
from torch import Tensor


class NoneCompressor:
    """Sends tensors in their own type."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """Return the tensor to send, and its type."""
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a received tensor in its own type."""
        return tensor if tensor.dtype == dtype else tensor.to(dtype)


class FP16Compressor(NoneCompressor):
    """Sends floating-point tensors in 16 bits."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """Return the tensor to send, and its type."""
        small = tensor.to(torch.float16) if tensor.dtype.is_floating_point else tensor
        return small, tensor.dtype


class Compression:
    """The types to choose from: `none` and `fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
