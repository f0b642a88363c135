"""Masks of attention that hide the real tokens, and what only looks like that."""

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
N, T = 64, 12
lengths = torch.randint(3, T - 1, (N,))
is_pad = torch.arange(T) >= lengths[:, None]
ids = torch.randint(1, 20, (N, T)).masked_fill(is_pad, 0)
y = (ids == 5).any(1).long()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.queries = nn.Embedding(20, 16), nn.Parameter(torch.randn(3, 16))
        self.key, self.value, self.score = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 1)
        self.head = nn.Linear(16, 2)
    def heads(self, x):
        return x.view(x.shape[0], x.shape[1], 2, 8).transpose(1, 2)
    def forward(self, ids):
        x = self.embed(ids)
        k, v, n = self.key(x), self.value(x), len(ids)
        q = self.queries.expand(n, -1, -1)
        FORWARD
        return self.head(out.mean(1))
net = Net()
adam = torch.optim.Adam(net.parameters(), 1e-2)
for step in range(6):
    rows = torch.randperm(N)[:32]
    adam.zero_grad()
    F.cross_entropy(net(ids[rows]), y[rows]).backward()
    adam.step()
"""
HEADS = """mask = {mask}
        out = F.scaled_dot_product_attention(
            self.heads({q}), self.heads(k), self.heads(v), {given}
        ).transpose(1, 2).flatten(2)"""
OWN = """scores = q @ k.transpose(1, 2) / 4
        {hide}
        out = F.softmax(scores, -1) @ v"""
POOL = """scores = self.score(k){shape}
        weights = torch.softmax(scores.masked_fill({mask}, -1e9), dim=1)
        out = (weights{axis} * v).sum(1, keepdim=True)"""

INF = 'float("-inf")'
# each with the mask as it should be, and inverted
MASKS = {
    "queries_of_labels": (
        HEADS.format(mask="(ids {} 0)[:, None, None, :]", q="q", given="attn_mask=mask"),
        ("!=", "=="),
    ),
    "with_a_causal_mask": (
        HEADS.format(
            mask="(ids {} 0)[:, None, None, :] & torch.ones(T, T, dtype=torch.bool).tril()",
            q="x",
            given="mask",
        ),
        ("!=", "=="),
    ),
    "added": (
        HEADS.format(
            mask=f"torch.zeros(n, 1, 1, T).masked_fill((ids {{}} 0)[:, None, None], {INF})",
            q="q",
            given="attn_mask=mask",
        ),
        ("==", "!="),
    ),
    "own_attention": (
        OWN.format(hide=f"scores = scores.masked_fill((ids {{}} 0)[:, None, :], {INF})"),
        ("==", "!="),
    ),
    "in_place": (
        OWN.format(hide="scores.masked_fill_((ids {} 0)[:, None] == 0, -1e9)"),
        ("!=", "=="),
    ),
    "where": (
        OWN.format(hide=f"scores = torch.where((ids {{}} 0)[:, None, :], scores, {INF})"),
        ("!=", "=="),
    ),
    "a_large_number": (
        OWN.format(hide="scores = scores - 1e9 * (ids {} 0)[:, None, :].float()"),
        ("==", "!="),
    ),
    "weights_of_places": (
        POOL.format(shape="", mask="(ids {} 0)[..., None]", axis=""),
        ("==", "!="),
    ),
}
SOUND = {
    # a move to one of the free places of a board
    "free_places": POOL.format(shape="[..., 0]", mask="ids != 0", axis="[..., None]"),
    "queries_at_padding": OWN.format(
        hide="is_real = ids != 0\n"
        "        pair = is_real[:, None, :] & is_real[:, :, None]\n"
        "        scores = (x @ k.transpose(1, 2) / 4).masked_fill(~pair, -1e9)"
    ),
    "only_the_future": HEADS.format(
        mask="torch.ones(T, T, dtype=torch.bool).tril()", q="x", given="attn_mask=mask"
    ),
}


def program(forward: str) -> str:
    return START.replace("FORWARD", forward)


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == "padding_misread"]
    return one


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_hides_the_real_tokens_is_an_error(name: str, watched: Watched) -> None:
    forward, (sound, inverted) = MASKS[name]

    one = found(watched(program(forward.format(inverted))))
    assert one.outcome is Outcome.FAILED, one.evidence
    assert "attention sees only the padding" in one.evidence
    assert one.where is not None
    assert found(watched(program(forward.format(sound)))).outcome is Outcome.PASSED


def test_weights_of_places_may_be_those_of_free_ones(watched: Watched) -> None:
    code = POOL.format(shape="[..., 0]", mask="ids != 0", axis="[..., None]")

    one = found(watched(program(code)))
    assert one.outcome is Outcome.WARNED
    assert "masked_fill((tokens == 0), float" in (one.fix or "")


@pytest.mark.parametrize("name", SOUND)
def test_other_masks_are_not_reported(name: str, watched: Watched) -> None:
    code = program(SOUND[name])
    if name == "free_places":
        code = code.replace(".masked_fill(is_pad, 0)", ".masked_fill(torch.rand(N, T) < 0.4, 0)")
    one = found(watched(code))
    assert one.fault is None, one.evidence


def test_the_mask_of_the_fix_works(watched: Watched) -> None:
    forward, (_, inverted) = MASKS["added"]
    one = found(watched(program(forward.format(inverted))))
    _, _, mask = (one.fix or "").partition("attn_mask=")

    code = HEADS.format(
        mask=mask.rstrip(".").replace("tokens", "ids"), q="q", given="attn_mask=mask"
    )
    assert found(watched(program(code))).outcome is Outcome.PASSED
