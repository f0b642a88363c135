"""What training, evaluation and checkpoints need from a model of which each rank holds a part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.data.batch import Batch
from stepladder.models.sharded_tensors import whole
from stepladder.parallel.world import World

Losses = Callable[[Batch], Any]
"""Maps a batch to the loss of each example, and perhaps values to log."""


class DividedModel(ABC):
    """A model of which each rank holds a part.

    Each rank reads its own part of every batch, as in data parallel training, and gets the losses
    of its own examples, so that nothing else in a training depends on how a model is divided.

    Args:
        model: with equal weights on all ranks.
        world: all ranks.

    Attributes:
        random_rank: seeds the random layers of this rank.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        self.model = model
        self.world = world
        self.random_rank = world.rank

    @abstractmethod
    def losses(self, losses: Losses, batch: Batch, *, weight: float, is_last: bool) -> Any:
        """Return the losses of this rank's examples; a collective.

        After their backward pass each rank has the gradients of its part of the model, of the mean
        over all ranks.

        Args:
            losses: computes them with the model.
            batch: this rank's examples, on the device.
            weight: of each loss; 0: the batch is a substitute, and does not count.
            is_last: this is the last part of a step, so gradients are added up.
        """

    @abstractmethod
    def metrics(
        self, metrics: Callable[[nn.Module, Batch], Any], batch: Batch, *, is_stand_in: bool
    ) -> Any:
        """Return the metrics of this rank's examples, without gradients; a collective.

        The sums of examples that several ranks compute together are those of one of the ranks.

        Args:
            is_stand_in: the batch is a substitute, and does not count: there are no sums, and the
                rest is ignored.
        """

    def norm(self, grads: list[Tensor]) -> Tensor:
        """Return the norm of all gradients, of which this rank has its part; a collective."""
        return whole(torch.nn.utils.get_total_norm(grads))

    def probe(self, params: list[Tensor]) -> Tensor | float:
        """Return a number that is finite if the gradients are, equal on all ranks; a collective."""
        grad = params[0].grad
        return 0.0 if grad is None else whole(grad.sum(dtype=torch.float32))

    def share_buffers(self, frozen: set[str]) -> None:
        """Use the buffers of rank 0 everywhere, such as running statistics; a collective.

        Args:
            frozen: names of buffers that cannot differ.
        """
        self.world.share_buffers(self.model, frozen)

    def mark(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of the model so that `whole` gives each of them as one process has it.

        Args:
            tensors: by their name in the model.
        """
        return dict(tensors)

    def complete(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the optimizer's tensors of all ranks, as `mark` does; a collective.

        Args:
            state: of this rank, by `weight name/state key`.
        """
        return dict(state)


class DividedGradients:
    """Computes losses so that their backward pass leaves this rank's part of the mean gradients.

    Args:
        losses: maps a batch to the losses of its examples.
    """

    def __init__(self, divided: DividedModel, losses: Losses) -> None:
        self._divided, self._losses = divided, losses
        self._weight, self._is_last = 1.0, True

    def __call__(self, batch: Batch) -> Any:
        """Return the losses of a batch."""
        weight, is_last = self._weight, self._is_last
        return self._divided.losses(self._losses, batch, weight=weight, is_last=is_last)

    @contextmanager
    def accumulating(self, is_last: bool, weight: float) -> Iterator[None]:
        """Return the context of one part of a step: only the last one sends gradients.

        Args:
            weight: of each loss in the part.
        """
        self._weight, self._is_last = weight, is_last
        yield
