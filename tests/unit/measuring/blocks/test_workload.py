"""Blocks of a small real job: points in the plane, a trunk and a head."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder.config.choices import Split, TrainMode, Where
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    DeviceConfig,
    FeaturesConfig,
    LoaderConfig,
    Recipe,
)
from stepladder.data.batch import Batch
from stepladder.errors import DivergedError, UsageError
from stepladder.measuring.blocks import workload as workload_module
from stepladder.measuring.blocks.workload import (
    BlockTimes,
    Plan,
    Workload,
    align_plans,
    training_time,
)
from stepladder.task import Task
from stepladder.training.setup.build import open_sources

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
    workload = make(task=Points(num_train=40))  # full batches: the last counts as part of a step
    blocks = [workload.block(MIN_S) for _ in range(3)]
    assert len({block.num_steps for block in blocks}) == 1
    assert all(len(block.steps_s) == block.num_steps for block in blocks)
    for block in blocks:
        assert 0 < block.step_s < block.wall_s
        assert sum(block.phases_s.values()) <= 1.05 * block.step_s
        assert block.validation_s > 0
        assert block.trunk_s is None


def test_training_continues_from_block_to_block(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        Points, "augment", lambda self, batch, **_: seen.extend(batch.ids.tolist()) or batch
    )
    monkeypatch.setattr(workload_module, "_MIN_WAIT_FRAC", 9.0)  # drop no batch that was read ahead
    workload = make()
    workload.block(MIN_S)
    assert not workload.plan.begins_dry
    while len(seen) < 74:
        workload.block(MIN_S)
    first, second = seen[:37], seen[37:74]
    assert sorted(first) == sorted(second) == list(range(37)), "whole epochs, one after the other"
    assert first != second


def test_features_are_timed_by_the_trunk_and_the_head_separately(make: Make) -> None:
    block = make(replace(RECIPE, features=FeaturesConfig(cached=True))).block(MIN_S)
    assert block.trunk_s is not None
    assert block.trunk_s > 0
    assert block.num_steps >= 1
    assert block.validation_s > 0


class FakeTime:
    """A clock that moves only on request."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s

    def move(self, seconds: float) -> None:
        self.s += seconds


class Timed(Points):
    """Reading a row takes 1 s, a view of it 2 s, its pass through the trunk 10 s, a loss 1 s."""

    is_random_before_head = True

    def __init__(self) -> None:
        super().__init__(num_train=320)
        self.time = FakeTime()

    def build_model(self, recipe: Recipe) -> nn.Module:
        model = super().build_model(recipe)
        model.trunk.register_forward_pre_hook(lambda _, args: self.time.move(10.0 * len(args[0])))
        return model

    def data(self, split: Split) -> TensorDataset | None:
        rows = super().data(split)
        return None if rows is None else TimedRows(self.time, *rows.tensors)

    def augment(self, batch: Batch, **_: object) -> Batch:
        self.time.move(2.0 * len(batch.inputs))
        return batch

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        self.time.move(1.0)
        return super().loss(model, batch)


class TimedRows(TensorDataset):
    def __init__(self, time: FakeTime, *tensors: Tensor) -> None:
        super().__init__(*tensors)
        self.time = time

    def __getitem__(self, row: int) -> tuple[Tensor, ...]:
        self.time.move(1.0)
        return super().__getitem__(row)


@pytest.mark.parametrize(
    ("num_views", "trunk_s", "held_out_s"), [(1, 1 + 12, 1 + 10), (3, 1 + 3 * 12, 1 + 10)]
)
def test_with_views_an_example_is_read_once_and_computed_once_for_each(
    num_views: int,
    trunk_s: float,
    held_out_s: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = Timed()
    sources = open_sources(task)
    sources.train.default_threads = 0  # in this thread, when a batch is requested
    monkeypatch.setattr(time, "perf_counter", task.time)
    recipe = replace(RECIPE, features=FeaturesConfig(cached=True, cached_views=num_views))
    workload = Workload(recipe, task, sources, device=torch.device("cpu"), cache=tmp_path)
    try:
        block = workload.block(MIN_S)
    finally:
        workload.close()
    assert block.trunk_s == pytest.approx(trunk_s)
    assert block.held_out_trunk_s == pytest.approx(held_out_s)


def test_the_trunk_gets_batches_as_features_are_computed_in(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload_module, "batch_size_on", lambda device: 16)  # a GPU has its own
    workload = make(replace(RECIPE, features=FeaturesConfig(cached=True)), Points(num_train=320))
    workload.block(MIN_S)
    assert workload._trunk_batches is not None
    assert len(next(workload._trunk_batches).ids) == 16


class Slow(Points):
    """Rows that a reader thread waits for, as on a slow disk."""

    ROW_S = 0.002

    def data(self, split: Split) -> TensorDataset | None:
        rows = super().data(split)
        return None if rows is None else SlowRows(*rows.tensors)


class SlowRows(TensorDataset):
    def __getitem__(self, row: int) -> tuple[Tensor, ...]:
        time.sleep(Slow.ROW_S)
        return super().__getitem__(row)


@pytest.mark.thorough
@pytest.mark.parametrize("threads", [1, 2])
def test_batches_read_ahead_between_blocks_do_not_flatter_the_trunk(
    make: Make, threads: int
) -> None:
    recipe = replace(
        RECIPE, features=FeaturesConfig(cached=True), loader=LoaderConfig(threads=threads)
    )
    workload = make(recipe, Slow(num_train=320))
    workload.block(MIN_S)
    plan, batches, taken = workload.plan, workload._trunk_batches, []
    assert plan.trunk_begins_dry
    assert plan.num_trunk_batches % threads == 0
    workload._trunk_batches = (taken.append(batch) or batch for batch in batches)
    workload.block(MIN_S)
    assert len(taken) == recipe.loader.prefetch_batches + 1 + plan.num_trunk_batches


def test_workloads_that_are_alike_do_the_same_in_a_block() -> None:
    one = Plan(num_steps=50, num_val_batches=1, num_trunk_batches=8, trunk_begins_dry=True)
    other = Plan(num_steps=70, num_val_batches=1, num_trunk_batches=1, begins_dry=True)
    same = {"num_steps": 70, "num_val_batches": 1, "begins_dry": True, "trunk_begins_dry": True}
    assert align_plans(one, other) == (
        Plan(**same, num_trunk_batches=8),  # a trunk eight times as slow keeps its own number
        Plan(**same, num_trunk_batches=1),
    )


def test_without_validation_there_is_no_time_for_it(make: Make) -> None:
    assert make(task=Points(num_val=0)).block(MIN_S).validation_s == 0


class OneIsBad(Points):
    """Row 5 is not finite: either its inputs, or only its loss."""

    def __init__(self, *, are_inputs: bool) -> None:
        super().__init__()
        self.are_inputs = are_inputs

    def data(self, split: Split) -> TensorDataset | None:
        found = super().data(split)
        if found is not None and self.are_inputs and split is Split.TRAIN:
            found.tensors[0][5, 1] = math.nan
        return found

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        losses = super().loss(model, batch)
        is_bad = torch.from_numpy(batch.ids.numpy() == 5)
        return losses if self.are_inputs else losses.masked_fill(is_bad, math.inf)


@pytest.mark.parametrize(("are_inputs", "kind"), [(True, "inputs"), (False, "loss")])
def test_a_loss_that_is_not_finite_names_task_step_and_example(
    make: Make, are_inputs: bool, kind: str
) -> None:
    with pytest.raises(
        DivergedError, match="the loss or its gradient became NaN or infinite"
    ) as caught:
        make(task=OneIsBad(are_inputs=are_inputs)).block(0.05)
    error = caught.value
    assert error.where == "OneIsBad"
    assert "at step" in error.what
    num = re.search(r"1 of its (\d) training examples has non-finite", error.why or "")
    assert num is not None, error.why
    assert num[1] in "58", "a full batch, or the tail of 37"
    assert f"non-finite {kind}: 5 (row 5)." in (error.why or "")
    assert "training examples" in (error.fix or "")


def test_the_step_that_is_named_is_the_one_whose_batch_holds_the_example(make: Make) -> None:
    seen: list[list[int]] = []

    class Noting(OneIsBad):
        def augment(self, batch: Batch, **_: object) -> Batch:
            seen.append(batch.ids.tolist())
            return batch

    with pytest.raises(DivergedError) as caught:
        make(task=Noting(are_inputs=True)).block(0.05)
    first = next(idx for idx, ids in enumerate(seen) if 5 in ids)
    assert f"at step {first} of training" in caught.value.what


def test_a_learning_rate_that_is_too_high_is_not_blamed_on_examples(make: Make) -> None:
    class Exploded(Points):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            return super().loss(model, batch) * math.inf

    with pytest.raises(DivergedError) as caught:
        make(task=Exploded()).block(MIN_S)
    assert "have non-finite loss" in (caught.value.why or "")
    assert "Lower the learning rate (--batch.lr " in (caught.value.fix or "")


def test_features_that_are_not_finite_name_no_example(make: Make) -> None:
    recipe = replace(RECIPE, features=FeaturesConfig(cached=True))
    with pytest.raises(DivergedError) as caught:
        make(recipe, Points(scale=math.nan)).block(MIN_S)
    assert caught.value.why is None, "unknown which of them"
    assert caught.value.where == "Points"


def test_features_of_a_job_that_has_none_are_refused(make: Make, tmp_path: Path) -> None:
    class Whole(Points):
        def split(self, model: nn.Module) -> None:
            return None

    recipe = replace(RECIPE, train=TrainMode.ALL, features=FeaturesConfig(cached=True))
    with pytest.raises(UsageError, match="does not say which part of its model is the head"):
        make(recipe, Whole()).block(MIN_S)


def test_closing_ends_the_readers_and_puts_random_states_back(make: Make) -> None:
    state = torch.get_rng_state()
    before = set(threading.enumerate())
    workload = make()
    workload.block(MIN_S)
    workload.close()
    assert set(threading.enumerate()) <= before
    assert torch.equal(torch.get_rng_state(), state)


def test_time_to_a_trained_model_adds_its_parts() -> None:
    times = BlockTimes(step_s=0.5, num_steps=3, validation_s=2.0, trunk_s=0.1)
    given = {
        "batch_size": RECIPE.batch.global_batch_size,
        "num_train": 40,
        "num_val": 10,
        "epochs": 4.0,
        "num_validations": 4.0,
    }
    time = training_time(times, **given, one_time_s={"compile": 7.0}, checkpoint_s=1.0)
    assert time.one_time_s == {"compile": 7.0, "features": pytest.approx(5.0)}
    assert time.total_s == pytest.approx(7 + 5 + 4 * 5 * 0.5 + 4 * 2 + 1)
    with_views = replace(times, trunk_s=0.3, held_out_trunk_s=0.1)  # for a training example, all
    views = training_time(with_views, **given)
    assert views.one_time_s == {"features": pytest.approx(0.3 * 40 + 0.1 * 10)}
