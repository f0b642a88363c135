"""Laws that hold for every update rule that can be chosen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.optimizers import build_optimizer
from stepladder.optim.state import flatten_state, restore_state
from stepladder.records import to_json

LR = 0.01
every_rule = pytest.mark.parametrize("name", OptimizerName)


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2, dtype=torch.float32))


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_steps):
        x = torch.randn(5, 3, 4, 4, generator=generator)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def reference_sgd(w: Tensor, g: Tensor, decay: float, config: OptimizerConfig) -> Tensor:
    return w - LR * (g + decay * w)


def reference_adam(w: Tensor, g: Tensor, decay: float, config: OptimizerConfig) -> Tensor:
    g = g + decay * w
    return w - LR * g / (g.abs() + config.eps)


def reference_adamw(w: Tensor, g: Tensor, decay: float, config: OptimizerConfig) -> Tensor:
    return w * (1 - LR * decay) - LR * g / (g.abs() + config.eps)


def reference_nadam(w: Tensor, g: Tensor, decay: float, config: OptimizerConfig) -> Tensor:
    """Dozat 2016, "Incorporating Nesterov Momentum into Adam", with its momentum schedule."""
    mu1, mu2 = (config.beta1 * (1 - 0.5 * 0.96 ** (t * 0.004)) for t in (1, 2))
    momentum = (1 - config.beta1) * g
    ahead = g + mu2 / (1 - mu1 * mu2) * momentum
    return w * (1 - LR * decay) - LR * ahead / (g.abs() + config.eps)


REFERENCES: dict[OptimizerName, Callable[[Tensor, Tensor, float, OptimizerConfig], Tensor]] = {
    OptimizerName.SGD: reference_sgd,
    OptimizerName.ADAM: reference_adam,
    OptimizerName.ADAMW: reference_adamw,
    OptimizerName.NADAM: reference_nadam,
}


@every_rule
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_first_step_is_the_closed_form(name: OptimizerName, decay: float) -> None:
    config = OptimizerConfig(name=name, weight_decay=decay, eps=1e-3)
    model = nn.Linear(3, 2).double()
    optimizer = build_optimizer(config, model, lr=LR)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    wanted = {
        "weight": REFERENCES[name](model.weight.data, model.weight.grad, decay, config),
        "bias": REFERENCES[name](model.bias.data, model.bias.grad, 0.0, config),
    }
    optimizer.step()
    for key, weight in model.named_parameters():
        torch.testing.assert_close(weight.data, wanted[key], rtol=1e-6, atol=1e-9)


@every_rule
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_first_steps_on_a_quadratic_lower_it(name: OptimizerName, decay: float) -> None:
    class Bowl(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.tensor([[1.0, -2.0, 3.0]]))

    bowl = Bowl()
    optimizer = build_optimizer(OptimizerConfig(name=name, weight_decay=decay), bowl, lr=LR)
    losses = []
    for _ in range(6):
        loss = bowl.x.square().sum()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(later < earlier for earlier, later in pairwise(losses))


@every_rule
def test_zero_gradient_without_decay_moves_nothing(name: OptimizerName) -> None:
    model = small_model()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = build_optimizer(OptimizerConfig(name=name), model, lr=LR)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@every_rule
def test_zero_gradient_with_decay_shrinks_matrices_alone(name: OptimizerName) -> None:
    model = small_model()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = build_optimizer(OptimizerConfig(name=name, weight_decay=0.1), model, lr=LR)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    for key, weight in model.named_parameters():
        if weight.dim() >= 2:
            assert weight.norm() < before[key].norm()
        else:
            assert torch.equal(weight, before[key])


@every_rule
def test_saved_state_goes_on_bit_for_bit(name: OptimizerName) -> None:
    config = OptimizerConfig(name=name, weight_decay=0.01)
    straight = small_model()
    optimizer = build_optimizer(config, straight, lr=LR)
    take_steps(straight, optimizer, 3)
    weights = {key: value.clone() for key, value in straight.state_dict().items()}
    tensors, facts = flatten_state(optimizer, straight)
    tensors = {key: value.clone() for key, value in tensors.items()}
    facts = json.loads(json.dumps(to_json(facts), allow_nan=False))
    take_steps(straight, optimizer, 3)

    resumed = small_model(seed=9)
    resumed.load_state_dict(weights)
    fresh = build_optimizer(replace(config, momentum=0.5), resumed, lr=123.0)
    restore_state(fresh, resumed, tensors, facts)
    take_steps(resumed, fresh, 3)
    state, wanted = flatten_state(fresh, resumed), flatten_state(optimizer, straight)
    assert state[1] == wanted[1]
    assert state[0].keys() == wanted[0].keys()
    assert all(torch.equal(state[0][key], wanted[0][key]) for key in wanted[0])
    for key, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key])


@every_rule
def test_restored_state_shares_no_memory_with_the_checkpoint(name: OptimizerName) -> None:
    model = small_model()
    optimizer = build_optimizer(OptimizerConfig(name=name), model, lr=LR)
    take_steps(model, optimizer, 1)
    tensors, facts = flatten_state(optimizer, model)
    kept = {key: value.clone() for key, value in tensors.items()}
    other = small_model()
    fresh = build_optimizer(OptimizerConfig(name=name), other, lr=LR)
    restore_state(fresh, other, kept, facts)
    before = {key: value.clone() for key, value in kept.items()}
    take_steps(other, fresh, 2)
    assert all(torch.equal(before[key], kept[key]) for key in kept)


@every_rule
def test_frozen_weights_are_left_out(name: OptimizerName) -> None:
    model = small_model()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    optimizer = build_optimizer(OptimizerConfig(name=name, weight_decay=0.1), model, lr=LR)
    take_steps(model, optimizer, 2)
    tensors, _ = flatten_state(optimizer, model)
    assert torch.equal(before, model[0].weight)
    assert not any(key.startswith("0.") for key in tensors)


def test_every_rule_has_a_reference() -> None:
    assert set(REFERENCES) == set(OptimizerName)
