"""Tables that a model fills in nested Python loops, in each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from stepladder.records.watch import WatchReport
from stepladder.watching.causes.contract import Evidence
from stepladder.watching.causes.filled import filled_causes
from stepladder.watching.seen.costs import FORWARD, SampleSeen, Spot, StacksSeen
from stepladder.watching.seen.seen import Seen

Watched = Callable[..., WatchReport]

PROGRAM = """
import math
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.channels = 16
        self.embed, self.out = nn.Embedding(10, 16), nn.Linear(16, 10)
        BUILT
    def forward(self, ids):
        h = self.embed(ids)
        ADDED
        return self.out((h + table).relu())
    def table(self, length):
        table = torch.zeros(length, self.channels)
        for at in range(length):
            for i in range(0, self.channels, 2):
                table[at, i] = math.sin(at / 10000 ** (i / self.channels))
                table[at, i + 1] = math.cos(at / 10000 ** (i / self.channels))
        return table
model = Net()
adam = torch.optim.SGD(model.parameters(), 1e-2)
for step in range(200):
    ids = torch.randint(10, (4, 20))
    adam.zero_grad()
    F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    adam.step()
"""
EACH_TIME = PROGRAM.replace("BUILT", "").replace("ADDED", "table = self.table(ids.shape[1])")
ONCE = PROGRAM.replace("BUILT", 'self.register_buffer("kept", self.table(20))').replace(
    "ADDED", "table = self.kept[: ids.shape[1]]"
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute in one thread: with more, busy cores would be the first thing to say."""
    num = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num)


def steps_of(report: WatchReport) -> dict[str, str]:
    assert report.watcher_error is None
    assert report.next is not None
    return {step.rung: step.text for step in (report.next, *report.others)}


def test_a_table_that_is_filled_in_each_step_is_named(watched: Watched) -> None:
    text = steps_of(watched(EACH_TIME))["computed_once"]
    assert "in nested Python loops over single values in the model" in text
    assert "register_buffer" in text


def test_a_table_that_is_filled_once_is_not(watched: Watched) -> None:
    assert "computed_once" not in steps_of(watched(ONCE))


def evidence_of(text: str, seconds: float) -> Evidence:
    body = (
        "def forward(self, x, lengths):\n",
        "    mask = torch.ones(len(x), 9)\n",
        "    for row in range(len(x)):\n",
        "        for at in range(9):\n",
        f"            {text}\n",
    )
    spot = Spot(where="net.py:5", function="forward", text=text, body=body, at=5)
    samples = [
        SampleSeen(part=FORWARD, is_validation=False, spots=one, calls=(), seconds=its_s)
        for one, its_s in (((spot,), seconds), ((), 1.0 - seconds))
    ]
    seen = Seen()
    seen.costs.stacks = StacksSeen(num=100, samples=samples)
    return Evidence(seen=seen, shares={}, whole_s=1.0, num_steps=100, facts={})


def test_the_change_depends_on_what_the_values_depend_on() -> None:
    causes = filled_causes(evidence_of("mask[row, at] = 1 / (row + at + 1)", 0.5))
    assert [one.name for one in causes] == ["computed_once"]
    assert causes[0].share == pytest.approx(0.5)
    causes = filled_causes(evidence_of("mask[row, at] = float(lengths[row] > at)", 0.5))
    assert [one.name for one in causes] == ["vectorise"]
    assert "operations on whole tensors" in causes[0].text
    assert filled_causes(evidence_of("mask[row] = self.layer(x[row, at])", 0.5)) == []
    assert filled_causes(evidence_of("mask[row, at] = 1 / (row + at + 1)", 0.05)) == []
