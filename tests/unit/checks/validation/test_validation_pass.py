"""Validation before training: failures, random draws and kept gradients are found by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import open_job
from stepladder.checks.run import run_check
from stepladder.checks.validation.metric_recomputed import CHECK as METRIC
from stepladder.checks.validation.validation_pass import CHECK
from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.records.findings import Finding, Outcome
from stepladder.task.contract import Metrics


def look(task: SoundPictures, folder: Path, check: object = CHECK) -> Finding:
    job = open_job(Example(task=task).config(folder), task, task_name="example")
    return run_check(check, job)  # type: ignore[arg-type]


class Cracks(SoundPictures):
    """Fails on a batch of one, like squeeze()."""

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        scores = model(batch.inputs).squeeze()
        return Metrics(losses=F.cross_entropy(scores, batch.targets, reduction="none"))


class CracksAtItsEnd(Cracks):
    """Its last batch of 32 has one example."""

    def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
        pictures, numbers = draw(split)
        num = 97 if split is Split.VAL else len(numbers)
        return labelled(pictures[:num], numbers[:num])


class Averaged(SoundPictures):
    """Returns the mean instead of per-example losses."""

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        return Metrics(losses=F.cross_entropy(model(batch.inputs), batch.targets))


class Keeps(SoundPictures):
    """Enables gradients again."""

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        with torch.enable_grad():
            return super().metrics(model, batch)


class Drops(SoundPictures):
    """Functional dropout, which is on by default."""

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        return super().metrics(model, batch._replace(inputs=F.dropout(batch.inputs, 0.5)))


class RunningScale(SoundPictures):
    """Divides by a scale that each batch updates."""

    scale = 1.0

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        found = super().metrics(model, batch)
        self.scale = 0.9 * self.scale + 0.1 * float(found.losses.mean())
        return Metrics(losses=found.losses / self.scale, sums=found.sums, counts=found.counts)


class Draws(SoundPictures):
    """A metric of a random subset of the examples."""

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        found = super().metrics(model, batch)
        sums = {"accuracy": (torch.rand(len(batch.ids)) * (batch.targets == 0)).sum()}
        return Metrics(losses=found.losses, sums=sums, counts=found.counts)


class DividesByZero(SoundPictures):
    """Infinite for one of the classes."""

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        found = super().metrics(model, batch)
        return Metrics(losses=found.losses / (batch.targets != 2).float())


class OtherNames(SoundPictures):
    """A count with a custom name."""

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        found = super().metrics(model, batch)
        return Metrics(
            losses=found.losses, sums=found.sums, counts={"accurate": found.counts["accuracy"]}
        )


class PlainNumbers(SoundPictures):
    """Sums as Python numbers."""

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        found = super().metrics(model, batch)
        sums: Any = {"accuracy": float(found.sums["accuracy"])}
        return Metrics(losses=found.losses, sums=sums, counts=found.counts)


class ByClassAndAll(SoundPictures):
    """A total sum with counts by class."""

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        found = super().metrics(model, batch)
        by_class = torch.bincount(batch.targets, minlength=4)
        return Metrics(losses=found.losses, sums=found.sums, counts={"accuracy": by_class})


class MoreCounts(SoundPictures):
    """A count without a sum, and a mean over classes."""

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        found = super().metrics(model, batch)
        counts = torch.bincount(batch.targets, minlength=4)
        hits = (model(batch.inputs).argmax(1) == batch.targets).double()
        right = torch.bincount(batch.targets, weights=hits, minlength=4)
        return Metrics(
            losses=found.losses,
            sums={**found.sums, "recall": right},
            counts={**found.counts, "recall": counts, "examples": torch.tensor(1.0)},
        )


@pytest.mark.parametrize(
    ("task", "fault", "outcome"),
    [
        (CracksAtItsEnd(), "validation_fails", Outcome.FAILED),
        (Averaged(), "validation_fails", Outcome.FAILED),
        (DividesByZero(), "validation_fails", Outcome.FAILED),
        (OtherNames(), "validation_fails", Outcome.FAILED),
        (PlainNumbers(), "validation_fails", Outcome.FAILED),
        (ByClassAndAll(), "validation_fails", Outcome.FAILED),
        (Keeps(), "gradients_in_validation", Outcome.FAILED),
        (Drops(), "train_mode_in_validation", Outcome.WARNED),
        (Draws(), "train_mode_in_validation", Outcome.WARNED),
        (RunningScale(), "validation_fails", Outcome.WARNED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_it_names_the_fault(
    task: SoundPictures, fault: str, outcome: Outcome, tmp_path: Path
) -> None:
    finding = look(task, tmp_path)
    assert (finding.fault, finding.outcome) == (fault, outcome)


def test_metrics_that_can_be_divided_pass(tmp_path: Path) -> None:
    finding = look(MoreCounts(), tmp_path)
    assert finding.outcome is Outcome.PASSED, finding


def test_a_batch_of_one_that_never_comes_is_not_a_fault(tmp_path: Path) -> None:
    finding = look(Cracks(), tmp_path)  # 128 examples are four batches of 32
    assert finding.outcome is Outcome.PASSED, finding
    assert "the last 32 as a separate batch; a batch of one would fail" in str(finding.coverage)


def test_a_metric_that_is_drawn_is_named(tmp_path: Path) -> None:
    assert (
        "sums of accuracy of the same 32 examples differ with another random seed"
        in look(Draws(), tmp_path).evidence
    )


def test_the_number_of_inspected_examples_is_reported(tmp_path: Path) -> None:
    finding = look(SoundPictures(), tmp_path)
    assert finding.outcome is Outcome.PASSED
    assert finding.coverage is not None
    assert "128 of the 128 examples" in finding.coverage


class WrongDim(SoundPictures):
    """Argmax over the batch."""

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        found = super().metrics(model, batch)
        assert found.outputs is not None
        best = found.outputs.argmax(0)[: len(batch.targets)]
        hits = (best == batch.targets[: len(best)]).float().sum()
        return Metrics(
            losses=found.losses,
            sums={"accuracy": hits},
            counts=found.counts,
            outputs=found.outputs,
        )


class Above(SoundPictures):
    """Scores above 0.5, as of a binary classifier."""

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        found = super().metrics(model, batch)
        assert found.outputs is not None
        hits = ((found.outputs[:, 0] > 0.5).long() == batch.targets).float().sum()
        return Metrics(
            losses=found.losses,
            sums={"accuracy": hits},
            counts=found.counts,
            outputs=found.outputs,
        )


@pytest.mark.parametrize("task", [WrongDim(), Above()], ids=lambda task: type(task).__name__)
def test_a_metric_that_counts_otherwise_is_found(task: SoundPictures, tmp_path: Path) -> None:
    finding = look(task, tmp_path, METRIC)
    assert finding.fault == "metric_wrong"
    assert finding.outcome is Outcome.FAILED


def test_a_task_without_classes_has_nothing_to_count(tmp_path: Path) -> None:
    class Regression(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, Tensor]]:
            pictures, _ = draw(split)
            return labelled(pictures, pictures.mean((1, 2, 3)))

        def build_model(self, recipe: Recipe) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(432, 1), nn.Flatten(0))

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            return F.mse_loss(model(batch.inputs), batch.targets, reduction="none")

        def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
            return Metrics(losses=self.loss(model, batch))

    assert look(Regression(), tmp_path, METRIC).outcome is Outcome.NOT_APPLICABLE
    assert look(Regression(), tmp_path).outcome is Outcome.PASSED
