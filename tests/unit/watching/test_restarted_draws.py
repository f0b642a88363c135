"""Random examples that workers draw again in each epoch, and what only looks like that."""

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
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

torch.manual_seed(0)
series = np.cumsum(np.random.default_rng(1).normal(size=4000)).astype(np.float32)
class Windows(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(2)
    def __len__(self):
        return 16
    def __getitem__(self, i):
        start = self.start()
        return series[start:start + 8], series[start + 8:start + 9]
    def start(self):
        return np.random.randint(0, len(series) - 9)
def train(data, epochs=3, **options):
    net = nn.Linear(8, 1)
    sgd = torch.optim.SGD(net.parameters(), 1e-4)
    loader = DataLoader(data, batch_size=8, **options)
    for _ in range(epochs):
        for past, future in loader:
            sgd.zero_grad()
            nn.functional.l1_loss(net(past), future).backward()
            sgd.step()
"""

FAULTY = {
    "by_worker": """
train(Windows(), num_workers=2, worker_init_fn=lambda w: np.random.seed(w))
""",
    "shuffled_with_a_number_added": """
def init(worker):
    random.seed(7 + worker)
class Others(Windows):
    def start(self):
        return random.randrange(len(series) - 9)
train(Others(), num_workers=1, shuffle=True, worker_init_fn=init)
""",
    "a_stream": """
class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(16):
            start = torch.randint(0, len(series) - 9, ()).item()
            yield series[start:start + 8], series[start + 8:start + 9]
train(Stream(), num_workers=1, worker_init_fn=lambda w: torch.manual_seed(100 + w))
""",
    "a_generator_that_is_copied_to_the_worker": """
class Others(Windows):
    def start(self):
        return self.rng.integers(0, len(series) - 9)
train(Others(), num_workers=1)
""",
}
SOUND = {
    "by_epoch": """
train(Windows(), num_workers=1,
      worker_init_fn=lambda w: np.random.seed(torch.initial_seed() % 2**32))
""",
    "workers_that_are_kept": """
train(Windows(), num_workers=1, persistent_workers=True,
      worker_init_fn=lambda w: np.random.seed(w))
""",
    "stored_examples_in_stored_order": """
class Stored(Windows):
    def __getitem__(self, i):
        if i < 0:
            i = self.start()
        return series[i:i + 8], series[i + 8:i + 9]
train(Stored(), num_workers=1, worker_init_fn=lambda w: np.random.seed(w))
""",
    "another_generator": """
train(Windows(), num_workers=1, worker_init_fn=lambda w: random.seed(w))
""",
    "draws_for_shuffled_examples": """
class Noisy(Windows):
    def __getitem__(self, i):
        noise = np.random.normal(size=8).astype(np.float32)
        return series[i:i + 8] + noise, series[i + 8:i + 9]
train(Noisy(), num_workers=1, shuffle=True, worker_init_fn=lambda w: np.random.seed(w))
""",
}


def of(report: WatchReport, name: str) -> Finding:
    return next(one for one in report.findings if one.check == name)


@pytest.mark.parametrize("name", FAULTY)
def test_draws_that_begin_again_in_each_epoch_are_reported(name: str, watched: Watched) -> None:
    report = watched(START + FAULTY[name])
    one = of(report, "seeds_wrong")
    assert one.outcome is Outcome.WARNED
    assert "each of 3 epochs" in one.evidence
    assert of(report, "no_shuffle").fault is None


@pytest.mark.parametrize("name", SOUND)
def test_draws_that_differ_between_epochs_are_not(name: str, watched: Watched) -> None:
    one = of(watched(START + SOUND[name]), "seeds_wrong")
    assert one.fault is None, one.evidence


def test_a_dataset_without_an_order_need_not_be_shuffled(watched: Watched) -> None:
    report = watched(START + "train(Windows())")
    assert of(report, "no_shuffle").fault is None
