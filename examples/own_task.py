"""A custom Task: fit a curve. Any problem with data, a model and a loss can be a Task.

    stepladder train --task examples/own_task.py:Sine --train all --run.dir runs/sine \
        --batch.lr 0.01 --batch.global-batch-size 32

A Task returns the loss of each example, not the mean. stepladder computes the mean over the global
batch, which stays correct if the batch is split into unequal parts.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class Sine(Task):
    """Learn y = sin(3x) from noisy points."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        x = torch.rand(400, 1, generator=generator) * 4 - 2
        return TensorDataset(x, torch.sin(3 * x) + 0.1 * torch.randn(400, 1, generator=generator))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs) - batch.targets).square().squeeze(1)  # (n,)
