"""Loaders that are left before their end, and what only looks like that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport
from stepladder.watching.hooks import patches

Watched = Callable[..., WatchReport]
NAME = "loader_left_early"


@pytest.fixture(autouse=True)
def _time_for_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watcher sample whenever it wants, so that its coverage is the same on any machine."""
    monkeypatch.setattr(patches, "_FIRST_S", 60.0)


START = """
import itertools
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

torch.manual_seed(0)
x = torch.randn(640, 8)
y = x[:, :3].argmax(1)
data = TensorDataset(x, y)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
def learn(a, b):
    sgd.zero_grad()
    F.cross_entropy(net(a), b).backward()
    sgd.step()
class Stream(IterableDataset):
    def __iter__(self):
        return zip(x, y)
"""

FIRST = "for step in range(60):\n    learn(*next(iter(loader)))\n"

# each: the program, and what of the data is seen
LEFT = {
    "first_batch_for_ever": ("loader = DataLoader(data, 32)\n" + FIRST, "32 of 640 examples"),
    "a_generator_that_starts_again": (
        "loader = DataLoader(data, 32, shuffle=True)\n"
        + FIRST.replace("    learn", "    torch.manual_seed(1)\n    learn"),
        "32 of 640 examples",
    ),
    "few_batches_of_each_epoch": (
        """
loader = DataLoader(data, 32)
for epoch in range(5):
    for a, b in itertools.islice(loader, 5):
        learn(a, b)
""",
        "160 of 640 examples",
    ),
    "the_start_of_a_stream": (
        "loader = DataLoader(Stream(), 32)\n" + FIRST,
        "the first 1 batch of a stream",
    ),
    "a_batch_from_before": (
        "a, b = next(iter(DataLoader(data, 32, shuffle=True)))\n"
        "for step in range(60):\n    learn(a, b)\n",
        "32 of 640 examples",
    ),
    "a_cycle_of_one": (
        "one = next(iter(DataLoader(data, 32, shuffle=True)))\n"
        "for a, b in itertools.islice(itertools.cycle([one]), 60):\n    learn(a, b)\n",
        "32 of 640 examples",
    ),
    "a_cycle_of_five": (
        "few = list(itertools.islice(DataLoader(data, 32, shuffle=True), 5))\n"
        "for a, b in itertools.islice(itertools.cycle(few), 120):\n    learn(a, b)\n",
        "160 of 640 examples",
    ),
}

SOUND = {
    "a_new_order_each_time": "loader = DataLoader(data, 32, shuffle=True)\n" + FIRST,
    "one_iterator_that_is_renewed": """
loader = DataLoader(data, 32, shuffle=True)
batches = iter(loader)
for step in range(60):
    try:
        a, b = next(batches)
    except StopIteration:
        batches = iter(loader)
        a, b = next(batches)
    learn(a, b)
""",
    "epochs_cut_short_and_shuffled": """
loader = DataLoader(data, 32, shuffle=True)
for epoch in range(5):
    for a, b in itertools.islice(loader, 5):
        learn(a, b)
""",
    "a_look_before_training": """
loader = DataLoader(data, 32, shuffle=True)
shape = next(iter(loader))[0].shape
for epoch in range(3):
    for a, b in loader:
        learn(a, b)
""",
    "a_look_before_training_on_all_at_once": """
shape = next(iter(DataLoader(data, 32, shuffle=True)))[0].shape
for step in range(60):
    learn(x, y)
""",
    "a_look_before_batches_of_its_own": """
shape = next(iter(DataLoader(data, 32, shuffle=True)))[0].shape
for step in range(60):
    rows = torch.randint(640, (32,))
    learn(x[rows], y[rows])
""",
    "one_batch_that_is_all": """
loader = DataLoader(data, 640, shuffle=True)
for step in range(60):
    learn(*next(iter(loader)))
""",
    "validation_of_one_batch": """
loader = DataLoader(data, 32, shuffle=True)
held = DataLoader(data, 32)
for epoch in range(4):
    for a, b in loader:
        learn(a, b)
    net.eval()
    with torch.no_grad():
        net(next(iter(held))[0])
    net.train()
""",
}


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == NAME]
    return one


@pytest.mark.parametrize("name", LEFT)
def test_what_is_never_seen_is_counted(name: str, watched: Watched) -> None:
    code, words = LEFT[name]
    report = watched(START + code)
    one = found(report)
    assert one.outcome is Outcome.WARNED, one.evidence
    assert f"only {words} are ever seen" in one.evidence or f"only {words} is" in one.evidence
    assert "no_shuffle" not in [alarm.fault for alarm in report.alarms]


@pytest.mark.parametrize("name", SOUND)
def test_a_loader_that_is_read_differently_is_not_reported(name: str, watched: Watched) -> None:
    one = found(watched(START + SOUND[name]))
    assert not one.is_alarm, one.evidence
    assert (one.fault is not None) is (name == "a_new_order_each_time")


def test_batches_that_are_each_drawn_from_all_are_counted(watched: Watched) -> None:
    code = "loader = DataLoader(data, 32, shuffle=True)\n" + FIRST.replace("60", "20")
    one = found(watched(START + code))
    assert one.outcome is Outcome.WARNED, one.evidence
    assert "a new iterator was created for each of 20 batches" in one.evidence
    assert "of 640 were not drawn in 640 draws" in one.evidence


def test_workers_that_start_again_for_each_batch_are_reported(watched: Watched) -> None:
    code = "loader = DataLoader(data, 32, shuffle=True, num_workers=1)\n" + FIRST.replace(
        "60", "12"
    )
    one = found(watched(START + code))
    assert one.fault == NAME
    assert "a new iterator was created for each of 12 batches" in one.evidence
    assert "1 worker process was started again" in one.evidence
