"""Steps are timed in the form that the predicted trainings will use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepladder.config.recipe import FeaturesConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.ladder.lab import Lab
from stepladder.ladder.trainings.training_cache import Trainings


def cached(recipe: Recipe) -> Recipe:
    return replace(recipe, features=FeaturesConfig(cached=True))


def trainings_of(lab: Lab, *, max_features_s: float) -> Trainings:
    return Trainings(
        material_of=lab.material,
        device=lab.device,
        num_seeds=lab.job.ladder.num_seeds,
        seed=lab.seed,
        folder=lab.cache,
        max_features_s=max_features_s,
    )


@pytest.fixture(name="trunk_sizes")
def _trunk_sizes(blobs: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the sizes of the batches that went through a trunk."""
    sizes: list[int] = []
    build = blobs.build_model

    def build_noting(self: Any, recipe: Recipe) -> nn.Module:
        net: Any = build(self, recipe)
        net.trunk.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
        return net

    monkeypatch.setattr(blobs, "build_model", build_noting)
    return sizes


def test_where_features_are_refused_the_forecast_is_of_steps_through_the_trunk(
    make_lab, recipe: Recipe, trunk_sizes: list[int]
) -> None:
    recipe = cached(recipe)
    trainings = trainings_of(make_lab(recipe), max_features_s=0.0)
    assert not trainings.is_replayed(recipe), "or nothing is tested"
    size = recipe.batch.global_batch_size
    trunk_sizes.clear()
    trainings.train_anew(recipe, trainings.plain(recipe), 0)
    assert size in trunk_sizes, "a training reads the examples"
    trunk_sizes.clear()
    trainings.forecast_s(recipe)
    assert trunk_sizes.count(size) > 1, "so its forecast must do so"


def test_no_more_trainings_are_begun_than_the_forecast_allows(make_lab, recipe: Recipe) -> None:
    lab = make_lab(recipe)
    trainings = trainings_of(lab, max_features_s=100.0)
    assert trainings.is_stacked(recipe), "or nothing is tested"
    most = 24
    by_num = [trainings.forecast_all_s(recipe, num) for num in range(1, most + 1)]
    assert by_num == sorted(by_num)
    assert by_num[-1] <= most * by_num[0] * (1 + 1e-9), "at most as long as one by one"
    for num in (1, 7, most):
        assert trainings.num_within(recipe, most, by_num[num - 1]) >= num
    assert trainings.num_within(recipe, most, 0.99 * by_num[0]) == 0
    assert trainings.num_within(recipe, most, float("inf")) == most


def test_a_loss_that_cannot_be_stacked_is_forecast_one_by_one(
    make_lab, recipe: Recipe, blobs: Any
) -> None:
    class Mean(blobs):
        """The loss depends on the whole batch at once, so heads cannot be separated."""

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            losses = super().loss(model, batch)
            if len(losses) > recipe.batch.global_batch_size:
                raise RuntimeError("more than a batch")
            return losses

    trainings = trainings_of(make_lab(recipe, Mean()), max_features_s=100.0)
    assert trainings.is_stacked(recipe)
    assert trainings.forecast_all_s(recipe, 5) == 5 * trainings.forecast_s(recipe)
    assert not trainings.is_stacked(recipe)


def test_small_heads_learn_in_one_thread_and_leave_the_number_as_it_was(
    make_lab, recipe: Recipe, blobs: Any
) -> None:
    seen: set[int] = set()

    class Noting(blobs):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            seen.add(torch.get_num_threads())
            return super().loss(model, batch)

    recipe = replace(recipe, device=replace(recipe.device, threads=2))
    trainings = trainings_of(make_lab(recipe, Noting()), max_features_s=100.0)
    parts = trainings.plain(recipe)
    seen.clear()
    torch.set_num_threads(2)
    trainings.train_anew(recipe, parts, 0)
    assert seen == {1}
    assert torch.get_num_threads() == 2
