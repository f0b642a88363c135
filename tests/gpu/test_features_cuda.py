"""Cached features on a CUDA device: computed there, stored on the host, same training."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder.config.choices import DeviceChoice, MemoryFormat, Precision, Split
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import DeviceConfig, FeaturesConfig, Recipe, ScheduleConfig
from stepladder.data.batch import Batch
from stepladder.task import Task
from stepladder.training.output.display import Display
from stepladder.training.run import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Noise(Task):
    """Random pictures, a small trunk, and a head that memorizes them."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        conv = nn.Conv2d(3, 32, 3, stride=2)
        trunk = nn.Sequential(conv, nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten())
        return nn.Sequential(trunk, nn.Linear(32 * 7 * 7, 4))

    def data(self, split: Split) -> Any:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        y = torch.randint(4, (300,), generator=generator)
        return TensorDataset(torch.randn(300, 3, 16, 16, generator=generator), y)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs).float(), batch.targets, reduction="none")

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        assert isinstance(model, nn.Sequential)
        return model[0], model[1]

    @property
    def is_random_before_head(self) -> bool:
        return False


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_training_on_features_ends_as_training_on_examples(
    precision: Precision, tmp_path: Path
) -> None:
    device = DeviceConfig(
        kind=DeviceChoice.CUDA, precision=precision, memory_format=MemoryFormat.CHANNELS_LAST
    )
    losses = {}
    for is_cached in (False, True):
        features = FeaturesConfig(cached=is_cached)
        schedule = ScheduleConfig(max_epochs=3)
        recipe = replace(Recipe(), features=features, device=device, schedule=schedule)
        job = JobConfig(recipe=recipe, run=RunConfig(dir=tmp_path / str(is_cached)))
        summary = train(job, Noise(), task_name="noise", display=Display(io.StringIO()))
        losses[is_cached] = summary["val_loss"]
    tolerance = 1e-3 if precision is Precision.FP32 else 3e-2
    assert math.isclose(losses[True], losses[False], rel_tol=tolerance)
