"""Outputs of an example that depend on its place in the batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

CODE = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
LENGTH, WIDTH = 12, 16

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(30, WIDTH)
        self.register_buffer("table", torch.randn(200, 1, WIDTH))
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids):
        x = self.tokens(ids)
        x = x + ENCODING
        return self.head(torch.relu(self.layer(x)).mean(1))

ids = torch.randint(30, (240, LENGTH))
labels = ids[:, 0] % 3
loader = DataLoader(TensorDataset(ids, labels), batch_size=24, shuffle=True)
model = Encoder()
adam = torch.optim.Adam(model.parameters(), 1e-2)
for epoch in range(3):
    for x, y in loader:
        adam.zero_grad()
        F.cross_entropy(model(x), y).backward()
        adam.step()
"""
BY_PLACE = {
    "a_slice": "self.table[:x.size(0)]",
    "embedded_rows": "self.tokens(torch.arange(len(x)))[:, None]",
    "a_ramp": "torch.linspace(-1, 1, len(x))[:, None, None]",
}
SOUND = {
    "by_position": "self.table[:x.size(1)].transpose(0, 1)",
    "embedded_positions": "self.tokens(torch.arange(x.size(1)))[None]",
    "noise": "0.1 * torch.randn_like(x)",
    "noise_in_training": "(0.1 * torch.randn_like(x) if self.training else 0.0)",
}


@pytest.mark.parametrize("name", BY_PLACE)
def test_a_table_along_the_batch_is_named(name: str, watched: Watched) -> None:
    report = watched(CODE.replace("ENCODING", BY_PLACE[name]))
    assert report.watcher_error is None
    (found,) = [one for one in report.findings if one.fault == "samples_not_independent"]
    assert found.outcome is Outcome.WARNED
    assert "with its place in the batch" in found.evidence


@pytest.mark.parametrize("name", SOUND)
def test_tables_along_the_positions_and_noise_are_sound(name: str, watched: Watched) -> None:
    report = watched(CODE.replace("ENCODING", SOUND[name]))
    assert report.watcher_error is None
    assert "samples_not_independent" not in [one.fault for one in report.findings]
