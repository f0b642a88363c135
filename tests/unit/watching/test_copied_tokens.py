"""Models of tokens whose targets are not shifted, and sound ones with their input as target."""

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
V, T = 8, 12
def sentences(n):
    first, stride = torch.randint(V, (n, 1)), torch.randint(1, 4, (n, 1))
    return (first + stride * torch.arange(T + 1)) % V
"""
RECURRENT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(V, 16), nn.Linear(32, V)
        self.gru = nn.GRU(16, 32, batch_first=True)
    def forward(self, x):
        return self.head(self.gru(self.emb(x))[0])
"""
CONVOLUTION = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(V, 16), nn.Conv1d(32, V, 1)
        self.conv = nn.Conv1d(16, 32, 3)
    def forward(self, x):
        h = F.pad(self.emb(x).transpose(1, 2), (2, 0))
        return self.head(self.conv(h).relu())
"""
TRANSFORMER = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(V, 16), nn.Linear(16, V)
        self.places = nn.Embedding(T, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    def forward(self, x):
        n = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        h = self.emb(x) + self.places(torch.arange(n))
        return self.head(self.layer(h, src_mask=mask, is_causal=True))
"""
# the state after the last token is all that the decoder receives
AUTOENCODER = RECURRENT.replace(
    "self.head(self.gru(self.emb(x))[0])",
    "self.head(self.back(self.gru(self.emb(x))[1][0][:, None].repeat(1, T, 1))[0])",
).replace(
    "        self.gru =", "        self.back = nn.GRU(32, 32, batch_first=True)\n        self.gru ="
)
# the model itself shifts what it reads, as PixelCNN and WaveNet do
SHIFTING = RECURRENT.replace("self.emb(x)", "F.pad(self.emb(x), (0, 0, 1, -1))")
BOTH_WAYS = RECURRENT.replace("batch_first=True", "batch_first=True, bidirectional=True").replace(
    "nn.Linear(32, V)", "nn.Linear(64, V)"
)
TRAINING = """
model = Model()
adam = torch.optim.Adam(model.parameters(), 1e-2)
for step in range(100):
    s = sentences(16)
    x, y = PAIR
    loss = F.cross_entropy(SCORES, y.flatten())
    adam.zero_grad()
    loss.backward()
    adam.step()
"""
SELF, NEXT = "s[:, :-1], s[:, :-1]", "s[:, :-1], s[:, 1:]"
FLAT = "model(x).flatten(0, 1)"
BY_CLASS = "model(x).transpose(1, 2).flatten(0, 1)"


def program(model: str, pair: str, scores: str = FLAT) -> str:
    return START + model + TRAINING.replace("PAIR", pair).replace("SCORES", scores)


COPIED = {
    "recurrent": (RECURRENT, FLAT),
    "convolution": (CONVOLUTION, BY_CLASS),
    "transformer": (TRANSFORMER, FLAT),
}
SOUND = {
    "autoencoder": program(AUTOENCODER, SELF),
    "shifted_by_the_model": program(SHIFTING, SELF),
    "both_ways": program(BOTH_WAYS, SELF),
    "words_that_are_left_out": program(
        RECURRENT, "torch.where(torch.rand(16, T) < 0.2, 0, s[:, :-1]), s[:, :-1]"
    ),
}


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    return next(one for one in report.findings if one.check == "label_in_inputs")


@pytest.mark.parametrize("name", COPIED)
def test_targets_that_are_not_shifted_are_found(watched: Watched, name: str) -> None:
    model, scores = COPIED[name]

    finding = found(watched(program(model, SELF, scores)))
    assert finding.outcome is Outcome.WARNED
    assert "has learned to copy" in finding.evidence
    assert found(watched(program(model, NEXT, scores))).outcome is not Outcome.WARNED


@pytest.mark.parametrize("name", SOUND)
def test_other_models_with_their_input_as_target_are_not(watched: Watched, name: str) -> None:
    assert found(watched(SOUND[name])).outcome is not Outcome.WARNED
