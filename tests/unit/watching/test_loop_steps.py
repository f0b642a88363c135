"""The next step for loops over examples or models, and for matrices that are almost empty."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.watch import WatchReport
from stepladder.watching import advice

Watched = Callable[..., WatchReport]

HEAD = """
import random, time
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
"""
NAMES = (
    HEAD
    + """
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.RNN(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.rnn(x)[1][0])

data = [(torch.randn(random.randint(3, 9), 1, 8), torch.tensor([i % 3])) for i in range(200)]
model = Reader()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    batch = random.sample(range(200), 32)
    loss = 0.0
{loop}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)
MEMBERS = (
    HEAD
    + """
x, y = torch.randn(256, 4), torch.randn(256, 1)
def member(width=16):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))

def train(model, optimizer):
    idx = torch.randint(256, (32,))
    optimizer.zero_grad()
    F.mse_loss(model(x[idx]), y[idx]).backward()
    optimizer.step()

{members}
optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in members]
{loop}
"""
)
IN_TURN = """
for step in range(60):
    for model, optimizer in zip(members, optimizers):
        train(model, optimizer)
"""
ONE_BY_ONE = """
for model, optimizer in zip(members, optimizers):
    for step in range(60):
        train(model, optimizer)
"""
GRAPH = (
    HEAD
    + """
num = 400
x, y = torch.randn(num, 8), torch.randint(3, (num,))
edges = (torch.rand(num, num) < {density}) | torch.eye(num, dtype=torch.bool)
first, left, right, last = nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(16, 1), nn.Linear(16, 3)
parts = nn.ModuleList([first, left, right, last])
optimizer = torch.optim.SGD(parts.parameters(), lr=0.01)
matrix = edges.float() / edges.sum(1, keepdim=True)
for step in range(40):
    h = first(x)
    {mix}
    optimizer.zero_grad()
    F.cross_entropy(last(h), y).backward()
    optimizer.step()
"""
)
SOFTMAX = """scores = F.leaky_relu(left(h) + right(h).T).masked_fill(~edges, -9e15)
    h = torch.tanh(torch.softmax(scores, dim=1) @ h)"""
CAUSAL = "edges = torch.ones(num, num, dtype=torch.bool).tril()\n    " + SOFTMAX
PRODUCT = "h = torch.tanh(matrix @ h + left(h))"


def names(report: WatchReport) -> set[str]:
    assert report.watcher_error is None
    assert report.next is not None
    return {report.next.rung, *(step.rung for step in report.others)}


@pytest.mark.parametrize(
    "loop",
    [
        "    for i in batch:\n        loss = loss + F.cross_entropy(model(data[i][0]), data[i][1])",
        pytest.param(
            "    examples = [data[i] for i in batch]\n"
            "    for text, label in examples:  # one by one\n"
            "        loss = loss + F.cross_entropy(model.forward(text), label)",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "    loss = sum(F.cross_entropy(model(data[i][0]), data[i][1]) for i in batch)",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["indices", "examples", "comprehension"],
)
def test_one_example_after_another(watched: Watched, loop: str) -> None:
    report = watched(NAMES.format(loop=loop))
    assert report.next is not None
    assert report.next.rung == "whole_batches"
    assert "pad" in report.next.text


def test_a_whole_batch_is_not_one_example_after_another(watched: Watched) -> None:
    loop = """    longest = max(len(data[i][0]) for i in batch)
    texts = torch.zeros(longest, 32, 8)
    for row, i in enumerate(batch):
        texts[: len(data[i][0]), row] = data[i][0][:, 0]
    loss = F.cross_entropy(model(texts), torch.cat([data[i][1] for i in batch]))"""
    assert "whole_batches" not in names(watched(NAMES.format(loop=loop)))


def test_models_that_are_trained_in_turn(watched: Watched) -> None:
    report = watched(
        MEMBERS.format(members="members = [member() for _ in range(10)]", loop=IN_TURN)
    )
    assert report.next is not None
    assert report.next.rung == "stacked_models"
    assert "10 models" in report.next.text
    assert "fused_optimizer" not in names(report)  # one optimizer updates all of them


@pytest.mark.parametrize(
    ("members", "loop"),
    [
        ("members = [member() for _ in range(10)]", ONE_BY_ONE),
        ("members = [member(8 + i) for i in range(10)]", IN_TURN),
        ("members = [member(), member()]", IN_TURN),
    ],
    ids=["one_by_one", "shapes_differ", "two"],
)
def test_other_models_are_not_stacked(watched: Watched, members: str, loop: str) -> None:
    assert "stacked_models" not in names(watched(MEMBERS.format(members=members, loop=loop)))


@pytest.mark.parametrize(
    ("mix", "words"), [(SOFTMAX, "scores of a softmax"), (PRODUCT, "to_sparse_csr")]
)
def test_pairs_of_which_hardly_any_counts(watched: Watched, mix: str, words: str) -> None:
    report = watched(GRAPH.format(mix=mix, density=0.005))
    found = [step for step in (report.next, *report.others) if step and step.rung == "sparse_pairs"]
    assert len(found) == 1
    assert words in found[0].text


@pytest.mark.parametrize(
    ("mix", "density"), [(SOFTMAX, 0.3), (PRODUCT, 0.3), (CAUSAL, 0.005)], ids=str
)
def test_dense_pairs_are_left(watched: Watched, mix: str, density: float) -> None:
    assert "sparse_pairs" not in names(watched(GRAPH.format(mix=mix, density=density)))


def test_few_long_steps_are_enough(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "_LONG_S", 0.5)
    report = watched(
        HEAD
        + """
x = torch.randn(400, 20, dtype=torch.double)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1)).double()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=8)
for step in range(6):
    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        time.sleep(0.03)
        loss.backward()
        return loss
    optimizer.step(closure)
"""
    )
    assert "single_precision" in names(report)


@pytest.mark.parametrize(
    ("optimizer", "is_fused"),
    [("Mine(model.parameters(), {})", None), ("unused", False)],
    ids=["of_the_script", "of_torch"],
)
def test_fused_is_said_of_the_optimizer_that_steps(
    watched: Watched, optimizer: str, is_fused: bool | None
) -> None:
    report = watched(
        HEAD
        + f"""
class Mine(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=0.01)

model = nn.Linear(4, 2)
unused = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = {optimizer}
for step in range(30):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""
    )
    assert report.watcher_error is None
    assert report.facts["fused"] is is_fused


def test_a_checkpointed_block_is_computed_as_often_as_without_watching(watched: Watched) -> None:
    """Reading what a block has saved would compute it again, and count in its batch statistics."""
    report = watched(
        HEAD
        + """
from torch.utils.checkpoint import checkpoint

num = 400
left, norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
parts = nn.ModuleList([left, norm])
optimizer = torch.optim.SGD(parts.parameters(), lr=0.01)
edges = torch.eye(num, dtype=torch.bool)
calls = []

def block(x):
    calls.append(1)
    h = norm(left(x))
    return torch.softmax((h @ h.T).masked_fill(~edges, -9e15), dim=1) @ h

for step in range(30):
    optimizer.zero_grad()
    checkpoint(block, torch.randn(num, 8), use_reentrant=False).square().mean().backward()
    optimizer.step()
assert len(calls) == int(norm.num_batches_tracked) == 60, len(calls)
"""
    )
    assert report.watcher_error is None
    assert report.exit_code == 0
