"""The peak memory of a step that is only followed through its shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from stepladder.measuring.model.memory import peak_bytes
from stepladder.measuring.model.traced_memory import traced_peak


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize("num", [2, 16])
def test_a_traced_peak_is_the_measured_one(num: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    batch = torch.randn(num, 3, 32, 32), torch.randint(0, 10, (num,))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = traced_peak(model, loss, batch, torch.optim.AdamW)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model, batch).backward()
        optimizer.step()

    step()
    optimizer.zero_grad(set_to_none=True)
    measured = peak_bytes(step, torch.device("cpu"))
    weights = sum(value.nbytes for value in model.state_dict().values())
    states = 2 * sum(weight.nbytes for weight in model.parameters())
    assert found == pytest.approx(measured + weights + states, rel=0.02)


def test_gradients_appear_while_activations_are_freed() -> None:
    from stepladder.parallel.divided.size import model_size

    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(4)])
    batch = torch.randn(2, 64)
    found = model_size(model, lambda num: model(batch[:num]).sum(), state_numbers=lambda weight: 0)
    layer, example = 64 * 64 * 4, 64 * 4
    assert found.step_bytes(1) == 4 * layer + 4 * layer  # all gradients, in the end
    many = 10_000
    most = max(many * (4 - done) * example + done * layer for done in range(5))
    assert found.step_bytes(many) == pytest.approx(4 * layer + most, rel=0.01)
