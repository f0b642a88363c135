"""Peak memory of a call, counted tensor by tensor on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stepladder.measuring.model.memory import peak_bytes

CPU = torch.device("cpu")
X = torch.zeros(100, 100)  # 40,000 bytes


@pytest.mark.parametrize(
    ("run", "tensors"),
    [
        (lambda: X + 1, 1),
        (lambda: (X + 1).add_(1), 1),  # in place: no allocation
        (lambda: (X + 1).view(-1)[:5], 1),  # a view: no allocation
        (lambda: X + 1 + 1, 2),
        (lambda: (X + 1 + 1 + 1).sum() * 0 + X, 2),  # freed immediately
    ],
)
def test_bytes_alive_at_once_are_counted(run: Callable[[], Tensor], tensors: int) -> None:
    assert peak_bytes(run, CPU) == pytest.approx(tensors * 40_000, abs=64)


def test_what_the_backward_pass_keeps_counts() -> None:
    layers = nn.Sequential(*[nn.Sigmoid() for _ in range(6)])
    x = X.clone().requires_grad_()

    def forward() -> Tensor:
        return layers(x)

    def forward_without_gradient() -> Tensor:
        with torch.no_grad():
            return layers(x)

    assert peak_bytes(forward, CPU) == 6 * 40_000  # each sigmoid keeps its result
    assert peak_bytes(forward_without_gradient, CPU) == 2 * 40_000
