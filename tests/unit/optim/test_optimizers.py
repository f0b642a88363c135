from __future__ import annotations

import pytest
import torch
from torch import nn

from stepladder.config.recipe import OptimizerConfig
from stepladder.errors import DataError, UsageError
from stepladder.optim.optimizers import build_optimizer, set_lr
from stepladder.optim.state import flatten_state, restore_state


def test_nothing_to_learn_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="all weights of the model are frozen"):
        build_optimizer(OptimizerConfig(), nn.ReLU(), lr=1.0)


def test_set_lr_reaches_every_group() -> None:
    optimizer = build_optimizer(OptimizerConfig(weight_decay=0.1), nn.Linear(2, 2), lr=1.0)
    set_lr(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


def stepped(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    optimizer = build_optimizer(config, model, lr=0.1)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    return optimizer


def test_state_keeps_the_layout_of_the_weight() -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    tensors, facts = flatten_state(stepped(OptimizerConfig(), model), model)
    plain = {key: value.contiguous() for key, value in tensors.items()}
    fresh = build_optimizer(OptimizerConfig(), model, lr=0.1)
    restore_state(fresh, model, plain, facts)
    assert fresh.state[model.weight]["exp_avg"].stride() == model.weight.stride()


def test_state_of_another_rule_model_or_shape_is_refused_and_changes_nothing() -> None:
    model = nn.Linear(2, 2)
    optimizer = stepped(OptimizerConfig(weight_decay=0.1), model)
    tensors, facts = flatten_state(optimizer, model)
    before = {key: value.clone() for key, value in tensors.items()}
    with pytest.raises(DataError, match="it belongs to SGD"):
        restore_state(optimizer, model, tensors, {**facts, "kind": "SGD"})
    with pytest.raises(DataError, match="other weights"):
        restore_state(optimizer, model, tensors, {**facts, "groups": facts["groups"][:1]})
    with pytest.raises(DataError, match="an unknown weight, 'nobody'"):
        restore_state(optimizer, model, {**tensors, "nobody/step": torch.ones(())}, facts)
    with pytest.raises(DataError, match=r"exp_avg has shape \(3,\)"):
        restore_state(optimizer, model, {**tensors, "bias/exp_avg": torch.ones(3)}, facts)
    after, _ = flatten_state(optimizer, model)
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_weights_without_names_in_the_optimizer_are_looked_up_in_the_model() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    tensors, facts = flatten_state(optimizer, model)
    assert set(tensors) == {"weight/momentum_buffer", "bias/momentum_buffer"}
    restore_state(torch.optim.SGD(model.parameters(), lr=0.1), model, tensors, facts)
