"""The same run on a CUDA device: what cannot be tested on a CPU."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder.config.choices import (
    DeviceChoice,
    MemoryFormat,
    Precision,
    Split,
    TrainMode,
    Where,
)
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import (
    DataConfig,
    DeviceConfig,
    LoaderConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.data.batch import Batch
from stepladder.errors import DivergedError
from stepladder.task import Metrics, Task
from stepladder.training.clock import STEP_PHASES
from stepladder.training.output.display import Display
from stepladder.training.run import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EPOCHS = 6
NUM_EXAMPLES = 96


class Slow(TensorDataset):
    """Tensors whose examples are slow to read."""

    def __init__(self, *tensors: Tensor, item_s: float) -> None:
        super().__init__(*tensors)
        self.item_s = item_s

    def __getitem__(self, row: int) -> tuple[Tensor, ...]:
        time.sleep(self.item_s)
        return super().__getitem__(row)


class Stripes(Task):
    """Classify pictures with horizontal and vertical stripes.

    Attributes:
        item_s: minimum seconds to read an example.
        bad_step: step with non-finite losses, or None.
        num_steps: steps so far.
        weights, weights_before: the trainable weights, now and before the bad step.
    """

    item_s = 0.0
    bad_step: int | None = None
    num_steps = 0
    weights: tuple[Tensor, ...] = ()
    weights_before: tuple[Tensor, ...] = ()

    def build_model(self, recipe: Recipe) -> nn.Module:
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 2))

    def data(self, split: Split) -> Any:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        y = torch.randint(2, (NUM_EXAMPLES,), generator=generator)
        down = (torch.arange(16) % 4 < 2).float().expand(3, 16, 16)
        x = torch.stack([down if label else down.transpose(1, 2) for label in y])
        return Slow(x + 0.3 * torch.randn(x.shape, generator=generator), y, item_s=self.item_s)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        losses = F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
        if self.num_steps == self.bad_step:
            self.weights = tuple(model.parameters())
            self.weights_before = tuple(weight.detach().clone() for weight in self.weights)
            losses = losses * torch.nan
        self.num_steps += 1
        return losses

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
        data=DataConfig(where=Where.STREAM),
        loader=LoaderConfig(threads=1),
        schedule=ScheduleConfig(max_epochs=EPOCHS),
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
    task = Stripes()
    task.item_s = 0.002
    summary = run(tmp_path / "run", task)
    phases = summary["device_phases_s"]
    assert phases["forward"] > 0
    assert phases["backward"] > 0
    read_s = (EPOCHS - 1) * NUM_EXAMPLES * task.item_s  # the first epoch starts with a read
    steps_s = sum(phases.get(phase, 0.0) for phase in STEP_PHASES) + phases["unexplained"]
    assert steps_s >= read_s, "no waiting time of steps is lost"
    assert sum(phases.values()) <= summary["total_s"], "nothing is counted twice"
    assert phases["unexplained"] >= 0


def test_a_bad_step_leaves_the_weights_without_a_wait_for_the_host(tmp_path: Path) -> None:
    task = Stripes()
    task.bad_step = 1
    with pytest.raises(DivergedError, match="at step 1"):
        run(tmp_path / "bad", task)
    assert task.num_steps > 2, (
        "the host continued with the next step, and read the flag when logging"
    )
    assert task.weights
    for weight, before in zip(task.weights, task.weights_before, strict=True):
        assert torch.equal(weight, before)


def test_a_page_locked_batch_is_copied_next_to_the_step_and_arrives_whole() -> None:
    """Many copies are in flight while the current stream is busy; each arrives intact."""
    device = torch.device("cuda")
    ids = torch.arange(64)
    busy = torch.randn(2048, 2048, device=device)
    sums = []
    for number in range(20):
        pictures = torch.full((64, 3, 64, 64), number, dtype=torch.uint8).pin_memory()
        busy = busy @ busy / 64
        moved = Batch(pictures, ids.pin_memory(), ids).to(device, memory_format=torch.channels_last)
        assert moved.inputs.is_contiguous(memory_format=torch.channels_last)
        sums.append(moved.inputs.float().mean())
        del pictures, moved
    assert [float(value) for value in sums] == [float(number) for number in range(20)]
