"""Which BatchNorm layers can be synchronised, and what a replacement computes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


IN_TWO = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from stepladder.parallel.batchnorm import set_counted, sync_batchnorm
from stepladder.parallel.world import World

rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
torch.manual_seed(0)
widths, means = torch.tensor([[1, 2, 9, 0.1, 3], [0, 1e3, -3, 50, 0]])[..., None, None]
whole = torch.randn(7, 5, 3, 4, dtype=torch.float64) * widths + means
wanted = torch.randn(7, 5, 3, 4, dtype=torch.float64)


def train(layer, inputs, targets):
    inputs = inputs.clone().requires_grad_()
    loss = ((layer(inputs) - targets) ** 3).sum()
    loss.backward()
    return inputs.grad


for affine in (True, False):
    for is_flat in (False, True):
        for format in (torch.contiguous_format, torch.channels_last):
            if is_flat and format is torch.channels_last:
                continue
            every, targets = (whole[..., 0, 0], wanted[..., 0, 0]) if is_flat else (whole, wanted)
            kind = nn.BatchNorm1d if is_flat else nn.BatchNorm2d
            alone, single, model = (nn.Sequential(kind(5, affine=affine)) for _ in range(3))
            if affine:
                for layer in (alone[0], single[0], model[0]):
                    layer.weight.data.copy_(torch.arange(1.0, 6))
                    layer.bias.data.copy_(torch.arange(5.0))
            sync_batchnorm(model, World(rank=rank, size=2), torch.device("cpu"))
            alone.double()
            for step in range(3):
                for layer in (alone, single, model):
                    layer.zero_grad()
                grad = train(alone, every, targets)
                lost = (train(single, every.float(), targets.float()) - grad).abs().max()
                part = slice(0, 5) if rank == 0 else slice(5, 7)
                own = every[part].float()
                own_targets = targets[part].float()
                if not is_flat:
                    own = own.contiguous(memory_format=format)
                is_counted = step < 2 or rank == 0
                if step == 2:  # the other rank has no examples: one that does not count
                    part = slice(0, 7)
                    set_counted(model, is_counted)
                    own, own_targets = every.float(), targets.float()
                    if rank == 1:
                        own = own[:1] * 100
                if is_counted:
                    found = train(model, own, own_targets)
                    # float32 costs one process digits as well
                    assert (found - grad[part]).abs().max() < 4 * lost < 0.02 * grad.abs().max()
                else:
                    own.requires_grad_()
                    (0 * model(own).sum()).backward()
                    assert not own.grad.any()
                for name, value in alone.named_buffers():
                    other = dict(model.named_buffers())[name]
                    torch.testing.assert_close(other, value.to(other.dtype), rtol=1e-5, atol=1e-5)
                parameters = (layer.parameters() for layer in (model, single, alone))
                for own_weight, rounded, weight in zip(*parameters):
                    total = own_weight.grad.clone()
                    dist.all_reduce(total)
                    lost = (rounded.grad - weight.grad).abs().max()
                    assert (total - weight.grad).abs().max() < 4 * lost
"""


@pytest.mark.thorough
def test_two_ranks_normalise_as_one_does_and_get_its_gradients(tmp_path: Path) -> None:
    command = [sys.executable, "-c", IN_TWO, str(tmp_path / "meet")]
    running = [
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        for process in running:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in running:
            process.kill()
