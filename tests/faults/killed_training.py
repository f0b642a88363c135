"""A job that the kill test runs in separate processes."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder.config.choices import Split, TrainMode
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import BatchConfig, Recipe, ScheduleConfig, StoppingConfig
from stepladder.data.batch import Batch
from stepladder.task import Metrics, Task
from stepladder.training.output.display import Display
from stepladder.training.run import train


class Killed(Task):
    """Three clusters; BatchNorm, dropout and a trunk that freezes, so that all state matters."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        trunk = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU())
        return nn.Sequential(trunk, nn.Dropout(0.3), nn.Linear(16, 3))

    def data(self, split: Split) -> Any:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        y = torch.randint(3, (53,), generator=generator)
        return TensorDataset(y[:, None] + torch.randn(53, 2, generator=generator), y)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        logits = model(batch.inputs)
        losses = F.cross_entropy(logits, batch.targets, reduction="none")
        return Metrics(losses=losses, outputs=logits)

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        assert isinstance(model, nn.Sequential)
        return model[0], model[1:]


def run(folder: Path) -> None:
    """Train to the end, saving at every step."""
    torch.set_num_threads(1)
    job = JobConfig(
        recipe=Recipe(
            train=TrainMode.HEAD_THEN_ALL,
            batch=BatchConfig(global_batch_size=8, lr=0.02),
            schedule=ScheduleConfig(max_epochs=3),
            stopping=StoppingConfig(early=False),
        ),
        run=RunConfig(dir=folder, log_every=2, checkpoint_every_s=0, system_every_s=60),
    )
    train(job, Killed(), task_name="killed", display=Display(io.StringIO()))


if __name__ == "__main__":
    run(Path(sys.argv[1]))
