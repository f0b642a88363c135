"""Single operations, timed alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepladder.config.choices import MemoryFormat, OptimizerName, Precision
from stepladder.config.recipe import DeviceConfig, OptimizerConfig
from stepladder.measuring.model import replays
from stepladder.measuring.model.replays import (
    choose_times,
    replay_fused_optimizer,
    replay_operations,
    variants_of,
)
from stepladder.optim.table import OPTIMIZERS

CPU = torch.device("cpu")
X = torch.randn(2, 3, 16, 16)


def model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 2)
    )


def replay(net: nn.Module, x: torch.Tensor = X, **changes: object) -> dict[str, float]:
    options = {"variants": {}, "times": 2, "folds": None, **changes}
    found = replay_operations(
        net, lambda: net(x), now=DeviceConfig(), device=CPU, budget_s=0.0, **options
    )
    assert found is not None
    assert found.now_s > 0
    return dict(found.ratios)


def test_only_what_is_not_on_yet_is_a_variant() -> None:
    now = DeviceConfig()
    names = variants_of(now, has_conv=True, has_bf16=True)
    assert set(names) == {"channels_last", "bf16", "channels_last+bf16"}
    both = names["channels_last+bf16"]
    assert both.memory_format is MemoryFormat.CHANNELS_LAST
    assert both.precision is Precision.BF16
    assert variants_of(both, has_conv=True, has_bf16=True) == {}
    assert set(variants_of(now, has_conv=False, has_bf16=True)) == {"bf16"}
    assert set(variants_of(now, has_conv=True, has_bf16=False)) == {"channels_last"}


def test_a_gpu_without_bf16_is_replayed_in_fp16() -> None:
    names = variants_of(DeviceConfig(), has_conv=True, has_bf16=False, is_cuda=True)
    assert set(names) == {"channels_last", "fp16", "channels_last+fp16"}
    assert names["fp16"].precision is Precision.FP16
    assert names["channels_last+fp16"].memory_format is MemoryFormat.CHANNELS_LAST
    newer = variants_of(DeviceConfig(), has_conv=False, has_bf16=True, is_cuda=True)
    assert set(newer) == {"bf16"}


def test_each_variant_gets_a_ratio() -> None:
    net = model()
    variants = variants_of(DeviceConfig(), has_conv=True, has_bf16=True)
    ratios = replay(net, variants=variants)
    assert set(ratios) == {*variants, "pointwise"}
    assert min(ratios.values()) > 0


def test_gradients_are_replayed_and_none_is_left() -> None:
    net = model().train()
    before = [tensor.clone() for tensor in net.state_dict().values()]
    ratios = replay(net.requires_grad_(True))
    assert 0 < ratios["pointwise"] < 1
    assert all(weight.grad is None for weight in net.parameters())
    after = net.state_dict().values()
    moved = [
        name
        for name, old in zip(net.state_dict(), before, strict=True)
        if not torch.equal(net.state_dict()[name], old)
    ]
    assert len(list(after)) == len(before)
    # the recording itself is a forward pass in training mode; replays run on copies
    assert {name.rpartition(".")[2] for name in moved} <= {
        *("running_mean", "running_var", "num_batches_tracked")
    }


def test_folding_takes_a_batchnorm_after_a_convolution_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = model().eval().requires_grad_(False)
    assert replay(net, folds=net)["folded"] > 0
    monkeypatch.setattr(replays, "fused_convolution", lambda *_: None)  # as without oneDNN
    assert 0 < replay(net, folds=net)["folded"] < 1


def test_what_folding_makes_one_operation_is_replayed_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[nn.Module, nn.Module]] = []
    calls: list[int] = []

    class Counted(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(len(x))
            return super().forward(x)

    def fuse(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
        made.append((conv, norm))
        return Counted(3, 8, 3).requires_grad_(False)

    monkeypatch.setattr(replays, "fused_convolution", fuse)
    net = model().eval().requires_grad_(False)
    assert "folded" in replay(net, folds=net)
    assert calls, "the one that was made is used"
    assert [norm for _, norm in made] == [net[1]]
    assert all(conv is not net[0] for conv, _ in made), "a copy is folded"
    assert "folded" not in replay(net)


def test_nothing_is_folded_where_no_batchnorm_follows_a_convolution() -> None:
    net = nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3), nn.ReLU()).eval().requires_grad_(False)
    assert replay(net, folds=net)["folded"] == pytest.approx(1.0)


def test_folding_leaves_the_activation_of_a_batchnorm_that_has_one() -> None:
    class Act(nn.BatchNorm2d):
        def __init__(self) -> None:
            super().__init__(8)
            self.act = nn.GELU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(super().forward(x))

    net = nn.Sequential(nn.Conv2d(3, 8, 3), Act()).eval().requires_grad_(False)
    ratios = replay(net, folds=net)
    assert ratios["pointwise"] < ratios["folded"] < 1


def test_a_module_that_takes_no_more_examples_than_it_was_seen_with_is_passed_over() -> None:
    class Picky(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) != 2:
                raise ValueError("two, please")
            return x

    net = nn.Sequential(nn.Linear(4, 4), Picky())
    ratios = replay(net, torch.ones(2, 4))
    assert ratios["pointwise"] == 1.0  # only the layer was replayed


def test_a_module_that_cannot_be_copied_is_passed_over() -> None:
    normed = torch.nn.utils.spectral_norm(nn.Linear(4, 4))  # its weight is a result, not a leaf
    ratios = replay(nn.Sequential(normed, nn.Linear(4, 4)), torch.ones(2, 4))
    assert ratios["pointwise"] == 1.0  # only the second layer was replayed


def test_there_is_nothing_to_replay_where_no_leaf_is_called() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu()

    net = Functional()
    found = replay_operations(
        net,
        lambda: net(X),
        now=DeviceConfig(),
        variants={},
        times=1,
        device=CPU,
        budget_s=0.0,
    )
    assert found is None


@pytest.mark.parametrize("name", [spec.name for spec in OPTIMIZERS if spec.can_fuse("cpu")])
def test_a_fused_optimizer_is_timed_on_copies(name: OptimizerName) -> None:
    net = nn.Linear(4, 4)
    before = net.weight.detach().clone()
    config = OptimizerConfig(name=name)
    ratio = replay_fused_optimizer(config, net, CPU, lr=0.1, budget_s=0.0)
    assert ratio is not None
    assert ratio > 0
    assert torch.equal(net.weight, before)
    assert net.weight.grad is None


@pytest.mark.parametrize(
    ("config", "device"),
    [
        (OptimizerConfig(name=OptimizerName.NADAM), torch.device("cuda")),
        (OptimizerConfig(name=OptimizerName.ADAM, fused=True), CPU),
    ],
    ids=["no fused kernel", "fused already"],
)
def test_no_ratio_where_nothing_could_be_fused(
    config: OptimizerConfig, device: torch.device
) -> None:
    assert replay_fused_optimizer(config, nn.Linear(1, 1), device, lr=0.1, budget_s=0.0) is None


@pytest.mark.parametrize(("budget_s", "times"), [(1e3, 16), (100.0, 4), (0.0, 1)])
def test_fewer_examples_are_replayed_where_time_is_short(budget_s: float, times: int) -> None:
    # 32 examples in 4 forms, 3 times: 384 s
    found = choose_times(32, 2, example_s=1.0, num_variants=3, budget_s=budget_s)
    assert found == times
