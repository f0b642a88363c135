"""Backward functions that a script writes itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(160, 8)
y = (x[:, 0] > 0).long()
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *others):
        ctx.save_for_backward(x)
        return FORWARD
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return BACKWARD
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 2)
    def forward(self, x):
        return self.b(Own.apply(self.a(x)))
net = Net()
adam = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(3):
    for rows in torch.randperm(160).split(32):
        adam.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        adam.step()
print(torch.rand(1))
"""

SWISH = "x * torch.sigmoid(x)"
IGNORED = {
    "derivative": (SWISH, "s * (1 + x * (1 - s))"),
    "ones": ("x.round()", "torch.ones_like(x)"),
    "of_the_sign": ("x.relu()", "(x > 0).float()"),
}
USED = {
    "derivative": (SWISH, "grad * s * (1 + x * (1 - s))"),
    "straight_through": ("x.round()", "grad"),
    "reversed": ("x.view_as(x)", "-0.5 * grad"),
    "clipped": ("x.view_as(x)", "grad.clamp(-0.01, 0.01)"),
    "only_its_sign": ("x.view_as(x)", "grad.sign()"),
    "with_a_penalty": ("x.view_as(x)", "grad + 1e-3 * x.sign()"),
    "blocked": ("x.view_as(x)", "torch.zeros_like(grad)"),
    "random": ("x.view_as(x)", "grad * (torch.rand_like(x) > 0.1)"),
}


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    return next(one for one in report.findings if one.check == "backward_ignores_gradient")


def script(forward: str, backward: str) -> str:
    return SCRIPT.replace("FORWARD", forward).replace("BACKWARD", backward)


@pytest.mark.parametrize("name", IGNORED)
def test_a_backward_that_ignores_its_gradient(watched: Watched, name: str) -> None:
    finding = found(watched(script(*IGNORED[name])))

    assert finding.outcome is Outcome.FAILED, finding
    assert "Own.backward returned the same 512 values" in finding.evidence
    assert (finding.where or "").startswith("snippet.py:")


@pytest.mark.parametrize("name", USED)
def test_a_backward_that_uses_it(watched: Watched, name: str) -> None:
    assert found(watched(script(*USED[name]))).outcome is Outcome.PASSED


def test_a_loss_whose_gradient_is_always_1(watched: Watched) -> None:
    code = script("(x * x).sum()", "2 * x")
    code = code.replace("self.b(Own.apply(self.a(x)))", "self.b(self.a(x))")
    code = code.replace("F.cross_entropy(net(x[rows]), y[rows])", "Own.apply(net(x[rows]))")

    assert found(watched(code)).outcome is Outcome.NOT_APPLICABLE


def test_two_inputs_of_which_one_has_a_constant_gradient(watched: Watched) -> None:
    code = script("x.view_as(x)", "grad, torch.ones(1)")
    code = code.replace(
        "Own.apply(self.a(x))", "Own.apply(h := self.a(x), h.square().mean()[None])"
    )

    report = watched(code)

    assert found(report).outcome is Outcome.PASSED
    assert report.exit_code == 0
