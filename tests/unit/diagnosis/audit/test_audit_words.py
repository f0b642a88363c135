"""What audits say: numbers that mean something, and sentences that agree."""

from __future__ import annotations

from pathlib import Path

from stepladder.diagnosis.audit.audit import audit
from stepladder.diagnosis.audit.size import Sizes
from stepladder.records.findings import Finding


def finding_of(path: Path, text: str, check: str, *, num_val: int | None = None) -> Finding:
    path.write_text(text)
    (run,) = audit([str(path)], sizes=Sizes(num_val=num_val)).runs
    (found,) = [f for f in run.findings if f.check == check]
    return found


def accuracies(*values: float) -> str:
    rows = [f"{idx},{2 / idx:.4f},{value:.4f}" for idx, value in enumerate(values, 1)]
    return "\n".join(["epoch,loss,val_accuracy", *rows]) + "\n"


def test_a_straight_line_has_no_jumps(tmp_path: Path) -> None:
    line = accuracies(*(0.3 + 0.06 * idx for idx in range(8)))
    said = finding_of(tmp_path / "a.csv", line, "selection", num_val=1000).evidence
    assert "e-" not in said
    assert "too optimistic by up to 2" in said
    assert "by its jumps" not in said


def test_a_bias_below_a_tenth_of_a_point_has_no_digits(tmp_path: Path) -> None:
    nearly = accuracies(0.5, 0.6, 0.65, 0.6601, 0.6702, 0.6801, 0.6902, 0.7001, 0.7102)
    said = finding_of(tmp_path / "a.csv", nearly, "selection").evidence
    assert said.endswith("too optimistic by less than 0.1 points")


def test_jumps_of_points_are_said(tmp_path: Path) -> None:
    jumping = accuracies(0.5, 0.6, 0.65, 0.70, 0.68, 0.71, 0.69, 0.72, 0.70)
    found = finding_of(tmp_path / "a.csv", jumping, "selection", num_val=100)
    assert "points (by its jumps between evaluations) to " in found.evidence


LOSSES = (0.636274, 0.437531, 0.371972, 0.405612, 0.452, 0.508, 0.563, 0.614, 0.67, 0.725)


def overfit(accuracies: tuple[float, ...]) -> str:
    rows = [
        f"{idx},{0.9 * 0.7**idx:.4f},{loss},{share}"
        for idx, (loss, share) in enumerate(zip(LOSSES, accuracies, strict=True), 1)
    ]
    return "\n".join(["epoch,loss,val_loss,val_accuracy", *rows]) + "\n"


def test_the_lowest_loss_is_the_one_that_was_logged(tmp_path: Path) -> None:
    log = overfit((0.86, 0.89, 0.91, 0.905, 0.904, 0.903, 0.9, 0.898, 0.897, 0.896))
    said = finding_of(tmp_path / "a.csv", log, "fit").evidence
    assert "rose after epoch 3" in said
    assert "above its lowest (0.372; 0.405 smoothed, as they are)" in said


def test_an_accuracy_that_is_printed_equal_has_not_risen(tmp_path: Path) -> None:
    log = overfit((0.86, 0.894, 0.912, 0.908, 0.904, 0.907, 0.904, 0.905, 0.904, 0.9055))
    said = finding_of(tmp_path / "a.csv", log, "fit").evidence
    assert said.startswith("overfit")
    assert "accuracy stayed at 90.5 % meanwhile" in said
    assert "accuracy rose" not in said


def test_an_accuracy_that_rose_visibly_is_named(tmp_path: Path) -> None:
    log = overfit((0.86, 0.88, 0.88, 0.89, 0.89, 0.892, 0.9, 0.905, 0.906, 0.907))
    said = finding_of(tmp_path / "a.csv", log, "fit").evidence
    assert "accuracy went from 88.3 % to 90.6 %" in said
    assert "stayed" not in said
