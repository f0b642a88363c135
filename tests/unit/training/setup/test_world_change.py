"""The batch, the learning rate and the step of a run on another number of devices."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from stepladder.config.choices import LrRule, OnWorldChange, ScheduleKind
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import BatchConfig, DataConfig, Recipe, ScheduleConfig
from stepladder.optim.schedule import lr_at
from stepladder.training.checkpoint.checkpoint_files import Loaded
from stepladder.training.setup import world_change
from stepladder.training.setup.attempt import Conditions, Start
from stepladder.training.setup.build import Sources
from stepladder.training.setup.world_change import adapt_to_world, batch_facts, moved_step

SAMPLES = 800
SCHEDULE = ScheduleConfig(kind=ScheduleKind.COSINE, max_epochs=10, warmup_steps=20)
JOB = JobConfig(
    recipe=Recipe(
        batch=BatchConfig(global_batch_size=8, lr_rule=LrRule.SQRT, base_batch_size=8, lr=0.01),
        schedule=SCHEDULE,
    ),
    run=RunConfig(on_world_change=OnWorldChange.SCALE_BATCH),
)


@pytest.fixture(autouse=True)
def _samples(monkeypatch: pytest.MonkeyPatch) -> None:
    order = SimpleNamespace(num_samples=SAMPLES)
    monkeypatch.setattr(world_change, "order_of", lambda *_, **__: order)


def begun(worlds: tuple[int, int], **state: Any) -> Start:
    """Return the start of an attempt after 120 steps on other devices, 20 steps into an epoch."""
    position = {"stage": 0, "stage_step": 120, "epoch": 1, "offset": 160}
    conditions = Conditions(
        threads=1,
        world_size=worlds[1],
        device="cpu",
        instruction_set="",
        data={},
        num_examples={},
        versions={},
    )
    saved = {"position": position, "conditions": {"world_size": worlds[0]}, **state}
    loaded = Loaded(name="step-000000120", tensors={}, state=saved, frozen={})
    changed = (f"world size {worlds[0]} -> {worlds[1]}", "threads 1 -> 2")
    start = SimpleNamespace(
        attempt=2, checkpoints=None, loaded=loaded, conditions=conditions, changed=changed
    )
    return Start(**vars(start))


def adapted(worlds: tuple[int, int], job: JobConfig = JOB, **state: Any) -> Any:
    return adapt_to_world(job, begun(worlds, **state), cast("Sources", SimpleNamespace(train=None)))


def test_the_batch_follows_the_devices_and_the_rate_its_rule() -> None:
    job, start, change = adapted((1, 4))
    assert job.recipe.batch.global_batch_size == 32
    said = "1 -> 4 devices: global batch 8 -> 32, learning rate 0.01 -> 0.02 (batch.lr_rule sqrt)"
    assert change.sentence() == said
    assert start.changed == ["threads 1 -> 2"]
    assert start.loaded.state["position"]["offset"] == 160
    assert batch_facts(job, start) == {"first_world_size": 1, "global_batch_size": 32}


def test_without_a_rule_the_rate_stays() -> None:
    plain = replace(JOB.recipe, batch=replace(JOB.recipe.batch, lr_rule=LrRule.NONE))
    _, _, change = adapted((1, 2), replace(JOB, recipe=plain))
    assert "learning rate stays 0.01 (batch.lr_rule none)" in change.sentence()


def test_back_on_the_first_devices_the_batch_is_that_of_the_config() -> None:
    """Also if 8 examples over 2 devices became 12 over 3."""
    job, _, change = adapted((3, 2), first_world_size=2, global_batch_size=12)
    assert job.recipe.batch.global_batch_size == 8
    assert change.batches == (12, 8)
    keeps = replace(JOB, run=RunConfig())
    job, _, change = adapted((3, 3), keeps, first_world_size=2, global_batch_size=12)
    assert (job.recipe.batch.global_batch_size, change.batches) == (8, (12, 8))


def test_the_same_devices_and_the_default_change_nothing() -> None:
    same = adapted((2, 2), first_world_size=1, global_batch_size=16)
    assert same[0].recipe.batch.global_batch_size == 16
    assert same[2] is None
    job, start, change = adapted((1, 2), replace(JOB, run=RunConfig()))
    assert (job.recipe.batch.global_batch_size, change) == (8, None)
    assert start.loaded.state["position"]["stage_step"] == 120


def test_an_epoch_that_is_divided_among_hosts_ends_with_its_batch() -> None:
    """The order of such an epoch depends on the batch."""
    divided = replace(JOB, recipe=replace(JOB.recipe, data=DataConfig(hosts=2)))
    job, start, change = adapted((2, 4), divided)
    assert job.recipe.batch.global_batch_size == 8
    assert start.loaded.state["position"]["stage_step"] == 120
    assert "the global batch stays 8 until a start between two epochs" in change.sentence()
    assert "then it becomes 16" in change.sentence()
    between = {"stage": 0, "stage_step": 200, "epoch": 2, "offset": 0}
    job, _, _ = adapted((2, 4), divided, position=between)
    assert job.recipe.batch.global_batch_size == 16


@pytest.mark.parametrize("size", [4, 16, 100])
def test_the_schedule_resumes_where_it_was(size: int) -> None:
    old, new = (replace(JOB.recipe.batch, global_batch_size=one) for one in (8, size))

    def rate(step: int, batch: BatchConfig) -> float:
        return lr_at(
            step,
            base=1.0,
            schedule=SCHEDULE,
            steps_per_epoch=SAMPLES // batch.global_batch_size,
        )

    for step in (21, 120, 700, 999):
        moved = moved_step(step, SCHEDULE, (old, new), SAMPLES)
        around = [rate(one, new) for one in (moved - 1, moved + 1)]
        assert min(around) <= rate(step, old) <= max(around)
    assert moved_step(7, SCHEDULE, (old, new), SAMPLES) == 7  # of the warm-up


def test_steps_that_are_limited_are_not_moved() -> None:
    limited = replace(SCHEDULE, max_steps=50)
    old, new = (replace(JOB.recipe.batch, global_batch_size=one) for one in (8, 16))
    steps = np.array([moved_step(step, limited, (old, new), SAMPLES) for step in range(50)])
    assert (steps == np.arange(50)).all()
