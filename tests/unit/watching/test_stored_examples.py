"""Datasets that change what they store or seed for each example, and what only looks like that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

START = """
import random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

torch.manual_seed(0)
rng = np.random.default_rng(0)
pictures = rng.normal(size=(96, 6, 6)).astype(np.float32)
y = (pictures.mean((1, 2)) > 0).astype(np.int64)
class Pictures(Dataset):
    def __init__(self):
        self.images, self.y, self.is_known = pictures.copy(), y, np.zeros(len(y), bool)
        self.list = [torch.from_numpy(one.copy()) for one in pictures]
    def __len__(self):
        return len(self.y)
    def __getitem__(self, i):
        return torch.as_tensor(self.picture(i)).clone(), self.y[i]
net = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 2))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
def learn(data, epochs=4):
    for epoch in range(epochs):
        for a, b in DataLoader(data, 8, shuffle=True):
            sgd.zero_grad()
            F.cross_entropy(net(a), b).backward()
            sgd.step()
"""

CHANGED = {
    "noise_on_a_view": """
class Noisy(Pictures):
    def picture(self, i):
        image = self.images[i]
        image += 0.1 * rng.normal(size=image.shape)
        return image
learn(Noisy())
""",
    "tensors_of_a_list": """
class Brighter(Pictures):
    def picture(self, i):
        return self.list[i].mul_(random.uniform(1.01, 1.3))
learn(Subset(Brighter(), range(8, 96)))
""",
    "a_transform_that_works_in_place": """
def standardise(image):
    image -= 0.4
    image /= 0.9
    return image
class Transformed(Dataset):
    def __init__(self, base):
        self.base = base
    def __len__(self):
        return len(self.base)
    def __getitem__(self, i):
        return torch.as_tensor(standardise(self.base.images[i]).copy()), self.base.y[i]
learn(Transformed(Pictures()))
""",
}
KEPT = {
    "a_copy": """
class Noisy(Pictures):
    def picture(self, i):
        image = self.images[i].copy()
        image += 0.1 * rng.normal(size=image.shape)
        return image
learn(Noisy())
""",
    "computed_at_first": """
class Cached(Pictures):
    def picture(self, i):
        if not self.is_known[i]:
            self.images[i] = self.images[i] / 2 + 1
            self.is_known[i] = True
        return self.images[i]
learn(Cached())
""",
    "flipped_in_place": """
class Flipped(Pictures):
    def picture(self, i):
        self.images[i] = self.images[i][:, ::-1].copy()
        return self.images[i]
learn(Flipped())
""",
    "a_buffer_of_new_examples": """
class New(Pictures):
    def picture(self, i):
        self.images[i] = rng.normal(size=(6, 6))
        return self.images[i]
learn(New())
""",
    "changed_between_epochs": """
class Moving(Pictures):
    def picture(self, i):
        return self.images[i]
data = Moving()
for _ in range(4):
    learn(data, 1)
    data.images += 0.1
""",
}
SEEDED = {
    "numpy": "np.random.seed(7)\n        noise = np.random.randn(6, 6)",
    "python": "random.seed(7)\n        noise = random.random()",
    "torch": "torch.manual_seed(7)\n        noise = torch.randn(6, 6).numpy()",
}
SEEDED_WELL = {
    "the_index": "np.random.seed(int(i))\n        noise = np.random.randn(6, 6)",
    "one_for_two_parts": """seed = int(rng.integers(2**31))
        random.seed(seed)
        noise = random.random()
        random.seed(seed)
        noise = noise - random.random()""",
}


def found(report: WatchReport, name: str) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == name]
    return one


def seeding(lines: str, loader: str = "learn(Noisy())") -> str:
    return f"""
class Noisy(Pictures):
    def picture(self, i):
        {lines}
        return (self.images[i] + noise).astype(np.float32)
{loader}
"""


@pytest.mark.parametrize("name", CHANGED)
def test_examples_that_are_changed_in_place_are_reported(name: str, watched: Watched) -> None:
    one = found(watched(START + CHANGED[name]), "stored_data_changes")
    assert one.outcome is Outcome.WARNED, one.evidence
    assert "were changed in place" in one.evidence
    assert one.where is not None


@pytest.mark.parametrize("name", KEPT)
def test_datasets_that_store_something_new_are_not_reported(name: str, watched: Watched) -> None:
    one = found(watched(START + KEPT[name]), "stored_data_changes")
    assert one.outcome is Outcome.PASSED, one.evidence


@pytest.mark.parametrize("name", SEEDED)
def test_one_seed_for_all_examples_is_reported(name: str, watched: Watched) -> None:
    code = START + seeding(SEEDED[name])
    one = found(watched(code), "seeds_wrong")
    assert one.outcome is Outcome.WARNED, one.evidence
    assert "the same for every example" in one.evidence
    line = next(at for at, text in enumerate(code.splitlines(), 1) if "seed(7)" in text)
    assert one.where == f"snippet.py:{line}"


@pytest.mark.parametrize("name", SEEDED_WELL)
def test_seeds_that_differ_are_not_reported(name: str, watched: Watched) -> None:
    one = found(watched(START + seeding(SEEDED_WELL[name])), "seeds_wrong")
    assert one.fault is None, one.evidence


def test_fixed_noise_of_validation_is_not_reported(watched: Watched) -> None:
    own = """
class Plain(Pictures):
    def picture(self, i):
        return self.images[i]
learn(Plain())
with torch.no_grad():
    for a, b in DataLoader(Noisy(), 8):
        net(a)
"""
    one = found(watched(START + seeding(SEEDED["numpy"], own)), "seeds_wrong")
    assert one.fault is None, one.evidence


def test_functions_that_seed_can_still_be_pickled(watched: Watched) -> None:
    code = """
import pickle
for one in (np.random.seed, random.seed, torch.manual_seed):
    assert pickle.loads(pickle.dumps(one)) is one
learn(Flipped(), 1)
"""
    kept = KEPT["flipped_in_place"].rpartition("learn")[0]
    report = watched(START + kept + code)
    assert report.ending == "it ran to completion"
    assert report.watcher_error is None
