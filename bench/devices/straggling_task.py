"""A task whose examples take a fixed time, and longer on the ranks that STRAGGLERS names."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.task.contract import Metrics, Task

NUM_CLASSES, WIDTH = 10, 32
SIZES = {Split.TRAIN: 3200, Split.VAL: 640, Split.TEST: 64}
EXAMPLE_S = float(os.environ.get("EXAMPLE_S", "0"))
SLOWER = 3.0


def examples(split: Split) -> TensorDataset:
    """Return random vectors and the classes that a random network gives them, a tenth of it noise.

    The network is the same for all splits.
    """
    fixed = torch.Generator().manual_seed(7)
    first = torch.randn((WIDTH, 64), generator=fixed) / WIDTH**0.5
    second = torch.randn((64, NUM_CLASSES), generator=fixed)
    generator = torch.Generator().manual_seed(list(SIZES).index(split))
    inputs = torch.randn((SIZES[split], WIDTH), generator=generator)
    targets = ((inputs @ first).relu() @ second).argmax(dim=1)
    is_noise = torch.rand(len(targets), generator=generator) < 0.1
    noise = torch.randint(NUM_CLASSES, (len(targets),), generator=generator)
    return TensorDataset(inputs, torch.where(is_noise, noise, targets))


class Straggling(Task):
    """A network of two layers on these examples; a step waits before it computes."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return the network."""
        return nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, NUM_CLASSES))

    def data(self, split: Split) -> Any:
        """Return the examples of a split."""
        return examples(split)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the cross-entropy of each example, after its time."""
        stragglers = os.environ.get("STRAGGLERS", "").split(",")
        factor = SLOWER if os.environ.get("RANK", "0") in stragglers else 1.0
        time.sleep(EXAMPLE_S * factor * len(batch.ids))
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        """Return the cross-entropy of each example."""
        return Metrics(losses=F.cross_entropy(model(batch.inputs), batch.targets, reduction="none"))
