"""Gradient checkpointing: less memory, bit-identical gradients and statistics."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import Tensor, nn

from stepladder.config.choices import WeightsSource
from stepladder.config.recipe import HeadConfig, ModelConfig, Recipe
from stepladder.errors import UsageError
from stepladder.models.checkpointing import can_checkpoint, checkpoint_trunk, set_checkpointing
from stepladder.models.classifier import Classifier, build_classifier
from stepladder.models.forwards import CompiledForward, set_forward

PICTURES = torch.randint(
    0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


def block(width: int, num_in: int) -> nn.Module:
    layers = [nn.Conv2d(num_in, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, width, 3), nn.BatchNorm2d(width), nn.SiLU())


class SaysNo(nn.Module):
    """A trunk with timm's method, which it refuses, as some of timm's models do."""

    def __init__(self, stem: nn.Module, *blocks: nn.Module) -> None:
        super().__init__()
        self.stem = stem
        self.body = nn.Sequential(*blocks)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        assert not enable, "gradient checkpointing not supported"

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.body(self.stem(x / 255)))


def classifier(name: str) -> Classifier:
    if name == "says_no":
        torch.manual_seed(0)
        trunk = SaysNo(block(4, 3), block(8, 4), block(8, 8))
        return Classifier(trunk, nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 3))).train()
    config = ModelConfig(name=name, weights=WeightsSource.NONE)
    recipe = Recipe(model=config, head=HeadConfig(dropout=0.5))
    return build_classifier(recipe.model, recipe.head, seed=recipe.seed, num_classes=3).train()


def pass_twice(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    """Return gradients, buffers, and the bytes kept for the backward pass."""
    num_bytes = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal num_bytes
        num_bytes += tensor.nbytes
        return tensor

    torch.manual_seed(3)
    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model(PICTURES).square().sum()
        loss.backward()
    grads = {name: w.grad for name, w in model.named_parameters() if w.grad is not None}
    return grads, {name: buffer.clone() for name, buffer in model.named_buffers()}, num_bytes


# timm's checkpointing, and that of blocks
@pytest.mark.parametrize("name", ["test_efficientnet", "test_resnet", "says_no"])
def test_gradients_and_running_statistics_are_the_same_to_the_bit(name: str) -> None:
    plain = classifier(name)
    model = copy.deepcopy(plain)
    set_checkpointing(model, True)
    grads, buffers, kept_bytes = pass_twice(plain)
    ours = pass_twice(model)
    assert grads.keys() == ours[0].keys()
    assert all(torch.equal(grads[key], ours[0][key]) for key in grads)
    assert all(torch.equal(buffers[key], ours[1][key]) for key in buffers)
    assert ours[2] < 0.8 * kept_bytes
    assert list(model.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("name", ["test_efficientnet", "says_no"])
def test_off_again_keeps_all_activations(name: str) -> None:
    model = classifier(name)
    wanted = pass_twice(copy.deepcopy(model))[2]
    set_checkpointing(model, True)
    set_checkpointing(model, False)
    assert pass_twice(model)[2] == wanted


def test_a_copy_of_a_checkpointed_model_learns_by_itself() -> None:
    model = classifier("says_no")
    set_checkpointing(model, True)
    other = copy.deepcopy(model)
    pass_twice(other)
    assert all(weight.grad is None for weight in model.parameters())
    assert all(weight.grad is not None for weight in other.parameters())


@pytest.mark.thorough
def test_compiled_it_keeps_less_too_and_gives_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The saved tensors are chosen before kernels are compiled; none are compiled here."""
    torch._dynamo.reset()
    partitioned = functools.partial(torch.compile, backend="aot_eager_decomp_partition")
    monkeypatch.setattr(torch, "compile", partitioned)
    torch.manual_seed(0)
    trunk = SaysNo(nn.Conv2d(3, 4, 3), block(8, 4))
    plain = Classifier(trunk, nn.Linear(8, 3)).train()  # no dropout, which would draw other numbers
    model = copy.deepcopy(plain)
    set_checkpointing(model, True)
    set_forward(model, CompiledForward(model))
    grads, buffers, kept_bytes = pass_twice(plain)
    ours = pass_twice(model)
    for name, grad in grads.items():
        torch.testing.assert_close(ours[0][name], grad, rtol=1e-3, atol=1e-3)
    for name, buffer in buffers.items():
        torch.testing.assert_close(ours[1][name], buffer)
    assert ours[2] < 0.5 * kept_bytes  # compilation alone keeps two thirds


def test_statistics_move_once_where_a_model_checkpoints_by_itself() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None))
            self.is_on = False

        def set_grad_checkpointing(self, enable: bool = True) -> None:
            self.is_on = enable

        def forward(self, x: Tensor) -> Tensor:
            if not self.is_on:
                return self.body(x)
            return torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False)

    model = Own()
    set_checkpointing(model, True)
    for _ in range(3):
        model(torch.randn(4, 2)).square().sum().backward()
    assert int(model.body[1].num_batches_tracked) == 3


def test_a_model_without_a_method_or_blocks_is_recognized() -> None:
    assert not can_checkpoint(nn.Linear(1, 1))
    assert can_checkpoint(classifier("test_efficientnet"))
    with pytest.raises(UsageError, match="does not consist of blocks"):
        checkpoint_trunk(nn.Sequential(nn.Linear(1, 1)), True)
