"""A task of your own: fit a curve. Anything with data, a model and a loss will do.

    stepladder train --task examples/own_task.py:Sine --train all --run.dir runs/sine \
        --batch.lr 0.01 --batch.global-batch-size 32

A Task gives a loss for each example, never its mean: the mean over the global batch is ours, and
stays right when a batch is cut into unequal parts.
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
