"""Masks that are not mirrored with their pictures, and pictures that have no masks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport
from stepladder.watching.probe.mirrored import picture_and_mask

Watched = Callable[..., WatchReport]

START = """
import random
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
class Pictures(Dataset):
    def __init__(self):
        self.masks = torch.zeros(64, 12, 12, dtype=torch.long)
        for idx, mask in enumerate(self.masks):
            mask[idx % 4 : idx % 4 + 3, idx % 6 : idx % 6 + 4] = 1
        self.x = self.masks[:, None] + 0.3 * torch.randn(64, 1, 12, 12)
    def __len__(self):
        return 64
    def __getitem__(self, idx):
        x, mask = self.x[idx], self.masks[idx]
        READ
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
sgd = torch.optim.SGD(net.parameters(), 0.05)
for epoch in range(6):
    for x, mask in DataLoader(Pictures(), 16, shuffle=True):
        sgd.zero_grad()
        LOSS.backward()
        sgd.step()
"""
BY_CLASS = "F.cross_entropy(net(x), mask)"
APART = {
    "picture_only": "if random.random() < 0.5: x = x.flip(2)\n        return x, mask",
    "two_draws": "if torch.rand(()) < 0.5: x = x.flip(1)\n"
    "        if torch.rand(()) < 0.5: mask = mask.flip(0)\n        return x, mask",
    "other_dimension": "if random.random() < 0.5: x, mask = x.flip(2), mask.flip(0)\n"
    "        return x, mask",
    "transposed": "if random.random() < 0.5: x = x.transpose(1, 2)\n        return x, mask",
    "brighter_as_well": "if random.random() < 0.5: x = x.flip(2)\n"
    "        return x * random.uniform(0.8, 1.2) + 0.05 * torch.randn(x.shape), mask",
}
TOGETHER = {
    "as_they_are": "return x, mask",
    "both": "if random.random() < 0.5: x, mask = x.flip(2), mask.flip(1)\n        return x, mask",
    "noise": "return x + 0.5 * torch.randn(x.shape), mask",
    "rolled": "by = random.randrange(12)\n        return x.roll(by, 2), mask.roll(by, 1)",
    "random_masks": "return x, (torch.rand(12, 12) < 0.3).long()",
}


def found(report: WatchReport) -> Finding:
    return next(one for one in report.findings if one.check == "labels_misaligned")


@pytest.mark.parametrize("name", APART)
def test_masks_that_stay_behind(watched: Watched, name: str) -> None:
    script = START.replace("READ", APART[name]).replace("LOSS", BY_CLASS)
    finding = found(watched(script))
    assert finding.outcome is Outcome.WARNED
    assert "mirrors pictures and masks separately" in finding.evidence
    assert finding.numbers["num_apart"] >= 3


@pytest.mark.parametrize("name", TOGETHER)
def test_masks_of_their_pictures(watched: Watched, name: str) -> None:
    script = START.replace("READ", TOGETHER[name]).replace("LOSS", BY_CLASS)
    assert not found(watched(script)).is_alarm


def test_two_views_of_one_picture_are_no_masks(watched: Watched) -> None:
    read = "return x, x.flip(2) if random.random() < 0.5 else x"
    loss = "F.mse_loss(net(x).mean(1, keepdim=True), mask)"
    report = watched(START.replace("READ", read).replace("LOSS", loss))
    assert not found(report).is_alarm


def test_a_dataset_that_cannot_be_read_again(watched: Watched) -> None:
    read = "if 'x' not in globals() or not CLOSED: return x, mask\n        raise OSError('closed')"
    script = START.replace("READ", read).replace("LOSS", BY_CLASS)
    report = watched("CLOSED = False\n" + script + "CLOSED = True\n")
    assert report.watcher_error is None
    assert not found(report).is_alarm


def test_kinds_of_examples() -> None:
    rng = np.random.default_rng(0)
    picture, mask = rng.random((20, 30, 3)), rng.integers(3, size=(20, 30))
    found = picture_and_mask({"image": picture, "mask": torch.from_numpy(mask), "name": "a.png"})
    assert found is not None
    assert found[0].shape == (3, 20, 30)
    assert (found[1] == mask).all()
    assert picture_and_mask((picture, 3)) is None
    assert picture_and_mask((picture, picture)) is None
    assert picture_and_mask((picture, mask[:10])) is None
