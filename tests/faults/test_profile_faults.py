"""Profiles of jobs that fail on the way: out of memory, a data error, a loss that raises."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from stepladder.config.choices import Split, TrainMode, Where
from stepladder.config.recipe import BatchConfig, DataConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.errors import DataError
from stepladder.measuring import profile as profile_module
from stepladder.measuring import sweep as sweep_module
from stepladder.measuring.profile import take_profile
from stepladder.measuring.subject import Subject, open_subject
from stepladder.measuring.sweep import measure_sweep
from stepladder.records.profile import Profile
from stepladder.task import Task
from stepladder.training.setup.build import open_sources

CPU = torch.device("cpu")
RECIPE = Recipe(
    train=TrainMode.ALL,
    data=DataConfig(where=Where.STREAM),
    batch=BatchConfig(global_batch_size=4),
)


class Rows(Dataset):
    def __init__(self, on_item: Callable[[int], None]) -> None:
        self.on_item = on_item

    def __len__(self) -> int:
        return 200

    def __getitem__(self, idx: int) -> tuple[Tensor, Tensor]:
        self.on_item(idx)
        return torch.full((3,), float(idx)), torch.tensor(0.0)


class Fragile(Task):
    """A regression whose loss and data fail on request."""

    def __init__(self) -> None:
        self.on_loss: Callable[[Batch], None] = lambda batch: None
        self.on_item: Callable[[int], None] = lambda idx: None

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Linear(3, 1)

    def data(self, split: Split) -> Rows | None:
        return Rows(lambda idx: self.on_item(idx)) if split is Split.TRAIN else None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        self.on_loss(batch)
        return 1e-6 * (model(batch.inputs).squeeze(1) - batch.targets).square()


def profile(task: Task) -> Profile:
    return take_profile(
        RECIPE,
        task,
        open_sources(task),
        device=CPU,
        cache=Path("not there"),
        epochs=1.0,
        num_validations=0.0,
        curve=None,
        budget_s=0.05,
    )


def no_room_above(num_examples: int) -> Callable[[Batch], None]:
    def check(batch: Batch) -> None:
        if batch.ids.numel() > num_examples:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    return check


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_batch_sizes_that_do_not_fit_in_memory_are_left_out() -> None:
    task = Fragile()
    with open_subject(RECIPE, task, open_sources(task), device=CPU) as subject:
        subject.task.on_loss = no_room_above(10)  # type: ignore[attr-defined]
        sweep = measure_sweep(subject, (4, 8, 32), budget_s=0.0)
    assert set(sweep.step_s) == {4, 8}
    assert set(sweep.memory_bytes) == {4, 8}
    assert sweep.per_example_s is not None


def test_where_one_size_fits_there_is_no_line() -> None:
    task = Fragile()
    with open_subject(RECIPE, task, open_sources(task), device=CPU) as subject:
        subject.task.on_loss = no_room_above(4)  # type: ignore[attr-defined]
        sweep = measure_sweep(subject, (4, 8, 32), budget_s=0.0)
    assert set(sweep.step_s) == {4}
    assert (sweep.fixed_s, sweep.per_example_s) == (None, None)


def test_a_profile_continues_without_the_batches_that_do_not_fit() -> None:
    task = Fragile()
    task.on_loss = no_room_above(4)
    found = profile(task)
    assert max(found.step_by_batch_s) <= 4
    assert found.replay_host_s is not None
    assert found.replay_host_s > 0


def hangs_where(holds: Callable[[int], bool], begun: list[int]) -> Callable[[Batch], None]:
    def hang(batch: Batch) -> None:
        if holds(batch.ids.numel()):
            begun.append(batch.ids.numel())
            time.sleep(60)
            begun.append(0)

    return hang


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a probe little more than the predicted time."""
    monkeypatch.setattr(sweep_module, "PROBE_S", 0.3)
    monkeypatch.setattr(profile_module, "PROBE_S", 0.3)
    monkeypatch.setattr(profile_module, "MIN_DEADLINE_S", 0.3)


@pytest.mark.usefixtures("impatient")
def test_batch_sizes_that_hang_are_left_out_like_those_that_do_not_fit() -> None:
    task, begun = Fragile(), list[int]()
    alarm, (left_s, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    with open_subject(RECIPE, task, open_sources(task), device=CPU) as subject:
        subject.task.on_loss = hangs_where(lambda num: num > 10, begun)  # type: ignore[attr-defined]
        sweep = measure_sweep(subject, (4, 8, 16, 32), budget_s=0.0)
    assert begun == [16], "it is interrupted, and no larger one is started"
    assert set(sweep.step_s) == {4, 8}
    assert set(sweep.memory_bytes) == {4, 8}
    assert sweep.per_example_s is not None
    assert signal.getsignal(signal.SIGALRM) is alarm
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 1) == (left_s > 1), "as it was before"


@pytest.mark.usefixtures("impatient")
def test_a_profile_continues_without_the_probes_that_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "choose_sizes", lambda *_, **__: (1, 4, 8))
    task, begun = Fragile(), list[int]()
    task.on_loss = hangs_where(lambda num: num > 4 or num == 2, begun)
    state = torch.get_rng_state()
    found = profile(task)
    assert begun == [8, 2, 2, 2], "the size, the sweep, the replays and the noise scale"
    assert max(found.step_by_batch_s) <= 4
    assert (found.op_replays, found.noise_scale) == ({}, None)
    assert found.replay_host_s is not None
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.usefixtures("impatient")
def test_a_step_that_hangs_later_costs_the_sweep_and_not_the_profile() -> None:
    task, seen = Fragile(), list[int]()

    def hang(batch: Batch) -> None:
        seen.append(batch.ids.numel())
        if len(seen) == 4:  # one step of each size, and one more
            time.sleep(60)

    with open_subject(RECIPE, task, open_sources(task), device=CPU) as subject:
        subject.task.on_loss = hang  # type: ignore[attr-defined]
        sweep = measure_sweep(subject, (4, 8, 32), budget_s=0.0)
    assert seen == [4, 8, 32, 4]
    assert (sweep.step_s, sweep.memory_bytes, sweep.fixed_s) == ({}, {}, None)


def fail_on_the_third_step(task: Fragile) -> type[Exception]:
    seen: list[int] = []

    def fail(batch: Batch) -> None:
        seen.append(1)
        if len(seen) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")

    task.on_loss = fail
    return torch.OutOfMemoryError


def fail_in_the_data(task: Fragile) -> type[Exception]:
    def fail(idx: int) -> None:
        raise OSError("the disk is gone")

    task.on_item = fail
    return DataError


@pytest.mark.parametrize("sabotage", [fail_on_the_third_step, fail_in_the_data])
def test_an_error_on_the_way_leaves_random_states_and_threads_untouched(
    sabotage: Callable[[Fragile], type[Exception]],
) -> None:
    task = Fragile()
    sources = open_sources(task)
    error = sabotage(task)
    torch.manual_seed(5)
    random.seed(5)
    before, python = torch.get_rng_state(), random.getstate()
    with pytest.raises(error):
        take_profile(
            RECIPE,
            task,
            sources,
            device=CPU,
            cache=Path("not there"),
            epochs=1.0,
            num_validations=0.0,
            curve=None,
            budget_s=0.05,
        )
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == python
    assert torch.get_num_threads() == 1


def test_readers_of_a_failed_profile_are_closed() -> None:
    import threading

    task = Fragile()
    sources = open_sources(task)
    fail_on_the_third_step(task)
    before = set(threading.enumerate())
    with (
        pytest.raises(torch.OutOfMemoryError),
        open_subject(RECIPE, task, sources, device=CPU) as subject,
    ):
        _take_steps(subject)
    assert set(threading.enumerate()) <= before


def _take_steps(subject: Subject) -> None:
    from stepladder.measuring.steps import measure_steps

    measure_steps(subject, budget_s=0.05)
