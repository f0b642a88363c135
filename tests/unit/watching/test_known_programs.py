"""Sound programs that look like faulty ones, and faulty ones that look sound."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

START = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
x = torch.randn(320, 8)
y = x[:, :3].argmax(1)
"""

SOUND = {
    "scores_capped_softly": """
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for step in range(40):
    rows = torch.randint(320, (32,))
    scores = 30 * torch.sigmoid(model(x[rows]) / 7.5)
    optimizer.zero_grad()
    F.cross_entropy(scores, y[rows]).backward()
    optimizer.step()
""",
    "two_optimisers_that_share_weights_and_each_go_back": """
body, head, other = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 1)
first = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-3)
second = torch.optim.Adam([*body.parameters(), *other.parameters()], 1e-3)
for step in range(40):
    rows = torch.randint(320, (32,))
    first.zero_grad()
    F.cross_entropy(head(body(x[rows]).relu()), y[rows]).backward()
    first.step()
    second.zero_grad()
    F.mse_loss(other(body(x[rows]).relu()).squeeze(1), x[rows, 0]).backward()
    second.step()
""",
    "an_optimiser_around_another": """
class Slow(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure=None):
        self.inner.step(closure)

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad()


model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = Slow(torch.optim.Adam(model.parameters(), 1e-2))
for step in range(40):
    rows = torch.randint(320, (32,))
    optimizer.zero_grad()
    F.cross_entropy(model(x[rows]), y[rows]).backward()
    optimizer.step()
""",
    "quantiles_of_all_pairs": """
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for step in range(40):
    rows = torch.randint(320, (32,))
    target = x[rows, :1] + torch.randn(32, 5)
    out = model(x[rows])
    loss = F.smooth_l1_loss(out.unsqueeze(2), target.unsqueeze(1), reduction="none")
    optimizer.zero_grad()
    loss.sum(1).mean().backward()
    optimizer.step()
""",
    "two_losses_of_two_loaders": """
body, head, other = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 1)
weights = [*body.parameters(), *head.parameters(), *other.parameters()]
optimizer = torch.optim.Adam(weights, 1e-3)
labelled = DataLoader(TensorDataset(x, y), 32, shuffle=True)
unlabelled = DataLoader(TensorDataset(x.flip(0)), 32, shuffle=True)
for epoch in range(4):
    for (a, b), (c,) in zip(labelled, unlabelled):
        optimizer.zero_grad()
        F.cross_entropy(head(body(a).relu()), b).backward()
        F.mse_loss(other(body(c).relu()).squeeze(1), c[:, 0]).backward()
        optimizer.step()
""",
    "one_domain_and_the_other": """
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
ones, zeros = torch.ones(32).long(), torch.zeros(32).long()
def loss_of(rows, labels):
    return F.cross_entropy(model(rows), labels)
for step in range(60):
    optimizer.zero_grad()
    (loss_of(torch.randn(32, 8) + 1, ones) + loss_of(torch.randn(32, 8) - 1, zeros)).backward()
    optimizer.step()
""",
    "text_read_on_in_order": """
text = torch.randint(0, 20, (16, 200))
class Windows(Dataset):
    def __len__(self):
        return 19
    def __getitem__(self, i):
        return text[:, 10 * i : 10 * i + 11]
windows = DataLoader(Windows(), batch_size=None)
embed, cell, out = nn.Embedding(20, 16), nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 20)
weights = [*embed.parameters(), *cell.parameters(), *out.parameters()]
optimizer = torch.optim.Adam(weights, 2e-3)
for epoch in range(3):
    state = None
    for rows in windows:
        state = None if state is None else tuple(v.detach() for v in state)
        answer, state = cell(embed(rows[:, :-1]), state)
        loss = F.cross_entropy(out(answer).reshape(-1, 20), rows[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "boards_of_ones_and_zeros": """
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(40):
    boards = F.one_hot(torch.randint(16, (64,)), 16).float()
    loss = F.mse_loss(model(boards), torch.randn(64, 4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "closure_that_clears": """
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
def closure():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss
for step in range(12):
    optimizer.step(closure)
""",
    "little_clipped_by_value": """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(60):
    rows = torch.randint(320, (32,))
    optimizer.zero_grad()
    F.cross_entropy(model(x[rows]), y[rows]).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
""",
}

FAULTY = {
    "parameters_twice": """
body, head, other = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 1)
first = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-3)
second = torch.optim.Adam([*body.parameters(), *other.parameters()], 1e-3)
for step in range(40):
    rows = torch.randint(320, (32,))
    first.zero_grad()
    second.zero_grad()
    hidden = body(x[rows]).relu()
    loss = F.cross_entropy(head(hidden), y[rows])
    (loss + F.mse_loss(other(hidden).squeeze(1), x[rows, 0])).backward()
    first.step()
    second.step()
""",
    "missing_zero_grad": """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loader = DataLoader(TensorDataset(x, y), 32, shuffle=True)
for epoch in range(4):
    for a, b in loader:
        def closure():
            loss = F.cross_entropy(model(a), b)
            loss.backward()
            return loss
        optimizer.step(closure)
""",
    "frozen_by_accident": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
    def forward(self, a):
        return self.head(self.body(a).relu().detach())
model = Net()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(40):
    rows = torch.randint(320, (32,))
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        return loss
    optimizer.step(closure)
""",
    "softmax_before_loss": """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(1))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(40):
    rows = torch.randint(320, (32,))
    optimizer.zero_grad()
    F.nll_loss(F.log_softmax(model(x[rows]), 1), y[rows]).backward()
    optimizer.step()
""",
    "target_broadcast": """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(40):
    rows = torch.randint(320, (32,))
    optimizer.zero_grad()
    torch.log(torch.cosh(model(x[rows]) - x[rows, 0])).mean().backward()
    optimizer.step()
""",
    "schedule_misused": """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
plan = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0)
for epoch in range(8):
    total = 0.0
    for step in range(10):
        rows = torch.randint(320, (32,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        total += loss.item()
    plan.step(total)
""",
    "clipping_always_active": """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), 5.0)
for step in range(100):
    rows = torch.randint(320, (32,))
    optimizer.zero_grad()
    F.cross_entropy(model(x[rows]), y[rows]).backward()
    nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    optimizer.step()
""",
}


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.filterwarnings("ignore")
def test_a_sound_program_is_not_accused(name: str, watched: Watched) -> None:
    report = watched(START + SOUND[name])
    assert report.watcher_error is None
    assert report.ending == "it ran to its end"
    assert not report.alarms, report.alarms


@pytest.mark.parametrize("name", FAULTY)
@pytest.mark.filterwarnings("ignore")
def test_a_faulty_program_is_found(name: str, watched: Watched) -> None:
    report = watched(START + FAULTY[name])
    assert report.ending == "it ran to its end"
    assert [alarm.fault for alarm in report.alarms] == [name], report.alarms


@pytest.mark.parametrize("clear", ["optimizer.zero_grad()", ""])
def test_a_long_run_is_followed_at_first_and_then_now_and_again(
    clear: str, watched: Watched
) -> None:
    code = f"""
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
for step in range(160):
    {clear}
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
    (found,) = [f for f in watched(START + code).findings if f.check == "missing_zero_grad"]
    assert (found.fault is None) is bool(clear)
    # 32 steps at first and five from 50, 100 and 150 on; each but a row's first has one before it
    assert "43 of" in found.evidence
