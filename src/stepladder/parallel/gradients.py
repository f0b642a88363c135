"""Average gradients over ranks while they are computed, by torch's DistributedDataParallel."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stepladder.optim.light_start import exclude_as_is
from stepladder.parallel.collectives.exchange import Exchange

Losses = Callable[[Any], Any]
"""Maps a batch to its losses, and perhaps values to log."""
_COMPILER: Final = "_dynamo"


class _LossModule(nn.Module):
    """A model and its loss as one module, because DDP averages what one forward pass uses.

    A Task calls parts of its model as it likes, which a wrapper around the model would not see.

    Args:
        model: with at least one weight that is trained.
        losses: maps a batch to the losses of this rank.
        has_spare: add a weight that no loss uses.
    """

    def __init__(self, model: nn.Module, losses: Losses, *, has_spare: bool) -> None:
        super().__init__()
        self.model = model
        self._losses = losses
        if has_spare:
            like = next(weight for weight in model.parameters() if weight.requires_grad)
            self.spare = nn.Parameter(torch.zeros(1, dtype=like.dtype, device=like.device))

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
        exchange: how gradients are sent and added up; None: as PyTorch does by default.
        is_repeatable: every step adds the gradients up in one order, the first one too. Otherwise
            buckets are put together again after the first step, which moves elements between the
            parts of a ring that three or more ranks add up in different orders: a run that starts
            again then differs in the last bit. Costs a walk over the graph in each step.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        *,
        is_static: bool,
        has_unused: bool,
        is_repeatable: bool = False,
        exchange: Exchange | None = None,
    ) -> None:
        with warnings.catch_warnings(), _without_compiler():
            # the option that is to replace it sends the buffers once more at the start
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
            self._ddp = DistributedDataParallel(
                # the spare weight is unused: torch warns where it looks for such and finds none
                _LossModule(model, losses, has_spare=is_repeatable and not has_unused),
                init_sync=False,  # `share_start` has sent the weights, and compared them
                broadcast_buffers=False,
                gradient_as_bucket_view=True,  # saves a copy of all gradients, and its memory
                # torch keeps the first buckets where weights may be unused
                find_unused_parameters=is_repeatable or (has_unused and not is_static),
                static_graph=is_static and not is_repeatable,
                bucket_cap_mb=None if exchange is None else exchange.bucket_cap_mb,
            )
        if exchange is not None:
            exchange.register(self._ddp)

    def __call__(self, batch: Any) -> Any:
        """Return the losses of a batch."""
        return self._ddp(batch)

    def accumulating(self, is_last: bool, weight: float = 1.0) -> AbstractContextManager[Any]:
        """Return the context of one part of a step: only the last one sends gradients.

        Args:
            weight: of each loss in the part; it is in the backward pass already.
        """
        del weight
        return nullcontext() if is_last else self._ddp.no_sync()


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Let DDP be made and called without importing `torch._dynamo`: 2.7 s of CPU time per rank.

    DDP asks the compiler how it would reduce gradients in compiled code, which never calls DDP
    here; what is given instead is the compiler's default. Does nothing once it is imported.
    """
    if f"torch.{_COMPILER}" in sys.modules:
        yield
        return
    exclude_as_is(DistributedDataParallel, "_inside_ddp_forward")
    default = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
    vars(torch)[_COMPILER] = SimpleNamespace(utils=default)
    try:
        yield
    finally:
        del vars(torch)[_COMPILER]
