"""Real steps, replayed ones, and the loader alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stepladder.config.choices import OptimizerName, WeightsSource, Where
from stepladder.config.recipe import DataConfig, ModelConfig, OptimizerConfig, Recipe
from stepladder.measuring.steps import (
    difference,
    input_bytes,
    measure_steps,
)
from stepladder.measuring.subject import Subject
from stepladder.task.image_classification import ImageClassification
from stepladder.training.clock import Timeline

NUM_STEPS_BEFORE = 4
"""Two to warm up and two on replayed batches, where steps are slow for the time there is."""


class FakeTime:
    """A clock that moves only on request."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s

    def move(self, seconds: float) -> None:
        self.s += seconds


class Ticking(FakeTime):
    """A clock that moves by a millisecond per reading."""

    def __call__(self) -> float:
        self.move(1e-3)
        return self.s


class Counted(TorchDispatchMode):
    """Within this mode, each torch operation takes a second."""

    def __init__(self, time: FakeTime) -> None:
        super().__init__()
        self.time = time

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.time.move(1.0)
        return func(*args, **(kwargs or {}))


def hide_in_steps(subject: Subject, take_time: Callable[[], None]) -> None:
    """Spend time in each step outside of all phases."""
    step = subject.parts.step

    def late(*args: Any, **options: Any) -> None:
        take_time()
        step(*args, **options)

    subject.parts = replace(subject.parts, step=late)


def test_phases_add_up_and_carry_advice(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    with open_on(recipe(), pictures()) as subject:
        subject.clock.now = Ticking()
        found = measure_steps(subject, budget_s=0.1)
    assert set(found.phases_s) == {
        *("data_wait", "to_device", "augment", "forward", "backward", "optimizer")
    }
    named_s = sum(found.phases_s.values())
    assert 0 < named_s <= found.step_s
    assert found.unexplained_frac == pytest.approx(1 - named_s / found.step_s, abs=0.01)


@pytest.mark.parametrize(("hidden_s", "has_advice"), [(0.2, False), (0.05, True)])
def test_a_fifth_of_the_time_hidden_in_an_unnamed_place_refuses_advice(
    hidden_s: float,
    has_advice: bool,
    pictures: Callable,
    recipe: Callable[..., Recipe],
    open_on: Callable,
) -> None:
    time, task = FakeTime(), pictures()
    task.on_loss = lambda batch: time.move(1 - hidden_s)
    with open_on(recipe(), task) as subject:
        hide_in_steps(subject, lambda: time.move(hidden_s))
        subject.clock.now = time
        found = measure_steps(subject, budget_s=0.1)
    assert found.unexplained_frac == pytest.approx(hidden_s, rel=0.1)
    assert (found.no_advice_because is None) == has_advice
    assert has_advice or "outside all named phases" in found.no_advice_because


def test_every_operation_of_a_step_is_in_a_phase(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    time, task = FakeTime(), pictures()
    task.logs = {"ones": torch.ones(4)}
    with open_on(recipe(), task) as subject:
        reader = subject.reader()
        batches = reader.endless()
        subject.step_on(batches)
        subject.clock.now = time
        before = subject.clock.host()
        with Counted(time):
            for _ in range(3):
                subject.step_on(batches)
        part = difference(before, subject.clock.host())
        batches.close()
        reader.close()
    assert part.wall_s >= 3 * 10
    assert part.unexplained_s == pytest.approx(0, abs=1e-6)


def test_one_gap_caused_by_another_process_is_measured_again(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    time, task = FakeTime(), pictures()
    listed = itertools.count()

    def interrupt() -> None:
        if next(listed) == NUM_STEPS_BEFORE:
            time.move(100.0)

    task.on_loss = lambda batch: time.move(1.0)
    with open_on(recipe(), task) as subject:
        hide_in_steps(subject, interrupt)
        subject.clock.now = time
        found = measure_steps(subject, budget_s=0.1)
    assert next(listed) == NUM_STEPS_BEFORE + 4 + 4 + 2 + 2  # real ones, and once more
    assert found.no_advice_because is None
    assert found.unexplained_frac < 0.01


def test_a_slow_dataset_is_found_by_replaying_its_batches(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    time, task = FakeTime(), pictures(num_train=72)
    task.on_loss = lambda batch: time.move(2.0)
    with open_on(recipe(), task) as subject:
        subject.sources.train.default_threads = 0  # in this thread: a batch of 4 takes 8 s
        task.on_item = lambda: time.move(2.0)
        subject.clock.now = time
        found = measure_steps(subject, budget_s=0.1)
    assert found.step_s == pytest.approx(10)
    assert found.phases_s["data_wait"] == pytest.approx(8)
    assert found.replay_host_s == pytest.approx(2)
    assert found.replay_device_s == pytest.approx(2)
    assert found.loader_per_s == pytest.approx(0.5)
    assert found.reading is not None
    assert found.reading.cpu_s == pytest.approx(2)
    assert found.no_advice_because is None


def test_eight_real_batches_are_replayed(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    with open_on(recipe(), pictures()) as subject:
        found = measure_steps(subject, budget_s=0.05)
    assert len(found.batches) == 8
    rows = [row for batch in found.batches for row in batch.ids.tolist()]
    assert len(set(rows)) == len(rows) == 32
    data = subject.sources.train.read(np.array(rows[:4]))
    assert torch.equal(found.batches[0].inputs, data.inputs)


def test_short_batches_count_as_parts_of_a_step(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    time, task = FakeTime(), pictures(num_train=2)  # each epoch is half a step of four
    task.on_loss = lambda batch: time.move(1.0)
    with open_on(recipe(), task) as subject:
        subject.clock.now = time
        found = measure_steps(subject, budget_s=0.05)
    assert found.replay_device_s == pytest.approx(2)
    assert found.phases_s["forward"] == pytest.approx(2)
    assert found.step_s == pytest.approx(2)


def test_the_time_to_load_pictures_into_memory_is_reported(
    tmp_path: Path, build_store: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    folder = tmp_path / "store"
    build_store(folder)
    held = recipe(
        data=DataConfig(store=folder, where=Where.MEMORY),
        model=ModelConfig(name="test_byobnet", weights=WeightsSource.NONE),
        optimizer=OptimizerConfig(name=OptimizerName.SGD),
    )
    with open_on(held, ImageClassification(folder, held)) as subject:
        found = measure_steps(subject, budget_s=0.01)
    assert found.load_s is not None
    assert found.load_s > 0


def test_the_part_of_a_timeline_between_two_readings() -> None:
    before = Timeline(wall_s=10, phases_s={"forward": 4})
    after = Timeline(wall_s=15, phases_s={"forward": 6, "backward": 1})
    part = difference(before, after)
    assert part.wall_s == 5
    assert part.phases_s == {"forward": 2, "backward": 1}


def test_bytes_of_nested_inputs_add_up() -> None:
    tokens, mask = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.bool)
    assert input_bytes({"tokens": tokens, "more": [mask, (mask,)]}) == 48 + 6 + 6
    assert input_bytes("text") == 0
