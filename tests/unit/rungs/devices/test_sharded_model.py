"""When a model is divided among devices, and what the ladder says where it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.devices.parallelism_page import DEVICES, JOBS, MEMORY, Job, size_of
from stepladder.config.choices import Precision, TrainMode
from stepladder.config.recipe import BatchConfig, DeviceConfig, Recipe
from stepladder.parallel.divided.choice import Kind, choose
from stepladder.records.model_size import ModelSize
from stepladder.records.profile import Devices, Profile
from stepladder.rungs.devices.sharded_model import ShardedModel, choice_of

MB = 10**6
SIZE = ModelSize(
    weights=100 * MB,
    trained=100 * MB,
    states=200 * MB,
    kept=MB,
    unit=10 * MB,
    cut=MB // 2,
    num_cuts=9,
)
RECIPE = Recipe(
    train=TrainMode.ALL, batch=BatchConfig(global_batch_size=16), device=DeviceConfig(count=2)
)
TWO = Devices(num=2, start_s=3.0, share_step_s=0.5, exchange_fixed_s=0.0, exchange_byte_s=1e-9)


@pytest.fixture(name="profile")
def _profile(make_profile: Callable[..., Profile]) -> Profile:
    """Two GPUs of 300 MB, of which a copy of the model needs 408 MB."""
    return make_profile(
        size=SIZE, device="cuda", free_memory_bytes=300 * MB, devices=TWO, is_trunk_frozen=False
    )


def test_what_does_not_fit_is_sharded(profile: Profile) -> None:
    rung = ShardedModel()
    assert rung.why_not(profile, RECIPE) is None
    after = rung.apply(profile, RECIPE)
    assert after.device.sharded
    assert rung.why_not(profile, after) == "already on"


def test_memory_and_traffic_are_predicted(profile: Profile) -> None:
    """Of 400 MB half stays, besides two units and the activations of 8 examples."""
    found = ShardedModel().predict(profile, RECIPE)
    assert found.memory_frac == pytest.approx((200 + 20 + 8) / (400 + 8))
    assert found.inputs["sent_divided"] == 1.5 * found.inputs["sent_with_copies"]
    assert found.time is not None
    assert found.time.step_s == pytest.approx(profile.time.step_s + 0.5 * 100 * MB * 1e-9)


def test_copies_that_fit_are_left_and_both_byte_counts_are_said(profile: Profile) -> None:
    roomy = replace(profile, free_memory_bytes=1000 * MB)
    assert ShardedModel().why_not(roomy, RECIPE) == (
        "copies fit, with 408 MB of 1 GB; copies send 100 MB a step, a pipeline 16 MB"
    )


def test_processes_of_one_machine_share_its_memory(profile: Profile) -> None:
    on_cpu = replace(profile, device="cpu", free_memory_bytes=800 * MB)
    assert ShardedModel().why_not(on_cpu, RECIPE) is None
    assert choice_of(on_cpu, RECIPE).kind is Kind.SHARDED


def test_a_larger_batch_than_fits_is_a_reason(profile: Profile) -> None:
    """The model fits, but not with the batch that other rungs want."""
    tight = replace(
        profile,
        free_memory_bytes=420 * MB,
        memory_by_batch={16: 400 * MB, 32: 800 * MB},
        step_fixed_s=1.0,
        step_per_example_s=0.001,
    )
    assert ShardedModel().why_not(tight, RECIPE) is None


def test_it_is_sharded_for_a_larger_batch_and_predicted_so(profile: Profile) -> None:
    roomy = replace(profile, free_memory_bytes=420 * MB)
    assert choice_of(roomy, RECIPE).kind is Kind.DATA
    assert ShardedModel().predict(roomy, RECIPE).memory_frac == pytest.approx(228 / 408)
    assert ShardedModel().apply(roomy, RECIPE).device.sharded


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (replace(RECIPE, device=DeviceConfig()), "on two devices, a copy needs 408 MB"),
        (replace(RECIPE, device=DeviceConfig(count=2, compile=True)), "tried with torch.compile"),
        (replace(RECIPE, device=DeviceConfig(count=2, precision=Precision.FP16)), "with fp16"),
        (replace(RECIPE, train=TrainMode.HEAD_THEN_ALL), "and this recipe has two"),
    ],
    ids=["one device", "compiled", "fp16", "two stages"],
)
def test_where_it_cannot_be_tried_it_says_why(profile: Profile, recipe: Recipe, words: str) -> None:
    assert words in str(ShardedModel().why_not(profile, recipe))


@pytest.mark.parametrize("job", JOBS[1:4], ids=lambda job: job.name)
def test_the_ladder_gives_the_answer_of_the_page(profile: Profile, job: Job) -> None:
    """For models of timm; the kind of the page is what the rung would apply."""
    size = size_of(job.name)
    expected = choose(size, devices=DEVICES, batch=job.batch, memory=MEMORY).kind
    batch = replace(RECIPE.batch, global_batch_size=job.batch)
    recipe = replace(RECIPE, batch=batch, device=DeviceConfig(count=DEVICES))
    measured = replace(profile, size=size, free_memory_bytes=MEMORY)
    if expected is Kind.DATA:
        assert "copies fit" in str(ShardedModel().why_not(measured, recipe))
        return
    after = ShardedModel().apply(measured, recipe).device
    named = {Kind.SHARDED: "sharded", Kind.TENSOR: "tensor_parallel"}
    assert after.division == named[expected]  # type: ignore[index]
