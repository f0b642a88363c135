"""Activations fused into the convolutions before them: same features, and NaN is still NaN."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stepladder.config.choices import WeightsSource
from stepladder.config.recipe import ModelConfig
from stepladder.models.folding import fold_batchnorm
from stepladder.models.forwards import FrozenForward, set_forward
from stepladder.models.freezing import freeze
from stepladder.models.fusing import fuse_activations, fused_convolution
from stepladder.models.torchvision_shim import import_timm
from stepladder.models.trunk import build_trunk

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_convolution_pointwise"), reason="this torch has no oneDNN"
)
HAS_BF16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="no bfloat16 on this processor"
)
LAYERS = import_timm().layers
LAYOUTS = [torch.contiguous_format, torch.channels_last]


def pictures(size: int, n: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=generator)


def block(conv: nn.Conv2d, activation: type[nn.Module] = nn.ReLU6) -> nn.Module:
    """Return a folded convolution with BatchNorm and activation, as in timm's networks."""
    torch.manual_seed(0)
    norm = LAYERS.BatchNormAct2d(conv.out_channels, act_layer=activation)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    module = nn.Sequential(conv, norm)
    freeze(module)
    return fold_batchnorm(module, torch.randn(2, conv.in_channels, 15, 15))


def calls_of_activations(forward: Callable[[Tensor], Tensor], x: Tensor) -> int:
    calls: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda layer, *_: calls.append("") if isinstance(layer, (nn.ReLU, nn.ReLU6)) else None
    )
    try:
        forward(x)
    finally:
        handle.remove()
    return len(calls)


@pytest.mark.parametrize(
    ("name", "size", "layout"),
    [
        ("tf_efficientnet_lite0", 75, torch.channels_last),
        ("test_efficientnet", 64, torch.contiguous_format),
        ("test_efficientnet", 75, torch.channels_last),
        ("resnet10t", 75, torch.contiguous_format),
    ],
)
@torch.no_grad()
def test_a_fused_trunk_gives_the_same_features(
    name: str, size: int, layout: torch.memory_format
) -> None:
    trunk = build_trunk(ModelConfig(name=name, weights=WeightsSource.NONE))
    trunk = trunk.to(memory_format=layout)
    freeze(trunk)
    x = pictures(size).to(memory_format=layout)
    folded = fold_batchnorm(trunk, x)
    fused = fuse_activations(folded, x)
    assert fused is not None
    wanted = folded(x)
    torch.testing.assert_close(fused(x), wanted, rtol=1e-4, atol=1e-5 * float(wanted.max()))


@HAS_BF16
@torch.no_grad()
def test_in_bfloat16_weights_and_numbers_are_rounded_as_autocast_does() -> None:
    folded = block(nn.Conv2d(8, 16, 3, padding=1)).to(memory_format=torch.channels_last)
    x = torch.randn(4, 8, 15, 15).to(memory_format=torch.channels_last)
    fused = fuse_activations(folded, x)
    assert fused is not None
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = fused(x), folded(x)
    assert ours.dtype is torch.bfloat16
    assert not torch.equal(ours.float(), folded(x))
    torch.testing.assert_close(ours, theirs, rtol=2**-7, atol=2**-7)  # one bfloat16 step


def test_a_folded_trunk_in_use_calls_no_activation() -> None:
    config = ModelConfig(name="tf_efficientnet_lite0", weights=WeightsSource.NONE)
    trunk = build_trunk(config)
    freeze(trunk)
    x = pictures(64)
    assert calls_of_activations(trunk, x) > 30
    set_forward(trunk, FrozenForward(trunk, is_folded=True))
    trunk(x)
    assert calls_of_activations(trunk, x) == 0


@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@torch.no_grad()
def test_padding_both_sides_and_dropping_some_is_padding_one(kernel: int, stride: int) -> None:
    for size, dilation in itertools.product((13, 14, 16), (1, 2)):
        folded = block(LAYERS.Conv2dSame(4, 4, kernel, stride=stride, dilation=dilation, groups=2))
        x = torch.randn(2, 4, size, size + 1)
        fused = fuse_activations(folded, x)
        assert fused is not None
        torch.testing.assert_close(fused(x), folded(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Identity])
@torch.no_grad()
def test_each_known_activation(activation: type[nn.Module]) -> None:
    folded = block(nn.Conv2d(3, 4, 3), activation)
    x = 4 * torch.randn(3, 3, 15, 15)
    fused = fuse_activations(folded, x)
    assert fused is not None
    torch.testing.assert_close(fused(x), folded(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@torch.no_grad()
def test_what_is_not_finite_stays_so(bad: float) -> None:
    folded = block(nn.Conv2d(3, 4, 3), nn.ReLU)
    x = torch.randn(3, 3, 15, 15)
    fused = fuse_activations(folded, x)
    assert fused is not None
    x[1, 0, 7, 7] = bad
    assert not fused(x).isfinite().all()


@torch.no_grad()
def test_without_onednn_the_folded_trunk_computes() -> None:
    folded = block(nn.Conv2d(3, 4, 3))
    x = torch.randn(3, 3, 15, 15)
    fused = fuse_activations(folded, x)
    assert fused is not None
    torch.backends.mkldnn.set_flags(False)
    try:
        assert calls_of_activations(fused, x) == 1
        assert torch.equal(fused(x), folded(x))
    finally:
        torch.backends.mkldnn.set_flags(True)
    assert calls_of_activations(fused, x) == 0


@pytest.mark.parametrize(
    "folded",
    [
        block(nn.Conv2d(3, 4, 3), nn.SiLU),
        block(nn.Conv2d(3, 4, 3, padding="same")),
        block(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU6()),
        block(nn.Conv2d(3, 4, 3)).double(),
    ],
    ids=["another activation", "padding in words", "reflected", "nothing folded", "double"],
)
def test_what_is_not_known_is_left_alone(folded: nn.Module) -> None:
    dtype = next(folded.parameters()).dtype
    assert fuse_activations(folded, torch.randn(2, 3, 15, 15, dtype=dtype)) is None


@pytest.mark.parametrize("layout", LAYOUTS, ids=["contiguous", "channels last"])
@pytest.mark.parametrize("activation", [nn.ReLU6, nn.ReLU, nn.Identity])
def test_one_convolution_computes_the_norm_and_the_activation_after_it(
    activation: type[nn.Module], layout: torch.memory_format
) -> None:
    conv = LAYERS.Conv2dSame(3, 8, 3, stride=2).to(memory_format=layout)
    norm = LAYERS.BatchNormAct2d(8, act_layer=activation)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    both = nn.Sequential(conv, norm).eval().requires_grad_(False)
    fused = fused_convolution(conv, norm)
    assert fused is not None
    x = torch.randn(4, 3, 15, 15).contiguous(memory_format=layout)
    torch.testing.assert_close(fused(x), both(x), atol=1e-4, rtol=1e-4)
    assert calls_of_activations(fused, x) == 0


def test_what_a_folded_trunk_keeps_separate_is_not_made_one_convolution() -> None:
    conv, norm = nn.Conv2d(3, 8, 3), LAYERS.BatchNormAct2d(8, act_layer=nn.GELU)
    assert fused_convolution(conv, norm.eval()) is None
    plain = nn.BatchNorm2d(8).eval()
    assert fused_convolution(conv, plain) is not None
    assert fused_convolution(conv.bfloat16(), plain) is None
    assert fused_convolution(nn.Conv2d(3, 8, 3, padding="same"), plain) is None
