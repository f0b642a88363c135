"""Updates that are lost because weights have few bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

CODE = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(320, 32)
y = x[:, :4].argmax(1)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).to(torch.DTYPE)
opt = torch.optim.OPT
for step in range(40):
    BEFORE
    rows = torch.randint(320, (64,))
    opt.zero_grad()
    F.cross_entropy(net(x[rows].to(net[0].weight.dtype)).float(), y[rows]).backward()
    opt.step()
    AFTER
"""

# each: the type, the optimizer, code before and after a step
FAULTY = {
    "a_rate_of_fine_tuning": ("bfloat16", "AdamW(net.parameters(), 1e-5)", "pass", "pass"),
    "small_gradients": ("bfloat16", "SGD(net.parameters(), 1e-3)", "pass", "pass"),
    "float16": ("float16", "Adam(net.parameters(), 1e-6, eps=1e-4)", "pass", "pass"),
    "after_a_step_at_a_rate_of_0": (
        "bfloat16",
        "AdamW(net.parameters(), 1e-5)",
        "opt.param_groups[0]['lr'] = 1e-5 * (step > 0)",
        "pass",
    ),
}

OWN = """SGD(net.parameters(), 1e-3)
class Stochastic(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            new = p.float() - self.param_groups[0]["lr"] * p.grad.float()
            bits = new.view(torch.int32) + torch.randint(0, 1 << 16, new.shape, dtype=torch.int32)
            p.copy_((bits & -65536).view(torch.float32))
opt = Stochastic(net.parameters(), {"lr": 1e-3})"""
MASTERS = """SGD(net.parameters(), 1e-3)
masters = [p.detach().float().requires_grad_() for p in net.parameters()]
opt = torch.optim.AdamW(masters, 1e-5)"""
SOUND = {
    "a_rate_that_is_high_enough": ("bfloat16", "AdamW(net.parameters(), 1e-3)", "pass", "pass"),
    "float32": ("float32", "AdamW(net.parameters(), 1e-6)", "pass", "pass"),
    "rounded_at_random": ("bfloat16", OWN, "pass", "pass"),
    "a_long_warm_up": (
        "bfloat16",
        "AdamW(net.parameters(), 1e-3)",
        "opt.param_groups[0]['lr'] = 1e-7 * 1.3**step",
        "pass",
    ),
    "copies_in_float32": (
        "bfloat16",
        MASTERS,
        "net.zero_grad()",
        "pass",
    ),
    "weights_that_are_pruned": (
        "bfloat16",
        "AdamW([p for p in net.parameters() if p.dim() > 1], 1e-3)\n"
        "masks = [torch.rand_like(p) > 0.9 for p in net.parameters() if p.dim() > 1]\n"
        "def prune():\n"
        "    with torch.no_grad():\n"
        "        for p, mask in zip(opt.param_groups[0]['params'], masks):\n"
        "            p.mul_(mask)\n"
        "prune()",
        "pass",
        "prune()",
    ),
    "a_rate_of_0": ("bfloat16", "SGD(net.parameters(), 0.0)", "pass", "pass"),
}
COPIES = """
    for master, p in zip(masters, net.parameters()):
        master.grad = p.grad.float()
    opt.step()
    with torch.no_grad():
        for master, p in zip(masters, net.parameters()):
            p.copy_(master)
"""


def found(watched: Watched, dtype: str, opt: str, before: str, after: str) -> Finding:
    code = CODE.replace("DTYPE", dtype).replace("OPT", opt)
    code = code.replace("BEFORE", before).replace("AFTER", after)
    if "masters" in opt:
        code = code.replace("    opt.step()\n", COPIES)
    report = watched(code)
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    return next(one for one in report.findings if one.check == "frozen_by_accident")


@pytest.mark.parametrize("name", FAULTY)
def test_updates_that_are_rounded_away_are_reported(watched: Watched, name: str) -> None:
    one = found(watched, *FAULTY[name])
    assert one.outcome is Outcome.WARNED
    assert f"updates are lost in {FAULTY[name][0]}" in one.evidence
    assert one.where == "snippet.py:10"
    assert int(one.numbers["num_still"]) > 0.6 * int(one.numbers["num_values"])  # type: ignore[call-overload, operator]


def test_a_model_that_is_deleted_at_the_end_is_judged_as_well(watched: Watched) -> None:
    dtype, opt, before, _ = FAULTY["a_rate_of_fine_tuning"]
    after = "if step == 39: del net, opt"
    assert found(watched, dtype, opt, before, after).outcome is Outcome.WARNED


@pytest.mark.parametrize("name", SOUND)
def test_weights_that_can_move_or_are_meant_to_stay_are_not(watched: Watched, name: str) -> None:
    one = found(watched, *SOUND[name])
    assert one.fault is None, one.evidence
