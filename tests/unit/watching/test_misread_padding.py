"""Padding that attention or a linear layer reads as data, and what only looks like that."""

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
from torch.nn.utils.rnn import pack_padded_sequence

torch.manual_seed(0)
lengths = torch.randint(3, 13, (64,))
places = torch.arange(12)
is_pad = places >= lengths[:, None]
ids = torch.randint(1, 20, (64, 12)).masked_fill(is_pad, 0)
y = (ids == 5).any(1).long()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.drop = nn.Embedding(20, 16, padding_idx=0), nn.Dropout(0.3)
        self.lstm, self.gru = nn.LSTM(16, 24, batch_first=True), nn.GRU(16, 24, bidirectional=True)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 2,
            enable_nested_tensor=False)
        self.head, self.two, self.small = nn.Linear(24, 2), nn.Linear(48, 2), nn.Linear(16, 2)
    def forward(self, ids, lengths):
        x = self.embed(ids)
        {}
def train(ids):
    net = Net()
    adam = torch.optim.Adam(net.parameters(), 1e-2)
    for step in range(8):
        rows = torch.randperm(64)[:32]
        adam.zero_grad()
        F.cross_entropy(net(ids[rows], lengths[rows]), y[rows]).backward()
        adam.step()
"""
TRAIN = "train(ids)"

LAST = {
    "last_place": "return self.head(self.lstm(x)[0][:, -1])",
    "after_dropout": "return self.head(self.drop(self.lstm(x)[0][:, -1, :]))",
    "the_hidden_state": "return self.head(self.lstm(x)[1][0][-1])",
    "both_directions": "h = self.gru(x.transpose(0, 1))[1]\n"
    "        return self.two(torch.cat([h[-2], h[-1]], 1))",
}
MASKS = {
    "encoder": "h = self.encoder(x.transpose(0, 1), src_key_padding_mask=ids != 0)\n"
    "        return self.small(h[0])",
    "attention": "mask = torch.arange(12) < lengths[:, None]\n"
    "        return self.small(self.attend(x, x, x, mask)[0][:, 0])",
}
SOUND = {
    "at_its_length": (
        "return self.head(self.lstm(x)[0][torch.arange(len(ids)), lengths - 1])",
        TRAIN,
    ),
    "packed": (
        "p = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)\n"
        "        return self.head(self.lstm(p)[1][0][-1])",
        TRAIN,
    ),
    "padded_on_the_left": (
        "return self.head(self.lstm(x)[0][:, -1])",
        "train(ids.flip(1))",
    ),
    "full_length": (
        "return self.head(self.lstm(x)[0][:, -1])",
        "train(torch.randint(1, 20, (64, 12)))",
    ),
    "mean_over_places": ("return self.head(self.lstm(x)[0].mean(1))", TRAIN),
    "a_mask_of_the_padding": (
        "return self.small(self.attend(x, x, x, ids == 0)[0][:, 0])",
        TRAIN,
    ),
    "a_mask_of_a_part": (
        "mask = (ids != 0) & (torch.arange(12) > 0)\n"
        "        return self.small(self.attend(x, x, x, mask)[0][:, 0])",
        TRAIN,
    ),
}


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == "padding_misread"]
    return one


def program(forward: str, end: str = TRAIN) -> str:
    return START.format(forward) + end


@pytest.mark.parametrize("name", LAST)
def test_the_output_after_the_padding_is_reported(name: str, watched: Watched) -> None:
    one = found(watched(program(LAST[name])))
    assert one.outcome is Outcome.WARNED, one.evidence
    assert "it is the output after the padding" in one.evidence
    assert one.where is not None


@pytest.mark.parametrize("name", MASKS)
def test_an_inverted_mask_is_an_error(name: str, watched: Watched) -> None:
    one = found(watched(program(MASKS[name])))
    assert one.outcome is Outcome.FAILED, one.evidence
    assert "(id 0)" in one.evidence


@pytest.mark.parametrize("name", SOUND)
def test_padding_that_is_left_out_is_not_reported(name: str, watched: Watched) -> None:
    one = found(watched(program(*SOUND[name])))
    assert one.fault is None, one.evidence
