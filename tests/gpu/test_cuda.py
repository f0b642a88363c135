"""The same run on a CUDA device: what the CPU cannot show."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder.config.choices import DeviceChoice, MemoryFormat, Precision, Split, TrainMode
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import DeviceConfig, Recipe, ScheduleConfig, StoppingConfig
from stepladder.data.batch import Batch
from stepladder.errors import DivergedError
from stepladder.task import Metrics, Task
from stepladder.train.checkpoint import load_best
from stepladder.train.display import Display
from stepladder.train.run import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


class Stripes(Task):
    """Tell pictures with stripes across from pictures with stripes down."""

    poisoned: int | None = None

    def build_model(self, recipe: Recipe) -> nn.Module:
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 2))

    def data(self, split: Split) -> Any:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        y = torch.randint(2, (96,), generator=generator)
        down = (torch.arange(16) % 4 < 2).float().expand(3, 16, 16)
        x = torch.stack([down if label else down.transpose(1, 2) for label in y])
        return TensorDataset(x + 0.3 * torch.randn(x.shape, generator=generator), y)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        losses = F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
        if self.poisoned is None:
            return losses
        bad = (batch.ids == self.poisoned).to(losses.device)
        return torch.where(bad, torch.nan, losses)

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        logits = model(batch.inputs)
        hits = (logits.argmax(1) == batch.targets).float()
        return Metrics(
            losses=F.cross_entropy(logits.float(), batch.targets, reduction="none"),
            sums={"accuracy": hits.sum()},
            counts={"accuracy": torch.full_like(hits.sum(), len(hits))},
            outputs=logits,
        )


def run(folder: Path, task: Task, **device: Any) -> dict[str, Any]:
    recipe = Recipe(
        train=TrainMode.ALL,
        schedule=ScheduleConfig(max_epochs=6),
        stopping=StoppingConfig(early=False),
        device=DeviceConfig(kind=DeviceChoice.CUDA),
    )
    recipe = replace(
        recipe,
        batch=replace(recipe.batch, lr=0.02),
        device=replace(recipe.device, **device),
    )
    job = JobConfig(recipe=recipe, run=RunConfig(dir=folder, log_every=4, checkpoint_every_s=1e9))
    return train(job, task, task_name="stripes", display=Display(io.StringIO()))


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("memory_format", list(MemoryFormat))
def test_every_precision_and_layout_learns(
    tmp_path: Path, precision: Precision, memory_format: MemoryFormat
) -> None:
    summary = run(tmp_path / "run", Stripes(), precision=precision, memory_format=memory_format)
    assert summary["device"] == "cuda"
    assert summary["test_accuracy"] > 0.9


def test_the_device_timeline_adds_up(tmp_path: Path) -> None:
    phases = run(tmp_path / "run", Stripes())["device_phases_s"]
    assert phases["forward"] > 0
    assert phases["backward"] > 0
    assert phases["data_wait"] >= 0


def test_a_bad_step_leaves_the_weights_without_a_wait_for_the_host(tmp_path: Path) -> None:
    task = Stripes()
    task.poisoned = 5
    with pytest.raises(DivergedError):
        run(tmp_path / "bad", task)
    run(tmp_path / "good", Stripes())
    assert all(
        torch.isfinite(t.float()).all() for t in load_best(tmp_path / "good").weights.values()
    )
