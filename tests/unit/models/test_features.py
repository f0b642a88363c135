"""A trunk is identified by layers and weights, and a feature pass leaves it unchanged."""

from __future__ import annotations

import torch
from torch import nn

from stepladder.models.features import evaluating, hash_trunk
from stepladder.models.normalize import Normalize


def make_trunk(seed: int = 0, *, mean: float = 120.0, slope: float = 0.1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        Normalize((mean,) * 3, (60.0,) * 3),
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.LeakyReLU(slope),
    )


def test_the_same_trunk_has_the_same_hash_in_any_layout_and_mode() -> None:
    other = make_trunk().to(memory_format=torch.channels_last).eval()
    assert hash_trunk(make_trunk()) == hash_trunk(other)


def test_weights_preprocessing_layers_statistics_and_format_change_the_hash() -> None:
    other_statistics = make_trunk()
    other_statistics[2].running_mean += 1
    trunks = [
        make_trunk(),
        make_trunk(seed=1),
        make_trunk(mean=121.0),
        make_trunk(slope=0.2),
        other_statistics,
        make_trunk().bfloat16(),
    ]
    assert len({hash_trunk(trunk) for trunk in trunks}) == len(trunks)


def test_a_pass_puts_every_training_flag_back() -> None:
    trunk = make_trunk()
    trunk[2].eval()
    before = [module.training for module in trunk.modules()]
    mean = trunk[2].running_mean.clone()
    with evaluating(trunk):
        assert not any(module.training for module in trunk.modules())
        assert not trunk(torch.zeros(2, 3, 5, 5)).requires_grad
    assert [module.training for module in trunk.modules()] == before
    assert torch.equal(trunk[2].running_mean, mean)
