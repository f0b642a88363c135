"""Audits of trainings that stay at the level of guessing, as error rates or accuracies."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from stepladder.diagnosis.audit.audit import audit
from stepladder.records.audit import AuditedRun

FORMS = {
    "err": "==== epoch {k} (lr: {lr}) ====\ntrain loss = {a} | train err = {e}% |\n"
    "test loss = {b} | test err = {e}%\n",
    "error": "Epoch {k}: lr = {lr}\n  train: loss {a} error {e} %\n  val: loss {b} error {e} %\n",
    "line": "epoch {k} lr {lr} train loss {a} train error: {e}% val loss {b} val error: {e}%\n",
}


def audited(path: Path, form: str, losses: list[float], error: list[float]) -> AuditedRun:
    path.write_text(
        "".join(
            form.format(k=k, lr=f"{0.016 * 0.99**k:.5f}", a=f"{a:.5f}", b=f"{b:.5f}", e=f"{e:.2f}")
            for k, (a, b, e) in enumerate(
                zip([losses[0] * 1.04, *losses[1:]], losses, error, strict=True)
            )
        )
    )
    (run,) = audit([str(path)]).runs
    return run


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("num_classes", [2, 10, 100, 1000])
def test_losses_and_errors_of_guessing_are_named(
    form: str, num_classes: int, tmp_path: Path
) -> None:
    guess = math.log(num_classes)
    losses = [guess * (1 + 0.0003 * (idx % 3)) for idx in range(16)]
    run = audited(tmp_path / "a.txt", form, losses, [100 - 100 / num_classes] * 16)
    assert run.log.num_epochs == 16
    assert run.log.rows[-1].learning_rate == pytest.approx(0.016 * 0.99**15, abs=1e-5)
    assert run.result == pytest.approx(1 / num_classes)
    fit = next(finding for finding in run.findings if finding.check == "fit")
    assert "the model learned nothing" in fit.evidence
    assert f"guessing among {num_classes} classes" in fit.evidence
    assert "learning rates than 0.0137" in fit.fix
    assert not any("early stopping" in finding.fix for finding in run.findings)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_errors_of_a_training_that_learns_are_accuracies(form: str, tmp_path: Path) -> None:
    losses = [2.2 * 0.8**idx + 0.15 for idx in range(16)]
    run = audited(tmp_path / "a.txt", form, losses, [60 * 0.8**idx + 5 for idx in range(16)])
    assert run.result == pytest.approx(1 - (60 * 0.8**15 + 5) / 100, abs=1e-4)
    assert not any("learned nothing" in finding.evidence for finding in run.findings)
    assert any("is 100 % minus" in note for note in run.log.notes)


@pytest.mark.parametrize(
    ("columns", "cell"), [("val_error (%)", "7.5"), ("val_err", "7.5%"), ("val error", "7.5 %")]
)
def test_columns_of_errors_in_percent_are_accuracies(
    columns: str, cell: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(f"epoch;{columns}\n1;{cell}\n2;{cell}\n")
    (run,) = audit([str(tmp_path / "a.csv")]).runs
    assert run.metric == "val_accuracy"
    assert run.result == pytest.approx(0.925)


def test_errors_that_are_not_percentages_stay_errors(tmp_path: Path) -> None:
    """They may be those of a regression."""
    (tmp_path / "a.csv").write_text("epoch,val_loss,val_error\n1,0.5,0.4\n2,0.4,0.3\n")
    (run,) = audit([str(tmp_path / "a.csv")]).runs
    assert run.metric == "val_loss"


def test_an_error_of_several_examples_is_a_share(tmp_path: Path) -> None:
    text = "".join(
        f"Epoch {k}\ntrain loss: {1 / k:.3f}\n"
        f"Test set: Average loss: {1.1 / k:.4f}, Error: {900 // k}/10000 ({9 / k:.0f}%)\n"
        for k in range(1, 6)
    )
    (tmp_path / "a.txt").write_text(text)
    (run,) = audit([str(tmp_path / "a.txt")]).runs
    assert run.num_val == 10_000
    assert run.result == pytest.approx(0.982)


@pytest.mark.parametrize(("level", "num"), [(0.6931, 2), (2.303, 10), (0.66, None), (2.5, None)])
def test_a_constant_loss_without_an_accuracy_may_be_that_of_guessing(
    level: float, num: int | None, tmp_path: Path
) -> None:
    rows = [f"{k},{level + 0.001 * (k % 2)},{level + 0.0005 * (k % 3)}" for k in range(1, 11)]
    (tmp_path / "a.csv").write_text("\n".join(["epoch,loss,val_loss", *rows]) + "\n")
    (run,) = audit([str(tmp_path / "a.csv")]).runs
    fit = next(finding for finding in run.findings if finding.check == "fit")
    assert ("that of guessing" in fit.evidence) is (num is not None)
    assert num is None or f"cross-entropy of {num} classes" in fit.evidence
