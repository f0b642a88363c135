"""Timing of the trunk's forward pass, and of the head alone on features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stepladder.config.choices import TrainMode
from stepladder.config.recipe import FeaturesConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.measuring.model import head as head_module
from stepladder.measuring.model.head import look_again, measure_trunk, on_features, try_trunk
from stepladder.measuring.profile import take_profile
from stepladder.records.profile import Profile
from stepladder.training.setup.build import open_sources


def test_the_trunk_is_timed_on_a_batch_as_features_are_computed_in(
    pictures: Callable,
    recipe: Callable[..., Recipe],
    open_on: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head_module, "batch_size_on", lambda device: 48)  # as a GPU has its own
    sizes: list[int] = []
    with open_on(recipe(), pictures()) as subject:
        parts = subject.trunk_and_head
        parts[0].register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
        trunk = measure_trunk(subject, budget_s=0.0)
        look_again(subject, trunk, budget_s=0.0)
    assert set(sizes) == {48}
    assert len(trunk.batch.inputs) == 48


def test_making_a_view_is_timed_where_views_are_kept(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    seen: list[int] = []

    class Augmented(pictures):
        is_random_before_head = True

        def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
            seen.append(batch.ids.numel())
            return batch

    kept = recipe(features=FeaturesConfig(cached=True, cached_views=2))
    with open_on(kept, Augmented()) as subject:
        trunk = measure_trunk(subject, budget_s=0.0)
    assert trunk.augment_s > 0
    assert set(seen) == {32}
    seen.clear()
    with open_on(recipe(), Augmented()) as subject:
        trunk = measure_trunk(subject, budget_s=0.0)
    assert trunk.augment_s == 0
    assert seen == []


def test_a_model_without_parts_has_no_trunk_to_time(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    with open_on(recipe(), pictures(has_head=False)) as subject:
        assert measure_trunk(subject, budget_s=0.0) is None


def test_the_shorter_of_two_timings_of_the_trunk_is_used(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    with open_on(recipe(), pictures()) as subject:
        trunk = measure_trunk(subject, budget_s=0.0)
        assert trunk is not None
        disturbed = look_again(subject, replace(trunk, example_s=3600.0), budget_s=0.0)
        undisturbed = look_again(subject, replace(trunk, example_s=1e-12), budget_s=0.0)
    assert 0 < disturbed.example_s < 3600
    assert undisturbed.example_s == 1e-12
    assert disturbed.batch is trunk.batch


def no_room_above(num_examples: int) -> Callable:
    """Return a hook for a module that is out of memory on larger batches."""

    def check(_: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        if len(args[0]) > num_examples:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    return check


def test_a_trunk_that_memory_does_not_hold_is_not_timed(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    with open_on(recipe(), pictures()) as subject:
        first = measure_trunk(subject, budget_s=0.0)
        subject.trunk_and_head[0].register_forward_pre_hook(no_room_above(12))
        assert look_again(subject, first, budget_s=0.0) is first
        assert try_trunk(subject, budget_s=0.0) is None
        with pytest.raises(torch.OutOfMemoryError):
            measure_trunk(subject, budget_s=0.0)
        assert subject.model.training


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_profile_continues_without_a_trunk_that_memory_does_not_hold(
    pictures: Callable, recipe: Callable[..., Recipe], tmp_path: Path, is_cached: bool
) -> None:
    """Unless the job caches features, which use just such batches."""

    class Large(pictures):
        def build_model(self, recipe: Recipe) -> torch.nn.Module:
            model = super().build_model(recipe)
            model.trunk.register_forward_pre_hook(no_room_above(12))
            return model

    def profile(task: Large) -> Profile:
        return take_profile(
            recipe(features=FeaturesConfig(cached=is_cached)),
            task,
            open_sources(task),
            device=torch.device("cpu"),
            cache=tmp_path,
            epochs=1.0,
            num_validations=1.0,
            curve=None,
            budget_s=0.05,
        )

    if is_cached:
        with pytest.raises(torch.OutOfMemoryError):
            profile(Large())
        return
    found = profile(Large())
    assert (found.trunk_s, found.feature_bytes) == (None, None)
    assert found.time.step_s > 0


def test_steps_on_features_train_the_head_alone(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    with open_on(recipe(), pictures()) as subject:
        trunk = measure_trunk(subject, budget_s=0.0)
        head = on_features(subject, trunk)
        assert head is not None
        before = {name: tensor.clone() for name, tensor in subject.model.state_dict().items()}
        batch = head.step_on(head.reader().endless())
        after = subject.model.state_dict()
    assert batch.inputs.shape == (4, 4)
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert moved == {"head.1.weight", "head.1.bias"}


def test_features_of_one_batch_represent_all_examples(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    with open_on(recipe(), pictures(num_train=70)) as subject:
        trunk = measure_trunk(subject, budget_s=0.0)
        head = on_features(subject, trunk)
        rows = [row for batch in head.reader().epoch(0) for row in batch.ids.tolist()]
        val = head.sources.val
    assert sorted(rows) == list(range(70))
    assert val is not None
    assert len(val) == 12


def test_where_the_trunk_learns_it_is_timed_all_the_same(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    with open_on(recipe(train=TrainMode.ALL), pictures()) as subject:
        trunk = measure_trunk(subject, budget_s=0.0)
        assert all(module.training for module in subject.model.modules())
    assert trunk is not None
