"""Padding to one length, and modules that are called on one row after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from stepladder.records.watch import WatchReport
from stepladder.watching.hooks import patches
from stepladder.watching.hooks.costs.rows import RowCalls
from stepladder.watching.hooks.inputs.long_padding import has_fixed_length, used_length

Watched = Callable[..., WatchReport]

START = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(256, 20, 3), torch.randint(3, (256,))
"""
LOOP = """
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    idx = torch.randint(256, (32,))
    xb, yb = x[idx], y[idx]
    optimizer.zero_grad()
    F.cross_entropy(OUT, yb).backward()
    optimizer.step()
"""
POINTS = (
    START
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        BODY
"""
    + LOOP
)
CELL = (
    START
    + """
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.given, self.kept = nn.Linear(3, 16), nn.Linear(16, 16)

    def forward(self, x):
        self.state = torch.tanh(self.given(x) + self.kept(self.state))
        return self.state

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = Cell(), nn.Linear(16, 3)

    def forward(self, x):
        self.cell.state = x.new_zeros(len(x), 16)
        for row in x.transpose(0, 1).contiguous():
            out = self.cell(row)
        return self.head(out)
"""
    + LOOP.replace("OUT", "model(xb)")
)
TOKENS = (
    START
    + """
lengths = torch.randint(4, 30, (256,))
lengths[0] = 200
x = torch.randint(1, 50, (256, 200))
x[torch.arange(200) >= lengths[:, None]] = 0

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.conv = nn.Embedding(50, 24), nn.Conv1d(24, 24, 3, padding=1)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        return self.head(torch.relu(self.conv(self.table(x).mT)).amax(2))
"""
    + LOOP
)
REST = "return self.head(torch.stack(feats))"


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute in one thread, and inspect as many steps on any machine."""
    monkeypatch.setattr(patches, "_FIRST_S", 60.0)
    num = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num)


def steps_of(report: WatchReport) -> dict[str, str]:
    assert report.watcher_error is None
    assert report.next is not None
    return {step.rung: step.text for step in (report.next, *report.others)}


@pytest.mark.parametrize(
    ("body", "out"),
    [
        (f"feats = [self.point(one).amax(0) for one in x]; {REST}", "model(xb)"),
        (
            f"feats = [self.point(x[i : i + 1])[0].amax(0) for i in range(len(x))]; {REST}",
            "model(xb)",
        ),
        (
            "return self.head(self.point(x).amax(1))",
            "torch.cat([model(one.unsqueeze(0)) for one in xb])",
        ),
    ],
)
def test_calls_on_one_row_after_another_are_named(watched: Watched, body: str, out: str) -> None:
    found = steps_of(watched(POINTS.replace("BODY", body).replace("OUT", out)))
    assert "is called 32 times per step at snippet.py" in found["whole_batches"]


def test_calls_on_one_position_of_all_examples_after_another_are_named(watched: Watched) -> None:
    body = "feats = [self.point(x[:, i]) for i in range(20)]; "
    body += "return self.head(torch.stack(feats).amax(0))"
    found = steps_of(watched(POINTS.replace("BODY", body).replace("OUT", "model(xb)")))
    assert "is called 20 times per step at snippet.py" in found["whole_batches"]


@pytest.mark.parametrize(
    "code",
    [
        POINTS.replace("BODY", "return self.head(self.point(x).amax(1))").replace(
            "OUT", "torch.cat([model(some) for some in xb.split(2)])"
        ),
        POINTS.replace("BODY", "return self.head(self.point(x).amax(1))").replace(
            "OUT", "torch.cat([model(torch.randn(1, 20, 3)) for _ in yb])"
        ),
        CELL,
        POINTS.replace(
            "BODY", "return self.head(torch.stack([self.point(one).amax(0) for one in x]))"
        )
        .replace("nn.Linear(3, 16), ", "nn.Linear(3, 16), nn.BatchNorm1d(16), ")
        .replace("OUT", "model(xb)"),
    ],
    ids=["chunks", "separate inputs", "a cell that keeps its state", "statistics of each"],
)
def test_other_loops_are_not_named(watched: Watched, code: str) -> None:
    assert "whole_batches" not in steps_of(watched(code))


def test_weights_that_change_between_calls_need_a_loop() -> None:
    layer, rows, x = nn.Linear(3, 3), RowCalls(), torch.randn(9, 1, 3)
    for is_changing in (False, True):
        for row in x:
            assert rows.enter(layer, (row,), 0, is_possible=True) or is_changing
            rows.leave(layer, layer(row), 1.0, 2.0)
            if is_changing:
                with torch.no_grad():
                    layer.weight.mul_(0.9)
        assert bool(rows.end()) is not is_changing


def test_padding_to_one_length_is_named(watched: Watched) -> None:
    found = steps_of(watched(TOKENS.replace("OUT", "model(xb)")))
    assert "all batches have 200 positions (at snippet.py:" in found["shorter_padding"]


@pytest.mark.parametrize(
    "out", ["model(xb[:, : lengths[idx].max()])", "model(torch.randint(1, 50, xb.shape))"]
)
def test_padding_to_the_longest_of_a_batch_is_not_named(watched: Watched, out: str) -> None:
    assert "shorter_padding" not in steps_of(watched(TOKENS.replace("OUT", out)))


def test_the_length_that_a_batch_needs() -> None:
    ids = torch.zeros(4, 20, dtype=torch.long)
    ids[0, :7], ids[1, :3] = 5, 6
    assert used_length(ids) == 7
    assert used_length(ids.flip(1)) == 7
    ids[:, -1] = 9  # a last token after padding
    assert used_length(ids) == 20 - 1
    series = torch.zeros(4, 20, 2)
    series[2, 4:11, 1] = 1.0
    assert used_length(series) == 11
    assert used_length(ids[:3]) is None


def test_models_that_need_one_length() -> None:
    table, conv = nn.Embedding(9, 4), nn.Conv1d(4, 6, 3)
    assert not has_fixed_length(nn.Sequential(table, conv, nn.Linear(6, 2)), 20)
    for last in (nn.Flatten(), nn.Linear(20 * 4, 2), nn.Linear(20 * 6, 2), nn.Linear(20, 2)):
        assert has_fixed_length(nn.Sequential(table, conv, last), 20)


DIVIDED = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(310, 20)
y = (x @ torch.randn(20, 6)).argmax(1)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(8):
    optimizer.zero_grad()
    num = 0
    for i, idx in enumerate(torch.randperm(310).split(16)):
        F.cross_entropy(model(x[idx]), y[idx], reduction="sum").backward()
        num += len(idx)
        if i % NUM == NUM - 1 or i == 19:
            DIVIDE
            optimizer.step()
            optimizer.zero_grad()
            num = 0
"""


@pytest.mark.parametrize("num", [1, 4])
@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("for p in model.parameters(): p.grad.div_(num)", False),
        ("for p in model.parameters(): p.grad = p.grad / num", False),
        ("for p in model.parameters(): p.grad.data /= num", False),
        ("pass", True),
        ("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", True),
    ],
)
def test_gradients_divided_by_the_script_are_no_sum(
    watched: Watched, line: str, num: int, is_found: bool
) -> None:
    report = watched(DIVIDED.replace("NUM", str(num)).replace("DIVIDE", line))
    assert report.watcher_error is None
    faults = {finding.fault for finding in report.findings}
    assert ("loss_reduction_mismatch" in faults) is is_found
