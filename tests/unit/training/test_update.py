"""Updates: clipping, and no weight changes with or after a non-finite value."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from stepladder.training.update import Update

CPU = torch.device("cpu")


def make(is_masked: bool, *, momentum: float = 0.9, clip_norm: float | None = None) -> tuple:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=momentum)
    return model, Update(optimizer, device=CPU, clip_norm=clip_norm, is_masked=is_masked)


def take(
    model: nn.Module, update: Update, inputs: torch.Tensor, step: int, lr: float = 0.1
) -> None:
    losses = model(inputs).square().sum(dim=1)
    update.backward(losses, weight=1.0)
    update(losses.detach().sum(), step=step, lr=lr)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


@pytest.mark.parametrize("is_masked", [False, True])
def test_good_steps_equal_the_plain_optimizer(is_masked: bool) -> None:
    model, update = make(is_masked)
    reference, _ = make(False)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        x = torch.full((2, 3), 0.1 * (step + 1))
        take(model, update, x, step)
        reference(x).square().sum().backward()
        plain.step()
        plain.zero_grad()
    assert torch.equal(weights(model), weights(reference))
    assert update.read_first_bad() is None


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_bad_step_and_all_after_it_change_nothing(is_masked: bool, poison: float) -> None:
    model, update = make(is_masked)
    good = torch.ones(2, 3)
    take(model, update, good, 0)
    before = weights(model)
    take(model, update, good * poison, 1)
    assert torch.equal(weights(model), before)
    take(model, update, good, 2)
    take(model, update, good * poison, 3)
    assert torch.equal(weights(model), before)
    assert update.read_first_bad() == 1


@pytest.mark.parametrize("is_masked", [False, True])
def test_a_finite_loss_with_a_gradient_that_is_not_changes_nothing(is_masked: bool) -> None:
    model, update = make(is_masked)
    before = weights(model)
    for param in model.parameters():
        param.grad = torch.full_like(param, math.nan)
    update(torch.tensor(0.0), step=7, lr=0.1)
    assert torch.equal(weights(model), before)
    assert update.read_first_bad() == 7


def test_clipping_scales_the_gradient_to_the_norm() -> None:
    model, update = make(False, momentum=0.0, clip_norm=1.0)
    before = weights(model)
    take(model, update, torch.full((4, 3), 10.0), 0, lr=0.5)
    moved = (weights(model) - before).norm()
    assert moved == pytest.approx(0.5, rel=1e-4)
    assert update.read_grad_norm() > 10


def test_the_learning_rate_of_the_call_is_used() -> None:
    model, update = make(False, momentum=0.0)
    before = weights(model)
    take(model, update, torch.ones(1, 3), 0, lr=0.0)
    assert torch.equal(weights(model), before)


def test_a_scaler_skips_overflow_and_lowers_its_scale() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    update = Update(optimizer, device=CPU, scaler=scaler)
    before = weights(model)
    take(model, update, torch.full((2, 3), 1e3), 0)
    assert torch.equal(weights(model), before)
    assert update.read_scale() == 2.0**126
    assert update.read_first_bad() is None  # overflow of the scaled gradient is not divergence


def test_a_scaler_gives_the_unscaled_step() -> None:
    model, _ = make(False)
    reference, plain = make(False, momentum=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update = Update(optimizer, device=CPU, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    x = torch.ones(2, 3)
    take(model, update, x, 0)
    take(reference, plain, x, 0)
    assert torch.allclose(weights(model), weights(reference), rtol=1e-6)
    again = Update(optimizer, device=CPU, scaler=torch.amp.GradScaler("cpu"))
    again.restore(update.state())
    assert again.read_scale() == 1024.0
