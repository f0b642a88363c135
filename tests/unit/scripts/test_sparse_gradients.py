"""Large embeddings with few used rows: their gradients are sparse, and what is learnt is equal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from stepladder.records.script import LargeTable, MadeOptimizer, Place, ScriptFacts
from stepladder.scripts.contract import ScriptRung
from stepladder.scripts.inside.tables import Embedding, embeddings_of, tables_of
from stepladder.scripts.rungs.fused_optimizer import FusedOptimizer
from stepladder.scripts.settings import Settings
from stepladder.watching.seen.costs import TableSeen
from stepladder.watching.seen.seen import Seen
from stepladder.watching.seen.steps import ClippingSeen

RUNG = "sparse_gradients"
SCRIPT = textwrap.dedent(
    """
    import torch
    from torch import nn

    SIZE = 40_000

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(SIZE, 32)
            self.parts = nn.ModuleList([nn.EmbeddingBag(SIZE, 32), nn.Embedding(50, 32)])
            self.head = nn.Linear(32, 2)

        def forward(self, ids):
            found = self.words(ids).mean(1) + self.parts[0](ids) + self.parts[1](ids % 50).mean(1)
            return self.head(found)

    def main():
        torch.manual_seed(0)
        net = Model()
        optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)
        for step in range(25):
            ids = torch.randint(SIZE, (16, 8))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(ids), ids[:, 0] % 2)
            loss.backward()
            optimizer.step()
            print("loss", loss.item())
        for table in (net.words, *net.parts):
            print("sum", table.weight.double().square().sum().item(), table.weight.grad.is_sparse)

    main()
    """
).lstrip()
SGD = SCRIPT.replace("Adagrad(net.parameters(), lr=0.05)", "SGD(net.parameters(), lr=0.5)")


def numbers(printed: str) -> list[float]:
    lines = [line.split() for line in printed.splitlines() if line.startswith(("loss ", "sum "))]
    return [float(words[1]) for words in lines]


@pytest.mark.parametrize(
    "text",
    [pytest.param(SCRIPT, id="Adagrad"), pytest.param(SGD, id="SGD", marks=pytest.mark.thorough)],
)
@pytest.mark.slow
def test_what_is_learnt_is_the_same_to_rounding(
    text: str, climber: Callable[[str], Any], rung: ScriptRung
) -> None:
    found = climber(text).both_ways(rung)
    assert {table.path for table in found.facts.tables} == {"net.words", "net.parts.0"}
    assert (
        "    net = Model()\n"
        "    # stepladder, sparse_gradients\n"
        "    net.words.sparse = True\n"
        '    net.get_submodule("parts.0").sparse = True\n'
        "    optimizer ="
    ) in found.patched
    expected = numbers(found.original)
    assert len(expected) == 28
    assert found.original.count(" False") == 3
    for printed in (found.outside, found.diff):
        assert printed.count(" True") == 2
        assert numbers(printed) == pytest.approx(expected, rel=1e-4)


TABLE = TableSeen(
    name="words.weight",
    where="train.py:9",
    shape=(40_000, 32),
    num_used=128,
    optimizer="SGD",
    identity=7,
)
KNOWN = {7: Embedding(model="net", module="words", why_not=None)}
REFUSED = {
    "Adam": (replace(TABLE, optimizer="Adam"), "Adam takes no sparse"),
    "momentum": (replace(TABLE, has_momentum=True), "momentum"),
    "decay": (replace(TABLE, optimizer="Adagrad", has_decay=True), "weight decay"),
    "a GPU": (replace(TABLE, optimizer="Adagrad", on_cpu=False), "only on a CPU"),
    "fused": (replace(TABLE, is_fused=True), "fused SGD"),
    "a table of its own": (replace(TABLE, identity=8), "no nn.Embedding"),
}


def facts_with(table: TableSeen, *, is_clipped: bool = False) -> ScriptFacts:
    seen = Seen()
    seen.costs.tables["words.weight"], seen.costs.num_floats = table, 2 * 40_000 * 32
    if is_clipped:
        seen.clippings.append(ClippingSeen(where="train.py:12", limit=1.0))
    shares = {"optimizer": 0.4, "backward": 0.4}
    return ScriptFacts(tables=tables_of(KNOWN, seen, shares))


def test_a_table_that_sgd_updates_is_predicted_from_its_share(rung: ScriptRung) -> None:
    facts = facts_with(TABLE)
    assert rung.why_not(facts, Settings()) is None
    unused = 1 - 128 / 40_000
    assert rung.predict(facts, Settings()).gain == pytest.approx(1 / (1 - (0.2 + 0.2) * unused))
    assert rung.apply(facts, Settings()).sparse_tables == ("net.words",)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_sparse_is_left(name: str, rung: ScriptRung) -> None:
    table, said = REFUSED[name]
    assert said in (rung.why_not(facts_with(table), Settings()) or "")


def test_clipped_gradients_stay_dense(rung: ScriptRung) -> None:
    assert "clipped" in (rung.why_not(facts_with(TABLE, is_clipped=True), Settings()) or "")


def test_a_fused_optimizer_and_sparse_gradients_exclude_each_other(rung: ScriptRung) -> None:
    optimizer = MadeOptimizer(kind="SGD", model="net", is_fused=False)
    facts, fused = replace(facts_with(TABLE), optimizers=(optimizer,)), FusedOptimizer()
    assert fused.why_not(facts, Settings()) is None
    assert "sparse" in (fused.why_not(facts, rung.apply(facts, Settings())) or "")
    assert "fused" in (rung.why_not(facts, fused.apply(facts, Settings())) or "")


def test_embeddings_without_a_sparse_form_are_known() -> None:
    model = nn.ModuleDict(
        {
            "small": nn.Embedding(100, 8),
            "usual": nn.Embedding(10_000, 100),
            "by_frequency": nn.Embedding(10_000, 100, scale_grad_by_freq=True),
            "most": nn.EmbeddingBag(10_000, 100, mode="max"),
        }
    )
    found = {one.module: one.why_not for one in embeddings_of("net", model).values()}
    assert found.pop("usual") is None
    assert "scale_grad_by_freq" in (found.pop("by_frequency") or "")
    assert "max" in (found.pop("most") or "")
    assert not found


def test_a_table_whose_optimizer_a_library_makes_is_only_changed_from_outside(
    rung: ScriptRung,
) -> None:
    table = LargeTable(model="net", module="", num_rows=40_000, num_used=128, share=0.4)
    place = Place(file="/x/train.py", line=3, column=0, end_line=3, end_column=9, is_direct=True)
    facts = ScriptFacts(
        tables=(table,), optimizers=(MadeOptimizer(kind="SGD", model="net", place=place),) * 2
    )
    edits = rung.edits(facts, rung.apply(facts, Settings()))
    assert [edit.text for edit in edits if not isinstance(edit, str)] == ["net.sparse = True"]
    facts = replace(facts, optimizers=(MadeOptimizer(kind="SGD", model="net"),))
    assert "its own files" in rung.edits(facts, rung.apply(facts, Settings()))
