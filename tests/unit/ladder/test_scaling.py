"""Predictions of other layouts follow from the parts of a measured one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from stepladder.config.recipe import BatchConfig, Recipe, ScheduleConfig
from stepladder.ladder.scaling import (
    Costs,
    Layout,
    counts_up_to,
    layouts_to_predict,
    measured_point,
    predicted_point,
)
from stepladder.measuring.ranks.ablation import Ablation, Arm
from stepladder.measuring.saving import SaveTimes
from stepladder.records.scaling import Part, ScalingPoint
from stepladder.rungs import Gpu

COSTS = Costs(
    recipe=Recipe(
        batch=BatchConfig(global_batch_size=10),
        schedule=ScheduleConfig(max_epochs=4, max_steps=None),
    ),
    every_s=math.inf,
    gpus=(
        Gpu(
            name="T4",
            half_flops_per_s=65e12,
            fp32_flops_per_s=8e12,
            bytes_per_s=3e11,
            price_per_hour=3600.0,
        ),
    ),
    device_name="Tesla T4",
)
NUM_BLOCKS = 8


def ablation(num: int, **steps_s: float) -> Ablation:
    """Return measurements in which each block took the same time; a step of one device takes 8 s.

    Args:
        steps_s: of each arm.
    """
    fastest = steps_s.pop("fastest", 0.0)
    return Ablation(
        num=num,
        arms_s={Arm(name): (value,) * NUM_BLOCKS for name, value in steps_s.items()},
        fastest_s=(fastest,) * NUM_BLOCKS if num > 1 else (),
        start_s=0.0 if num == 1 else 8.0,
        validation_s=4.0 / num,
        saves=SaveTimes(first_s=4.0, later_s=1.0),
        num_train=100,
        exchanged_bytes=0,
        use=(),
    )


ONE = ablation(1, loop=9.0, read=8.5, whole=8.0)
TWO = ablation(2, whole=8.0, part=5.0, fastest=5.5, apart=6.0, repeated=7.0, read=7.25, loop=7.5)


def points() -> list[ScalingPoint]:
    return [measured_point(ONE, ONE, COSTS), measured_point(TWO, ONE, COSTS)]


def test_each_difference_of_the_arms_is_a_part() -> None:
    assert TWO.parts_s() == {
        Part.COMPUTE: 4.0,
        Part.MICRO_BATCH: 1.0,
        Part.CONTENTION: 0.5,
        Part.STRAGGLERS: 0.5,
        Part.COMMUNICATION: 1.0,
        Part.DATA: 0.25,
        Part.UNEXPLAINED: 0.25,
    }
    assert ONE.parts_s() == {Part.COMPUTE: 8.0, Part.DATA: 0.5, Part.UNEXPLAINED: 0.5}


def test_an_arm_below_an_earlier_one_adds_nothing_and_is_not_counted_twice() -> None:
    noisy = ablation(
        2, whole=8.0, part=5.0, fastest=4.5, apart=5.25, repeated=5.0, read=6.0, loop=5.75
    )
    parts = noisy.parts_s()
    assert parts[Part.CONTENTION] == parts[Part.COMMUNICATION] == 0
    assert parts[Part.STRAGGLERS] == 0  # a step that exchanges contains the wait for them
    assert parts[Part.DATA] == 1.0
    assert parts[Part.UNEXPLAINED] == -0.25
    assert sum(parts.values()) == noisy.step_s


def test_an_epoch_has_its_serial_work_and_its_price() -> None:
    one, two = points()
    assert one.epoch_s == 10 * 9.0 + 4.0 + 4.0 / 4
    assert two.epoch_s == 10 * 7.5 + 2.0 + 4.0 / 4 + 8.0 / 4
    assert two.serial_s == {"validation": 2.0, "checkpoint": 1.0, "start": 2.0}
    assert two.cost_per_epoch == pytest.approx(2 * two.epoch_s)
    assert two.cost == pytest.approx(4 * 2 * two.epoch_s)
    pair = replace(COSTS.gpus[0], devices=2, price_per_hour=5400.0)
    at_pair = measured_point(TWO, ONE, COSTS._replace(gpus=(*COSTS.gpus, pair)))
    assert at_pair.cost_per_epoch == pytest.approx(1.5 * two.epoch_s)
    assert one.efficiency.estimate == 1
    expected = (40 / two.epoch_s) / (80 / one.epoch_s)
    assert two.efficiency.estimate == pytest.approx(expected)
    assert two.efficiency.estimate == pytest.approx(one.epoch_s / two.epoch_s / 2)


def predicted(at: Layout, *, network_gbit_s: float = 10.0) -> ScalingPoint:
    found = predicted_point(
        at, points(), {1: ONE, 2: TWO}, COSTS, network_gbit_s=network_gbit_s, is_cuda=False
    )
    assert found is not None
    assert sum(found.parts_s.values()) == pytest.approx(found.epoch_s)
    return found


def test_more_devices_of_a_host_extrapolate_each_part() -> None:
    four = predicted(Layout(1, 4))
    assert four.parts_s[Part.COMPUTE] == pytest.approx(20.0)
    assert four.parts_s[Part.MICRO_BATCH] == pytest.approx(10 * 2 * (1 - 1 / 4))
    assert four.parts_s[Part.COMMUNICATION] == pytest.approx(10 * 1.5)
    assert four.parts_s[Part.DATA] == pytest.approx(10 * 0.125)
    assert four.serial_s == {"validation": 1.0, "checkpoint": 1.0, "start": 2.0}
    assert not four.is_measured


def test_hosts_of_one_device_share_nothing_but_the_network() -> None:
    apart = predicted(Layout(2, 1))
    assert apart.parts_s[Part.CONTENTION] == 0
    assert apart.parts_s[Part.COMMUNICATION] == pytest.approx(10 * 2 * 1e-4)  # two empty messages
    assert apart.parts_s[Part.STRAGGLERS] == pytest.approx(10 * 0.5)


def test_the_numbers_of_devices_are_powers_of_two_and_the_largest() -> None:
    assert counts_up_to(1) == (1,)
    assert counts_up_to(4) == (1, 2, 4)
    assert counts_up_to(6) == (1, 2, 4, 6)


def test_absent_devices_and_as_many_hosts_are_predicted() -> None:
    found = layouts_to_predict((1, 2, 4), (1, 2), (Layout(8, 1), Layout(1, 2)))
    assert found == [(2, 1), (1, 4), (2, 2), (4, 1), (8, 1)]
