"""Audits that name the learning rate of a log, and sound logs that look alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from stepladder.diagnosis.audit.audit import audit
from stepladder.records.findings import Finding, Outcome


def findings(path: Path, columns: str, rows: Sequence[Sequence[float]]) -> dict[str, Finding]:
    lines = [f"epoch,{columns}"]
    lines += [",".join(map(str, (idx, *row))) for idx, row in enumerate(rows, 1)]
    path.write_text("\n".join(lines) + "\n")
    (run,) = audit([str(path)]).runs
    return {finding.check: finding for finding in run.findings}


BURST = (1.46, 1.2, 1.07, 2.4, 5.8, 12.5, 22.1, 34.2)
BURST_ACCURACIES = (0.45, 0.56, 0.63, 0.21, 0.11, 0.104, 0.102, 0.104)


def test_a_training_that_diverged_names_its_learning_rate(tmp_path: Path) -> None:
    rows = [(loss, share, 0.8) for loss, share in zip(BURST, BURST_ACCURACIES, strict=True)]
    found = findings(tmp_path / "a.csv", "loss,val_accuracy,lr", rows)["learning_rate"]
    assert (found.outcome, found.fault) == (Outcome.WARNED, "learning_rate_too_high")
    assert "the learning rate is 0.8 throughout" in found.evidence
    assert "(0.08 instead of 0.8)" in found.fix
    assert "checkpoint of epoch 3" in found.fix


def test_a_training_that_diverged_without_a_logged_rate(tmp_path: Path) -> None:
    rows = list(zip(BURST, BURST_ACCURACIES, strict=True))
    found = findings(tmp_path / "a.csv", "loss,val_accuracy", rows)["learning_rate"]
    assert found.fix.startswith("Train again with a tenth of the learning rate. Until")


def test_validation_losses_that_exploded_with_a_schedule(tmp_path: Path) -> None:
    rows = [(loss, 1.1 * loss, 0.5 / 2**idx) for idx, loss in enumerate(BURST)]
    found = findings(tmp_path / "a.csv", "loss,val_loss,lr", rows)["learning_rate"]
    assert "(0.05 instead of 0.5, its highest in the log)" in found.fix


def test_a_loss_whose_weights_rise_has_not_diverged(tmp_path: Path) -> None:
    """As with a term that is annealed: the loss rises, the model becomes better."""
    rows = [(loss, 0.5 + 0.05 * idx, 0.001) for idx, loss in enumerate(BURST)]
    assert "learning_rate" not in findings(tmp_path / "a.csv", "loss,val_accuracy,lr", rows)


def test_one_burst_that_was_overcome_has_not_diverged(tmp_path: Path) -> None:
    losses = (1.46, 1.2, 1.07, 9.4, 1.3, 0.9, 0.8, 0.7)
    shares = (0.45, 0.56, 0.63, 0.1, 0.5, 0.66, 0.7, 0.72)
    rows = [(loss, share, 0.1) for loss, share in zip(losses, shares, strict=True)]
    assert "learning_rate" not in findings(tmp_path / "a.csv", "loss,val_accuracy,lr", rows)


def test_a_loss_that_is_not_finite_names_the_learning_rate(tmp_path: Path) -> None:
    rows = [(1.4, 0.5, 0.3), (1.1, 0.6, 0.3), (math.nan, 0.1, 0.3), (math.nan, 0.1, 0.3)]
    found = findings(tmp_path / "a.csv", "loss,val_accuracy,lr", rows)
    assert "(0.03 instead of 0.3)" in found["finite"].fix
    assert "learning_rate" not in found


def creeping(rates: Sequence[float], *, fall: float = 0.1, num: int = 20) -> list[list[float]]:
    """Losses that fall from ln 100, and the accuracy that rises from 1 %."""
    rows = []
    for idx in range(num):
        done = idx / (num - 1)
        loss = math.log(100) - fall * done
        rows.append([round(loss, 5), round(loss - 0.004, 5), round(0.011 + 0.017 * done, 4)])
    return [[*row, rates[min(idx, len(rates) - 1)]] for idx, row in enumerate(rows)]


COLUMNS = "train_loss,val_loss,val_accuracy,lr"


def test_a_learning_rate_that_is_far_too_low_is_named(tmp_path: Path) -> None:
    found = findings(tmp_path / "a.csv", COLUMNS, creeping([1e-6]))
    rate = found["learning_rate"]
    assert (rate.outcome, rate.fault) == (Outcome.WARNED, "learning_rate_too_low")
    assert "ln 100 = 4.605" in rate.evidence
    assert "The learning rate is 1e-06 throughout" in rate.evidence
    assert "(1e-05 to 0.0001)" in rate.fix
    assert found["fit"].evidence.startswith("underfit")
    assert "more epochs would help little" in found["length"].fix


def test_a_warm_up_is_not_too_low(tmp_path: Path) -> None:
    rates = [1e-6 * (1 + idx) for idx in range(20)]
    found = findings(tmp_path / "a.csv", COLUMNS, creeping(rates))
    assert "learning_rate" not in found


def test_a_usual_learning_rate_is_not_too_low(tmp_path: Path) -> None:
    assert "learning_rate" not in findings(tmp_path / "a.csv", COLUMNS, creeping([1e-3]))


def test_a_low_learning_rate_that_learns_is_sound(tmp_path: Path) -> None:
    """As in fine-tuning: 1e-5 is enough."""
    found = findings(tmp_path / "a.csv", COLUMNS, creeping([1e-5], fall=2.5))
    assert "learning_rate" not in found


def test_a_pretrained_model_that_hardly_changes_is_sound(tmp_path: Path) -> None:
    """Its loss is that of no guess among as many classes as its accuracy says."""
    rows = [(2.31 - 0.01 * k, 2.35 - 0.01 * k, 0.55 + 0.002 * k, 1e-6) for k in range(12)]
    assert "learning_rate" not in findings(tmp_path / "a.csv", COLUMNS, rows)


def test_labels_that_cannot_be_learned_are_not_blamed_on_the_rate(tmp_path: Path) -> None:
    """The training loss falls, that of validation does not."""
    rows = [[row[0], 4.62 + 0.001 * (k % 3), 0.01, 1e-5] for k, row in enumerate(creeping([1e-5]))]
    assert "learning_rate" not in findings(tmp_path / "a.csv", COLUMNS, rows)
