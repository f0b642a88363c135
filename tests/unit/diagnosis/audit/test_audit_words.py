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
