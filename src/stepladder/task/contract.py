"""The interface of a user's Task: data, a model, a loss and metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from stepladder.config.choices import Split
    from stepladder.config.recipe import Recipe
    from stepladder.data.batch import Batch
    from stepladder.data.reading.reader import Source
    from stepladder.records import Json


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Losses and metrics of one validation batch.

    Attributes:
        losses: loss of each example, (n,), float32; without label smoothing or class weights.
        sums, counts: by metric name, tensors of equal shape. A metric is the mean of sum / count
            over the elements with a count above 0, after summing over batches: a pair of scalars
            yields a mean over examples, a pair of (C,) a mean over classes.
        outputs: the model's outputs (n, ...), kept for the report if they are class scores.
    """

    losses: Tensor
    sums: Mapping[str, Tensor] = field(default_factory=dict)
    counts: Mapping[str, Tensor] = field(default_factory=dict)
    outputs: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class ChainStage:
    """One network in a Task with a chain of networks, such as a detector before a reader.

    Attributes:
        name: its name in reports.
        run: computes this stage's output from that of the stage before, or from the batch's inputs
            for the first stage. It is called in eval mode, without gradients.
        error: error of each example (n,) of this stage's output, lower is better; the chain is
            judged by that of the last stage. None: its output has no error of its own.
        truth: the output of a perfect stage. None: unknown, as for the last stage.
    """

    name: str
    run: Callable[[Any], Any]
    error: Callable[[Any, Batch], Tensor] | None = None
    truth: Callable[[Batch], Any] | None = None


class Task(ABC):
    """One learning problem. Subclass it, or use `ImageClassification`."""

    @abstractmethod
    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return the model with its initial weights; torch's seed is already set."""

    @abstractmethod
    def data(self, split: Split) -> Source | Any | None:
        """Return a split of a Store or a map-style Dataset; None if the split does not exist."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        """Return the training loss of each example, (n,), not the mean.

        Optionally with named values to log, each (n,), detached, such as {"accuracy": hits}.
        """

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        """Return validation losses and metrics; by default, only the training loss."""
        result = self.loss(model, batch)
        return Metrics(losses=result[0] if isinstance(result, tuple) else result)

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:  # noqa: ARG002
        """Augment a training batch on the device; random only by (seed, epoch, ids)."""
        return batch

    def describe(self) -> Mapping[str, Json]:
        """Return JSON values to save with the weights, such as class names and image size.

        For images, `predict` and `export` read `classes`, `size` and `fit`.
        """
        return {}

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module] | None:  # noqa: ARG002
        """Return (trunk, head) with model(x) = head(trunk(x)), or None if it cannot be split."""
        return None

    def stages(self, model: nn.Module) -> Sequence[ChainStage] | None:  # noqa: ARG002
        """Return the networks of a chain in order, or None if the model is a single network.

        `stepladder diagnose` then reports error and time by stage, and which to improve first.
        """
        return None

    @property
    def runs_head_alone(self) -> bool:
        """Whether batches contain features, so that loss and metrics run only the head."""
        return False

    @property
    def is_random_before_head(self) -> bool:
        """Whether the same example may reach the head with different features."""
        return True
