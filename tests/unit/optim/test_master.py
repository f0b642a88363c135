from __future__ import annotations

import torch
from torch import nn

from stepladder.config.choices import OptimizerName, WeightsSource
from stepladder.config.recipe import HeadConfig, ModelConfig, OptimizerConfig
from stepladder.models.classifier import build_classifier
from stepladder.optim.master import MasterWeights, halve_
from stepladder.optim.optimizers import build_optimizer
from stepladder.optim.state import flatten_state, restore_state

SGD = OptimizerConfig(name=OptimizerName.SGD, momentum=0.0)
NADAM = OptimizerConfig()


def half_linear(value: float = 1.0) -> nn.Linear:
    layer = nn.Linear(4, 3)
    nn.init.constant_(layer.weight, value)
    return layer.half()


def test_updates_too_small_for_half_add_up_in_the_master() -> None:
    model = half_linear()
    optimizer = build_optimizer(SGD, model, lr=1e-4)
    master = MasterWeights(optimizer)
    for _ in range(10):
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        master.take_grads_()
        optimizer.step()
        master.give_weights_()
        master.zero_grad()
    assert (torch.tensor(1.0).half() - 1e-4).item() == 1.0  # one alone is lost in half precision
    assert torch.equal(model.weight, torch.full((3, 4), 1 - 1e-3).half())


def test_steps_agree_with_plain_fp32_to_half_rounding() -> None:
    half, full = half_linear(0.3), nn.Linear(4, 3)
    full.load_state_dict({key: value.float() for key, value in half.state_dict().items()})
    optimizer, reference = (build_optimizer(NADAM, model, lr=1e-2) for model in (half, full))
    master = MasterWeights(optimizer)
    for step in range(5):
        for ours, theirs in zip(half.parameters(), full.parameters(), strict=True):
            ours.grad = torch.full_like(ours, 0.5 + step)
            theirs.grad = torch.full_like(theirs, 0.5 + step)
        master.take_grads_()
        optimizer.step()
        master.give_weights_()
        reference.step()
    for ours, theirs in zip(half.parameters(), full.parameters(), strict=True):
        assert torch.equal(ours, theirs.half())


def test_scaled_gradients_are_unscaled_in_fp32_and_an_overflow_skips_the_step() -> None:
    model = half_linear()
    optimizer = build_optimizer(SGD, model, lr=1.0)
    master = MasterWeights(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.zeros(()))
    for grad, wanted in ((512.0, 0.5), (float("inf"), 0.5)):
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, grad)
        master.take_grads_()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        master.give_weights_()
        master.zero_grad()
        assert torch.equal(model.weight, torch.full((3, 4), wanted).half())


def test_master_copies_are_part_of_the_saved_state() -> None:
    model = half_linear()
    optimizer = build_optimizer(NADAM, model, lr=1e-4)
    master = MasterWeights(optimizer)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    master.take_grads_()
    optimizer.step()
    tensors, facts = flatten_state(optimizer, model)
    assert tensors["weight/master"].dtype == torch.float32
    other = half_linear(0.0)
    fresh = build_optimizer(NADAM, other, lr=1e-4)
    again = MasterWeights(fresh)
    restore_state(fresh, other, {key: value.clone() for key, value in tensors.items()}, facts)
    state, _ = flatten_state(fresh, other)
    assert all(torch.equal(state[key], tensors[key]) for key in tensors)
    again.give_weights_()
    master.give_weights_()
    assert torch.equal(other.weight, model.weight)


def test_halved_classifier_keeps_norms_and_pixel_statistics_in_fp32() -> None:
    config = ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE)
    model = halve_(build_classifier(config, HeadConfig(), seed=0, num_classes=3))
    x = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    logits = model(x)
    assert logits.dtype == torch.float16
    assert model.trunk.normalize.mean.dtype == torch.float32
    assert model.trunk.model.bn1.running_mean.dtype == torch.float32
    assert model.head[1].weight.dtype == torch.float16
    logits.float().sum().backward()
    optimizer = build_optimizer(SGD, model, lr=0.1)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    master = MasterWeights(optimizer)
    master.take_grads_()
    optimizer.step()
    master.give_weights_()
    moved = [name for name, weight in model.named_parameters() if (weight != before[name]).any()]
    assert {"trunk.model.conv_stem.weight", "trunk.model.bn1.weight", "head.1.weight"} <= {*moved}


def test_plain_half_gives_half_results_with_exact_statistics() -> None:
    config = ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE)
    model = build_classifier(config, HeadConfig(), seed=0, num_classes=3)
    exact = model.trunk.normalize.mean.clone()
    model.half().eval()
    assert torch.equal(model.trunk.normalize.mean, exact)
    assert model(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).dtype == torch.float16
    assert model.float()(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).dtype == torch.float32
