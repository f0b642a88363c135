"""What a user brings: data, a model, a loss and metrics. Everything else is ours."""

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
    """What one validation batch gives.

    Attributes:
        losses: plain loss of each example, (n,), float32; without smoothing or class weights.
        sums, counts: by metric name, tensors of equal shape. A metric is the mean of sum / count
            over the elements whose count is above 0, after adding over batches: a scalar pair gives
            a mean over examples, a pair of (C,) gives a mean over classes.
        outputs: the model's outputs (n, ...), kept for the report where they are class scores.
    """

    losses: Tensor
    sums: Mapping[str, Tensor] = field(default_factory=dict)
    counts: Mapping[str, Tensor] = field(default_factory=dict)
    outputs: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class ChainStage:
    """One network of a Task that is several in a chain, such as a detector before a reader.

    Attributes:
        name: what reports call it.
        run: gives this stage's output from that of the stage before; of the first stage from the
            batch's inputs. It is called in eval mode, without gradients.
        error: error of each example (n,) of this stage's own output, lower is better; that of the
            last stage is what the chain is judged by. None: its output has no error of its own.
        truth: the output that a perfect stage would give. None: not known, as of the last stage.
    """

    name: str
    run: Callable[[Any], Any]
    error: Callable[[Any, Batch], Tensor] | None = None
    truth: Callable[[Batch], Any] | None = None


class Task(ABC):
    """One learning problem. Subclass it, or use `ImageClassification`."""

    @abstractmethod
    def build_model(self, recipe: Recipe) -> nn.Module:
        """Make the model with its initial weights; torch's seed is already set."""

    @abstractmethod
    def data(self, split: Split) -> Source | Any | None:
        """Return a split of a Store, a map-style Dataset, or None where there is no such split."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        """Return the training loss of each example, (n,); never its mean.

        Optionally with named values to log, each (n,), detached, such as {"accuracy": hits}.
        """

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        """Return validation losses and metrics; by default the training loss alone."""
        result = self.loss(model, batch)
        return Metrics(losses=result[0] if isinstance(result, tuple) else result)

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:  # noqa: ARG002
        """Change a training batch on the device; draws only from (seed, epoch, ids)."""
        return batch

    def describe(self) -> Mapping[str, Json]:
        """Return JSON facts that are kept with the weights, such as class names and picture size.

        For pictures, `predict` and `export` read `classes`, `size` and `fit`.
        """
        return {}

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module] | None:  # noqa: ARG002
        """Return (trunk, head) so that model(x) = head(trunk(x)), or None if it has no such form."""
        return None

    def stages(self, model: nn.Module) -> Sequence[ChainStage] | None:  # noqa: ARG002
        """Return the networks of a chain in their order, or None: the model is one network.

        `stepladder diagnose` then tells error and time by stage, and which one to improve first.
        """
        return None

    @property
    def runs_head_alone(self) -> bool:
        """Whether batches hold features, so that loss and metrics run the head alone."""
        return False

    @property
    def is_random_before_head(self) -> bool:
        """Whether the same example may reach the head with different features."""
        return True
