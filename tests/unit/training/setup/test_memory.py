"""A training that cannot fit is refused before its first step, with what to type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from stepladder.config.choices import OptimizerName, Split, TrainMode
from stepladder.config.recipe import BatchConfig, DeviceConfig, OptimizerConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.errors import ResourceError
from stepladder.task.contract import Task
from stepladder.training.setup import memory
from stepladder.training.setup.build import Sources, open_sources
from stepladder.training.setup.memory import require_memory

CPU = torch.device("cpu")
WIDTH = 64
WEIGHTS = 4 * 2 * (WIDTH * WIDTH + WIDTH)
RECIPE = Recipe(
    train=TrainMode.ALL,
    batch=BatchConfig(global_batch_size=8),
    optimizer=OptimizerConfig(name=OptimizerName.ADAMW),
)


class Wide(Task):
    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def data(self, split: Split) -> Any:
        return TensorDataset(torch.rand(16, WIDTH), torch.arange(16) % 2)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


class WithHead(Wide):
    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module] | None:
        assert isinstance(model, nn.Sequential)
        return model[0], model[2]


@pytest.fixture(name="sources")
def _sources() -> Sources:
    return open_sources(Wide())


@pytest.fixture(name="free")
def _free(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_free(times: float) -> None:
        monkeypatch.setattr(memory, "free_bytes", lambda _: times * WEIGHTS)

    return set_free


def look(recipe: Recipe, sources: Sources, task: Task | None = None) -> str | None:
    task = task or Wide()
    return require_memory(recipe, task, task.build_model(recipe), sources, device=CPU)


def test_it_is_refused_and_the_devices_are_named(free: Any, sources: Sources) -> None:
    """Gradients and two numbers of AdamW are three times the weights."""
    free(2.5)
    with pytest.raises(ResourceError, match="beside the model") as error:
        look(RECIPE, sources)
    assert "among 2 machines of this size" in str(error.value.fix)


def test_where_there_is_room_nothing_is_said(free: Any, sources: Sources) -> None:
    free(100)
    assert look(RECIPE, sources) is None


def test_activations_that_may_not_fit_are_a_warning(free: Any, sources: Sources) -> None:
    free(3.1)
    recipe = replace(RECIPE, batch=BatchConfig(global_batch_size=4096))
    warning = look(recipe, sources)
    assert warning is not None
    assert "activations" in warning
    parts = replace(recipe, batch=replace(recipe.batch, micro_batch_size=1))
    assert look(parts, sources) is None


@pytest.mark.parametrize(
    "device",
    [
        DeviceConfig(count=4, sharded=True),
        DeviceConfig(count=4, pipeline_stages=4),
        DeviceConfig(count=4, tensor_parallel=4),
    ],
    ids=["sharded", "pipeline", "tensor"],
)
def test_a_model_in_parts_needs_a_part(free: Any, sources: Sources, device: DeviceConfig) -> None:
    """Of four processes that share the memory of a machine, so that copies would need 12 times."""
    free(4 * 1.2)
    with pytest.raises(ResourceError, match="each of 4 processes of this machine"):
        look(replace(RECIPE, device=DeviceConfig(count=4)), sources)
    assert look(replace(RECIPE, device=device), sources) is None


def test_two_stages_on_four_devices_halve_it(free: Any, sources: Sources) -> None:
    free(4 * 1.2)
    with pytest.raises(ResourceError):
        look(replace(RECIPE, device=DeviceConfig(count=4, pipeline_stages=2)), sources)


def test_a_head_alone_is_small(free: Any, sources: Sources) -> None:
    free(2.5)
    recipe = replace(RECIPE, train=TrainMode.HEAD)
    assert look(recipe, sources, WithHead()) is None
    with pytest.raises(ResourceError) as error:
        look(recipe, sources)  # without a head, all is trained
    assert "--train all --device.sharded" in str(error.value.fix)
