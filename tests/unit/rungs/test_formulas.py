"""Formulas compared with numbers that are easy to verify."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest

from stepladder.config.choices import Where
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    FeaturesConfig,
    LoaderConfig,
    Recipe,
    ScheduleConfig,
)
from stepladder.records.profile import Profile
from stepladder.rungs.formulas import (
    batch_doublings,
    checkpoints_s,
    epochs_ratio,
    knee_batch,
    memory_batch,
    predict_replayed,
    predict_time,
    scale_loading,
    scale_model,
    schedule_epochs,
    why_no_data_advice,
    within_schedule,
)

Make: TypeAlias = Callable[..., Profile]
RECIPE = Recipe()  # a batch of 16
FEATURES = Recipe(features=FeaturesConfig(cached=True))


def test_gain_is_of_the_whole_time(make_profile: Make) -> None:
    now = make_profile(step_s=1.0)  # 1,000 s of steps and 200 s of validations
    half = make_profile(step_s=0.5).time
    assert predict_time("rung", now, half).gain == pytest.approx(1200 / 700)


def test_the_model_is_scaled_and_the_rest_of_a_step_is_not(make_profile: Make) -> None:
    profile = make_profile(phases_s={"forward": 0.5, "backward": 0.3, "optimizer": 0.1})
    after = scale_model(profile, RECIPE, 0.5)
    assert after.step_s == pytest.approx(0.2 + 0.4)
    assert after.validation_s == pytest.approx(10)


def test_only_the_trunks_share_of_a_validation_is_scaled(make_profile: Make) -> None:
    profile = make_profile(trunk_s=0.05)  # 200 pictures: 10 of the 20 s
    assert scale_model(profile, RECIPE, 0.5).validation_s == pytest.approx(15)


def test_a_faster_model_waits_for_the_loader(make_profile: Make) -> None:
    profile = make_profile(phases_s={"forward": 1.0}, loader_per_s=20.0)
    assert scale_model(profile, RECIPE, 0.1).step_s == pytest.approx(16 / 20)


def test_with_cached_features_the_model_is_one_time_work(make_profile: Make) -> None:
    profile = make_profile(one_time_s={"features": 20.0}, trunk_s=0.01, phases_s={"forward": 0.9})
    after = scale_model(profile, FEATURES, 0.5)
    assert after.one_time_s == pytest.approx({"features": 20 - 18 * 0.5})  # 1,800 pictures
    assert after.step_s == profile.time.step_s


def test_checkpoints_go_by_the_clock_and_one_stays(make_profile: Make) -> None:
    # 1,200 s of steps and validations, with one checkpoint of 2 s at the end and nine of 1 s
    now = make_profile(checkpoint_s=11.0, one_time_s={"features": 77.0}).time
    assert checkpoints_s(now, loop_s=1200.0, save_s=2.0) == 11
    assert checkpoints_s(now, loop_s=400.0, save_s=2.0) == 2 + 3
    assert checkpoints_s(now, loop_s=0.0, save_s=2.0) == 2
    assert checkpoints_s(now, loop_s=600.0, save_s=None) == 5.5  # of an earlier ledger
    short = make_profile(checkpoint_s=2.0, save_s=2.0)
    found = predict_time("any", short, replace(short.time, step_s=0.1))
    assert found.time is not None
    assert found.time.checkpoint_s == 2
    assert found.gain == pytest.approx(1202 / 302)


def test_what_was_not_replayed_gives_no_gain_and_says_so(make_profile: Make) -> None:
    found = predict_replayed("rung", make_profile(), RECIPE, variant="bf16")
    assert found.gain == 1
    assert found.note.startswith("not measured")


def test_at_the_noise_scale_twice_the_batch_takes_half_as_many_epochs_more() -> None:
    assert epochs_ratio(100, 200, 100.0) == pytest.approx(1.5)
    assert epochs_ratio(100, 200, None) == 1
    assert epochs_ratio(2, 4, 1e9) == pytest.approx(1)


def test_the_knee_reaches_nine_tenths_of_the_throughput() -> None:
    fixed_s, per_example_s = 0.02, 0.001
    batch = knee_batch(fixed_s, per_example_s, None)
    assert batch == pytest.approx(9 * fixed_s / per_example_s)
    assert batch / (fixed_s + per_example_s * batch) == pytest.approx(0.9 / per_example_s)


def test_a_slow_loader_brings_the_knee_forward() -> None:
    batch = knee_batch(0.02, 0.001, 500.0)
    assert batch / (0.02 + 0.001 * batch) == pytest.approx(0.9 * 500)
    assert batch < knee_batch(0.02, 0.001, None)


def test_without_a_fixed_part_no_batch_is_better_than_another() -> None:
    assert knee_batch(0.0, 0.001, None) == 1
    assert knee_batch(0.02, 0.0, None) == math.inf


def test_memory_is_a_line_in_the_batch(make_profile: Make) -> None:
    line = {10: 200, 20: 300}
    profile = make_profile(memory_by_batch=line, free_memory_bytes=1000)
    assert memory_batch(profile) == pytest.approx(70)  # 100 + 10 b = 800
    assert memory_batch(make_profile(memory_by_batch={10: 200})) == math.inf


def test_doublings_end_at_the_knee_the_limit_or_eight_steps(make_profile: Make) -> None:
    profile = make_profile(step_fixed_s=0.01, step_per_example_s=0.001)  # knee at 90
    assert batch_doublings(profile, RECIPE, limit=math.inf) == (32, 64, 128)
    assert batch_doublings(profile, RECIPE, limit=100) == (32, 64)
    few = make_profile(step_fixed_s=0.01, step_per_example_s=0.001, num_train=300)
    assert batch_doublings(few, RECIPE, limit=math.inf) == (32,)


def test_no_doubling_leaves_a_single_example_at_the_end(make_profile: Make) -> None:
    profile = make_profile(step_fixed_s=0.01, step_per_example_s=0.001, num_train=33 * 64 + 1)
    assert batch_doublings(profile, RECIPE, limit=math.inf) == (128,)


def test_more_threads_help_up_to_the_step_itself(make_profile: Make) -> None:
    profile = make_profile(device="cuda", num_cores=4, step_s=1.6, replay_host_s=0.5)
    one = Recipe(loader=LoaderConfig(threads=1))
    with_two = scale_loading(profile, one, threads=2, cpu_s=0.1, cpu_s_after=0.1)
    assert with_two.step_s == pytest.approx(0.8)
    with_four = scale_loading(profile, one, threads=4, cpu_s=0.1, cpu_s_after=0.1)
    assert with_four.step_s == pytest.approx(0.5)


def test_on_a_cpu_reading_takes_its_share_of_the_cores(make_profile: Make) -> None:
    profile = make_profile(num_cores=2, step_s=1.6, replay_host_s=0.2)
    one = Recipe(loader=LoaderConfig(threads=1))
    with_two = scale_loading(profile, one, threads=2, cpu_s=0.1, cpu_s_after=0.1)
    assert with_two.step_s == pytest.approx(0.2 + 16 * 0.1 / 2)


def test_no_step_is_faster_than_one_whose_batches_are_ready(make_profile: Make) -> None:
    one = Recipe(loader=LoaderConfig(threads=1))
    free = {"threads": 2, "cpu_s": 2 / 16, "cpu_s_after": 0.0}  # a batch of 16 took 2 s
    profile = make_profile(num_cores=2, replay_host_s=0.9)
    assert scale_loading(profile, one, **free).step_s == pytest.approx(0.9)
    noisy = make_profile(num_cores=2, replay_host_s=1.1)
    assert scale_loading(noisy, one, **free).step_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("host_s", "waited_s", "device", "agree"),
    [
        (0.60, 0.38, "cuda", True),  # 0.40 and 0.38
        (0.60, 0.20, "cuda", False),
        (0.60, 0.00, "cuda", False),
        (0.97, 0.01, "cuda", True),  # both small
        (0.60, 0.20, "cpu", True),  # readers use cores, too
        (0.95, 0.40, "cpu", False),  # waited long, but gained nothing without the wait
        (1.04, 0.02, "cpu", True),
    ],
)
def test_two_estimates_of_the_wait_for_data_have_to_agree(
    make_profile: Make, host_s: float, waited_s: float, device: str, agree: bool
) -> None:
    phases_s = {"forward": 0.5} | ({"data_wait": waited_s} if waited_s else {})
    profile = make_profile(replay_host_s=host_s, phases_s=phases_s, device=device)
    reason = why_no_data_advice(profile, RECIPE)
    assert (reason is None) == agree
    held = Recipe(data=DataConfig(where=Where.MEMORY))
    assert why_no_data_advice(profile, held) is None, "reading is one-time work"
    assert why_no_data_advice(make_profile(replay_host_s=host_s), RECIPE) is None, "unknown"


def test_held_in_memory_reading_is_one_time_work(make_profile: Make) -> None:
    profile = make_profile(one_time_s={"load": 10.0})
    held = Recipe(data=DataConfig(where=Where.MEMORY), loader=LoaderConfig(threads=1))
    after = scale_loading(profile, held, threads=2, cpu_s=0.1, cpu_s_after=0.1)
    assert after.one_time_s == pytest.approx({"load": 5})
    assert after.step_s == profile.time.step_s


def test_of_the_pass_for_features_only_reading_is_scaled(make_profile: Make) -> None:
    profile = make_profile(one_time_s={"features": 20.0}, trunk_s=0.01)  # 18 s of it the trunk
    after = scale_loading(profile, FEATURES, threads=2, cpu_s=0.1, cpu_s_after=0.05)
    assert after.one_time_s == pytest.approx({"features": 19})


def test_a_schedule_ends_by_epochs_or_by_steps(make_profile: Make) -> None:
    now = make_profile().time  # ten epochs of 100 steps
    by_epochs = Recipe(schedule=ScheduleConfig(max_epochs=12))
    by_steps = Recipe(schedule=ScheduleConfig(max_epochs=12, max_steps=1150))
    assert schedule_epochs(now, by_epochs) == 12
    assert schedule_epochs(now, by_steps) == pytest.approx(11.5)
    assert within_schedule(15.0, now, by_steps) == pytest.approx(11.5)
    assert within_schedule(11.0, now, by_steps) == 11
    shorter = Recipe(schedule=ScheduleConfig(max_steps=500))
    assert within_schedule(15.0, now, shorter) == 10, "the known number"


def test_a_batch_beyond_the_examples_has_no_doubling(make_profile: Make) -> None:
    profile = make_profile(step_fixed_s=0.01, step_per_example_s=0.001)
    large = Recipe(batch=BatchConfig(global_batch_size=1600))
    assert batch_doublings(profile, large, limit=math.inf) == ()
