"""The comparison of everything that was kept with the original job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import Tensor, nn
from torch.nn import functional as F

from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.ladder import joint
from stepladder.ladder.accuracy.comparison import Comparison
from stepladder.ladder.joint import compare_together
from stepladder.ladder.summary.wording import together_row
from stepladder.records.climb import JointChange
from stepladder.records.ladder import Interval
from stepladder.task import Metrics

WIDE = 140


def slow(recipe: Recipe) -> Recipe:
    return replace(recipe, batch=replace(recipe.batch, lr=1e-7))


def shorter(recipe: Recipe) -> Recipe:
    return replace(recipe, schedule=replace(recipe.schedule, max_epochs=5))


def test_the_same_recipe_loses_nothing(make_lab, recipe: Recipe) -> None:
    found = compare_together(make_lab(), recipe, recipe)
    assert found.loses is None
    assert found.change.accuracy is not None
    assert found.change.accuracy.estimate == 0.0


def test_without_classes_the_loss_may_rise_by_that_share_of_itself(
    make_lab, recipe: Recipe, blobs
) -> None:
    class Plain(blobs):
        def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
            losses = F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
            return Metrics(losses=losses)

    lab = make_lab(task=Plain())
    found = compare_together(lab, recipe, slow(recipe))
    assert found.change.accuracy is None
    assert found.change.loss is not None
    assert found.change.loss.estimate > 0
    assert found.loses == f"the loss rises by {found.change.loss.estimate:.2g}"

    lenient = make_lab(task=Plain(), max_accuracy_loss=1.0)
    assert compare_together(lenient, recipe, shorter(recipe)).loses is None


@pytest.mark.parametrize(
    ("low", "unsure"),
    [
        (-0.009, None),
        (
            -0.012,
            "the accuracy may fall by more than 1 point: with 732 held-out examples, the change "
            "in accuracy is known only to ± 0.8 points",
        ),
    ],
)
def test_what_the_bound_does_not_exclude_is_said(
    make_lab, recipe: Recipe, monkeypatch, low: float, unsure: str | None
) -> None:
    accuracy = Interval(estimate=low + 0.008, low=low, high=low + 0.016)
    found = Comparison(accuracy=accuracy, num_held_out=732, num_seeds=5)
    monkeypatch.setattr(joint, "compare", lambda *_: found)
    together = compare_together(make_lab(), recipe, shorter(recipe))
    assert together.loses is None, "the estimate is within the allowed loss"
    assert (together.change.unsure or "").startswith(unsure or "")
    assert (together.change.unsure is None) == (unsure is None)
    row = together_row(JointChange(accuracy=accuracy, unsure="may be worse"), WIDE)
    assert row.endswith("compared with the original job; may be worse")


def test_what_diverges_only_with_everything_kept_is_lost(make_lab, recipe: Recipe) -> None:
    wild = replace(recipe, batch=replace(recipe.batch, lr=3e38))
    found = compare_together(make_lab(), recipe, wild)
    assert found.loses is not None
    assert found.loses.startswith("it fails: diverged")


def test_a_fault_that_says_nothing_of_the_rungs_undoes_none(
    make_lab, recipe: Recipe, blobs
) -> None:
    class Broken(blobs):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            raise ValueError("boom")

        def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
            raise ValueError("boom")

    found = compare_together(make_lab(task=Broken()), recipe, slow(recipe))
    assert found.loses is None
    assert found.change.why_not == "raised ValueError: boom"


def test_its_row_says_what_was_undone() -> None:
    change = JointChange(accuracy=Interval(estimate=-0.004, low=-0.012, high=0.004))
    row = together_row(change, WIDE)
    assert row.split() == [
        *("all", "kept", "rungs", "−0.4", "[−1.2,", "+0.4]"),
        *("compared", "with", "the", "original", "job"),
    ]
    assert together_row(replace(change, undone=("one", "two")), WIDE).endswith("undone: one, two")
    said = together_row(JointChange(why_not="not compared: too long"), WIDE)
    assert said.endswith("not compared with the original job: too long")
    with_loss = JointChange(loss=Interval(estimate=0.01, low=0.0, high=0.02))
    assert "loss +0.010" in together_row(with_loss, WIDE)
