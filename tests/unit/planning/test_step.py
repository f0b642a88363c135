"""The time of a step on several devices, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepladder.planning.step.step import Driver, StepInputs, buckets, step_time
from stepladder.planning.step.stragglers import Spread, slowest_frac, slowest_of
from stepladder.records.profile import Gradient
from stepladder.stats.maxima import expected_max

MB = 1_000_000
HALVES = (Gradient(num_bytes=10 * MB, ready_frac=0.5), Gradient(num_bytes=10 * MB, ready_frac=1.0))
STEP = StepInputs(
    fixed_s=0.1,
    per_example_s=0.02,
    micro_batch=10,
    backward_frac=2 / 3,
    gradients=HALVES,
    all_reduce=lambda num_bytes: num_bytes / (100 * MB),  # 0.1 s a bucket
    num_devices=2,
    local_devices=2,
)


def test_one_device_takes_its_pass_and_the_update() -> None:
    found = step_time(replace(STEP, num_devices=1, update_s=0.05))
    assert found.parts == pytest.approx(
        {"compute": 0.35, "communication": 0, "stragglers": 0, "driver": 0, "data": 0}
    )


def test_the_first_bucket_travels_while_the_second_is_computed() -> None:
    """Backward begins at 0.1 s; buckets are full at 0.2 and 0.3 s, and take 0.1 s each."""
    assert step_time(STEP).communication == pytest.approx(0.1)
    slow = replace(STEP, all_reduce=lambda num_bytes: num_bytes / (50 * MB))  # 0.2 s each
    assert step_time(slow).communication == pytest.approx(0.3)  # 0.2 + 0.4 - 0.3
    assert step_time(replace(STEP, hides=False)).communication == pytest.approx(0.2)


def test_hidden_messages_slow_the_backward_pass() -> None:
    """0.2 s of messages make a backward pass of 0.2 s 10 % longer."""
    assert step_time(replace(STEP, contention_frac=0.1)).communication == pytest.approx(0.12)


def test_only_the_last_pass_sends() -> None:
    found = step_time(replace(STEP, accumulation=3))
    assert (found.compute, found.communication) == pytest.approx((0.9, 0.1))


def test_buckets_are_closed_by_the_gradient_that_fills_them() -> None:
    some = [
        Gradient(num_bytes=size * MB, ready_frac=at)
        for size, at in ((2, 0.1), (20, 0.4), (9, 0.6), (1, 1.0))
    ]
    found = buckets(some, first_bytes=MB, most_bytes=25 * MB)
    assert [(one.num_bytes // MB, one.ready_frac) for one in found] == [
        (2, 0.1),
        (29, 0.6),
        (1, 1.0),
    ]


def test_the_slowest_of_the_devices_counts() -> None:
    found = step_time(replace(STEP, num_devices=8, spread_frac=0.1))
    assert found.stragglers == pytest.approx(0.3 * 0.1 * expected_max(8))


def test_a_driver_takes_time_for_each_device_and_each_example() -> None:
    driver = Driver(device_s=0.01, example_s=0.001)
    assert step_time(replace(STEP, driver=driver)).driver == pytest.approx(0.02 + 0.02)
    assert step_time(replace(STEP, driver=driver, num_devices=1)).driver == 0


def test_devices_of_a_host_share_its_loader() -> None:
    """20 examples of a host at 25 ms are half a second; 0.4 s of it are a step."""
    found = step_time(replace(STEP, loader_example_s=0.025))
    assert (found.data, found.total_s) == pytest.approx((0.1, 0.5))
    assert step_time(replace(STEP, loader_example_s=0.025, local_devices=1)).data == 0


def test_the_largest_of_draws_is_that_of_a_simulation() -> None:
    rng = np.random.default_rng(0)
    normal = 1 + 0.05 * rng.standard_normal((20_000, 16)).max(axis=1).mean()
    assert 1 + slowest_frac(16, 0.05) == pytest.approx(normal, abs=1e-3)
    width = np.sqrt(np.log1p(0.2**2))
    draws = np.exp(width * rng.standard_normal((20_000, 16)) - width**2 / 2)
    lognormal = 1 + slowest_frac(16, 0.2, Spread.LOGNORMAL)
    assert lognormal == pytest.approx(draws.max(axis=1).mean(), rel=0.03)
    measured = [1.0, 2.0, 3.0, 4.0]
    assert slowest_of(measured, 1) == 2.5
    pairs = np.maximum.outer(measured, measured).mean()
    assert slowest_of(measured, 2) == pytest.approx(pairs)
