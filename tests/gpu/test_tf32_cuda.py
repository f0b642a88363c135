"""Comparisons of results on a CUDA device run without TF32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder.config.choices import DeviceChoice, Split
from stepladder.config.recipe import DeviceConfig, FeaturesConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.ladder.accuracy.exactness import Material, compute
from stepladder.models.folding import fold_batchnorm
from stepladder.task import Task
from stepladder.training.features.feature_task import why_no_features
from stepladder.training.setup.build import make_model, make_trunk_pass, open_sources

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RECIPE = Recipe(features=FeaturesConfig(cached=True), device=DeviceConfig(kind=DeviceChoice.CUDA))


class Seen(nn.Module):
    """Records the precision of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.seen: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(torch.backends.cudnn.conv.fp32_precision)
        return self.norm(self.conv(x)).flatten(1)


class Noise(Task):
    """Random pictures, and the same trunk for each model."""

    is_random_before_head = False

    def __init__(self) -> None:
        self.trunk = Seen()

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(self.trunk, nn.Linear(8 * 14 * 14, 4))

    def data(self, split: Split) -> Any:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        y = torch.randint(4, (64,), generator=generator)
        return TensorDataset(torch.randn(64, 3, 16, 16, generator=generator), y)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs).float(), batch.targets, reduction="none")

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        assert isinstance(model, nn.Sequential)
        return model[0], model[1]


def test_folding_is_checked_without_tf32() -> None:
    trunk = Seen().to(DEVICE).eval()
    fold_batchnorm(trunk, torch.randn(2, 3, 16, 16, device=DEVICE))
    assert set(trunk.seen) == {"ieee"}
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"


def test_whether_features_can_be_computed_once_is_asked_without_tf32() -> None:
    task = Noise()
    model = make_model(RECIPE, task, DEVICE)
    way = make_trunk_pass(RECIPE, task, model, device=DEVICE)
    assert why_no_features(way, RECIPE.train) is None
    assert set(task.trunk.seen) == {"ieee"}


def test_results_of_two_recipes_are_compared_without_tf32() -> None:
    task = Noise()
    material = Material(task=task, sources=open_sources(task))
    compute(RECIPE, material, device=DEVICE, steps=False)
    assert set(task.trunk.seen) == {"ieee"}
