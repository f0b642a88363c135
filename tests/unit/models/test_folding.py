"""BatchNorm folded into the convolution before it: same outputs, same state_dict."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.config.choices import WeightsSource
from stepladder.config.recipe import ModelConfig
from stepladder.models.folding import fold_batchnorm
from stepladder.models.trunk import build_trunk

PICTURES = torch.randint(
    0, 256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


def learnt(module: nn.Module) -> nn.Module:
    """Set BatchNorm statistics and weights as after training, so that they have an effect."""
    generator = torch.Generator().manual_seed(1)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.3, generator=generator)
            norm.running_var.uniform_(0.5, 2.0, generator=generator)
            if norm.affine:
                nn.init.uniform_(norm.weight, 0.5, 1.5, generator=generator)
                nn.init.normal_(norm.bias, 0, 0.3, generator=generator)
    return module.requires_grad_(False).eval()


def num_norms(module: nn.Module) -> int:
    return sum(isinstance(part, nn.BatchNorm2d) for part in module.modules())


def folded_and_plain(module: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor, Tensor]:
    with torch.no_grad():
        folded = fold_batchnorm(module, x)
        return folded, folded(x), module(x)


@pytest.mark.parametrize("name", ["test_efficientnet", "tf_efficientnet_lite0", "resnet10t"])
def test_a_trunk_without_batchnorm_gives_the_same_features(name: str) -> None:
    trunk = learnt(build_trunk(ModelConfig(name=name, weights=WeightsSource.NONE)))
    before = {key: value.clone() for key, value in trunk.state_dict().items()}
    folded, ours, theirs = folded_and_plain(trunk, PICTURES)
    assert num_norms(trunk) > 10
    assert num_norms(folded) == 0
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))
    after = trunk.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("is_affine", [True, False])
def test_the_folded_convolution_is_the_closed_form(has_bias: bool, is_affine: bool) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3, bias=has_bias)
    norm = nn.BatchNorm2d(4, affine=is_affine)
    plain = learnt(nn.Sequential(conv, norm))
    folded = fold_batchnorm(plain, torch.randn(2, 3, 8, 8))
    scale = (norm.weight if is_affine else 1.0) / (norm.running_var + norm.eps).sqrt()
    shift = (norm.bias if is_affine else 0.0) - norm.running_mean * scale
    bias = conv.bias if has_bias else 0.0
    torch.testing.assert_close(folded[0].weight, conv.weight * scale.view(-1, 1, 1, 1))
    torch.testing.assert_close(folded[0].bias, bias * scale + shift)


class TwoReaders(nn.Module):
    """The convolution's output goes into the BatchNorm and around it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + y


class NamesLie(nn.Module):
    """Modules in another order than they run in; one BatchNorm follows no convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(3)
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.bn2 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(F.relu(self.bn2(self.conv1(self.bn1(x)))))


class CalledTwice(nn.Module):
    """One convolution, two BatchNorms: each needs other weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.first, self.second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.conv(self.first(self.conv(x))))


class Standardised(nn.Conv2d):
    """A convolution that transforms its weight."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias)


@pytest.mark.parametrize(
    ("module", "num_left"),
    [
        (TwoReaders(), 1),
        (NamesLie(), 1),
        (CalledTwice(), 2),
        (nn.Sequential(Standardised(3, 4, 3), nn.BatchNorm2d(4)), 1),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)), 1),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)), 1),
    ],
    ids=[
        "read twice",
        "names lie",
        "called twice",
        "standardised",
        "relu between",
        "no statistics",
    ],
)
def test_only_what_belongs_together_is_folded(module: nn.Module, num_left: int) -> None:
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    if num_left == 1 and isinstance(module, nn.Sequential) and module[-1].running_mean is None:
        module.eval()
    else:
        learnt(module)
    folded, ours, theirs = folded_and_plain(module, x)
    assert num_norms(folded) == num_left
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_tensors_that_are_not_folded_are_shared() -> None:
    trunk = learnt(build_trunk(ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE)))
    own = {tensor.data_ptr() for tensor in [*trunk.parameters(), *trunk.buffers()]}
    folded = fold_batchnorm(trunk, PICTURES)
    convs = [part for part in folded.modules() if isinstance(part, nn.Conv2d)]
    made = {tensor.data_ptr() for conv in convs for tensor in conv.parameters()}
    rest = {tensor.data_ptr() for tensor in [*folded.parameters(), *folded.buffers()]} - made
    assert rest
    assert rest <= own


def test_the_layout_of_weights_stays() -> None:
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    folded = fold_batchnorm(learnt(nn.Sequential(conv, nn.BatchNorm2d(4))), torch.randn(1, 3, 8, 8))
    assert folded[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not folded[0].weight.is_contiguous()
