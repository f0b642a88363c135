"""Pass examples through the frozen trunk exactly as a training step does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from stepladder.config.choices import Precision
from stepladder.config.recipe import FeaturesConfig
from stepladder.data.batch import Batch
from stepladder.data.reading.reader import PictureSource, Source
from stepladder.models.features import evaluating
from stepladder.task.contract import Task
from stepladder.training.evaluate import EVALUATION_BATCH_SIZE
from stepladder.training.step import autocast

_BATCH_ON_GPU = 128  # smaller ones leave most of a GPU idle


@dataclass(frozen=True, kw_only=True)
class TrunkPass:
    """Takes a batch from the reader to the head, in a precision and memory format.

    Attributes:
        seed: of the random views.
        num_views: random views of each training example; 0: the unmodified example.
    """

    task: Task
    model: nn.Module
    device: torch.device
    precision: Precision
    memory_format: torch.memory_format
    seed: int
    num_views: int

    def features(self, batch: Batch, *, num_views: int = 0) -> Tensor:
        """Return the features of a batch; view k is the task's augmentation for epoch k.

        Call it within `evaluating(model)`.

        Shapes: (n, ...), or with views (n, views, ...).
        """
        on_device = self.on_device(batch)
        if not num_views:
            return self._trunk(on_device)
        views = [
            self.task.augment(on_device, seed=self.seed, epoch=view) for view in range(num_views)
        ]
        return torch.stack([self._trunk(view) for view in views], dim=1)

    def fresh(self, source: Source, rows: np.ndarray, *, num_views: int = 0) -> Batch:
        """Read rows, and return a batch with their features as inputs."""
        batch = read_batch(source, rows)
        with evaluating(self.model):
            features = self.features(batch, num_views=num_views)
        return Batch(features.cpu().clone(), batch.targets, batch.ids)

    def on_device(self, batch: Batch) -> Batch:
        """Copy a batch to the device, in the memory format of the pass."""
        return batch.to(self.device, memory_format=self.memory_format)

    def _trunk(self, batch: Batch) -> Tensor:
        parts = self.task.split(self.model)
        assert parts is not None  # checked before
        with autocast(self.device, self.precision):
            features: Tensor = parts[0](batch.inputs)
        return features


def batch_size_on(device: torch.device) -> int:
    """Return the batch size for computing features on a device."""
    return EVALUATION_BATCH_SIZE if device.type == "cpu" else _BATCH_ON_GPU


def num_views(features: FeaturesConfig, task: Task) -> int:
    """Return the cached random views per training example; 0: the unmodified example."""
    return features.cached_views if task.is_random_before_head else 0


def read_batch(source: Source, rows: np.ndarray) -> Batch:
    """Read rows of a source as a batch, as its reader does."""
    inputs, targets = source.read(rows)
    ids = torch.from_numpy(rows)
    if isinstance(source, PictureSource):
        return Batch(torch.from_numpy(inputs).permute(0, 3, 1, 2), torch.from_numpy(targets), ids)
    return Batch(inputs, targets, ids)


def trunk_of(task: Task, model: nn.Module) -> nn.Module:
    """Return the trunk of a model that its task can split."""
    parts = task.split(model)
    assert parts is not None  # checked before
    return parts[0]
