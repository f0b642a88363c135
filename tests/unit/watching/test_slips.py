"""Slips of the source as findings, gradients of zeros, and windows that contain the target."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

START = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(320, 12, 6)
y = x[:, :3, 0].argmax(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = HEADS
        self.weigh = nn.Linear(6, 1)
        self.out = nn.Linear(6, 3)
    def forward(self, x):
        scores = self.weigh(x).squeeze(2)
        MASK
        mean = (scores.softmax(1)[..., None] * x).sum(1)
        return self.out(sum(head(mean) for head in self.heads))
net = Net()
adam = torch.optim.Adam(net.parameters(), 0.01)
for step in range(40):
    rows = torch.randint(320, (32,))
    adam.zero_grad()
    F.cross_entropy(net(x[rows]), y[rows]).backward()
    adam.step()
"""
HEADS = "nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])"
MASK = "scores = scores.masked_fill(x[..., 1] > 1, -1e9)"


def code_of(heads: str = HEADS, mask: str = MASK) -> str:
    return START.replace("HEADS", heads).replace("MASK", mask)


def found(report: WatchReport, fault: str) -> list[Finding]:
    assert report.watcher_error is None
    return [one for one in report.findings if one.fault == fault]


def test_a_copy_that_is_thrown_away_is_named(watched: Watched) -> None:
    (one,) = found(watched(code_of(mask=MASK.removeprefix("scores = "))), "line_without_effect")
    assert one.outcome is Outcome.WARNED
    assert one.where == "snippet.py:17"
    assert "masked_fill" in one.evidence
    assert found(watched(code_of()), "line_without_effect") == []


def test_a_multiplied_list_of_layers_is_named(watched: Watched) -> None:
    report = watched(code_of(heads="nn.ModuleList([nn.Linear(6, 6)] * 3)"))
    (one,) = found(report, "one_layer_for_many")
    assert "[nn.Linear(6, 6) for _ in range(n)]" in one.fix
    assert found(watched(code_of()), "one_layer_for_many") == []


ADAPTED = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(320, 8)
y = x[:, :3].argmax(1)
class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 3)
        self.a, self.b = nn.Parameter(FIRST), nn.Parameter(torch.zeros(2, 3))
    def forward(self, x):
        return self.base(x) + x @ self.a @ self.b
net = Adapted()
FROZEN
adam = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 0.01)
for step in range(60):
    rows = torch.randint(320, (32,))
    adam.zero_grad()
    F.cross_entropy(net(x[rows]), y[rows]).backward()
    adam.step()
"""


@pytest.mark.parametrize("frozen", ["", "net.base.requires_grad_(False)"])
def test_zeros_that_are_multiplied_by_zeros_are_named(frozen: str, watched: Watched) -> None:
    code = ADAPTED.replace("FROZEN", frozen)
    (one,) = found(watched(code.replace("FIRST", "torch.zeros(8, 2)")), "frozen_by_accident")
    assert "exactly zero" in one.evidence
    assert "LoRA" in one.fix
    assert found(watched(code.replace("FIRST", "torch.randn(8, 2)")), "frozen_by_accident") == []


def test_a_loss_that_is_always_zero_is_named(watched: Watched) -> None:
    code = ADAPTED.replace("FROZEN", "").replace("FIRST", "torch.randn(8, 2)")
    zero = code.replace(
        "F.cross_entropy(net(x[rows]), y[rows])", "(net(x[rows]) - 1e9).clamp(min=0).mean()"
    )
    (one,) = found(watched(zero), "frozen_by_accident")
    assert "nothing is learned" in one.evidence


CRITIC = """
import torch
from torch import nn

torch.manual_seed(0)
real = torch.randn(320, 4) + 1
critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
CHANGE
adam = torch.optim.Adam([p for p in critic.parameters() if p.requires_grad], 1e-3)
for step in range(60):
    rows = torch.randint(320, (32,))
    adam.zero_grad()
    scores = critic(real[rows]), critic(torch.randn(32, 4))
    (scores[1].mean() - scores[0].mean()).backward()
    adam.step()
"""


def test_a_last_bias_that_cancels_is_no_weight_that_was_forgotten(watched: Watched) -> None:
    """Of a critic's scores, only differences count."""
    assert found(watched(CRITIC.replace("CHANGE", "")), "frozen_by_accident") == []
    ends = "for one in critic[0], critic[2]: nn.init.zeros_(one.weight)"
    dead = CRITIC.replace("CHANGE", f"{ends}\nnn.init.constant_(critic[0].bias, -9.0)")
    (one,) = found(watched(dead), "frozen_by_accident")
    assert "0.weight" in one.evidence


WINDOWS = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
series = torch.sin(torch.arange(600) / 5) + 0.1 * torch.randn(600)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1)
    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1]).squeeze(1)
net = Net()
adam = torch.optim.Adam(net.parameters(), 0.01)
for step in range(60):
    at = torch.randint(500, (32,)).tolist()
    x = torch.stack([series[i + SHIFT : i + SHIFT + 20] for i in at])[..., None]
    y = torch.stack([series[i + 20] for i in at])
    adam.zero_grad()
    F.mse_loss(net(x), y).backward()
    adam.step()
"""


def test_a_window_that_contains_the_target_is_named(watched: Watched) -> None:
    (one,) = found(watched(WINDOWS.replace("SHIFT", "1")), "label_in_inputs")
    assert "last position" in one.evidence
    assert found(watched(WINDOWS.replace("SHIFT", "0")), "label_in_inputs") == []


ATTENTION = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
ids = torch.randint(20, (320, 10))
y = (ids[:, 0] > ids[:, 9]).long()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.NAME = nn.Parameter(torch.randn(1, 50, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.out = nn.Linear(16, 2)
    def forward(self, ids):
        x = self.words(ids)
        return self.out(self.layer(x + self.NAME[:, PLACE]).mean(1))
net = Net()
adam = torch.optim.Adam(net.parameters(), 0.01)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ids, y), 32, shuffle=True)
for epoch in range(4):
    for some, its in loader:
        adam.zero_grad()
        F.cross_entropy(net(some), its).backward()
        adam.step()
"""


def test_one_position_for_all_is_named(watched: Watched) -> None:
    code = ATTENTION.replace("NAME", "pos_embed")
    one_for_all = watched(code.replace("PLACE", "x.size(1)][:, None"))
    (one,) = found(one_for_all, "positions_without_effect")
    assert "pos_embed" in one.evidence
    sound = watched(code.replace("PLACE", ": x.size(1)"))
    assert found(sound, "positions_without_effect") == []
    assert any(one.check == "positions_without_effect" for one in sound.findings)


DISTILLED = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(320, 8)
y = x[:, :3].argmax(1)
large, small = nn.Linear(8, 3), nn.Linear(8, 3)
adam = torch.optim.Adam(small.parameters(), 0.01)
def losses(x, y):
    with torch.no_grad():
        goal = large(x)
    out = small(x)
    mine, its = F.log_softmax(GIVEN / 2, 1), F.log_softmax(goal / 2, 1)
    soft = F.kl_div(mine, its, log_target=True, reduction="batchmean")
    hard = F.cross_entropy(out, y)
    return 0.5 * soft * 4 + 0.5 * hard, soft, hard
for step in range(60):
    rows = torch.randint(320, (32,))
    loss, soft, hard = losses(x[rows], y[rows])
    adam.zero_grad()
    loss.backward()
    adam.step()
"""


def test_a_constant_term_of_a_loss_that_a_function_returns_with_others_is_named(
    watched: Watched,
) -> None:
    (one,) = found(watched(DISTILLED.replace("GIVEN", "goal")), "loss_term_lost")
    assert "kl_div" in one.evidence
    assert found(watched(DISTILLED.replace("GIVEN", "out")), "loss_term_lost") == []


RESUMED = """
import torch
from torch import nn

torch.manual_seed(0)
class Trainer:
    def __init__(self):
        self.net = nn.Linear(4, 1)
        self.adam = torch.optim.Adam(self.net.parameters(), 0.01)
        self.plan = torch.optim.lr_scheduler.CosineAnnealingLR(self.adam, 20)
        self.epoch = 0
    def train(self, until):
        while self.epoch < until:
            for _ in range(4):
                x = torch.randn(16, 4)
                self.adam.zero_grad()
                (self.net(x)[:, 0] - x[:, 0]).square().mean().backward()
                self.adam.step()
            self.plan.step()
            self.epoch += 1
    def save(self):
        torch.save({"net": self.net.state_dict(), "adam": self.adam.state_dict(),
                    "plan": self.plan.state_dict(), "epoch": self.epoch}, "last.pt")
    def load(self):
        last = torch.load("last.pt")
        self.net.load_state_dict(last["net"])
        self.adam.load_state_dict(last["adam"])
        PLAN
        self.epoch = last["epoch"]
first = Trainer()
first.train(10)
first.save()
second = Trainer()
second.load()
second.train(20)
"""


def test_a_schedule_that_begins_again_is_named(watched: Watched) -> None:
    (one,) = found(watched(RESUMED.replace("PLAN", "")), "checkpoint_incomplete")
    assert '"plan", after 10 steps' in one.evidence
    sound = watched(RESUMED.replace("PLAN", 'self.plan.load_state_dict(last["plan"])'))
    assert found(sound, "checkpoint_incomplete") == []
