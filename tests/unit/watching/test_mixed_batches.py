"""Models in which the examples of a batch affect each other, and what only looks like that."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport
from stepladder.watching.hooks import patches

Watched = Callable[..., WatchReport]
NAME = "samples_not_independent"


@pytest.fixture(autouse=True)
def _time_for_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watcher sample whenever it wants, so that its coverage is the same on any machine."""
    monkeypatch.setattr(patches, "_FIRST_S", 60.0)


START = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(128, 7, 8)
y = x[:, 0, :3].argmax(1)
loader = DataLoader(TensorDataset(x, y), 32, shuffle=True)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.inner = {}
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        {}
"""
TRAIN = """
net = Net()
sgd = torch.optim.SGD(net.parameters(), 1e-2)
for epoch in range(3):
    for a, b in loader:
        sgd.zero_grad()
        F.cross_entropy(net(a), b).backward()
        sgd.step()
"""
LAYER = "nn.TransformerEncoderLayer(8, 2, 16{})"
SENTENCES = (
    START
    + """
ids = torch.randint(0, 20, (128, 12))
loader = [(ids[rows], y[rows]) for rows in torch.randperm(128).split(32)]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.inner = {}
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        x = self.table(x)
        return self.head({})
"""
)
POOLED = "return self.head(self.inner(x).mean(1))"


def net(inner: str, forward: str) -> str:
    return START.format(inner, forward) + TRAIN


def sentences(inner: str, encoded: str) -> str:
    """Return a script whose batches of tokens are from no loader."""
    return SENTENCES.format("nn.Identity()", "return x", inner, encoded) + TRAIN


MIXED = {
    "attention_over_the_batch": (net(LAYER.format(""), POOLED), "batch_first=False"),
    "a_recurrent_layer": (
        net("nn.GRU(8, 8)", "return self.head(self.inner(x)[0].mean(1))"),
        "its GRU has batch_first=False",
    ),
    "a_view_for_a_transpose": (
        net("nn.Identity()", "return self.head(x.reshape(7, len(x), 8).tanh().mean(0))"),
        "even in evaluation mode",
    ),
    "a_softmax_over_the_batch": (
        net("nn.Identity()", "return self.head((x.softmax(0) * x).sum(1))"),
        "even in evaluation mode",
    ),
    "normalised_over_the_batch": (
        net("nn.Identity()", "x = x.mean(1); return self.head((x - x.mean(0)) / x.std(0))"),
        "even in evaluation mode",
    ),
    "tokens": (
        START.format("nn.Identity()", "return x")
        + """
ids = torch.randint(0, 20, (128, 12))
loader = DataLoader(TensorDataset(ids[:, :-1], ids[:, 1:]), 16, shuffle=True)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.inner = nn.TransformerEncoderLayer(8, 2, 16)
        self.head = nn.Linear(8, 20)
    def forward(self, x):
        return self.head(self.inner(self.table(x)))
"""
        + TRAIN.replace("net(a), b", "net(a).flatten(0, 1), b.flatten()"),
        "its MultiheadAttention has batch_first=False",
    ),
    "sentences_that_the_script_cuts_itself": (
        sentences("nn.LSTM(8, 8)", "self.inner(x)[0][:, -1]"),
        "its LSTM has batch_first=False",
    ),
    "the_last_state_of_such_sentences": (
        sentences("nn.GRU(8, 4, 2, bidirectional=True)", "self.inner(x)[0].mean(1)"),
        "its GRU has batch_first=False",
    ),
    "attention_between_such_sentences": (
        sentences(LAYER.format(""), "self.inner(x).mean(1)"),
        "its MultiheadAttention has batch_first=False",
    ),
}
SOUND = {
    "attention_over_time": net(LAYER.format(", batch_first=True"), POOLED),
    "statistics_of_training": net(
        "nn.Identity()", "return self.head(self.norm(x.mean(1)))"
    ),
    "random_numbers": net("nn.Identity()", "return self.head(F.dropout(x.mean(1)))"),
    "a_transpose": net("nn.GRU(8, 8)", "return self.head(self.inner(x.transpose(0, 1))[0][-1])"),
}  # fmt: skip
UNJUDGED = {
    "all_pairs": net("nn.Linear(8, 8)", "x = self.inner(x.mean(1)); return x @ x.T").replace(
        "net(a), b", "net(a), torch.arange(len(a))"
    ),
    "a_state": net("nn.Identity()", "x = x.mean(1); self.h = getattr(self, 'h', 0) + x.mean(); "
        "return self.head(x + self.h.detach())"),
    "a_graph": START.format("nn.Identity()", "return x")
    + """
nodes, label = x[:, 0], y
links = (torch.rand(128, 128) < 0.1).float()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("links", links)
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        return self.head(self.links @ x)
loader = [(nodes, label)] * 20
"""
    + TRAIN,
    "a_discriminator": net(
        "nn.Linear(8, 1)", "x = x.mean(1); return self.inner(x - x.mean(0))"
    ).replace(
        "F.cross_entropy(net(a), b)",
        "F.binary_cross_entropy_with_logits(net(a), torch.ones(len(a), 1))",
    ),
    "the_words_of_a_sentence": START.format("nn.Identity()", "return x")
    + """
ids = torch.randint(0, 20, (40, 12))
loader = [(one, one % 3) for one in ids]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.inner = nn.LSTM(8, 8)
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        return self.head(self.inner(self.table(x).view(len(x), 1, -1))[0].view(len(x), -1))
"""
    + TRAIN,
    "sentences_with_time_first": sentences(
        "nn.LSTM(8, 8)", "self.inner(x.transpose(0, 1))[0][-1]"
    ),
    "the_letters_of_each_word_of_a_sentence": sentences(
        "nn.LSTM(8, 8)", "self.inner(x.mean(1).unsqueeze(1))[0].squeeze(1)"
    ),
    "voices_over_time": sentences("nn.LSTM(8, 8)", "self.inner(x)[0].mean(1)").replace(
        "(128, 12)", "(128, 4)"
    ),
    "time_comes_first": START.format(
        "nn.GRU(8, 8)", "return self.head(self.inner(x)[0])"
    )
    + TRAIN.replace("loader:", "[(x.transpose(0, 1)[:, :32], y[:32].expand(7, -1))] * 9:").replace(
        "net(a), b", "net(a).flatten(0, 1), b.flatten()"
    ),
    "hooks_of_the_script": net("nn.Identity()", "return self.head((x - x.mean(0)).mean(1))")
    .replace("sgd = ", "net.register_forward_hook(lambda *_: None)\nsgd = "),
}  # fmt: skip


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == NAME]
    return one


@pytest.mark.parametrize("name", MIXED)
def test_examples_that_affect_each_other_are_found(name: str, watched: Watched) -> None:
    code, words = MIXED[name]
    one = found(watched(code))
    assert one.outcome is Outcome.WARNED, one.evidence
    assert words in one.evidence
    assert one.where is not None


@pytest.mark.parametrize("name", SOUND)
def test_independent_examples_are_not(name: str, watched: Watched) -> None:
    one = found(watched(SOUND[name]))
    assert one.outcome is Outcome.PASSED, one.evidence


@pytest.mark.parametrize("name", UNJUDGED)
def test_what_may_be_meant_so_is_not_judged(name: str, watched: Watched) -> None:
    one = found(watched(UNJUDGED[name]))
    assert one.outcome is Outcome.NOT_APPLICABLE, one.evidence


def test_the_replay_prints_nothing_and_leaves_model_and_random_state(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    code = net("nn.Identity()", "print(len(x)); return self.head(self.norm(x.mean(1)))")
    code += """
import sys
sys.modules["kept_of_the_test"] = (net, torch.get_rng_state(), net.norm.running_mean.clone())
"""
    try:
        assert found(watched(code)).outcome is Outcome.PASSED
        import torch

        kept: Any = sys.modules.pop("kept_of_the_test")
        model, state, mean = kept
    finally:
        sys.modules.pop("kept_of_the_test", None)
    assert capsys.readouterr().out.split() == ["32"] * 12
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model.norm.running_mean, mean)
    assert model.training
