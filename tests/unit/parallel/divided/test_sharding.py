"""Which parts of a model are put together one at a time."""

from __future__ import annotations

import torch
from torch import nn

from stepladder.models.sharded_tensors import assign_, is_sharded, whole
from stepladder.parallel.divided.sharding import units_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)


class Net(nn.Module):
    def __init__(self, *, is_tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList([Block() for _ in range(6)])
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 100, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight


def test_blocks_are_units_and_small_layers_are_not() -> None:
    net = Net()
    assert units_of(net) == [net.embed, *net.blocks, net.head]


def test_a_weight_of_two_layers_is_in_no_unit() -> None:
    net = Net(is_tied=True)
    assert units_of(net) == list(net.blocks)


def test_a_large_part_is_divided_into_its_parts() -> None:
    trunk = nn.Sequential(nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
    net = nn.Sequential(trunk, nn.Linear(64, 2))
    assert units_of(net) == [trunk[0], trunk[1][0], trunk[1][1]]


def test_tensors_of_one_process_are_left_as_they_are() -> None:
    tensor, other = torch.ones(3), torch.arange(3.0)
    assert not is_sharded(tensor)
    assert whole(tensor) is tensor
    assign_(tensor, other)
    assert torch.equal(tensor, other)


def test_attention_is_one_unit_as_it_uses_weights_that_it_does_not_call() -> None:
    layer = nn.TransformerEncoderLayer(64, 2, dim_feedforward=64)
    units = units_of(nn.Sequential(layer))
    assert layer.self_attn in units
    assert layer.self_attn.out_proj not in units
