from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepladder.config.choices import LrRule, ScheduleKind
from stepladder.config.recipe import BatchConfig, ScheduleConfig
from stepladder.optim.schedule import base_lr, horizon_steps, lr_at


@pytest.mark.parametrize(
    ("rule", "wanted"), [(LrRule.NONE, 0.1), (LrRule.LINEAR, 0.4), (LrRule.SQRT, 0.2)]
)
def test_learning_rate_follows_the_batch(rule: LrRule, wanted: float) -> None:
    batch = BatchConfig(lr=0.1, lr_all=0.2, lr_rule=rule, global_batch_size=64, base_batch_size=16)
    assert math.isclose(base_lr(batch), wanted)
    assert math.isclose(base_lr(batch, is_second_stage=True), 2 * wanted)


def test_warmup_rises_by_equal_parts_to_the_learning_rate() -> None:
    schedule = ScheduleConfig(warmup_steps=4)
    rates = [lr_at(step, base=1.0, schedule=schedule, steps_per_epoch=10) for step in range(6)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_agrees_with_torch() -> None:
    schedule = ScheduleConfig(kind=ScheduleKind.COSINE, max_epochs=4, min_lr_frac=0.1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20, eta_min=0.2)
    for step in range(20):
        ours = lr_at(step, base=2.0, schedule=schedule, steps_per_epoch=5)
        assert math.isclose(ours, theirs.get_last_lr()[0], rel_tol=1e-9)
        optimizer.step()
        theirs.step()


@given(
    step=st.integers(0, 1000),
    warmup=st.integers(0, 60),
    horizon=st.integers(1, 12),
    floor=st.floats(0, 1),
    kind=st.sampled_from(ScheduleKind),
)
def test_rate_stays_between_floor_and_base_and_ends_at_the_floor(
    step: int, warmup: int, horizon: int, floor: float, kind: ScheduleKind
) -> None:
    schedule = ScheduleConfig(
        kind=kind, horizon_epochs=horizon, warmup_steps=warmup, min_lr_frac=floor
    )
    rate = lr_at(step, base=3.0, schedule=schedule, steps_per_epoch=5)
    assert 0 <= rate <= 3.0 * (1 + 1e-12)
    if step >= max(warmup + 1, horizon * 5) and kind is ScheduleKind.COSINE:
        assert math.isclose(rate, 3.0 * floor, abs_tol=1e-12)
    if step >= warmup:
        later = lr_at(step + 1, base=3.0, schedule=schedule, steps_per_epoch=5)
        assert later <= rate * (1 + 1e-12)


def test_horizon_is_what_was_stated_or_else_the_planned_end() -> None:
    assert horizon_steps(ScheduleConfig(max_epochs=6), steps_per_epoch=7) == 42
    assert horizon_steps(ScheduleConfig(max_epochs=6, max_steps=9), steps_per_epoch=7) == 9
    stated = ScheduleConfig(max_epochs=6, max_steps=9, horizon_epochs=2)
    assert horizon_steps(stated, steps_per_epoch=7) == 14
