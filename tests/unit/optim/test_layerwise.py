"""LARS, LAMB and Lion: steps computed by hand, and those of timm's ports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.models.torchvision_shim import import_timm
from stepladder.optim.optimizers import build_optimizer

LR = 0.1


class Two(nn.Module):
    """A matrix of two weights, and a vector of two."""

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.tensor([list(weights)], dtype=torch.float64))
        self.vector = nn.Parameter(torch.tensor(list(weights), dtype=torch.float64))


def after(
    name: OptimizerName,
    weights: Sequence[float],
    *grads: Sequence[float],
    lr: float = 1.0,
    **options: Any,
) -> tuple[list[float], list[float]]:
    """Return matrix and vector after a step for each gradient."""
    model = Two(weights)
    optimizer = build_optimizer(OptimizerConfig(name=name, **options), model, lr=lr)
    for grad in grads:
        model.matrix.grad = torch.tensor([list(grad)], dtype=torch.float64)
        model.vector.grad = torch.tensor(list(grad), dtype=torch.float64)
        optimizer.step()
    return model.matrix[0].tolist(), model.vector.tolist()


def test_lars_moves_a_matrix_by_a_share_of_its_norm() -> None:
    """|w| = 5, |g| = 1: the rate is 0.1 x 5; then |w| is 4.5, and 0.9 of the first step remains."""
    options = {"trust_coefficient": 0.1, "momentum": 0.9}
    matrix, vector = after(OptimizerName.LARS, (3, 4), (0.6, 0.8), **options)
    assert matrix == pytest.approx((2.7, 3.6))
    assert vector == pytest.approx((2.4, 3.2))  # plain SGD
    matrix, _ = after(OptimizerName.LARS, (3, 4), (0.6, 0.8), (0.6, 0.8), **options)
    assert matrix == pytest.approx((2.7 - 0.54, 3.6 - 0.72))


def test_lars_adds_decay_to_the_gradient_and_to_the_norm_below() -> None:
    """The rate is 0.1 x 5 / (1 + 0.1 x 5), the gradient (0.9, 1.2); a vector does not decay."""
    options = {"trust_coefficient": 0.1, "weight_decay": 0.1}
    matrix, vector = after(OptimizerName.LARS, (3, 4), (0.6, 0.8), **options)
    assert matrix == pytest.approx((2.7, 3.6))
    assert vector == pytest.approx((2.4, 3.2))


def test_lamb_moves_a_matrix_by_the_learning_rate_times_its_norm() -> None:
    """The step of Adam is (1, -1), of norm 1.41; |w| = 5."""
    matrix, vector = after(OptimizerName.LAMB, (3, 4), (2, -2), lr=LR)
    by = 0.1 * 5 / 2**0.5
    assert matrix == pytest.approx((3 - by, 4 + by))
    assert vector == pytest.approx((2.9, 4.1))  # Adam


def test_lamb_adds_decay_to_the_step_before_its_norm() -> None:
    """(1, 0) + 0.25 (3, 4) = (1.75, 1)."""
    matrix, _ = after(OptimizerName.LAMB, (3, 4), (2, 0), lr=LR, weight_decay=0.25)
    by = 0.1 * 5 / (1.75**2 + 1) ** 0.5
    assert matrix == pytest.approx((3 - 1.75 * by, 4 - by))


@pytest.mark.parametrize("name", [OptimizerName.LARS, OptimizerName.LAMB])
def test_a_matrix_of_zeros_can_move_and_a_gradient_of_zeros_moves_nothing(
    name: OptimizerName,
) -> None:
    matrix, vector = after(name, (0, 0), (1, -1), lr=LR)
    assert matrix == vector == pytest.approx((-0.1, 0.1))
    matrix, _ = after(name, (3, 4), (0, 0), lr=LR)
    assert matrix == [3, 4]


def test_lion_steps_by_the_sign_of_a_momentum() -> None:
    """After (1, -1), a gradient of (-0.05, 0.2) gives 0.9 x 0.1 ± 0.1 x that: (+, +)."""
    matrix, vector = after(OptimizerName.LION, (3, 4), (1, -1), lr=LR, beta2=0.9)
    assert matrix == vector == pytest.approx((2.9, 4.1))
    matrix, _ = after(OptimizerName.LION, (3, 4), (1, -1), (-0.05, 2), lr=LR, beta2=0.9)
    assert matrix == pytest.approx((2.8, 4.0))


def timms(name: str, groups: list[dict[str, Any]], **options: Any) -> torch.optim.Optimizer:
    import_timm()
    from timm import optim

    found: torch.optim.Optimizer = getattr(optim, name)(groups, **options)
    return found


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("name", [OptimizerName.LARS, OptimizerName.LAMB, OptimizerName.LION])
def test_it_takes_the_steps_of_timms_port(name: OptimizerName, decay: float) -> None:
    """With the options by which the port follows the paper.

    By default, timm's LARS and LAMB adapt nothing without decay, and its LAMB clips gradients to a
    norm of 1.
    """
    ports: dict[OptimizerName, dict[str, Any]] = {
        OptimizerName.LARS: {"momentum": 0.9},
        OptimizerName.LAMB: {"max_grad_norm": None, "eps": 1e-8},
        OptimizerName.LION: {"betas": (0.9, 0.999)},
    }
    models = [Two((0.3, -0.7)) for _ in range(2)]
    adapts = {} if name is OptimizerName.LION else {"always_adapt": True}
    groups = [
        {"params": [models[1].matrix], "weight_decay": decay, **adapts},
        {"params": [models[1].vector], "weight_decay": 0.0},
    ]
    own = build_optimizer(OptimizerConfig(name=name, weight_decay=decay), models[0], lr=LR)
    other = timms(name.capitalize(), groups, lr=LR, **ports[name])
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        grads: list[Tensor] = [
            torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((1, 2), (2,))
        ]
        for model in models:
            model.matrix.grad, model.vector.grad = (grad.clone() for grad in grads)
        own.step()
        other.step()
    for weight, expected in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-6, atol=1e-9)
