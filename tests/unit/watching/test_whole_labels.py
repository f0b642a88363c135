"""Losses of all labels of a set of which a part is held out, and what resembles them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]
NAME = "split_leakage"

PROGRAM = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(90, 6), torch.randint(3, (90,))
near = (torch.rand(90, 90) < 0.1).float() + torch.eye(90)
order = torch.randperm(90)
masks = torch.zeros(3, 90, dtype=torch.bool)
for mask, part in zip(masks, order.split(30)):
    mask[part] = True
train_mask, val_mask, test_mask = masks
idx_train, idx_val, idx_test = order.split(30)
class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)
        self.dropout = nn.Dropout(0.5)
    def forward(self, x):
        return near @ self.last(self.dropout(F.relu(near @ self.first(x))))
model = GCN()
adam = torch.optim.Adam(model.parameters(), 1e-2)
PREPARE
def accuracy(chosen):
    model.eval()
    with torch.no_grad():
        guess = model(x).argmax(1)
    return (guess[chosen] == y[chosen]).float().mean()
for step in range(12):
    model.train()
    adam.zero_grad()
    out = model(x)
    loss = LOSS
    loss.backward()
    adam.step()
EVALUATE
"""
BY_MASK = "print(f'test {accuracy(test_mask):.2f}')"
AFTER = """
model.eval()
with torch.no_grad():
    correct = (model(x).argmax(1) == y)
    print(correct[val_mask].float().mean())
"""

FLOATS = """
model.eval()
with torch.no_grad():
    errors = model(x)[:, 0][val_mask] - y.float()[val_mask]
print(errors.square().mean())
"""

LEAKED = {
    "all_nodes": ("", "F.cross_entropy(out, y)", BY_MASK),
    "weighted_classes": ("", "F.cross_entropy(out, y, torch.tensor([1.0, 2.0, 1.0]))", BY_MASK),
    "indices": ("", "F.nll_loss(out.log_softmax(1), y)", "print(accuracy(idx_test))"),
    "a_regression": ("", "F.mse_loss(out[:, 0], y.float())", FLOATS),
    "indexed_later": ("", "F.cross_entropy(out, y)", AFTER),
}
SOUND = {
    "a_mask": ("", "F.cross_entropy(out[train_mask], y[train_mask])", BY_MASK),
    "indices": ("", "F.cross_entropy(out[idx_train], y[idx_train])", BY_MASK),
    "masked_later": (
        "",
        '(F.cross_entropy(out, y, reduction="none") * train_mask).sum() / train_mask.sum()',
        BY_MASK,
    ),
    "ignored_labels": (
        "y = y.clone()\nknown = y.where(train_mask, -100)",
        "F.cross_entropy(out, known)",
        BY_MASK,
    ),
    "guessed_labels": (
        "known = y.where(train_mask, torch.zeros_like(y))",
        "F.cross_entropy(out, known)",
        BY_MASK,
    ),
    "accuracy_in_training": ("", "F.cross_entropy(out, y)", "print(accuracy(train_mask))"),
    "accuracy_by_class": (
        "",
        "F.cross_entropy(out, y)",
        "for one in range(3):\n    print(one, accuracy(y == one))",
    ),
    "numbered_nodes": (
        "y = torch.arange(90)",
        "F.cross_entropy(out @ out.detach().T, y)",
        "model.eval()\nmodel(x)\nprint(len(y[test_mask]))",
    ),
    "features_of_all_nodes": (
        "head = nn.Linear(3, 6)",
        "F.mse_loss(head(out), x)",
        "model.eval()\nmodel(x)\nprint(x[test_mask].var())",
    ),
    "features_beside_labels": (
        "head = nn.Linear(3, 1)",
        "F.cross_entropy(out[train_mask], y[train_mask]) + F.mse_loss(head(out), x[:, :1])",
        "model.eval()\nmodel(x)\nprint(x[:, :1][test_mask].var())",
    ),
}


def code(prepare: str, loss: str, evaluate: str) -> str:
    text = PROGRAM.replace("PREPARE", prepare).replace("LOSS", loss)
    return text.replace("EVALUATE", evaluate)


@pytest.mark.parametrize("name", LEAKED)
def test_a_loss_of_held_out_labels_is_found(name: str, watched: Watched) -> None:
    program = code(*LEAKED[name])
    report = watched(program)
    assert report.watcher_error is None
    assert report.exit_code == 0
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault == NAME, found.evidence
    assert "all 90 labels" in found.evidence
    assert found.numbers == {"num_trained": 90, "num_held_out": 30}
    texts = {"indexed_later": "correct[val_mask]", "a_regression": "y.float()[val_mask]"}
    text = texts.get(name, "guess[chosen] == y[chosen]")
    line = next(i for i, one in enumerate(program.splitlines(), 1) if text in one)
    assert found.where == f"snippet.py:{line}"


@pytest.mark.parametrize("name", SOUND)
def test_losses_of_training_labels_are_sound(name: str, watched: Watched) -> None:
    report = watched(code(*SOUND[name]))
    assert report.watcher_error is None
    assert report.exit_code == 0
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault is None, found.evidence
