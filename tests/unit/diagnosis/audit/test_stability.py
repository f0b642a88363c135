"""Audits of validation losses that jump, and of sound ones that look alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepladder.diagnosis.audit.audit import audit
from stepladder.diagnosis.audit.size import Sizes
from stepladder.records.findings import Finding, Outcome

TRAIN = [round(2.2 * 0.86**idx + 0.1, 4) for idx in range(20)]
JUMPING = [3.2, 0.9, 1.4, 1.9, 0.6, 2.3, 0.47, 1.5, 0.44, 2.8]
JUMPING += [0.61, 2.0, 0.43, 1.2, 2.6, 0.52, 1.7, 0.46, 2.1, 0.9]
SHARES = [round(0.95 - 0.17 * min(loss, 2.7), 3) for loss in JUMPING]


def stability(
    path: Path,
    losses: Sequence[float],
    shares: Sequence[float],
    *,
    train: Sequence[float] = TRAIN,
    num_val: int | None = None,
) -> Finding | None:
    rows = [
        ",".join(map(str, (idx, *row)))
        for idx, row in enumerate(zip(train, losses, shares, strict=True), 1)
    ]
    path.write_text("\n".join(["epoch,loss,val_loss,val_accuracy", *rows]) + "\n")
    (run,) = audit([str(path)], sizes=Sizes(num_val=num_val)).runs
    return next((f for f in run.findings if f.check == "stability"), None)


def test_a_validation_that_jumps_is_unstable(tmp_path: Path) -> None:
    found = stability(tmp_path / "a.csv", JUMPING, SHARES)
    assert found is not None
    assert found.outcome is Outcome.WARNED
    assert "between 0.43 and 2.8 in the last 14 evaluations" in found.evidence
    assert "by up to 2.36 from one to the next" in found.evidence
    assert all(word in found.fix for word in ("learning rate", "batch norm", "validation set"))


def test_the_number_of_examples_does_not_explain_the_jumps(tmp_path: Path) -> None:
    found = stability(tmp_path / "a.csv", JUMPING, SHARES, num_val=1000)
    assert found is not None
    assert "with 1,000 examples, chance explains no more than" in found.evidence


def test_an_overfit_curve_with_a_little_noise_is_stable(tmp_path: Path) -> None:
    losses = [0.4 + 0.004 * (idx - 6) ** 2 + 0.08 * (-1) ** idx for idx in range(20)]
    shares = [0.8 + 0.02 * (-1) ** idx for idx in range(20)]
    assert stability(tmp_path / "a.csv", losses, shares) is None


def test_tiny_losses_may_jump(tmp_path: Path) -> None:
    """Of a model that is nearly always right."""
    losses = [loss / 300 for loss in JUMPING]
    shares = [0.999 - 0.001 * (idx % 3) for idx in range(20)]
    assert stability(tmp_path / "a.csv", losses, shares) is None


def test_jumps_of_training_as_well_are_another_matter(tmp_path: Path) -> None:
    """As with warm restarts of the learning rate."""
    assert stability(tmp_path / "a.csv", JUMPING, SHARES, train=JUMPING) is None


def test_a_few_bursts_are_not_unstable(tmp_path: Path) -> None:
    losses = [round(2 * 0.9**idx + 0.3, 3) for idx in range(20)]
    losses[9] = losses[15] = 3.0
    shares = [round(0.9 - 0.2 * loss, 3) for loss in losses]
    assert stability(tmp_path / "a.csv", losses, shares) is None


SHORT_TRAIN = (2.31, 1.58, 1.09, 0.88, 0.61, 0.53, 0.39, 0.33, 0.22, 0.35)
SHORT = (3.21, 0.94, 1.45, 1.81, 0.59, 2.26, 0.18, 1.49, 0.15, 2.77)
SHORT_SHARES = (0.49, 0.50, 0.53, 0.61, 0.62, 0.50, 0.86, 0.60, 0.88, 0.49)


def test_ten_epochs_show_large_and_regular_jumps(tmp_path: Path) -> None:
    found = stability(tmp_path / "a.csv", SHORT, SHORT_SHARES, train=SHORT_TRAIN)
    assert found is not None
    assert "between 0.15 and 2.77 in the last 7 evaluations" in found.evidence
    (run,) = audit([str(tmp_path / "a.csv")]).runs
    fit = next(f for f in run.findings if f.check == "fit")
    assert "validation jumps so much" in fit.evidence
    assert fit.fix.startswith("Make validation stable first")
    assert run.best_epoch == 9


def test_ten_epochs_with_a_small_set_are_stable(tmp_path: Path) -> None:
    losses = (1.2, 0.9, 0.95, 0.7, 0.8, 0.55, 0.72, 0.5, 0.66, 0.48)
    shares = (0.5, 0.62, 0.58, 0.7, 0.66, 0.78, 0.7, 0.8, 0.74, 0.82)
    assert stability(tmp_path / "a.csv", losses, shares, train=SHORT_TRAIN) is None
