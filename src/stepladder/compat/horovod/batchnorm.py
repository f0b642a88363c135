"""`hvd.SyncBatchNorm`: BatchNorm over the examples of all ranks."""

from __future__ import annotations

from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from stepladder.compat.horovod.session import size
from stepladder.parallel.batchnorm import SyncedBatchNorm


class SyncBatchNorm(SyncedBatchNorm):
    """Normalises by the mean and variance over the examples of all ranks; alone, as BatchNorm."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the normalised inputs (n, C, ...)."""
        return _BatchNorm.forward(self, inputs) if size() == 1 else super().forward(inputs)
