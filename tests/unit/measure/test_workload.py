"""Blocks of a small real job: points in the plane, a trunk and a head."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder.config.choices import Split, TrainMode, Where
from stepladder.config.recipe import BatchConfig, DataConfig, DeviceConfig, FeaturesConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.errors import DivergedError, UsageError
from stepladder.measure import workload as workload_module
from stepladder.measure.workload import BlockTimes, Plan, Workload, align_plans, training_time
from stepladder.task import Task
from stepladder.train.build import open_sources

MIN_S = 0.01


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))


class Points(Task):
    is_random_before_head = False

    def __init__(self, num_train: int = 37, num_val: int = 20, scale: float = 1.0) -> None:
        self.num = {Split.TRAIN: num_train, Split.VAL: num_val, Split.TEST: 0}
        self.scale = scale
        self.num_seen = 0

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Net()

    def data(self, split: Split) -> TensorDataset | None:
        n = self.num[split]
        x = torch.randn(n, 2, generator=torch.Generator().manual_seed(0)) * self.scale
        return TensorDataset(x, (x[:, 0] > 0).long()) if n else None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        assert isinstance(model, Net)
        return model.trunk, model.head


RECIPE = Recipe(
    data=DataConfig(where=Where.STREAM),
    batch=BatchConfig(global_batch_size=8),
    device=DeviceConfig(threads=1),
)
Make = Callable[..., Workload]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    opened: list[Workload] = []

    def build(recipe: Recipe = RECIPE, task: Task | None = None) -> Workload:
        task = task or Points()
        sources = open_sources(task)
        device = torch.device("cpu")
        opened.append(Workload(recipe, task, sources, device=device, cache=tmp_path))
        return opened[-1]

    yield build
    for workload in opened:
        workload.close()


def test_every_block_takes_the_same_number_of_steps(make: Make) -> None:
    workload = make(task=Points(num_train=40))  # full batches: the tail counts as part of a step
    blocks = [workload.block(MIN_S) for _ in range(3)]
    assert len({block.num_steps for block in blocks}) == 1
    assert all(len(block.steps_s) == block.num_steps for block in blocks)
    for block in blocks:
        assert 0 < block.step_s < block.wall_s
        assert sum(block.phases_s.values()) <= 1.05 * block.step_s
        assert block.validation_s > 0
        assert block.trunk_s is None


def test_training_goes_on_from_block_to_block(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        Points, "augment", lambda self, batch, **_: seen.extend(batch.ids.tolist()) or batch
    )
    monkeypatch.setattr(workload_module, "_MIN_WAIT_FRAC", 9.0)  # drop no batch read ahead
    workload = make()
    workload.block(MIN_S)
    assert not workload.plan.begins_dry
    while len(seen) < 74:
        workload.block(MIN_S)
    first, second = seen[:37], seen[37:74]
    assert sorted(first) == sorted(second) == list(range(37)), "whole epochs, one after the other"
    assert first != second


def test_features_are_timed_by_the_trunk_and_the_head_apart(make: Make) -> None:
    block = make(replace(RECIPE, features=FeaturesConfig(cached=True))).block(MIN_S)
    assert block.trunk_s is not None
    assert block.trunk_s > 0
    assert block.num_steps >= 1
    assert block.validation_s > 0


def test_workloads_that_are_alike_do_the_same_in_a_block() -> None:
    one = Plan(num_steps=50, num_val_batches=1, num_trunk_batches=8)
    other = Plan(num_steps=70, num_val_batches=1, num_trunk_batches=1, begins_dry=True)
    same = {"num_steps": 70, "num_val_batches": 1, "begins_dry": True}
    assert align_plans(one, other) == (
        Plan(**same, num_trunk_batches=8),  # a trunk eight times as slow keeps its own number
        Plan(**same, num_trunk_batches=1),
    )


def test_without_validation_there_is_no_time_for_it(make: Make) -> None:
    assert make(task=Points(num_val=0)).block(MIN_S).validation_s == 0


def test_a_loss_that_is_not_finite_is_no_measurement(make: Make) -> None:
    with pytest.raises(DivergedError):
        make(task=Points(scale=math.nan)).block(MIN_S)


def test_features_of_a_job_that_has_none_are_refused(make: Make, tmp_path: Path) -> None:
    class Whole(Points):
        def split(self, model: nn.Module) -> None:
            return None

    recipe = replace(RECIPE, train=TrainMode.ALL, features=FeaturesConfig(cached=True))
    with pytest.raises(UsageError, match="no head"):
        make(recipe, Whole()).block(MIN_S)


def test_closing_ends_the_readers_and_puts_random_states_back(make: Make) -> None:
    state = torch.get_rng_state()
    before = threading.active_count()
    workload = make()
    workload.block(MIN_S)
    workload.close()
    assert threading.active_count() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_time_to_a_trained_model_adds_its_parts() -> None:
    times = BlockTimes(step_s=0.5, num_steps=3, validation_s=2.0, trunk_s=0.1)
    recipe = replace(RECIPE, features=FeaturesConfig(cached=True, cached_views=3))
    given = {"num_train": 40, "num_val": 10, "epochs": 4.0, "num_validations": 4.0}
    time = training_time(recipe, times, **given, one_time_s={"compile": 7.0}, checkpoint_s=1.0)
    assert time.one_time_s == {"compile": 7.0, "features": pytest.approx(5.0)}
    assert time.total_s == pytest.approx(7 + 5 + 4 * 5 * 0.5 + 4 * 2 + 1)
    views = training_time(recipe, times, **given, is_random_before_head=True)
    assert views.one_time_s == {"features": pytest.approx(0.1 * (3 * 40 + 10))}
