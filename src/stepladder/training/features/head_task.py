"""A task with only the head of a model, to train on cached features."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor, nn

from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.errors import UsageError
from stepladder.task.contract import Metrics, Task
from stepladder.training.features.feature_task import FeatureTask, cast_for_head

MIN_WEIGHTS_OF_TWO_THREADS: Final = 150_000
"""Number of weights from which a step of heads is faster with several threads than with one.

Below, the overhead of threads is larger than the gain, most of all on busy cores.
"""


class HeadTask(Task):
    """The head of a task's model as the whole model, on features.

    Like `FeatureTask`, but without the trunk: a step, a validation and a copy of the weights cost
    only as much as the head.

    Args:
        base: a task on examples, its model already built from the recipe's seed.
        model: that model; its head is copied.
        seed: that its weights were drawn from.
    """

    def __init__(self, base: Task, model: nn.Module, *, seed: int, num_views: int = 0) -> None:
        parts = base.split(model)
        if parts is None:
            raise UsageError(
                "only the head (last layers) of the model is to be trained, but the Task does not "
                "say which part of its model that is",
                where=type(base).__name__,
                fix="Add a method split(model) to the Task that returns (trunk, head).",
            )
        self.seed = seed
        self._base = base
        self._head = parts[1]
        self._views = FeatureTask(base, num_views=num_views)

    @property
    def num_bytes(self) -> int:
        """Bytes of the head's weights and buffers."""
        return sum(tensor.nbytes for tensor in self._head.state_dict().values())

    def build_model(self, recipe: Recipe) -> nn.Module:  # noqa: ARG002
        """Return a copy of the initial head."""
        return copy.deepcopy(self._head)

    def data(self, split: Split) -> Any:
        """Return a split of the examples themselves."""
        return self._base.data(split)

    @property
    def runs_head_alone(self) -> bool:
        """True: features are the input of the head."""
        return True

    def loss(self, model: nn.Module, batch: Batch) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        """Return the loss of each example, from its features."""
        return self._base.loss(model, cast_for_head(batch))

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        """Return losses and metrics from features."""
        return self._base.metrics(model, cast_for_head(batch))

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        """Choose the view of this epoch, if there are views."""
        return self._views.augment(batch, seed=seed, epoch=epoch)
