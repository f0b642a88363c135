"""Large embeddings whose gradient is dense, although a step uses few of their rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.watch import PhaseTime, WatchReport
from stepladder.watching.advice import next_step
from stepladder.watching.seen.costs import TableSeen
from stepladder.watching.seen.seen import Seen
from stepladder.watching.seen.steps import ClippingSeen

Watched = Callable[..., WatchReport]

CODE = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
SIZE = 60_000

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(SIZE, 32)
        self.head = nn.Linear(32, 2)

    def forward(self, ids):
        return self.head(self.table(ids).mean(1))

model = Model()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
for step in range(40):
    ids = torch.randint(SIZE, (16, 8))
    optimizer.zero_grad()
    F.cross_entropy(model(ids), ids[:, 0] % 2).backward()
    optimizer.step()
"""
OWN = (
    ("nn.Embedding(SIZE, 32)", "nn.Parameter(torch.randn(SIZE, 32) * 0.1)"),
    ("self.table(ids).mean(1)", "F.embedding(ids, self.table).mean(1)"),
)
BAG = (
    ("nn.Embedding(SIZE, 32)", "nn.EmbeddingBag(SIZE, 32)"),
    ("self.table(ids).mean(1)", "self.table(ids)"),
)
ADAM = (("Adagrad(", "AdamW("),)
SLOW = {
    "Adagrad": ((), "pass sparse=True to it, which Adagrad can use"),
    "Adam": (ADAM, "torch.optim.SparseAdam"),
    "a table of its own": (OWN, "embedding `table`"),
    "bags": (BAG, "embedding `table.weight`"),
}
INTENDED = {
    "sparse already": (("SIZE, 32)", "SIZE, 32, sparse=True)"),),
    "scores of all words": (
        ("self.table(ids).mean(1))", "self.table(ids).mean(1)) + self.scores(ids)"),
        (
            "    def forward",
            "    def scores(self, ids):\n"
            "        return (self.table.weight @ self.table(ids[0, 0])).mean()\n\n    def forward",
        ),
    ),
    "most rows in each step": (("(16, 8)", "(1000, 50)"),),
    "clipped": (
        (
            "    optimizer.step()",
            "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    optimizer.step()",
        ),
    ),
    "frozen": (("model = Model()", "model = Model()\nmodel.table.requires_grad_(False)"),),
}


def edited(changes: tuple[tuple[str, str], ...]) -> str:
    code = CODE
    for old, new in changes:
        assert old in code, old
        code = code.replace(old, new)
    return code


def names_of(report: WatchReport) -> list[str]:
    assert report.watcher_error is None
    first = [] if report.next is None else [report.next]
    return [one.rung for one in (*first, *report.others)]


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.filterwarnings("ignore")
def test_few_used_rows_are_named_before_a_fused_optimizer(name: str, watched: Watched) -> None:
    changes, words = SLOW[name]
    report = watched(edited(changes))
    names = names_of(report)
    assert "sparse_gradients" in names
    if "fused_optimizer" in names:
        assert names.index("sparse_gradients") < names.index("fused_optimizer")
    texts = [one.text for one in (report.next, *report.others) if one is not None]
    text = next(text for text in texts if "rows" in text)
    assert "60,000 rows" in text
    assert "at most 128 (snippet.py:" in text
    assert words in text


@pytest.mark.filterwarnings("ignore")
def test_tables_of_a_function_that_has_returned_are_named(watched: Watched) -> None:
    head, body = CODE.split("model = Model()\n")
    body = "".join(f"    {line}\n" for line in ["model = Model()", *body.splitlines()])
    report = watched(f"{head}def main():\n{body}main()\n")
    assert "sparse_gradients" in names_of(report)


@pytest.mark.parametrize("name", INTENDED)
@pytest.mark.filterwarnings("ignore")
def test_tables_that_need_a_dense_gradient_are_no_cause(name: str, watched: Watched) -> None:
    assert "sparse_gradients" not in names_of(watched(edited(INTENDED[name])))


def test_the_bound_is_the_tables_part_of_the_step_and_as_much_of_backward() -> None:
    shares = {"forward": 0.2, "backward": 0.4, "optimizer": 0.4}
    times = [PhaseTime(name=name, total_s=share, share=share) for name, share in shares.items()]
    seen = Seen()
    table = TableSeen(name="t", where="train.py:1", shape=(1000, 10), num_used=100, optimizer="SGD")
    seen.costs.tables["t"], seen.costs.num_floats = table, 20_000
    found = next_step(times, 100, {"device": "cpu"}, seen=seen).next
    assert found is not None
    assert found.gain == pytest.approx(1 / (1 - (0.2 + 0.2) * 0.9))  # half of all weights
    seen.clippings.append(ClippingSeen(where="train.py:2", limit=1.0))
    found = next_step(times, 100, {"device": "cpu"}, seen=seen).next
    assert found is None or found.rung != "sparse_gradients"
