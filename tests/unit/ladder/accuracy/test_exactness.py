"""How closely two recipes compute the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from stepladder.config.choices import MemoryFormat, OptimizerName, Precision, Split, TrainMode
from stepladder.config.recipe import FeaturesConfig, Recipe
from stepladder.errors import UsageError
from stepladder.ladder.accuracy.exactness import (
    WEIGHTS,
    Computed,
    Material,
    compute,
    describe_difference,
)
from stepladder.ladder.limits.guard import TrialFailed
from stepladder.ladder.trial import run_trial
from stepladder.records.ladder import Decision, Exactness
from stepladder.rungs.speed.cached_features import CachedFeatures
from stepladder.task import Task
from stepladder.training.setup.build import open_sources

CPU = torch.device("cpu")


def computed(**numbers: list[float]) -> Computed:
    found = Computed()
    for kind, values in numbers.items():
        found.add(kind, torch.tensor(values))
    return found


def test_equal_numbers_are_equal() -> None:
    same = computed(losses=[1.0, 2.0]), computed(losses=[1.0, 2.0])
    assert describe_difference(*same, Exactness.BITWISE) == "equal"


@pytest.mark.parametrize(
    ("off", "words"), [(3e-6, "same to 1e-5"), (2e-4, "same to 1e-3"), (9e-8, "same to 1e-7")]
)
def test_rounding_is_named_by_the_power_of_ten_above_it(off: float, words: str) -> None:
    before = Computed({"losses": [torch.tensor([0.5, 2.0], dtype=torch.float64)]})
    after = Computed({"losses": [torch.tensor([0.5, 2.0 * (1 + off)], dtype=torch.float64)]})
    assert describe_difference(before, after, Exactness.ROUNDING) == words
    with pytest.raises(TrialFailed, match="different results: losses differ"):
        describe_difference(before, after, Exactness.BITWISE)


@pytest.mark.parametrize("after", [[1.0, 2.01], [1.0, float("nan")], [1.0, 2.0, 3.0]])
def test_more_than_rounding_is_another_result(after: list[float]) -> None:
    with pytest.raises(TrialFailed, match="gradients differ by"):
        describe_difference(
            computed(gradients=[1.0, 2.0]), computed(gradients=after), Exactness.ROUNDING
        )


class Convolution(nn.Module):
    """A bias before BatchNorm, whose gradient is exactly zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 9, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x[:, :, None, None] * torch.ones(3, 3))


def convolving(blobs: type[Task]) -> Task:
    class Convolves(blobs):  # type: ignore[misc,valid-type]
        def build_model(self, recipe: Recipe) -> nn.Module:
            return Convolution()

        def split(self, model: nn.Module) -> None:
            return None

    return Convolves()


def test_a_gradient_that_is_zero_by_algebra_is_rounding(blobs, recipe) -> None:
    task = convolving(blobs)
    material = Material(task=task, sources=open_sources(task))
    plain = replace(recipe, train=TrainMode.ALL)
    last = replace(plain, device=replace(plain.device, memory_format=MemoryFormat.CHANNELS_LAST))
    before, after = (compute(r, material, device=CPU, steps=False) for r in (plain, last))
    biases = [one for one in before.numbers["gradients"] if one.shape == (8,)]
    assert min(float(one.abs().max()) for one in biases) < 1e-6, "a bias before BatchNorm"
    words = describe_difference(before, after, Exactness.ROUNDING)
    assert words.startswith(("same to 1e-", "equal"))


@pytest.mark.parametrize("name", [OptimizerName.ADAMW, OptimizerName.NADAM])
def test_a_fused_optimizer_takes_the_same_steps_where_gradients_are_more_than_rounding(
    blobs, recipe, name: OptimizerName
) -> None:
    """A bias before BatchNorm has a gradient of rounding noise, on which Adam takes full steps."""
    task = convolving(blobs)
    material = Material(task=task, sources=open_sources(task))
    optimizer = replace(recipe.optimizer, name=name)
    batch = replace(recipe.batch, lr=0.01)
    plain = replace(recipe, train=TrainMode.ALL, optimizer=optimizer, batch=batch)
    fused = replace(plain, optimizer=replace(optimizer, fused=True))
    decayed = replace(plain, optimizer=replace(optimizer, weight_decay=0.5))
    before, same, other = (
        compute(r, material, device=CPU, steps=True) for r in (plain, fused, decayed)
    )
    words = describe_difference(before, same, Exactness.ROUNDING)
    assert words.startswith(("same to 1e-", "equal"))
    with pytest.raises(TrialFailed, match="weights after a step differ by"):
        describe_difference(before, other, Exactness.ROUNDING)


def stepped(*steps: tuple[list[float], list[float]]) -> Computed:
    """Return the gradient of a tensor of weights and the tensor after it, by step."""
    found = Computed()
    for slope, weights in steps:
        found.slopes.append([torch.tensor(slope)])
        found.add(WEIGHTS, torch.tensor(weights))
    return found


def test_steps_along_gradients_that_are_rounding_are_not_compared() -> None:
    before = stepped(([1.0, 1e-9], [0.9, 0.51]), ([1.0, 1.0], [0.8, 0.52]))
    after = stepped(([1.0, -1e-9], [0.9, 0.49]), ([1.0, 1.0], [0.8, 0.50]))
    assert describe_difference(before, after, Exactness.ROUNDING) == "equal"
    with pytest.raises(TrialFailed, match="weights after a step differ by"):
        describe_difference(before, after, Exactness.BITWISE)
    known = stepped(([1.0, 0.1], [0.9, 0.49]), ([1.0, 1.0], [0.8, 0.50]))
    same = stepped(([1.0, 0.1], [0.9, 0.51]), ([1.0, 1.0], [0.8, 0.52]))
    with pytest.raises(TrialFailed, match="weights after a step differ by"):
        describe_difference(same, known, Exactness.ROUNDING)


def test_small_numbers_of_a_kind_are_compared_with_its_largest() -> None:
    before = Computed({"gradients": [torch.tensor([1.0]), torch.tensor([1e-8])]})
    after = Computed({"gradients": [torch.tensor([1.0]), torch.tensor([-1e-8])]})
    assert describe_difference(before, after, Exactness.ROUNDING) == "same to 1e-5"
    other = Computed({"gradients": [torch.tensor([1.0]), torch.tensor([1e-4])]})
    with pytest.raises(TrialFailed, match="gradients differ by"):
        describe_difference(before, other, Exactness.ROUNDING)


def test_head_on_features_computes_what_the_whole_model_does(blobs, recipe) -> None:
    task = blobs()
    material = Material(task=task, sources=open_sources(task))
    cached = replace(recipe, features=FeaturesConfig(cached=True))
    for steps in (False, True):
        before, after = (compute(r, material, device=CPU, steps=steps) for r in (recipe, cached))
        assert set(before.numbers) == set(after.numbers)
        assert ("weights after a step" in before.numbers) is steps
        words = describe_difference(before, after, Exactness.ROUNDING)
        assert words.startswith(("same to 1e-", "equal"))


class Centred(nn.Module):
    """Subtracts the mean over the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


@pytest.fixture
def centred(blobs: type[Task]) -> Task:
    """The blobs with a trunk whose features depend on the rest of the batch."""

    class CentredTask(blobs):  # type: ignore[misc,valid-type]
        def build_model(self, recipe: Recipe) -> nn.Module:
            model = super().build_model(recipe)
            model.trunk.append(Centred())
            return model

    return CentredTask()


def test_features_that_training_would_refuse_are_not_compared(centred: Task, recipe) -> None:
    material = Material(task=centred, sources=open_sources(centred))
    compute(recipe, material, device=CPU, steps=False)
    cached = replace(recipe, features=FeaturesConfig(cached=True))
    with pytest.raises(UsageError, match="the rest of its batch"):
        compute(cached, material, device=CPU, steps=False)


def test_a_climb_drops_features_that_training_would_refuse(
    centred: Task, make_lab, profile, recipe
) -> None:
    measured = replace(profile, has_head=True, is_trunk_frozen=True, trunk_s=1e-3, head_step_s=1e-5)
    rung = CachedFeatures()
    assert rung.why_not(measured, recipe) is None
    result = run_trial(
        make_lab(recipe, centred), rung, measured, recipe, rung.predict(measured, recipe)
    )
    assert result.recipe == recipe
    assert result.trial.verdict.decision is Decision.DROPPED
    assert "the rest of its batch" in result.trial.verdict.reason


def test_what_is_learnt_in_16_bits_is_compared_in_32(blobs, recipe) -> None:
    task = blobs()
    material = Material(task=task, sources=open_sources(task))
    half = replace(recipe, device=replace(recipe.device, precision=Precision.BF16))
    found = [compute(one, material, device=CPU, steps=True) for one in (recipe, half)]
    assert describe_difference(*found, Exactness.BITWISE) == "equal"


def test_another_model_is_seen(blobs, recipe) -> None:
    task = blobs()
    material = Material(task=task, sources=open_sources(task))
    before = compute(recipe, material, device=CPU, steps=False)

    class Doubled(type(task)):  # type: ignore[misc]
        def build_model(self, recipe):  # type: ignore[no-untyped-def]
            model = super().build_model(recipe)
            with torch.no_grad():
                model.head.weight.mul_(1.01)
            return model

    other = Doubled()
    after = compute(
        recipe, Material(task=other, sources=open_sources(other)), device=CPU, steps=False
    )
    with pytest.raises(TrialFailed, match="different results"):
        describe_difference(before, after, Exactness.ROUNDING)


class Patches(Dataset):
    """Noise with four channels, 6 × 6."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, idx: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(idx)
        return torch.randn(4, 6, 6, generator=generator), torch.tensor(idx % 3)


class Dropping(nn.Module):
    """Layers that drop: a dropout layer, and a rate stored in another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Dropout(0.5), nn.ReLU())
        self.attend = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        positions = self.conv(x).flatten(2).mT  # (n, 16, 8)
        attended, _ = self.attend(positions, positions, positions, need_weights=False)
        return self.head(attended.mean(1))


def test_dropout_that_draws_in_another_order_is_no_other_result(blobs, recipe) -> None:
    class DroppingTask(blobs):  # type: ignore[misc]
        def build_model(self, recipe: Recipe) -> nn.Module:
            return Dropping()

        def data(self, split: Split) -> Patches | None:
            return Patches() if split is Split.TRAIN else None

        def split(self, model: nn.Module) -> None:
            return None

    task = DroppingTask()
    material = Material(task=task, sources=open_sources(task))
    whole = replace(recipe, train=TrainMode.ALL)
    layout = replace(whole.device, memory_format=MemoryFormat.CHANNELS_LAST)
    before, after = (
        compute(r, material, device=CPU, steps=True) for r in (whole, replace(whole, device=layout))
    )
    words = describe_difference(before, after, Exactness.ROUNDING)
    assert words.startswith(("same to 1e-", "equal"))
