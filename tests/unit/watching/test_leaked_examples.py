"""Examples that are trained on and evaluated later, and what only looks like that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport
from stepladder.watching.hooks import patches
from stepladder.watching.hooks.hashes import bits_per_example, hashes_of, per_example
from stepladder.watching.hooks.inputs import examples
from stepladder.watching.script.held_out import is_held_out

Watched = Callable[..., WatchReport]
NAME = "split_leakage"


@pytest.fixture(autouse=True)
def _time_for_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watcher sample whenever it wants, so that its coverage is the same on any machine."""
    monkeypatch.setattr(patches, "_FIRST_S", 60.0)
    monkeypatch.setattr(examples, "_FIRST_S", 60.0)


START = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(640, 12)
y = x[:, :3].argmax(1)
def new(num=12):
    global net, sgd
    net = nn.Sequential(nn.Linear(num, 32), nn.ReLU(), nn.Linear(32, 3))
    sgd = torch.optim.SGD(net.parameters(), 1e-2)
new()
def learn(a, b):
    net.train()
    sgd.zero_grad()
    F.cross_entropy(net(a), b).backward()
    sgd.step()
@torch.no_grad()
def score(a, b):
    net.eval()
    return (net(a).argmax(1) == b).float().mean().item()
"""

EPOCHS = """
for epoch in range(4):
    for a, b in train:
        learn(a, b)
    for a, b in val:
        score(a, b)
"""
LOADERS = """
train = DataLoader(TensorDataset(x[:600], y[:600]), 32, shuffle=True)
val = DataLoader(TensorDataset(x[600:], y[600:]), 32)
"""
BY_HAND = """
rows, order = torch.randperm(640)[:500], torch.randperm(640)[500:]
for epoch in range(4):
    for part in rows[torch.randperm(500)].split(25):
        learn(x[part], y[part])
    score(x[order], y[order])
"""

# each: the program, what is said of it, and whether that is certain
LEAKED = {
    "slices_that_overlap": (
        LOADERS.replace("x[600:], y[600:]", "x[500:], y[500:]") + EPOCHS,
        "100 of 140 different examples (71 %)",
        Outcome.FAILED,
    ),
    "two_permutations": (BY_HAND, "of 140 different examples", Outcome.WARNED),
    "the_training_set_itself": (
        LOADERS.replace("TensorDataset(x[600:], y[600:])", "train.dataset") + EPOCHS,
        "600 of 600 different examples (100 %)",
        Outcome.FAILED,
    ),
    "after_the_best_weights_are_loaded": (
        """
for epoch in range(3):
    for some in torch.randperm(600).split(30):
        learn(x[some], y[some])
    best = {name: one.clone() for name, one in net.state_dict().items()}
net.load_state_dict(best)
test_score = score(x[500:], y[500:])
""",
        "100 of 140 different examples (71 %)",
        Outcome.FAILED,
    ),
    "copies_made_before_the_split": (
        "rare = y == 2\nx = torch.cat([x, x[rare], x[rare]])\ny = torch.cat([y, y[rare], y[rare]])"
        "\norder = torch.randperm(len(x))\nx, y = x[order], y[order]\n" + LOADERS + EPOCHS,
        "different examples",
        Outcome.FAILED,
    ),
    "copies_in_a_function_that_is_called_with_the_training_set": (
        """
x, y = x.repeat(2, 1), y.repeat(2)
order = torch.randperm(len(x))
x_train, y_train, x_val, y_val = x[order[200:]], y[order[200:]], x[order[:200]], y[order[:200]]
def fit(a, b):
    for epoch in range(3):
        for some in torch.randperm(len(a)).split(30):
            learn(a[some], b[some])
        print(f"epoch {epoch}: accuracy {score(x_val, y_val):.3f}")
fit(x_train, y_train)
""",
        "different examples",
        Outcome.FAILED,
    ),
    "one_of_two_sets": (
        LOADERS.replace("val = ", "test = DataLoader(TensorDataset(x[600:], y[600:]), 40)\nval = ")
        .replace("x[600:], y[600:]), 32", "x[550:], y[550:]), 32")
        .replace("x[:600], y[:600]", "x[:590], y[:590]")
        + EPOCHS
        + "    for a, b in test:\n        score(a, b)\n",
        "40 of 90 different examples (44 %)",
        Outcome.FAILED,
    ),
}

SOUND = {
    "a_clean_split": LOADERS + EPOCHS,
    "accuracy_of_both": LOADERS + EPOCHS + "    for a, b in train:\n        score(a, b)\n",
    "accuracy_of_both_by_one_line": """
parts = {"train": (x[:500], y[:500]), "val": (x[500:], y[500:])}
for epoch in range(4):
    for some in torch.randperm(500).split(25):
        learn(x[some], y[some])
    for name, (a, b) in parts.items():
        for i in range(0, len(a), 50):
            score(a[i : i + 50], b[i : i + 50])
""",
    "accuracy_of_training_alone": """
for epoch in range(4):
    for some in torch.randperm(640).split(32):
        learn(x[some], y[some])
    print(score(x, y))
""",
    "folds": """
for fold in range(4):
    new()
    held = torch.arange(640) % 4 == fold
    x_val, y_val = x[held], y[held]
    for epoch in range(2):
        for some in torch.randperm(480).split(32):
            learn(x[~held][some], y[~held][some])
    print(score(x_val, y_val))
""",
    "folds_of_one_model": """
for fold in range(4):
    for layer in net[::2]:
        layer.reset_parameters()
    sgd = torch.optim.SGD(net.parameters(), 1e-2)
    held = torch.arange(640) % 4 == fold
    x_val, y_val = x[held], y[held]
    for epoch in range(2):
        for some in torch.randperm(480).split(32):
            learn(x[~held][some], y[~held][some])
    print(score(x_val, y_val))
""",
    "tested_before_it_is_learned": """
test = DataLoader(TensorDataset(x, y), 16)
for a, b in test:
    score(a, b)
    learn(a, b)
""",
    "few_possible_examples": """
x = (torch.rand(640, 12) > 0.5).float()
y = x[:, :3].argmax(1)
x[:, 6:] = 0
train = DataLoader(TensorDataset(x[:600], y[:600]), 32, shuffle=True)
val = DataLoader(TensorDataset(x[500:], y[500:]), 32)
"""
    + EPOCHS,
    "one_batch": "val = train = [(x[:96], y[:96])] * 20\n" + EPOCHS,
    "windows_of_a_text": """
text = torch.randint(0, 60, (3000,))
net = nn.Sequential(nn.Embedding(60, 16), nn.Linear(16, 60))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
def get_batch(split):
    part = text[:2500] if split == "train" else text[2500:]
    at = torch.randint(len(part) - 17, (32,))
    rows = torch.stack([part[i : i + 17] for i in at])
    return rows[:, :-1], rows[:, 1:]
for step in range(120):
    a, b = get_batch("train")
    net.train()
    sgd.zero_grad()
    F.cross_entropy(net(a).flatten(0, 1), b.flatten()).backward()
    sgd.step()
    if step % 30 == 29:
        net.eval()
        with torch.no_grad():
            for split in ("train", "val"):
                for _ in range(8):
                    a, b = get_batch(split)
                    net(a)
""",
    "folds_that_begin_with_the_same_weights": """
start = {name: one.clone() for name, one in net.state_dict().items()}
for fold in torch.arange(640).chunk(4):
    net.load_state_dict(start)
    rest = torch.tensor([i for i in range(640) if not fold[0] <= i <= fold[-1]])
    for epoch in range(3):
        for some in rest[torch.randperm(480)].split(32):
            learn(x[some], y[some])
        val_score = score(x[fold], y[fold])
""",
    "short_windows_that_repeat": """
words = torch.randint(0, 60, (40, 5))
text = words[torch.randint(0, 40, (1200,))].flatten()
net = nn.Sequential(nn.Embedding(60, 16), nn.Linear(16, 60))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
text_val = text[5000:]
def get_batch(part, num):
    at = torch.randperm(len(part) - 9)[:num]
    rows = torch.stack([part[i : i + 9] for i in at])
    return rows[:, :-1], rows[:, 1:]
for step in range(90):
    a, b = get_batch(text[:5000], 64)
    net.train()
    sgd.zero_grad()
    F.cross_entropy(net(a).flatten(0, 1), b.flatten()).backward()
    sgd.step()
net.eval()
with torch.no_grad():
    a_val, b_val = get_batch(text_val, 200)
    net(a_val)
""",
    "values_of_the_next_state": """
for step in range(60):
    at = torch.randint(600, (32,))
    net.eval()
    with torch.no_grad():
        net(x[at + 1])
    learn(x[at], y[at])
""",
    "some_of_the_training_set": """
for epoch in range(4):
    for some in torch.randperm(640).split(32):
        learn(x[some], y[some])
    print(score(x[::5], y[::5]))
""",
    "a_discriminator": """
loss = F.binary_cross_entropy_with_logits
for epoch in range(4):
    for some in torch.randperm(640).split(32):
        made = torch.randn(32, 12) + 1
        net.train()
        sgd.zero_grad()
        out = net(torch.cat([x[some], made]))[:, 0]
        loss(out, torch.arange(2.0).repeat_interleave(32)).backward()
        sgd.step()
    print(score(x, y))
""",
    "a_graph": """
new(13)
x_test = torch.cat([x, x[:, :1]], 1)
for step in range(60):
    net.train()
    sgd.zero_grad()
    F.cross_entropy(net(x_test)[:400], y[:400]).backward()
    sgd.step()
    if step % 10 == 9:
        score(x_test, y)
""",
}


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == NAME]
    return one


@pytest.mark.parametrize("name", LEAKED)
def test_examples_that_were_trained_on_are_counted(name: str, watched: Watched) -> None:
    code, words, outcome = LEAKED[name]
    one = found(watched(START + code))
    assert one.outcome is outcome, one.evidence
    assert words in one.evidence
    assert one.where is not None


@pytest.mark.parametrize("name", SOUND)
def test_an_evaluation_that_is_meant_so_is_not_reported(name: str, watched: Watched) -> None:
    one = found(watched(START + SOUND[name]))
    assert one.fault is None, one.evidence


def test_a_leak_is_found_although_not_all_steps_are_followed(watched: Watched) -> None:
    code = LEAKED["slices_that_overlap"][0].replace("range(4)", "range(20)")
    report = watched(START + code)
    assert isinstance(report.facts["num_steps_only_counted"], int)
    assert report.facts["num_steps_only_counted"] > 0
    assert found(report).numbers["num_known"] == 100


@pytest.mark.parametrize("name", ["x_val", "test_loader", "valset", "dev_loader", "ydev", "test"])
def test_held_out_examples_are_known_by_name(name: str) -> None:
    assert is_held_out({"net", name})
    assert not is_held_out({name, "train_loader"})


@pytest.mark.parametrize("name", ["dev", "eval_loader", "val_every", "test_batch_size", "latest"])
def test_a_device_a_setting_and_an_evaluation_are_not(name: str) -> None:
    assert not is_held_out({"net", name})


def test_hashes_of_equal_examples_are_equal_in_any_batch() -> None:
    images = torch.randn(12, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    some = images[torch.tensor([7, 2])].contiguous(memory_format=torch.channels_last)
    whole = hashes_of([images]).tolist()
    assert hashes_of([some]).tolist() == [whole[7], whole[2]]
    assert len(set(whole)) == 12
    assert hashes_of([images.double()]).tolist() != whole
    assert hashes_of([images, torch.arange(12)]).tolist() != whole


def test_inputs_without_one_row_per_example_are_not_hashed() -> None:
    nodes, edges = torch.randn(5, 3), torch.zeros(2, 9, dtype=torch.int64)
    assert per_example([nodes, edges]) == []
    assert per_example([nodes, torch.eye(5)]) == []
    assert len(per_example([nodes, torch.arange(5)])) == 2


def test_bits_are_few_if_examples_may_be_equal_by_chance() -> None:
    draw = torch.Generator().manual_seed(0)
    assert bits_per_example([torch.rand(64, 2, generator=draw)]) == (0.0, True)
    assert bits_per_example([(torch.rand(64, 10, generator=draw) > 0.5).float()]) == (10.0, False)
    assert bits_per_example([torch.rand(64, 10, generator=draw)]) == (200.0, True)
    assert bits_per_example([torch.randint(60, (64, 8), generator=draw)]) == (16.0, False)
