"""Simulations equal the formulas where both hold."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from stepladder.planning.simulation.asynchronous import Workers, simulate_workers, throughput_bound
from stepladder.planning.simulation.failures import (
    Failures,
    best_interval_s,
    expected_s,
    simulate_failures,
)
from stepladder.planning.simulation.synchronous import Devices, simulate_steps
from stepladder.planning.step.step import StepInputs, step_time
from stepladder.planning.step.stragglers import Spread
from stepladder.records.profile import Gradient

STEP = StepInputs(
    fixed_s=0.1,
    per_example_s=0.01,
    micro_batch=20,
    update_s=0.02,
    gradients=(Gradient(num_bytes=1_000_000, ready_frac=1.0),),
    all_reduce=lambda num_bytes: num_bytes * 5e-8,
    num_devices=16,
    spread_frac=0.05,
)


@pytest.mark.parametrize("spread", Spread)
def test_synchronous_steps_are_those_of_the_formula(spread: Spread) -> None:
    inputs = replace(STEP, spread=spread)
    found = simulate_steps(inputs, num_steps=4000)
    assert found.mean() == pytest.approx(step_time(inputs).total_s, rel=0.003)


def test_ten_thousand_devices_can_be_simulated() -> None:
    inputs = replace(STEP, num_devices=10_000)
    assert simulate_steps(inputs, num_steps=100).shape == (100,)
    workers = Workers(num=10_000, step_s=1.0, spread_frac=0.1, server_s=1e-6)
    assert simulate_workers(workers, num_updates=50_000).updates_per_s > 1000


def test_a_slow_device_slows_all_unless_it_is_not_waited_for() -> None:
    slow = np.array([3.0, *[1.0] * 15])
    all_of, without = (
        simulate_steps(
            replace(STEP, spread_frac=0.0),
            num_steps=3,
            devices=Devices(slow=slow, num_backups=backups),
        ).mean()
        for backups in (0, 1)
    )
    assert all_of - without == pytest.approx(0.6)


def test_a_backup_worker_cuts_the_tail() -> None:
    step = replace(STEP, num_devices=5)
    quiet_s = step_time(replace(step, spread_frac=0.0)).total_s
    all_of, without = (
        simulate_steps(step, num_steps=4000, devices=Devices(num_backups=backups)).mean() - quiet_s
        for backups in (0, 1)
    )
    assert without < 0.6 * all_of


def test_workers_without_a_bound_reach_the_throughput_of_their_sum() -> None:
    workers = Workers(num=5, step_s=1.0, slow=((0, 3.0),), message_s=0.05, server_s=0.001)
    found = simulate_workers(workers, num_updates=5000)
    assert found.updates_per_s == pytest.approx(throughput_bound(workers), rel=0.01)
    assert found.mean_age == pytest.approx(4.0, rel=0.01)  # of N - 1 others


def test_a_server_limits_the_throughput() -> None:
    workers = Workers(num=50, step_s=1.0, spread_frac=0.1, server_s=0.05)
    found = simulate_workers(workers, num_updates=4000)
    assert throughput_bound(workers) == pytest.approx(20)
    assert found.updates_per_s == pytest.approx(20, rel=0.01)


def test_workers_that_wait_for_each_other_are_synchronous() -> None:
    """The slow worker takes 3 s; then all five have sent."""
    workers = Workers(num=5, step_s=1.0, slow=((0, 3.0),), max_ahead=0)
    found = simulate_workers(workers, num_updates=5000)
    assert found.updates_per_s == pytest.approx(5 / 3, rel=0.01)
    assert found.max_age <= 4


def test_the_same_seed_repeats_a_simulation() -> None:
    workers = Workers(num=4, step_s=1.0, spread_frac=0.3)
    first, second, other = (
        simulate_workers(workers, num_updates=500, seed=seed) for seed in (1, 1, 2)
    )
    assert first == second != other


def test_failures_cost_what_the_formula_says() -> None:
    failures = Failures(
        every_s=3 * 86_400, machines=100, save_s=20, checkpoint_s=600, restart_s=300
    )
    found = simulate_failures(86_400, failures, runs=400)
    assert fmean(found) == pytest.approx(expected_s(86_400, failures), rel=0.02)
    better = replace(failures, checkpoint_s=best_interval_s(failures))
    assert best_interval_s(failures) == pytest.approx((2 * 20 * 2592) ** 0.5)
    assert expected_s(86_400, better) < expected_s(86_400, failures)
