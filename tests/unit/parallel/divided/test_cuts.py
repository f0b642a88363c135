"""Where a model can be cut into stages, which weights each holds, and how stages are chosen."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from stepladder.errors import UsageError
from stepladder.models.torchvision_shim import import_timm
from stepladder.parallel.divided.cuts import (
    Anatomy,
    Cut,
    anatomy_of,
    choose_cuts,
    possible_cuts,
    stage_of_weights,
    timed,
)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, given: Tensor) -> Tensor:
        return given + self.inner(given)


class Net(nn.Module):
    """Two residual blocks, and a scale that is no module."""

    def __init__(self, *, is_tied: bool = False, skips: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([Residual(), Residual()])
        self.scale = nn.Parameter(torch.ones(4))
        self.last = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)
        self.skips = skips
        if is_tied:
            self.last.weight = self.first.weight

    def forward(self, given: Tensor) -> Tensor:
        hidden = start = self.first(given)
        for block in self.blocks:
            hidden = block(hidden)
        result: Tensor = self.last(hidden * self.scale)
        return result + start if self.skips else result


def anatomy(net: nn.Module, *given: int) -> Anatomy:
    inputs = torch.rand(given or (2, 4))
    with torch.no_grad():
        return anatomy_of(net, lambda: net(inputs), num_examples=inputs.shape[0])


def test_a_model_is_cut_between_blocks_and_not_inside_of_a_residual() -> None:
    found = anatomy(Net())
    assert [cut.module for cut in found.cuts] == ["blocks.0", "blocks.1", "last"]
    assert {cut.shape for cut in found.cuts} == {(4,)}
    assert found.cuts[0].num_bytes == 16


def test_a_connection_over_layers_keeps_them_in_one_stage() -> None:
    """The output of the first layer is used again at the end."""
    assert not anatomy(Net(skips=True)).cuts


def test_a_weight_that_two_layers_share_is_in_one_stage() -> None:
    found = anatomy(Net(is_tied=True))
    assert found.cuts
    assert not possible_cuts(found)
    with pytest.raises(UsageError, match="cannot be cut into 2 stages"):
        choose_cuts(found, 2)


def test_each_weight_is_in_the_stage_that_uses_it() -> None:
    net = Net()
    found = anatomy(net)
    cuts = [found.cuts[0], found.cuts[2]]
    stages = stage_of_weights(found, cuts, [name for name, _ in net.named_parameters()])
    assert stages["first.weight"] == 0
    assert stages["unused.weight"] == 0
    assert {stages[f"blocks.{idx}.inner.0.weight"] for idx in (0, 1)} == {1}
    assert stages["scale"] == 1  # right before the last layer begins
    assert stages["last.bias"] == 2


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "resnet18", "mobilenetv3_small_050", "convnext_atto"]
)
def test_networks_of_timm_are_cut_between_their_blocks(name: str) -> None:
    """On the meta device: no weight is needed."""
    with torch.device("meta"):
        net = import_timm().create_model(name, num_classes=3).eval()
        inputs = torch.empty(2, *net.default_cfg["input_size"])
    with torch.no_grad():
        found = anatomy_of(net, lambda: net(inputs), num_examples=2)
    assert len(choose_cuts(found, 2)) == 1
    names = [cut.module for cut in possible_cuts(found)]
    assert sum("block" in name or "layer" in name or "stages" in name for name in names) >= 4


def test_times_grow_along_the_model() -> None:
    net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    inputs = torch.rand(8, 64)
    with torch.no_grad():
        found = anatomy_of(net, lambda: net(inputs), num_examples=8)
        shares = [cut.share for cut in timed(net, found, lambda: net(inputs)).cuts]
    assert shares == sorted(shares)
    assert all(0 < share < 1 for share in shares)


def cuts_at(*shares: float) -> Anatomy:
    cuts = tuple(
        Cut(module=f"m{at}", at=at + 1, shape=(1,), dtype=torch.float32, share=share)
        for at, share in enumerate(shares)
    )
    return Anatomy(cuts=cuts, uses={}, num_operations=len(shares) + 1)


def slowest(shares: list[float]) -> float:
    bounds = [0.0, *shares, 1.0]
    return max(after - before for before, after in pairwise(bounds))


@given(
    shares=st.lists(st.floats(0.01, 0.99), min_size=3, max_size=8, unique=True),
    num_stages=st.integers(2, 4),
)
def test_the_slowest_stage_is_as_fast_as_it_can_be(shares: list[float], num_stages: int) -> None:
    shares = sorted(shares)
    chosen = [cut.share for cut in choose_cuts(cuts_at(*shares), num_stages)]
    assert len(chosen) == num_stages - 1
    least = min(slowest(list(some)) for some in combinations(shares, num_stages - 1))
    assert slowest(chosen) == pytest.approx(least)


def test_a_module_that_is_called_twice_begins_no_stage() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.end = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, given: Tensor) -> Tensor:
            result: Tensor = self.end(self.layer(self.layer(given)))
            return result

    assert [cut.module for cut in anatomy(Twice()).cuts] == ["end"]
