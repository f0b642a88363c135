"""Datasets that compute the same examples in each epoch, and others that look alike."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from stepladder.records.climb import NextStep
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

HEAD = """
import random
from functools import lru_cache
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

random.seed(0)
torch.manual_seed(0)
texts = ["".join(random.choices("abcdefgh ", k=480)) for _ in range(96)]

def counted(text):
    row = [0.0] * 64
    for word in text.split():
        for i in range(len(word)):
            code = 0
            for letter in word[: i + 1]:
                code = (code * 31 + ord(letter)) % 65536
            row[code % 64] += 1.0
    return torch.tensor(row)
"""
DATASET = """
class Texts(Dataset):
    def __len__(self):
        return len(texts)

    def __getitem__(self, i):
        return counted(texts[i]), i % 3
"""
TRAINING = """
loader = DataLoader(Texts(), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(12):
    for xb, yb in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(xb), yb).backward()
        optimizer.step()
"""
SAME = {
    "in __getitem__": HEAD + DATASET + TRAINING,
    "in a transform": HEAD
    + """
class Texts(Dataset):
    def __init__(self, transform=counted):
        self.transform, self.held = transform, texts

    def __len__(self):
        return len(self.held)

    def __getitem__(self, i):
        item = {"x": self.held[i], "y": i % 3}
        item["x"] = self.transform(item["x"])
        return item
"""
    + TRAINING.replace("xb, yb in loader", "batch in loader")
    .replace("        optimizer.zero_grad()\n", '        xb, yb = batch["x"], batch["y"]\n')
    .replace(".step()", ".step(); optimizer.zero_grad()"),
    "in a collate function": HEAD
    + DATASET.replace("counted(texts[i])", "texts[i]")
    + """
def together(items):
    return torch.stack([counted(text) for text, _ in items]), torch.tensor([y for _, y in items])
"""
    + TRAINING.replace("shuffle=True", "shuffle=True, collate_fn=together"),
}
OTHER = {
    "random words are left out": HEAD
    + DATASET.replace(
        "counted(texts[i])", 'counted("".join(c for c in texts[i] if random.random() > 0.1))'
    )
    + TRAINING,
    "rarely noisy": HEAD
    + DATASET.replace(
        "return counted(texts[i]), i % 3",
        "row = counted(texts[i])\n"
        "        noise = np.random.default_rng()  # drawn from no global generator\n"
        "        return row + (noise.random() < 0.2), i % 3",
    )
    + TRAINING,
    "kept by a cache": HEAD
    + DATASET.replace("def __getitem__", "@lru_cache(maxsize=None)\n    def __getitem__")
    + TRAINING,
    "another text in each epoch": HEAD
    + DATASET.replace(
        "        return counted(texts[i])",
        "        self.turn = getattr(self, 'turn', 0) + 1\n"
        "        return counted(texts[i][self.turn % 50 :])",
    )
    + TRAINING,
    "keys and types that are not compared": HEAD
    + DATASET.replace("texts[i]), i % 3", "texts[i[0]]), i[0] % 3, torch.ones(4).half()")
    + TRAINING.replace("xb, yb in", "xb, yb, more in").replace(
        "batch_size=8, shuffle=True",
        "batch_sampler=[[[i, 0] for i in range(k, k + 8)] for k in range(0, 96, 8)]",
    ),
    "types that NumPy does not have": HEAD
    + DATASET.replace("i % 3", "i % 3, torch.ones(4).to(torch.float8_e5m2)")
    + TRAINING.replace("xb, yb in", "xb, yb, more in").replace(
        "shuffle=True",
        "collate_fn=lambda held: [torch.stack([torch.as_tensor(v) for v in part])"
        " for part in zip(*held)]",
    ),
    "one epoch": HEAD.replace("range(96)", "range(960)")
    + DATASET
    + TRAINING.replace("range(12)", "range(1)").replace(
        "for _ in range(96)", "for _ in range(960)"
    ),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Compute in one thread, and collect no garbage that other tests left."""
    num = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(num)


def first(report: WatchReport) -> NextStep:
    assert report.watcher_error is None
    assert report.next is not None
    return report.next


@pytest.mark.parametrize("name", SAME)
def test_equal_examples_are_named(watched: Watched, name: str) -> None:
    """Two runs of three: where time goes is sampled, and other processes may delay a sample."""
    report = watched(SAME[name])
    if first(report).rung != "computed_once":
        again = [watched(SAME[name]) for _ in range(2)]
        assert [first(one).rung for one in again] == ["computed_once"] * 2, first(report).text
        report = again[0]
    text = first(report).text
    assert "that were compared are equal), mostly " in text
    assert "in __init__ or with a cache (all 96 take about 0.1 MB of memory)" in text


@pytest.mark.parametrize("name", OTHER)
def test_examples_that_differ_or_are_kept_are_not_named(watched: Watched, name: str) -> None:
    report = watched(OTHER[name])
    assert report.exit_code == 0
    steps = (first(report), *report.others)
    assert "computed_once" not in {step.rung for step in steps}


def test_comparing_examples_draws_no_random_numbers(watched: Watched) -> None:
    code = SAME["in __getitem__"] + (
        "found = (random.random(), np.random.get_state()[2], torch.rand(1).item())\n"
        "with open('found.txt', 'a') as file:\n    print(found, file=file)\n"
    )
    watched(code)
    exec(compile(code, "alone.py", "exec"), {"__name__": "__main__"})
    assert len(set(Path("found.txt").read_text(encoding="utf-8").splitlines())) == 1
