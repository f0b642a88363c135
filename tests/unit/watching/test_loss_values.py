"""Weights of classes, kinds of targets, pairs and padding: what losses receive in whole scripts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

START = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
"""
LOOP = """
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(3):
    for a, b in loader:
        out = net(a)
        LOSS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
BINARY = """
x = torch.randn(400, 6)
y = (x[:, 0] + 1.2 > 0).float()  # 88 % are positive
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
positive = y.sum()
negative = len(y) - positive
"""
CLASSES = """
x = torch.randn(600, 6)
y = (x[:, 0] > 0.3).long() + (x[:, 0] > 1.2).long() + (x[:, 0] > 1.6).long()
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
counts = torch.bincount(y).float()
"""
NUMBERS = """
x = torch.randn(400, 6)
y = x.sum(1, keepdim=True)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
"""
PAIRS = """
centres = torch.randn(8, 12)
def draw(labels):
    return centres[labels] + 0.5 * torch.randn(len(labels), 12)
net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for step in range(24):
    k = torch.randint(0, 8, (32,))
    j = (k + torch.randint(1, 8, (32,))) % 8
    same = torch.rand(32) < 0.5
    a, p, n = net(draw(k)), net(draw(k)), net(draw(j))
    b = net(draw(torch.where(same, k, j)))
    LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TAGS = """
ids = torch.randint(1, 30, (128, 24))
mask = torch.arange(24) < torch.randint(4, 12, (128, 1))
ids[~mask] = 0
tags = torch.where(mask, ids % 5, 5)
net = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 6))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for step in range(30):
    rows = torch.randperm(128)[:32]
    a, t, m = ids[rows], tags[rows], mask[rows]
    LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
WEIGHTS, KIND = "loss_weights_inverted", "loss_kind_mismatch"
CONTRASTIVE, PADDED, LIKELIHOOD = (
    "contrastive_loss_misused",
    "tokens_out_of_vocabulary",
    "nll_without_log_softmax",
)
FAILED, WARNED = Outcome.FAILED, Outcome.WARNED
NEAR_ONE_HOT = "F.one_hot(b, 4).float() * 0.9 + 0.025"

# each: the fault, its outcome, words of its evidence, the data, and the line of the loss
FAULTY = {
    "pos_weight": (
        WEIGHTS,
        WARNED,
        "88 % of 224",
        BINARY + LOOP,
        "loss = nn.BCEWithLogitsLoss(pos_weight=positive / negative)(out, b)",
    ),
    "weight_of_positives": (
        WEIGHTS,
        WARNED,
        "5 times the weight",
        BINARY + LOOP,
        "loss = F.binary_cross_entropy_with_logits(out, b, weight=1 + 4 * b)",
    ),
    "weight_times_loss": (
        WEIGHTS,
        WARNED,
        "5 times the weight",
        BINARY + LOOP,
        "l = F.binary_cross_entropy_with_logits(out, b, reduction='none'); "
        "loss = (l * (1 + 4 * b)).mean()",
    ),
    "counts": (
        WEIGHTS,
        WARNED,
        "61.5 % of 288",
        CLASSES + LOOP,
        "loss = nn.CrossEntropyLoss(weight=counts / counts.sum())(out, b)",
    ),
    "roots_of_counts": (
        WEIGHTS,
        WARNED,
        "nll_loss",
        CLASSES + LOOP,
        "loss = F.nll_loss(out.log_softmax(1), b, weight=counts.sqrt())",
    ),
    "counts_times_loss": (
        WEIGHTS,
        WARNED,
        "the weighted cross_entropy",
        CLASSES + LOOP,
        "loss = (F.cross_entropy(out, b, reduction='none') * counts[b]).mean() / 600",
    ),
    "one_class": (
        KIND,
        FAILED,
        "(32, 1)",
        NUMBERS + LOOP,
        "loss = F.cross_entropy(out, b.sigmoid())",
    ),
    "several_labels": (
        KIND,
        WARNED,
        "have several classes",
        CLASSES + LOOP,
        "loss = F.cross_entropy(out, (a[:, :4] > 0.5).float())",
    ),
    "truncated": (
        KIND,
        WARNED,
        "truncated to integers, and uses them as classes",
        NUMBERS.replace("x.sum(1, keepdim=True)", "torch.rand(400, 1)") + LOOP,
        "loss = F.cross_entropy(torch.cat([out, -out], 1), b.long().squeeze(1))",
    ),
    "relu": (
        KIND,
        FAILED,
        "at least 0, but targets go from -",
        NUMBERS + LOOP,
        "loss = F.mse_loss(out.relu(), b)",
    ),
    "sigmoid": (
        KIND,
        FAILED,
        "come from sigmoid",
        NUMBERS + LOOP,
        "loss = nn.L1Loss()(torch.sigmoid(out).squeeze(1), b.squeeze(1))",
    ),
    "own_square": (
        KIND,
        FAILED,
        "come from tanh",
        NUMBERS + LOOP,
        "loss = ((b - out.tanh()) ** 2).mean()",
    ),
    "noise_around_reachable_numbers": (  # the mean of which can be reached
        KIND,
        WARNED,
        "come from sigmoid",
        NUMBERS + LOOP,
        "loss = F.mse_loss(out.sigmoid(), (b > 0).float() + 0.15 * torch.randn(len(b), 1))",
    ),
    "softmax_of_ids": (
        KIND,
        FAILED,
        "come from softmax",
        CLASSES + LOOP,
        "loss = F.mse_loss(out.softmax(1), b.unsqueeze(1) * 3)",
    ),
    "log_target": (
        KIND,
        FAILED,
        "whose own logarithm is NaN",
        CLASSES + LOOP,
        f"loss = F.kl_div(out.log_softmax(1), ({NEAR_ONE_HOT}).log())",
    ),
    "exchanged_divergence": (
        LIKELIHOOD,
        FAILED,
        "probabilities first and logarithms second",
        CLASSES + LOOP,
        f"loss = F.kl_div({NEAR_ONE_HOT}, out.log_softmax(1))",
    ),
    "divergence_of_scores": (
        LIKELIHOOD,
        WARNED,
        "raw scores",
        CLASSES + LOOP,
        f"loss = F.kl_div(out, {NEAR_ONE_HOT}, reduction='batchmean')",
    ),
    "divided_twice": (
        "loss_reduction_mismatch",
        WARNED,
        "divided by the batch size 32 again",
        CLASSES + LOOP,
        "loss = F.cross_entropy(out, b) / len(a)",
    ),
    "negative_first": (
        CONTRASTIVE,
        WARNED,
        "probably exchanged",
        PAIRS,
        "loss = nn.TripletMarginLoss(margin=0.5)(a, n, p)",
    ),
    "negative_first_by_distance": (
        CONTRASTIVE,
        WARNED,
        "probably exchanged",
        PAIRS,
        "loss = F.triplet_margin_with_distance_loss(a, positive=n, negative=p)",
    ),
    "cosine_of_0_and_1": (
        CONTRASTIVE,
        WARNED,
        "none is -1",
        PAIRS,
        "loss = F.cosine_embedding_loss(a, b, same.float())",
    ),
    "hinge_of_0_and_1": (
        CONTRASTIVE,
        FAILED,
        "cancels the gradient",
        PAIRS,
        "loss = nn.HingeEmbeddingLoss()((a - b).norm(dim=1), same.long())",
    ),
    "ranking_of_0_and_1": (
        CONTRASTIVE,
        WARNED,
        "the loss is the margin",
        PAIRS,
        "loss = F.margin_ranking_loss(a[:, 0], b[:, 0], same.float())",
    ),
    "cosine_exchanged": (
        CONTRASTIVE,
        WARNED,
        "pairs with target 1 were farther apart",
        PAIRS,
        "loss = F.cosine_embedding_loss(a, b, 1 - 2 * same.float())",
    ),
    "padded_tags": (
        PADDED,
        WARNED,
        "are 5, which fills the ends of rows, where their token ids are padded",
        TAGS,
        "loss = F.cross_entropy(net(a).flatten(0, 1), t.flatten())",
    ),
    "padded_tags_in_rows": (
        PADDED,
        WARNED,
        "ignore_index=-100",
        TAGS,
        "loss = nn.CrossEntropyLoss()(net(a).transpose(1, 2), t)",
    ),
    "padded_tags_by_time": (
        PADDED,
        WARNED,
        "are 5",
        TAGS,
        "loss = F.cross_entropy(net(a.t()).reshape(-1, 6), t.t().reshape(-1))",
    ),
    "padded_with_a_class": (
        PADDED,
        WARNED,
        "are 0, which fills the ends of rows, where their token ids are padded too, and is a class",
        TAGS.replace("ids % 5, 5", "(ids % 5 - 2).clamp(min=0), 0"),
        "loss = F.cross_entropy(net(a).flatten(0, 1), t.flatten())",
    ),
}

SOUND = {
    "ends_that_are_ignored_beside_a_class": (
        TAGS.replace("ids % 5, 5", "(ids % 5 - 2).clamp(min=0), -100"),
        "loss = F.cross_entropy(net(a).flatten(0, 1), t.flatten())",
    ),
    "ends_that_are_masked_beside_a_class": (
        TAGS.replace("ids % 5, 5", "(ids % 5 - 2).clamp(min=0), 0"),
        "l = F.cross_entropy(net(a).flatten(0, 1), t.flatten(), reduction='none')\n"
        "    loss = (l * m.flatten()).sum() / m.sum()",
    ),
    "padding_that_has_several_tags": (
        TAGS.replace("torch.where(mask, ids % 5, 5)", "torch.randint(5, (128, 24))"),
        "loss = F.cross_entropy(net(a).flatten(0, 1), t.flatten())",
    ),
    "pos_weight": (
        BINARY + LOOP,
        "loss = nn.BCEWithLogitsLoss(pos_weight=negative / positive)(out, b)",
    ),
    "weight_times_loss": (
        BINARY + LOOP,
        "l = F.binary_cross_entropy_with_logits(out, b, reduction='none'); "
        "loss = (l * (5 - 4 * b)).mean()",
    ),
    "costs_of_equally_frequent_classes": (
        BINARY.replace("+ 1.2 ", "") + LOOP,
        "loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(20.0))(out, b)",
    ),
    "precision_before_recall": (
        BINARY.replace("+ 1.2 ", "- 1.0 ") + LOOP,
        "loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(0.5))(out, b)",
    ),
    "counts": (
        CLASSES + LOOP,
        "loss = nn.CrossEntropyLoss(weight=counts.sum() / counts)(out, b)",
    ),
    "one_hot": (CLASSES + LOOP, "loss = F.cross_entropy(out, F.one_hot(b, 4).float())"),
    "smoothed": (CLASSES + LOOP, f"loss = F.cross_entropy(out, {NEAR_ONE_HOT})"),
    "bins": (
        NUMBERS.replace("x.sum(1, keepdim=True)", "torch.rand(400, 1)") + LOOP,
        "loss = F.cross_entropy(torch.cat([out] * 8, 1), (b * 8).long().squeeze(1))",
    ),
    "positive_numbers": (NUMBERS + LOOP, "loss = F.mse_loss(out.relu(), b.abs())"),
    "scaled_numbers": (NUMBERS + LOOP, "loss = F.mse_loss(out.sigmoid() * 20 - 10, b)"),
    "nearly_positive_numbers": (
        NUMBERS + LOOP,
        "loss = F.mse_loss(out.relu(), b.abs() + 0.01 * torch.randn(len(b), 1))",
    ),
    "divergence": (
        CLASSES + LOOP,
        f"loss = F.kl_div(out.log_softmax(1), {NEAR_ONE_HOT}, reduction='batchmean')",
    ),
    "reverse_divergence": (
        CLASSES + LOOP,
        f"loss = F.kl_div(({NEAR_ONE_HOT}).log(), out.softmax(1), reduction='batchmean')",
    ),
    "logarithms_declared": (
        CLASSES + LOOP,
        f"loss = F.kl_div(out.log_softmax(1), ({NEAR_ONE_HOT}).log(), log_target=True)",
    ),
    "factor": (CLASSES + LOOP, "loss = F.cross_entropy(out, b) * 0.5"),
    "triplets": (PAIRS, "loss = F.triplet_margin_loss(a, p, n)"),
    "hard_triplets": (
        PAIRS,
        "e, l = torch.cat([a, p]), torch.cat([k, k]); d = torch.cdist(e, e).detach(); "
        "s = l[:, None] == l; loss = F.triplet_margin_loss("
        "e, e[(d * s).argmax(1)], e[(d + 1e3 * s).argmin(1)])",
    ),
    "as_many_candidates_as_there_are": (
        NUMBERS + LOOP,
        "n = 4 if epoch == 0 else 1; loss = F.cross_entropy(out.expand(-1, n) * a[:, :n], "
        "torch.zeros(len(b), dtype=torch.long))",
    ),
    "ties": (PAIRS, "loss = F.margin_ranking_loss(a[:, 0], b[:, 0], torch.sign(k // 2 - j // 2))"),
    "cosine": (PAIRS, "loss = F.cosine_embedding_loss(a, b, 2 * same.float() - 1)"),
    "ignored": (TAGS, "loss = F.cross_entropy(net(a).flatten(0, 1), t.flatten(), ignore_index=5)"),
    "masked": (
        TAGS,
        "loss = (F.cross_entropy(net(a).flatten(0, 1), t.flatten(), reduction='none') "
        "* m.flatten()).sum() / m.sum()",
    ),
    "weight_0": (
        TAGS,
        "loss = F.cross_entropy(net(a).flatten(0, 1), t.flatten(), "
        "weight=torch.tensor([1.0, 1, 1, 1, 1, 0]))",
    ),
    "frequent_tag": (
        TAGS,
        "t = torch.where(torch.rand(32, 24) < 0.8, 0, t).where(m, -100); "
        "loss = F.cross_entropy(net(a).flatten(0, 1), t.flatten())",
    ),
    "last_state_stays": (
        TAGS,
        "a = torch.randint(1, 30, (32, 24)); "
        "loss = F.cross_entropy(net(a).flatten(0, 1), (~m).long().flatten())",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTY)
def test_what_a_loss_receives_is_found(watched: Watched, name: str) -> None:
    fault, outcome, words, code, line = FAULTY[name]
    report = watched(START + code.replace("LOSS", line))
    assert report.watcher_error is None
    found = {finding.fault: finding for finding in report.findings}[fault]
    assert found.outcome is outcome
    assert words in found.evidence
    assert found.where is not None
    assert found.where.startswith("snippet.py:")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_loss_is_no_alarm(watched: Watched, name: str) -> None:
    code, line = SOUND[name]
    report = watched(START + code.replace("LOSS", line))
    assert report.watcher_error is None
    watching_losses = {WEIGHTS, KIND, CONTRASTIVE, PADDED, LIKELIHOOD, "loss_reduction_mismatch"}
    assert not {finding.fault for finding in report.findings} & watching_losses


def test_following_a_step_of_weights_and_pairs_changes_no_result(watched: Watched) -> None:
    import torch

    code = START + PAIRS.replace("LOSS", "loss = F.triplet_margin_loss(a, n, p)")
    code += "torch.save([net.state_dict(), torch.rand(4)], 'end.pt')\n"
    watched(code)
    first = torch.load("end.pt")
    exec(compile(code, "snippet.py", "exec"), {"__name__": "__main__"})
    second = torch.load("end.pt")
    assert all(torch.equal(first[0][key], second[0][key]) for key in first[0])
    assert torch.equal(first[1], second[1])
