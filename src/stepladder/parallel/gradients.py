"""Average gradients over ranks while they are computed, by torch's DistributedDataParallel."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

Losses = Callable[[Any], Any]
"""Maps a batch to its losses, and perhaps values to log."""


class _LossModule(nn.Module):
    """A model and its loss as one module, because DDP averages what one forward pass uses.

    A Task calls parts of its model as it likes, which a wrapper around the model would not see.
    """

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        super().__init__()
        self.model = model
        self._losses = losses

    def forward(self, batch: Any) -> Any:
        """Return the losses of a batch."""
        return self._losses(batch)


class GradientAverage:
    """Computes losses so that their backward pass averages the gradients over all ranks.

    Gradients are sent in buckets as soon as they are ready, so that sending overlaps with the rest
    of the backward pass. Weights that are not trained are not sent, and buffers never are.

    Args:
        model: with equal weights on all ranks.
        losses: maps a batch to the losses of this rank.
        is_static: every step uses the same weights in the same order.
        has_unused: some trained weights may get no gradient.
    """

    def __init__(
        self, model: nn.Module, losses: Losses, *, is_static: bool, has_unused: bool
    ) -> None:
        with warnings.catch_warnings():
            # the option that is to replace it sends the buffers once more at the start
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
            self._ddp = DistributedDataParallel(
                _LossModule(model, losses),
                init_sync=False,  # `share_start` has sent the weights, and compared them
                broadcast_buffers=False,
                find_unused_parameters=has_unused and not is_static,
                static_graph=is_static,
            )

    def __call__(self, batch: Any) -> Any:
        """Return the losses of a batch."""
        return self._ddp(batch)

    def accumulating(self, is_last: bool) -> AbstractContextManager[Any]:
        """Return the context of one part of a step: only the last one sends gradients."""
        return nullcontext() if is_last else self._ddp.no_sync()
