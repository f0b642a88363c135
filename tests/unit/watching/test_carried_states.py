"""Batches in stored order, of models that continue from the state of the batch before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

SCRIPT = """
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
stream = torch.randint(12, (97, 4))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(12, 16), nn.{kind}(16, 16), nn.Linear(16, 12)

    def forward(self, x, state=None):
        h, state = self.rnn(self.emb(x), state)
        return self.out(h), state

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(12):
    state = None
    for i in range(0, 96, 12):
        x, y = stream[i:i + 12], stream[i + 1:i + 13]
        {call}
        loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
LSTM = """out, state = model(x, state)
        state = tuple(one.detach() for one in state)"""
GRU = """out, state = model(x, state=state)
        state = state.detach()"""


@pytest.mark.parametrize(("kind", "call"), [("LSTM", LSTM), ("GRU", GRU)])
def test_a_stream_that_is_read_in_order_is_no_alarm(watched: Watched, kind: str, call: str) -> None:
    report = watched(SCRIPT.format(kind=kind, call=call))
    assert report.watcher_error is None
    assert "no_shuffle" not in [alarm.fault for alarm in report.alarms]


@pytest.mark.parametrize("state", ["", ", torch.zeros(1, 4, 16)"])
def test_batches_in_stored_order_without_a_state_are_reported(watched: Watched, state: str) -> None:
    report = watched(SCRIPT.format(kind="GRU", call=f"out, _ = model(x{state})"))
    assert "no_shuffle" in [alarm.fault for alarm in report.alarms]
