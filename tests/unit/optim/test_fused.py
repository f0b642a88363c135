"""Fused kernels: same steps, same guards."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.master import MasterWeights
from stepladder.optim.optimizers import build_optimizer
from stepladder.optim.table import OPTIMIZERS
from stepladder.training.update import Update

CPU = torch.device("cpu")
every_rule = pytest.mark.parametrize(
    "name", [spec.name for spec in OPTIMIZERS if spec.can_fuse("cpu")]
)
both_guards = pytest.mark.parametrize("is_masked", [False, True])


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def build(model: nn.Module, name: OptimizerName, *, fused: bool = True) -> torch.optim.Optimizer:
    config = OptimizerConfig(name=name, fused=fused, weight_decay=0.01)
    return build_optimizer(config, model, lr=0.1)


def take(model: nn.Module, update: Update, inputs: torch.Tensor, step: int) -> None:
    losses = model(inputs).float().square().sum(dim=1)
    update.backward(losses, weight=1.0)
    update(losses.detach().sum(), step=step, lr=0.1)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


@every_rule
@both_guards
def test_fused_steps_equal_plain_ones_to_rounding(name: OptimizerName, is_masked: bool) -> None:
    models = linear(), linear()
    for model, fused in zip(models, (True, False), strict=True):
        optimizer = build(model, name, fused=fused)
        update = Update(optimizer, device=CPU, is_masked=is_masked, clip_norm=1.0)
        for step in range(5):
            take(model, update, torch.full((2, 3), 0.1 * (step + 1)), step)
    torch.testing.assert_close(weights(models[0]), weights(models[1]), rtol=1e-5, atol=1e-7)
    assert not torch.equal(weights(models[0]), weights(linear()))


@every_rule
@both_guards
def test_a_bad_step_leaves_the_weights(name: OptimizerName, is_masked: bool) -> None:
    model = linear()
    update = Update(build(model, name), device=CPU, is_masked=is_masked)
    take(model, update, torch.ones(2, 3), 0)
    before = weights(model)
    take(model, update, torch.full((2, 3), math.nan), 1)
    take(model, update, torch.ones(2, 3), 2)
    assert torch.equal(weights(model), before)
    assert update.read_first_bad() == 1


@every_rule
def test_a_scaler_skips_overflow_and_else_gives_the_unscaled_step(name: OptimizerName) -> None:
    model, reference = linear(), linear()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    update = Update(build(model, name), device=CPU, scaler=scaler)
    take(model, update, torch.full((2, 3), 1e3), 0)
    assert torch.equal(weights(model), weights(reference))
    assert update.read_scale() == 2.0**126

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    update = Update(build(model, name), device=CPU, scaler=scaler)
    plain = Update(build(reference, name, fused=False), device=CPU)
    for step in range(3):
        take(model, update, torch.ones(2, 3), step)
        take(reference, plain, torch.ones(2, 3), step)
    torch.testing.assert_close(weights(model), weights(reference), rtol=1e-5, atol=1e-7)


@every_rule
def test_half_weights_follow_their_fused_masters(name: OptimizerName) -> None:
    model, reference = linear().half(), linear()
    reference.load_state_dict({key: v.float() for key, v in model.state_dict().items()})
    optimizer = build(model, name)
    update = Update(
        optimizer,
        device=CPU,
        scaler=torch.amp.GradScaler("cpu", init_scale=8.0),
        master=MasterWeights(optimizer),
    )
    plain = Update(build(reference, name, fused=False), device=CPU)
    for step in range(3):
        take(model, update, torch.ones(2, 3).half(), step)
        take(reference, plain, torch.ones(2, 3), step)
    assert all(w.dtype is torch.float16 for w in model.parameters())
    torch.testing.assert_close(weights(model).float(), weights(reference), rtol=1e-2, atol=1e-3)
