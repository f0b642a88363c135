"""The noise scale, compared with closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.measuring.model.noise_scale import NoiseScale, measure_noise_scale, noise_scale
from stepladder.task import Task

CPU = torch.device("cpu")


class Quadratic(Task):
    """Loss |w - x|^2 / 2 with x ~ N(0, sigma^2 I): the gradient is w - x.

    At w of norm 1 in d dimensions: |G|^2 = 1 and tr(Sigma) = d sigma^2.
    """

    def build_model(self, recipe: Recipe) -> nn.Module:
        raise NotImplementedError

    def data(self, split: Split) -> None:
        return None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return 0.5 * (model.weight - batch.inputs).square().sum(1)


class Point(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((d,), d**-0.5))


def batches(num: int, size: int, d: int, sigma: float) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    x = sigma * torch.randn(num, size, d, generator=generator)
    return [Batch(rows, None, torch.arange(size)) for rows in x]


def test_a_quadratic_gives_trace_over_squared_gradient() -> None:
    d, sigma = 50, 0.6  # tr(Sigma) / |G|^2 = 50 x 0.36 / 1 = 18
    found = measure_noise_scale(
        Quadratic(), Point(d), batches(200, 32, d, sigma), num_examples=10**6, small=4, device=CPU
    )
    assert found.examples == pytest.approx(18, rel=0.1)
    assert found.unknown_because is None


def test_the_estimate_is_of_means_and_not_the_mean_of_estimates() -> None:
    # pairs (|G_b|^2, |G_B|^2): means 3 and 2 at b = 1, B = 2: G^2 = (4 - 3) / 1, tr = 1 / 0.5
    assert noise_scale([5, 1], [2, 2], small=1, large=2) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("small_norms", "large_norms"),
    [
        ([4.0], [1.0]),  # signal (2 - 4) / 1 below 0
        ([1.0], [1.5]),  # noise below 0
        ([1.0], [1.0]),  # no noise at all
        ([], []),
    ],
)
def test_it_is_unknown_where_a_mean_is_not_above_zero(
    small_norms: list[float], large_norms: list[float]
) -> None:
    assert noise_scale(small_norms, large_norms, small=1, large=2) is None


def test_it_is_unknown_where_the_larger_batch_exceeds_a_quarter_of_the_examples() -> None:
    def at(num_examples: int) -> NoiseScale:
        some = batches(20, 32, 50, 0.6)
        return measure_noise_scale(
            Quadratic(), Point(50), some, num_examples=num_examples, small=4, device=CPU
        )

    assert at(128).examples is not None
    few = at(127)
    assert few.examples is None
    assert "25 % of the training examples" in (few.unknown_because or "")


def test_uninformative_gradients_are_reported() -> None:
    same = batches(2, 8, 5, 0.0)  # without noise
    found = measure_noise_scale(Quadratic(), Point(5), same, num_examples=100, small=2, device=CPU)
    assert found.examples is None
    assert "not above 0" in (found.unknown_because or "")


class Skipping(Quadratic):
    """Loss of two numbers; parts whose first example is odd use only the second."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        a, b = model.a, model.b
        used = (b,) if batch.inputs[0] % 2 else (a, b)
        return torch.stack([2 * weight.expand(batch.ids.numel()) for weight in used]).sum(0)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.zeros(())) for _ in range(2))


def test_a_weight_that_a_part_does_not_use_has_no_gradient_there() -> None:
    rows = torch.tensor([0, 0, 1, 1])
    found = measure_noise_scale(
        Skipping(), Pair(), [Batch(rows, None, rows)], num_examples=100, small=2, device=CPU
    )
    # gradients (2, 2) and (0, 2), (1, 2) together: squares 6 and 5, so G^2 = (20 - 12) / 2 = 4, and
    # tr = (6 - 5) / (1/2 - 1/4) = 4
    assert found.examples == pytest.approx(1.0)


def test_the_weights_and_their_gradients_stay_as_they_were() -> None:
    point = Point(5)
    before = point.weight.detach().clone()
    measure_noise_scale(
        Quadratic(), point, batches(2, 8, 5, 1.0), num_examples=100, small=2, device=CPU
    )
    assert torch.equal(point.weight, before)
    assert point.weight.grad is None
