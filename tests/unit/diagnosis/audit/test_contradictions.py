"""Validation losses that are constant beside a metric that is not, and accuracies near 1."""

from __future__ import annotations

from pathlib import Path

from stepladder.diagnosis.audit.audit import audit
from stepladder.records.findings import Finding


def findings(path: Path, losses: list[str], shares: list[float]) -> dict[str, Finding]:
    rows = [
        f"{idx},{2 / idx:.4f},{loss},{share:.5f}"
        for idx, (loss, share) in enumerate(zip(losses, shares, strict=True), 1)
    ]
    path.write_text("\n".join(["epoch,loss,val_loss,val_accuracy", *rows]) + "\n")
    (run,) = audit([str(path)]).runs
    return {finding.check: finding for finding in run.findings}


SHARES = [0.99994 - 0.05 * 0.6**idx for idx in range(20)]


def test_an_accuracy_near_1_contradicts_a_constant_high_loss(tmp_path: Path) -> None:
    """A softmax before the loss leaves ln(e + 28) - 1 at least, with 29 classes."""
    losses = [f"{2.4259 + 0.3 * 0.4**idx:.4f}" for idx in range(8)] + ["2.4259"] * 12
    found = findings(tmp_path / "a.csv", losses, SHARES)
    said = found["stuck_loss"].evidence
    assert "contradict each other" in said
    assert "single class" not in said
    assert "99.99 %" in said
    assert "lowest loss that 29 classes allow" in said
    assert "passes logits" in found["stuck_loss"].fix


def test_a_gain_of_a_hundredth_of_a_point_is_not_worth_more_epochs(tmp_path: Path) -> None:
    found = findings(tmp_path / "a.csv", [f"{0.02 + 0.1 * s:.4f}" for s in SHARES], SHARES)
    assert "Train for more" not in found["length"].fix


def test_a_loss_of_two_decimals_that_is_nearly_zero_is_not_stuck(tmp_path: Path) -> None:
    losses = [f"{max(0.03, 0.3 * 0.6**idx):.2f}" for idx in range(20)]
    assert "stuck_loss" not in findings(tmp_path / "a.csv", losses, SHARES)


def test_a_constant_loss_beside_a_low_accuracy_is_no_contradiction(tmp_path: Path) -> None:
    found = findings(tmp_path / "a.csv", ["0.6931"] * 20, [s - 0.4 for s in SHARES])
    assert "contradict" not in found["stuck_loss"].evidence


def test_an_accuracy_that_is_constant_as_well_contradicts_a_high_loss(tmp_path: Path) -> None:
    losses = [f"{1.4612 + 0.3 * 0.4**idx:.4f}" for idx in range(8)] + ["1.4612"] * 12
    found = findings(tmp_path / "a.csv", losses, [*SHARES[:8], *[0.9981] * 12])
    assert "while val_accuracy is 99.8 %: the two contradict" in found["stuck_loss"].evidence
    assert found["fit"].evidence.startswith("not judged, because the validation loss contradicts")
