"""A small Task, and a function that trains its population."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from stepladder.config.choices import Split, TrainMode
from stepladder.config.options import JobConfig, PopulationConfig, RunConfig
from stepladder.config.recipe import BatchConfig, Recipe, ScheduleConfig
from stepladder.data.batch import Batch
from stepladder.populations.run import train_population
from stepladder.records.population import PopulationSummary
from stepladder.task.contract import Metrics, Task
from stepladder.training.output.display import Display

SIZES = {Split.TRAIN: 96, Split.VAL: 48, Split.TEST: 40}
RECIPE = Recipe(
    train=TrainMode.ALL,
    batch=BatchConfig(global_batch_size=16),
    schedule=ScheduleConfig(max_epochs=3),
)


class Blobs(Task):
    """Three classes of points, and a small network."""

    splits = tuple(Split)

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Linear(4, 8), nn.Tanh(), nn.Dropout(recipe.head.dropout), nn.Linear(8, 3)
        )

    def data(self, split: Split):
        if split not in self.splits:
            return None
        rng = torch.Generator().manual_seed(list(Split).index(split))
        targets = torch.randint(3, (SIZES[split],), generator=rng)
        centres = torch.eye(3, 4) * 2
        return TensorDataset(
            centres[targets] + torch.randn(SIZES[split], 4, generator=rng), targets
        )

    def loss(self, model, batch: Batch):
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    def metrics(self, model, batch: Batch) -> Metrics:
        scores = model(batch.inputs)
        hits = (scores.argmax(1) == batch.targets).float()
        return Metrics(
            losses=F.cross_entropy(scores, batch.targets, reduction="none"),
            sums={"accuracy": hits.sum()},
            counts={"accuracy": torch.tensor(float(len(hits)))},
            outputs=scores,
        )

    def describe(self):
        return {"classes": ["a", "b", "c"], "size": 8}


Train = Callable[..., PopulationSummary]


@pytest.fixture(name="train")
def _train(tmp_path: Path) -> Train:
    def train(
        name: str = "run",
        *,
        task: Task | None = None,
        recipe: Recipe = RECIPE,
        overwrite: bool = False,
        task_name: str = "own.py:Blobs",
        **options,
    ) -> PopulationSummary:
        settings = {"members": 4, "top_frac": 0.25, "genes": "batch.lr 1e-3..1e-1 log", **options}
        job = JobConfig(
            recipe=recipe,
            run=RunConfig(dir=tmp_path / name),
            population=PopulationConfig(**settings),
        )
        return train_population(
            job,
            task or Blobs(),
            task_name=task_name,
            display=Display(io.StringIO()),
            overwrite=overwrite,
        )

    return train


def same(one: PopulationSummary, other: PopulationSummary) -> bool:
    """Return whether two populations are equal, apart from their names and times."""
    return replace(one, seconds=0.0, job="") == replace(other, seconds=0.0, job="")
