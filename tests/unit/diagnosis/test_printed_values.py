"""Values as programs print them: of NumPy, of C++ on Windows, of Darknet, and learning rates."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from stepladder.diagnosis.audit.audit import audit
from stepladder.diagnosis.logs.meaning.column_names import read_number
from stepladder.records.audit import AuditedRun


def audited(path: Path, text: str) -> AuditedRun:
    path.write_text(text)
    (run,) = audit([str(path)]).runs
    return run


@pytest.mark.parametrize(
    "dice",
    ["[np.float32(0.{a}), np.float32(0.{b})]", "[0.{a}, 0.{b}]",
     "[np.float64(0.{a}), np.float64(nan), np.float64(0.{b})]"],
)  # fmt: skip
def test_the_dice_of_nnu_net_is_the_mean_over_its_classes(dice: str, tmp_path: Path) -> None:
    """Losses are negative, and the learning rate has a line of its own."""
    stamp = "2024-09-16 10:00:04.112401:"
    run = audited(
        tmp_path / "a.txt",
        "".join(
            f"{stamp} Epoch {k} \n{stamp} Current learning rate: {0.01 - k / 1000:.5f} \n"
            f"{stamp} train_loss {-k / 10} \n{stamp} val_loss {-k / 20} \n"
            f"{stamp} Pseudo dice {dice.format(a=60 + k, b=40 + k)} \n"
            for k in range(6)
        ),
    )
    assert (run.metric, run.best_epoch) == ("Pseudo dice", 6)
    assert run.result == pytest.approx(0.55)
    assert [row.learning_rate for row in run.log.rows] == pytest.approx(
        [0.01 - k / 1000 for k in range(6)]
    )
    assert run.log.rows[-1].train_loss == -0.5


@pytest.mark.parametrize("text", ["nan", "-nan", "-nan(ind)", "nan(snan)", "1.#QNAN", "-1.#IND00"])
def test_nan_of_any_c_library_is_nan(text: str, tmp_path: Path) -> None:
    assert math.isnan(read_number(text) or 0.0)
    run = audited(
        tmp_path / "a.txt",
        "".join(
            f"epoch {k} train loss {0.5 if k < 4 else text} val loss 0.6 val acc 0.{k}\n"
            for k in range(1, 8)
        ),
    )
    finite = next(finding for finding in run.findings if finding.check == "finite")
    assert "from epoch 4 on" in finite.evidence
    assert "the training loss before was 0.5, at epoch 3" in finite.evidence


@pytest.mark.parametrize("epochs", ["", ", {k}.125"])
@pytest.mark.parametrize(("avg", "left"), [("avg", ""), ("avg loss", ", 1.5 hours left")])
def test_darknet_names_the_iteration_and_the_rate_of_nan(
    epochs: str, avg: str, left: str, tmp_path: Path
) -> None:
    lines = [
        f" {k}{epochs.format(k=k)}: {loss}, {loss} {avg}, 0.100000 rate, 12.3 seconds, "
        f"{64 * k} images{left}\nLoaded: 0.000031 seconds\n"
        for k in range(1, 9)
        for loss in ["-nan(ind)" if k > 5 else f"{3 - k / 10:.6f}"]
    ]
    run = audited(tmp_path / "a.log", "cifar_small\nLearning Rate: 0.1, Momentum: 0.9\n1\n" +
                  "".join(lines))  # fmt: skip
    finite = next(finding for finding in run.findings if finding.check == "finite")
    assert "from step 6 on" in finite.evidence
    assert "the training loss before was 2.5, at step 5" in finite.evidence
    assert "(0.01 instead of 0.1)" in finite.fix
    assert run.log.rows[0].samples_seen == 64


def test_a_learning_rate_before_the_first_epoch_is_an_option(tmp_path: Path) -> None:
    text = "lr: 0.5\n" + "".join(
        f"Epoch {k}\nlearning rates: [0.{k}, 0.01]\ntrain loss 1.{k}\nval loss 1.{k} val acc 0.5\n"
        for k in range(1, 4)
    )
    run = audited(tmp_path / "a.txt", text)
    assert [row.learning_rate for row in run.log.rows] == [0.1, 0.2, 0.3]
    assert [row.val_accuracy for row in run.log.rows] == [0.5] * 3


@pytest.mark.parametrize("has_training", [False, True])
def test_the_learning_rate_in_rows_of_validation_is_read(
    has_training: bool, tmp_path: Path
) -> None:
    rows = []
    for k in range(1, 6):
        if has_training:
            rows.append({"mode": "train", "epoch": k, "loss": 1.0, "lr": 0.1})
        rows.append({"mode": "val", "epoch": k, "lr": 0.1, "accuracy_top-1": 60.0 + k})
    run = audited(tmp_path / "a.log.json", "".join(json.dumps(row) + "\n" for row in rows))
    assert [row.learning_rate for row in run.log.rows] == [0.1] * 5
    fit = next(finding for finding in run.findings if finding.check == "fit")
    assert ("no total loss" in fit.evidence) is not has_training


def correlations(rate: float) -> str:
    rows = [
        {"epoch": k / 4, "step": 100 * k, "eval_runtime": 1.29, "eval_samples_per_second": rate,
         "eval_sts_pearson_cosine": 0.8 + k / 100, "eval_sts_spearman_cosine": 0.79 + k / 100}
        for k in range(1, 6)
    ]  # fmt: skip
    return json.dumps({"log_history": rows})


@pytest.mark.parametrize(("rate", "num"), [(0.0, None), (1162.79, 1500)])
def test_a_rate_of_0_examples_is_not_a_set_of_0_examples(
    rate: float, num: int | None, tmp_path: Path
) -> None:
    run = audited(tmp_path / "trainer_state.json", correlations(rate))
    assert run.num_val == num
    assert run.metric == "eval_sts_spearman_cosine"
    assert run.result == pytest.approx(0.84)
    fit = next(finding for finding in run.findings if finding.check == "fit")
    assert "no total loss" in fit.evidence


def test_the_training_loss_of_a_log_with_two_evaluations_is_noted(tmp_path: Path) -> None:
    rows = [
        {"iteration": 20 * k - 1, "total_loss": 2.5 - k / 25, "loss_cls": 1.0, "lr": 3e-4}
        | ({"bbox/AP": 30.0 + k / 10} if k % 25 == 0 else {})
        for k in range(1, 51)
    ]
    run = audited(tmp_path / "metrics.json", "".join(json.dumps(row) + "\n" for row in rows))
    assert "the training loss went from 2.46 (step 19) to 0.5 (step 999)" in run.log.notes[0]
