"""Operations of a model per example."""

from __future__ import annotations

from collections.abc import Callable

from stepladder.config.recipe import Recipe
from stepladder.measuring.model.operations import estimate_noise_scale


def test_the_noise_scale_is_estimated_on_equal_batches_alone(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    # a quarter of 68 fits batches of 16, of which there are four, with four examples left over
    task, sizes = pictures(num_train=68), []
    task.on_loss = lambda batch: sizes.append(batch.ids.numel())
    with open_on(recipe(), task) as subject:
        estimate_noise_scale(subject, None, example_s=1e-9, budget_s=1.0)
    assert sizes == [2] * (4 * 8)
