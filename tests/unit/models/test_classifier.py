from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stepladder.config.choices import WeightsSource
from stepladder.config.recipe import HeadConfig, ModelConfig
from stepladder.models.classifier import build_classifier, build_head
from stepladder.models.freezing import freeze, is_frozen, set_training, unfreeze

SMALL = ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE)
HEAD = HeadConfig()


def pixels(n: int = 8, size: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("num_classes", [2, 257])
def test_first_loss_is_near_chance(num_classes: int) -> None:
    model = build_classifier(ModelConfig(), HEAD, seed=0, num_classes=num_classes).eval()
    targets = torch.arange(8) % num_classes
    with torch.no_grad():
        loss = F.cross_entropy(model(pixels()), targets)
    assert abs(loss.item() - math.log(num_classes)) < 0.3


def test_seed_decides_every_weight_and_leaves_torchs_random_state_alone() -> None:
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    first = build_classifier(SMALL, HEAD, seed=5, num_classes=3).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(321)
    again = build_classifier(SMALL, HEAD, seed=5, num_classes=3).state_dict()
    other = build_classifier(SMALL, HEAD, seed=6, num_classes=3).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.1.weight"], other["head.1.weight"])


def test_head_starts_as_torchs_linear_with_that_seed() -> None:
    model = build_classifier(SMALL, HEAD, seed=5, num_classes=3)
    torch.manual_seed(5)
    assert torch.equal(model.head[1].weight, nn.Linear(model.trunk.num_features, 3).weight)


def test_hidden_layer_and_dropout_are_before_the_classifier() -> None:
    head = build_head(HeadConfig(hidden=5, dropout=0.25), num_features=4, num_classes=3)
    kinds = [type(layer).__name__ for layer in head]
    assert kinds == ["Dropout", "Linear", "ReLU", "Linear"]
    assert [tuple(w.shape) for w in head.parameters()] == [(5, 4), (5,), (3, 5), (3,)]
    ones = torch.ones(1, 10_000)
    head.train()
    assert abs((head[0](ones) == 0).float().mean().item() - 0.25) < 0.03


def test_frozen_batch_norm_keeps_its_statistics_through_train() -> None:
    model = build_classifier(SMALL, HEAD, seed=0, num_classes=3)
    freeze(model.trunk)
    before = {name: value.clone() for name, value in model.trunk.state_dict().items()}
    model.train()
    model(pixels()).sum().backward()
    assert all(torch.equal(before[name], v) for name, v in model.trunk.state_dict().items())
    assert model.head.training
    assert all(weight.grad is None for weight in model.trunk.parameters())


def test_learning_batch_norm_moves_its_statistics() -> None:
    model = build_classifier(SMALL, HEAD, seed=0, num_classes=3)
    freeze(model.trunk)
    unfreeze(model.trunk)
    before = model.trunk.model.bn1.running_mean.clone()
    model.train()
    model(pixels())
    assert not torch.equal(before, model.trunk.model.bn1.running_mean)


def test_set_training_keeps_only_the_frozen_parts_still() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    set_training(model, [model[0]])
    assert (model[0].training, model[1].training) == (False, True)


def test_a_module_without_weights_is_not_frozen() -> None:
    assert not is_frozen(nn.ReLU())
    linear = nn.Linear(1, 1)
    assert not is_frozen(linear)
    freeze(linear)
    assert is_frozen(linear)


def test_legacy_xception_trains_with_the_normalisation_of_its_own() -> None:
    torch.set_num_threads(1)
    config = ModelConfig(name="legacy_xception", weights=WeightsSource.NONE)
    model = build_classifier(config, HEAD, seed=0, num_classes=3)
    assert model.trunk.normalize.mean.flatten().tolist() == [127.5] * 3
    assert model.trunk.normalize.std.flatten().tolist() == [127.5] * 3
    model.train()
    F.cross_entropy(model(pixels(2, 96)), torch.tensor([0, 1])).backward()
    grads = [weight.grad for weight in model.parameters()]
    assert all(grad is not None and bool(grad.isfinite().all()) for grad in grads)
