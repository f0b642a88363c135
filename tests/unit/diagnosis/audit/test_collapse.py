"""Audits of trainings that lost at once what they had learned, and of sound ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from stepladder.diagnosis.audit.audit import audit
from stepladder.records.audit import AuditedRun
from stepladder.records.findings import Finding, Outcome

Rows = list[tuple[float, ...]]
LEARNED = [1 - math.exp(-idx / 8) for idx in range(40)]


def audited(path: Path, columns: str, rows: Rows) -> AuditedRun:
    lines = [f"epoch,{columns}"]
    lines += [",".join(f"{value:.5g}" for value in (idx, *row)) for idx, row in enumerate(rows, 1)]
    path.write_text("\n".join(lines) + "\n")
    (run,) = audit([str(path)]).runs
    return run


def findings(run: AuditedRun) -> dict[str, Finding]:
    return {finding.check: finding for finding in run.findings}


def collapsing(at: int, level: float = 0.5) -> Rows:
    """Return training loss and accuracy; from an epoch on, the accuracy is that of guessing."""
    sound = [(0.86 - 0.66 * share, 0.55 + 0.36 * share) for share in LEARNED]
    return [*sound[: at - 1], *((0.8 + 0.01 * (idx % 3), level) for idx in range(at, 41))]


@pytest.mark.parametrize("at", [20, 30, 39])
def test_a_collapse_is_named_with_its_epoch_and_the_checkpoint_before_it(
    at: int, tmp_path: Path
) -> None:
    found = findings(audited(tmp_path / "a.csv", "loss,val_accuracy", collapsing(at)))
    rate, fit = found["learning_rate"], found["fit"]
    assert (rate.outcome, rate.fault) == (Outcome.WARNED, "learning_rate_too_high")
    assert rate.evidence.startswith(f"the training diverged at epoch {at}: the training loss went")
    assert "to 50.0 %" in rate.evidence
    assert "guessing among 2 classes" in rate.evidence
    assert rate.fix.startswith(f"Use the checkpoint of epoch {at - 1}.")
    assert fit.evidence.startswith("not judged, because the training diverged")
    assert "larger model" not in fit.fix


def test_a_collapse_of_two_epochs_is_that_of_the_first_one(tmp_path: Path) -> None:
    rows = collapsing(30, 0.1)
    rows[29] = (0.6, 0.62)
    rate = findings(audited(tmp_path / "a.csv", "loss,val_accuracy", rows))["learning_rate"]
    assert "diverged at epoch 30" in rate.evidence


def test_a_collapse_of_a_loss_without_a_metric(tmp_path: Path) -> None:
    rows: Rows = [(loss, loss + 0.02) for loss, _ in collapsing(25)]
    rate = findings(audited(tmp_path / "a.csv", "loss,val_loss", rows))["learning_rate"]
    assert "val_loss rose from" in rate.evidence


def test_a_collapse_of_a_score_names_its_rate(tmp_path: Path) -> None:
    rows: Rows = [(loss, share - 0.5, 0.02) for loss, share in collapsing(25)]
    found = findings(audited(tmp_path / "a.csv", "train_loss,val_f1,lr", rows))
    assert "val_f1 fell from" in found["learning_rate"].evidence
    assert "(0.002 instead of 0.02)" in found["learning_rate"].fix


def test_a_collapse_of_validation_alone_is_that_of_its_loss_and_accuracy(tmp_path: Path) -> None:
    run = audited(tmp_path / "a.csv", "val_loss,val_accuracy", collapsing(30))
    assert "the validation loss went from" in findings(run)["learning_rate"].evidence


def test_a_test_result_after_a_collapse_is_not_that_of_the_best_epoch(tmp_path: Path) -> None:
    rows: Rows = [(*row, row[1]) for row in collapsing(30)]
    found = findings(audited(tmp_path / "a.csv", "loss,val_accuracy,test_accuracy", rows))
    assert "after the training diverged" in found["selection"].evidence


def spike() -> Rows:
    rows = collapsing(41)
    rows[20:22] = [(0.8, 0.5), (0.79, 0.5)]
    return rows


def restarts() -> Rows:
    """Return the curves of a schedule that raises the learning rate every ten epochs."""
    return [
        (loss + 0.2 * (idx > 5) * (1 - idx % 10 / 10), share - 0.1 * (1 - idx % 10 / 10))
        for idx, (loss, share) in enumerate(collapsing(41))
    ]


def low_at_the_end() -> Rows:
    return [*collapsing(41)[:-1], (0.3, 0.6)]


def overfit() -> Rows:
    return [
        (loss, share - 0.006 * max(0, idx - 20)) for idx, (loss, share) in enumerate(collapsing(41))
    ]


def fine_tuned() -> Rows:
    return [(0.3 * 0.9**idx + 0.05, 0.91 + 0.001 * (idx % 4)) for idx in range(12)]


@pytest.mark.parametrize("rows", [spike, restarts, low_at_the_end, overfit, fine_tuned])
def test_a_training_that_recovers_or_only_changes_has_not_collapsed(
    rows: Callable[[], Rows], tmp_path: Path
) -> None:
    found = findings(audited(tmp_path / "a.csv", "loss,val_accuracy", rows()))
    assert "learning_rate" not in found
    assert "diverged" not in found["fit"].evidence
