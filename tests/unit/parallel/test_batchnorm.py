"""Which BatchNorm layers can be synchronised, and what a replacement computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stepladder.errors import UsageError
from stepladder.models.torchvision_shim import import_timm
from stepladder.parallel.batchnorm import SyncedBatchNorm, sync_batchnorm
from stepladder.parallel.world import World

TWO = World(rank=0, size=2)
CPU = torch.device("cpu")


def test_the_activation_of_a_layer_of_timm_stays() -> None:
    layers = import_timm().layers
    torch.manual_seed(0)
    model = nn.Sequential(layers.BatchNormAct2d(3, act_layer=nn.ReLU)).eval()
    inputs = torch.randn(4, 3, 2, 2)
    expected = model(inputs)
    sync_batchnorm(model, TWO, CPU)
    assert isinstance(model[0], SyncedBatchNorm)
    assert torch.equal(model(inputs), expected)
    assert expected.min() == 0


class Doubled(nn.BatchNorm2d):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


def test_a_layer_that_computes_something_else_is_refused_by_name() -> None:
    model = nn.ModuleDict({"norm": Doubled(3)})
    with pytest.raises(UsageError, match=r"the layer norm \(Doubled\) has its own forward"):
        sync_batchnorm(model, TWO, CPU)


def test_a_process_alone_keeps_its_layers() -> None:
    model = nn.Sequential(Doubled(3))
    sync_batchnorm(model, World(), CPU)
    assert isinstance(model[0], Doubled)
