"""Gradient checkpointing's memory savings are estimated close to the measured ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from stepladder.config.choices import TrainMode, WeightsSource
from stepladder.config.recipe import ModelConfig, Recipe
from stepladder.ladder.paired_rungs import Together, why_nothing_enabled, with_enabled
from stepladder.measuring.facts import num_blocks
from stepladder.measuring.model.memory import peak_bytes
from stepladder.models.trunk import Trunk, build_trunk
from stepladder.records.profile import Profile
from stepladder.rungs.speed.gradient_checkpointing import GradientCheckpointing

Make = Callable[..., Profile]


def transformer() -> Trunk:
    config = ModelConfig(name="vit_tiny_patch16_224", weights=WeightsSource.NONE)
    return build_trunk(config, image_size=96).train()


def bytes_an_example(*, is_on: bool) -> float:
    """Return the slope of the peak memory of forward and backward pass over the batch size."""
    trunk = transformer()
    trunk.set_grad_checkpointing(is_on)

    def step(num: int) -> None:
        trunk.zero_grad()
        trunk(torch.zeros(num, 3, 96, 96)).sum().backward()

    few, more = (peak_bytes(lambda n=n: step(n), torch.device("cpu")) for n in (8, 16))
    return (more - few) / 8


def test_the_blocks_of_a_transformer_are_counted() -> None:
    assert num_blocks(transformer()) == 12
    assert num_blocks(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))) == 0


@pytest.mark.thorough
def test_the_estimate_for_a_transformer_is_near_what_is_measured(make_profile: Make) -> None:
    profile = make_profile(num_conv2d=1, num_blocks=num_blocks(transformer()))
    found = GradientCheckpointing().predict(profile, Recipe()).memory_frac
    measured = bytes_an_example(is_on=True) / bytes_an_example(is_on=False)
    assert found == pytest.approx(measured, rel=0.25)


def test_blocks_that_memory_limits_get_a_larger_batch(make_profile: Make) -> None:
    facts = {"is_trunk_frozen": False, "num_conv2d": 1, "num_blocks": 12}
    sweep = {"step_fixed_s": 0.01, "step_per_example_s": 0.001, "phases_s": {"forward": 0.001}}
    memory = {"memory_by_batch": {16: 5 * 10**9, 32: 10**10}}
    tight, recipe = make_profile(**facts, **sweep, **memory), Recipe(train=TrainMode.ALL)
    assert why_nothing_enabled(GradientCheckpointing(), tight, recipe) is None
    both = with_enabled(GradientCheckpointing(), tight, recipe)
    assert isinstance(both, Together)
    assert both.apply(tight, recipe).batch.global_batch_size > 16
    unknown = replace(tight, num_blocks=0)
    refusal = why_nothing_enabled(GradientCheckpointing(), unknown, recipe)
    assert refusal == "the freed memory is not known"
