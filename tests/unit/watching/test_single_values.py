"""Softmax over one value, labels that are a CTC blank, last places of padded outputs, momentum."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

ATTENTION = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(64, 7, 5), torch.randint(3, (64,))
score, out = nn.Linear(5, SCORES), nn.Linear(5, OUTPUTS)
adam = torch.optim.Adam([*score.parameters(), *out.parameters()], 1e-2)
for step in range(12):
    rows = torch.randint(64, (16,))
    part = x[rows, :LENGTH]
    loss = LOSS
    adam.zero_grad()
    loss.backward()
    adam.step()
"""
POOLED = "F.cross_entropy(out((WEIGHTS * part).sum(1)), y[rows])"


def attention(weights: str, scores: int = 1, length: str = "7", loss: str = POOLED) -> str:
    code = ATTENTION.replace("LOSS", loss).replace("WEIGHTS", weights).replace("OUTPUTS", "3")
    return code.replace("SCORES", str(scores)).replace("LENGTH", length)


def found_in(report: WatchReport, fault: str) -> Finding | None:
    assert report.watcher_error is None
    found = {finding.fault: finding for finding in report.findings}.get(fault)
    is_alarm = found is not None and found.outcome in (Outcome.WARNED, Outcome.FAILED)
    return found if is_alarm else None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "code",
    [
        attention("F.softmax(score(part), dim=-1)"),
        attention("torch.softmax(score(part), 2)"),
        attention("score(part).softmax(-1)"),
        attention(
            "", loss="F.nll_loss(out(part.mean(1)) + score(part.mean(1)).softmax(1), y[rows])"
        ),
    ],
)
def test_a_softmax_over_one_value_is_found(watched: Watched, code: str) -> None:
    found = found_in(watched(code), "softmax_wrong_dim")
    assert found is not None
    assert found.outcome is Outcome.WARNED
    assert "its results are all 1" in found.evidence
    assert found.where is not None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "code",
    [
        attention("F.softmax(score(part), dim=1)"),
        attention("F.softmax(score(part), dim=-1).mean(-1, keepdim=True)", scores=2),
        attention("F.softmax(score(part), dim=-1)", length="1"),  # a sequence of one token
        attention("F.softmax(score(part)[..., : 1 + step % 2], -1).sum(-1, True)", scores=2),
    ],
)
def test_a_softmax_over_alternatives_is_no_alarm(watched: Watched, code: str) -> None:
    assert found_in(watched(code), "softmax_wrong_dim") is None


SPOKEN = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Linear(6, 5)
adam = torch.optim.Adam(net.parameters(), 1e-2)
for step in range(12):
    x = torch.randn(20, 8, 6)
    lengths = torch.randint(2, 6, (8,))
    labels = torch.randint(LOW, 5, (8, 6)) * (torch.arange(6) < lengths[:, None])
    scores = net(x).log_softmax(-1)
    loss = F.ctc_loss(scores, LABELS, torch.full((8,), 20), lengths)
    adam.zero_grad()
    loss.backward()
    adam.step()
"""
FLAT = "labels[torch.arange(6) < lengths[:, None]]"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("labels", ["labels", FLAT])
def test_labels_that_are_the_blank_are_found(watched: Watched, labels: str) -> None:
    found = found_in(watched(SPOKEN.replace("LOW", "0").replace("LABELS", labels)), "label_range")
    assert found is not None
    assert found.outcome is Outcome.FAILED
    assert "labels of ctc_loss are 0, its blank" in found.evidence


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("labels", ["labels", FLAT])
def test_zeros_behind_the_end_of_labels_are_padding(watched: Watched, labels: str) -> None:
    code = SPOKEN.replace("LOW", "1").replace("LABELS", labels)
    assert found_in(watched(code), "label_range") is None


SERIES = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(0)
rnn, head = nn.GRU(4, 6, batch_first=FIRST), nn.Linear(6, 2)
adam = torch.optim.Adam([*rnn.parameters(), *head.parameters()], 1e-2)
for step in range(12):
    lengths = LENGTHS
    x, y = torch.randn(16, 9, 4), torch.randint(2, (16,))
    given = x if FIRST else x.transpose(0, 1)
    packed = pack_padded_sequence(given, lengths, batch_first=FIRST, enforce_sorted=False)
    out, state = rnn(packed)
    out, _ = pad_packed_sequence(out, batch_first=FIRST)
    loss = F.cross_entropy(head(READ), y)
    adam.zero_grad()
    loss.backward()
    adam.step()
"""
SHORT = "torch.randint(2, 10, (16,))"


def series(read: str, lengths: str = SHORT, first: bool = True) -> str:
    code = SERIES.replace("READ", read).replace("LENGTHS", lengths)
    return code.replace("FIRST", str(first))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("code", [series("out[:, -1]"), series("out[-1]", first=False)])
def test_the_last_place_of_a_padded_output_is_found(watched: Watched, code: str) -> None:
    found = found_in(watched(code), "padding_misread")
    assert found is not None
    assert "the last place of the output of pad_packed_sequence" in found.evidence
    assert found.where is not None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "code",
    [
        series("out[torch.arange(16), lengths - 1]"),
        series("state[-1]"),
        series("out.sum(1)"),
        series("out[:, -1]", lengths="torch.full((16,), 9)"),
    ],
)
def test_outputs_that_are_no_padding_are_no_alarm(watched: Watched, code: str) -> None:
    assert found_in(watched(code), "padding_misread") is None


NORMS = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=MOMENTUM), nn.Linear(8, 2))
adam = torch.optim.Adam(net.parameters(), 1e-2)
for step in range(12):
    loss = F.cross_entropy(net(torch.randn(16, 6)), torch.randint(2, (16,)))
    adam.zero_grad()
    loss.backward()
    adam.step()
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("momentum", "is_found"), [
    ("0.99", True), ("0.9", True), ("0.1", False), ("0.01", False), ("None", False), ("1.0", False),
])  # fmt: skip
def test_a_momentum_that_forgets_all_but_the_last_batch_is_found(
    watched: Watched, momentum: str, is_found: bool
) -> None:
    found = found_in(watched(NORMS.replace("MOMENTUM", momentum)), "batch_norm_stale")
    assert (found is not None) is is_found
    if found is not None:
        assert f"momentum={momentum}, the weight of the newest batch" in found.evidence
