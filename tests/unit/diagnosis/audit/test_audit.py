"""Audits of logs whose truth is known."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stepladder.diagnosis.audit.audit import audit
from stepladder.diagnosis.audit.size import Sizes, infer_size
from stepladder.diagnosis.fit.curves import Curves, Point
from stepladder.diagnosis.fit.fit import judge_fit
from stepladder.diagnosis.logs.reader import MAX_BYTES
from stepladder.diagnosis.runs.run_curves import curves_of_run, read_run
from stepladder.errors import DataError, UsageError
from stepladder.records import to_json
from stepladder.records.audit import Audit, AuditedRun, Relation, SizeSource
from stepladder.records.findings import Finding, Outcome
from stepladder.records.from_json import from_json
from stepladder.reporting.pages.audit_page import audit_text

ROOT = Path(__file__).parents[4]
SIX_STEPS = ROOT / "examples" / "audit" / "six_steps.csv"
NUM = 1000
KERAS_CUT = """\
Epoch 1/60
1215/1215 [=====] - 210s 173ms/step - loss: 2.1 - accuracy: 0.44 - val_loss: 1.2 - val_accuracy: 0.66
Epoch 2/60
1215/1215 [=====] - 200s 170ms/step - loss: 1.1 - accuracy: 0.64 - val_loss: 0.9 - val_accuracy: 0.72
Epoch 3/60
 600/1215 [==>..] - ETA: 1:40 - loss: 0.8 - accuracy: 0.7
"""  # noqa: E501


def write_log(
    path: Path,
    right: Sequence[int],
    *,
    num: int = NUM,
    losses: Sequence[float] | None = None,
    train: Sequence[float] | None = None,
    extra: str = "",
) -> str:
    """A CSV of one training: one epoch per row, twenty seconds each."""
    rows = [
        "epoch,elapsed_s,loss,val_loss,val_accuracy" + (f",{extra.split('=')[0]}" if extra else "")
    ]
    for idx, hits in enumerate(right):
        loss = losses[idx] if losses else 2 - hits / num
        fit = train[idx] if train else 2 / (idx + 1)
        cells = [idx + 1, 20 * (idx + 1), fit, loss, f"{hits / num:.7f}"]
        cells += [extra.split("=")[1]] if extra else []
        rows.append(",".join(map(str, cells)))
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def only(found: Audit) -> AuditedRun:
    (run,) = found.runs
    return run


def finding(run: AuditedRun, check: str) -> Finding:
    (found,) = [f for f in run.findings if f.check == check]
    return found


def rising_then_flat(num_epochs: int, *, best: int, top: int = 800) -> list[int]:
    """Correct answers that rise to `top` at epoch `best`, then fluctuate slightly below."""
    random.seed(0)
    rise = [int(top - 300 * (1 - idx / (best - 1)) ** 2) for idx in range(best - 1)]
    return [*rise, top, *(top - random.randint(2, 9) for _ in range(num_epochs - best))]


# -- the published six steps --------------------------------------------------------------


def test_785_against_781_is_one_picture_of_270() -> None:
    second = audit([str(SIX_STEPS)]).differences[1]
    assert round(abs(second.in_examples or 0)) == 1
    assert second.relation is Relation.SAME_EXAMPLES
    assert second.is_clear is False
    assert "one example of 270" in second.words


def test_836_against_844_is_under_one_standard_error() -> None:
    fourth = audit([str(SIX_STEPS)]).differences[3]
    assert fourth.in_sems == pytest.approx(0.85, abs=0.01)
    assert fourth.is_clear is not True
    assert "under one standard error" in fourth.words


def test_steps_3_and_4_use_other_pictures_and_step_2_took_11_epochs_instead_of_60() -> None:
    differences = audit([str(SIX_STEPS)]).differences
    assert differences[2].relation is Relation.OTHER_EXAMPLES
    assert "different examples (270 and 3,060)" in differences[2].words
    assert "11 epochs instead of 60" in differences[0].words
    assert differences[0].change == 0


def test_the_page_shows_what_the_command_prints() -> None:
    page = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    assert audit_text(audit([str(SIX_STEPS)])).strip() in page


# -- number of examples -------------------------------------------------------------------


@pytest.mark.parametrize("num", [57, 270, 1727])
def test_the_size_of_a_set_is_inferred_from_four_decimals(num: int) -> None:
    random.seed(num)
    shares = [round(random.randint(num // 2, num - 1) / num, 4) for _ in range(15)]
    assert infer_size(shares, digits=4) == num


def test_no_size_is_inferred_where_decimals_or_values_do_not_suffice() -> None:
    random.seed(1)
    shares = [random.randint(1500, 3000) / 3060 for _ in range(15)]
    assert infer_size([round(share, 3) for share in shares], digits=3) is None
    assert infer_size([round(shares[0], 4)], digits=4) is None
    assert infer_size([], digits=4) is None


def test_values_that_are_no_shares_infer_no_size() -> None:
    wrong = 0
    for seed in range(100):
        draw = random.Random(seed)
        shares = [round(draw.uniform(0.4, 0.9), 4) for _ in range(draw.randint(2, 12))]
        wrong += infer_size(shares, digits=4) is not None
    assert wrong <= 1  # MAX_CHANCE is one in a thousand


def test_what_is_given_goes_before_what_is_inferred_and_an_impossible_size_is_refused(
    tmp_path: Path,
) -> None:
    log = write_log(tmp_path / "a.csv", [500, 601, 703, 757, 751], num=NUM)
    run = only(audit([log]))
    assert (run.num_val, run.num_val_from) == (NUM, SizeSource.INFERRED)
    run = only(audit([log], sizes=Sizes(num_val=2 * NUM)))
    assert (run.num_val, run.num_val_from) == (2 * NUM, SizeSource.GIVEN)
    run = only(audit([log], sizes=Sizes(num_val=333)))
    assert run.num_val is None
    problem = finding(run, "evaluation_size")
    assert problem.outcome is Outcome.FAILED
    assert "is impossible with 333 examples" in problem.evidence
    with pytest.raises(UsageError, match="not a number of examples"):
        Sizes(num_val=0)


# -- number of epochs ---------------------------------------------------------------------


def test_epochs_past_the_best_are_counted_with_their_time(tmp_path: Path) -> None:
    run = only(audit([write_log(tmp_path / "a.csv", rising_then_flat(30, best=10))]))
    length = finding(run, "length")
    assert length.outcome is Outcome.WARNED
    assert length.numbers["after_best"] == 20
    assert length.numbers["wasted_s"] == 400
    stopped = finding(run, "early_stopping")
    assert (stopped.numbers["stop"], stopped.numbers["saved"]) == (12, 17)  # epoch 13 of 30
    assert "after epoch 13, 17 evaluations earlier (5 min 40 s)" in stopped.evidence
    assert stopped.numbers["lost"] == 0


def test_a_run_that_still_rises_ended_too_early(tmp_path: Path) -> None:
    run = only(audit([write_log(tmp_path / "a.csv", [300 + 25 * idx for idx in range(12)])]))
    length = finding(run, "length")
    assert length.outcome is Outcome.WARNED
    assert "was still improving" in length.evidence


def test_a_run_that_ends_two_epochs_after_its_best_is_neither(tmp_path: Path) -> None:
    run = only(audit([write_log(tmp_path / "a.csv", rising_then_flat(14, best=12))]))
    assert finding(run, "length").outcome is Outcome.PASSED
    assert finding(run, "early_stopping").evidence.endswith(
        "would not have ended the training earlier"
    )


def test_the_number_of_epochs_cannot_be_judged_from_the_best(tmp_path: Path) -> None:
    run = only(audit([write_log(tmp_path / "a.csv", rising_then_flat(30, best=10))]))
    alike = finding(run, "epochs_differ").numbers["alike"]
    assert isinstance(alike, int)
    assert 10 <= alike <= 20


def test_a_course_that_is_flat_at_its_end_did_not_end_too_early(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", [610, 650, 700, 690, 710, 700])
    assert finding(only(audit([log])), "length").outcome is Outcome.PASSED


@pytest.mark.parametrize(("epochs", "least", "most"), [(0.5, 0, 3), (12, 17, 20)])
def test_a_short_course_ended_early_by_what_it_still_gained_not_by_its_start(
    epochs: float, least: int, most: int, tmp_path: Path
) -> None:
    num_early = 0
    for seed in range(20):
        draw = random.Random(seed)
        right = [int(800 - 300 * math.exp(-i / epochs) + draw.gauss(0, 3)) for i in range(7)]
        run = only(audit([write_log(tmp_path / "a.csv", right)]))
        num_early += "still improving" in finding(run, "length").evidence
    assert least <= num_early <= most


@pytest.mark.parametrize("right", [0, 500])
def test_a_metric_that_never_changes_gets_no_advice_to_stop_early(
    right: int, tmp_path: Path
) -> None:
    run = only(audit([write_log(tmp_path / "a.csv", [right] * 6)]))
    length = finding(run, "length")
    assert length.outcome is Outcome.WARNED
    assert "the model learned nothing" in length.evidence
    assert "early stopping" not in length.fix
    assert finding(run, "selection").outcome is Outcome.PASSED
    assert not [f for f in run.findings if f.check == "early_stopping"]


def test_a_metric_that_is_perfect_from_the_first_on_raises_no_alarm(tmp_path: Path) -> None:
    run = only(audit([write_log(tmp_path / "a.csv", [NUM] * 6)]))
    assert finding(run, "length").outcome is Outcome.COULD_NOT_RUN
    assert not [f for f in run.findings if f.is_alarm and f.check in ("length", "selection")]


def test_a_log_that_was_cut_asks_for_the_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(KERAS_CUT)
    run = only(audit([str(path)]))
    length = finding(run, "length")
    assert "2 evaluations are in the log of 60 epochs" in length.evidence
    assert length.fix == "Pass the log of the whole training."


# -- selection of the epoch ---------------------------------------------------------------


def test_the_best_of_k_readings_is_too_good_by_a_bounded_amount(tmp_path: Path) -> None:
    run = only(audit([write_log(tmp_path / "a.csv", rising_then_flat(30, best=10))]))
    chosen = finding(run, "selection")
    assert (chosen.outcome, chosen.fault) == (Outcome.WARNED, "stopping_on_noise")
    assert chosen.numbers["num_looks"] == 30
    assert chosen.numbers["sem"] == pytest.approx(math.sqrt(0.8 * 0.2 / NUM))
    jitter = chosen.numbers["jitter"]
    assert isinstance(jitter, float)
    assert 0 < jitter < math.sqrt(0.8 * 0.2 / NUM)


def test_a_test_result_next_to_validation_is_not_a_selection(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", rising_then_flat(14, best=12), extra="test_accuracy=0.79")
    run = only(audit([log]))
    assert run.log.test_accuracy == 0.79
    assert finding(run, "selection").outcome is Outcome.PASSED


def test_a_test_set_that_was_read_at_each_epoch_is_not_a_result_that_chose_nothing(
    tmp_path: Path,
) -> None:
    log = Path(write_log(tmp_path / "a.csv", rising_then_flat(30, best=10)))
    log.write_text(log.read_text().replace("val_", "test_"))
    run = only(audit([str(log)], sizes=Sizes(num_test=NUM)))
    assert (run.result, run.num_val, run.num_val_from) == (0.8, NUM, SizeSource.GIVEN)
    chosen = finding(run, "selection")
    assert (chosen.outcome, chosen.fault) == (Outcome.WARNED, "stopping_on_noise")
    assert "the test set was evaluated 30 times" in chosen.evidence
    assert finding(run, "length").numbers["after_best"] == 20


def test_a_test_result_that_is_the_best_validation_may_be_of_the_same_set(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", rising_then_flat(14, best=12), extra="test_accuracy=0.8")
    chosen = finding(only(audit([log])), "selection")
    assert chosen.outcome is Outcome.COULD_NOT_RUN
    assert "the test result and the validation result are both 80.0 %" in chosen.evidence


def test_a_test_result_that_was_read_once_is_a_held_out_number(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("epoch,loss,test_accuracy\n1,2.0,\n2,1.0,\n3,0.5,0.75\n")
    found = finding(only(audit([str(path)])), "held_out")
    assert found.outcome is Outcome.COULD_NOT_RUN
    assert "accuracy 75.0 %" in found.evidence


def test_a_cost_missing_in_the_log_is_not_zero(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("epoch,val_loss\n1,2.0\n2,1.75\n3,1.5\n4,1.25\n5,1.0\n")
    assert (
        "an amount that cannot be computed from the log"
        in finding(only(audit([str(path)])), "selection").evidence
    )


# -- fit and faults -----------------------------------------------------------------------


def test_a_sound_training_raises_no_alarm(tmp_path: Path) -> None:
    right = rising_then_flat(14, best=12, top=980)
    train = [1.5 * 0.7**idx + 0.05 for idx in range(14)]
    losses = [1.5 * 0.72**idx + 0.08 + 0.002 * (idx % 2) for idx in range(14)]
    log = write_log(
        tmp_path / "a.csv", right, losses=losses, train=train, extra="test_accuracy=0.97"
    )
    assert [f for f in only(audit([log])).findings if f.is_alarm] == []


def test_losses_that_part_are_overfit(tmp_path: Path) -> None:
    losses = [1.0, 0.8, 0.7, 0.72, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3]
    log = write_log(tmp_path / "a.csv", [700] * 3 + [690, 685, 680, 676, 671, 667, 661],
                    losses=losses, train=[1.0 / 2**idx for idx in range(10)])  # fmt: skip
    found = finding(only(audit([log])), "fit")
    assert found.numbers["kind"] == "overfit"
    assert found.outcome is Outcome.WARNED


def write_trainer_state(path: Path, losses: Sequence[float], **scores: Sequence[float]) -> str:
    """Hugging Face's log: a training loss before each evaluation, which has no accuracy."""
    log: list[dict[str, float]] = []
    for idx, loss in enumerate(losses):
        place = {"epoch": (idx + 1) / 2, "step": 100 * (idx + 1)}
        log += [place | {"loss": 0.4 / 3**idx}]
        log += [place | {"eval_loss": loss} | {f"eval_{k}": v[idx] for k, v in scores.items()}]
    path.write_text(json.dumps({"log_history": log}))
    return str(path)


@pytest.mark.parametrize("losses", [
    [0.474, 0.077, 0.068, 0.067, 0.043, 0.054, 0.056, 0.055],  # far above training
    [0.474, 0.077, 0.043, 0.044, 0.056, 0.063, 0.071, 0.078],  # rises while training falls
])  # fmt: skip
def test_a_loss_that_parts_beside_a_high_f1_is_overconfidence_not_overfit(
    losses: list[float], tmp_path: Path
) -> None:
    log = tmp_path / "trainer_state.json"
    high = [0.874, 0.973, 0.979, 0.981, 0.987, 0.985, 0.986, 0.987]
    run = only(audit([write_trainer_state(log, losses, f1=high)]))
    found = finding(run, "fit")
    assert (found.outcome, found.numbers["kind"]) == (Outcome.PASSED, "good_fit")
    assert "f1" in found.evidence
    assert "overconfident" in found.evidence
    assert "still falling" not in found.evidence
    lower = [share - 0.2 for share in high]
    found = finding(only(audit([write_trainer_state(log, losses, f1=lower)])), "fit")
    assert found.numbers["kind"] == "overfit", "an F1 of 78.7 % leaves room for a gap"
    falling = [0.95, 0.99, 0.98, 0.97, 0.95, 0.93, 0.92, 0.91]
    found = finding(only(audit([write_trainer_state(log, losses, f1=falling)])), "fit")
    assert found.numbers["kind"] == "overfit"


def test_a_high_accuracy_that_stays_is_not_overfit_by_its_loss(tmp_path: Path) -> None:
    losses = [0.4, 0.2, 0.12, 0.13, 0.15, 0.17, 0.19, 0.21]
    train = [1.0 / 2**idx for idx in range(8)]
    log = write_log(
        tmp_path / "a.csv", [900, 950, 965, 966, 965, 966, 966, 965], losses=losses, train=train
    )
    found = finding(only(audit([log])), "fit")
    assert (found.outcome, found.numbers["kind"]) == (Outcome.PASSED, "good_fit")
    assert "overconfident" in found.evidence


def test_a_loss_whose_last_value_is_higher_is_not_called_still_falling() -> None:
    found = judge_fit(
        Curves(points=tuple(
            Point(step=k + 1, train_loss=value / 2, val_loss=value)
            for k, value in enumerate([2.0, 1.5, 1.2, 1.19, 1.0, 0.7, 0.72])
        ), num_val=10_000)
    )  # fmt: skip
    assert found.is_still_improving
    assert not any("still falling" in said for said in found.evidence)


def write_keras(path: Path, epochs: Sequence[tuple[float, ...]], *, first: int = 1) -> str:
    """Keras' output, of which the line of the first epoch may be missing."""
    lines = []
    for number, values in enumerate(epochs, start=1):
        lines += [f"Epoch {number}/30"] if number >= first else []
        names = ("loss", "accuracy", "val_loss", "val_accuracy")
        said = " - ".join(f"{n}: {v:.4f}" for n, v in zip(names, values, strict=True))
        lines.append(f"200/200 [=======] - 100s 24s/step - {said}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


PAST_BEST = [
    *((1.3 - k / 10, 0.25 + k / 20, 0.9 - k / 20, 0.4 + k / 40) for k in range(5)),
    *((0.8 - k / 25, 0.50 + k / 80, 0.7 + k / 200, 0.52 - k / 2000) for k in range(9)),
]


def test_an_underfit_past_its_best_is_not_advised_to_train_longer(tmp_path: Path) -> None:
    run = only(audit([write_keras(tmp_path / "out.txt", PAST_BEST)]))
    length, fit = finding(run, "length"), finding(run, "fit")
    assert "came after the best" in length.evidence
    assert fit.numbers["kind"] == "underfit"
    assert "training longer would only widen that gap" in fit.evidence
    assert "Do not train longer" in fit.fix


@pytest.mark.parametrize("end", ["rising", "flat", "past"])
def test_the_advice_on_length_and_on_fit_agree(end: str, tmp_path: Path) -> None:
    """Chance level at both ends, so that the fit is poor in each case."""
    num = {"rising": 12, "flat": 6, "past": 14}[end]
    rise = [0.30 + 0.02 * min(k, 20 if end == "rising" else 4) for k in range(num)]
    epochs = [(1.5 - share, share, 1.5 - share, share) for share in rise]
    run = only(audit([write_keras(tmp_path / "out.txt", epochs)]))
    length, fit = finding(run, "length"), finding(run, "fit")
    assert fit.numbers["kind"] == "underfit"
    assert fit.fix.startswith("Train longer") is (end == "rising")
    assert ("Train for more epochs" in length.fix) is (end == "rising")
    assert (
        fit.fix.startswith("Do not train longer")
        is ("early stopping" in length.fix)
        is (end == "past")
        or end == "rising"
    )


def test_one_high_value_at_the_end_is_not_still_improving(tmp_path: Path) -> None:
    shares = [0.6, 0.6, 0.6, 0.6, 0.6, 0.66, 0.6]
    run = only(audit([write_keras(tmp_path / "a.txt", [(0.7, 0.6, 0.7, s) for s in shares])]))
    assert "long enough" in finding(run, "length").evidence


def test_a_training_at_chance_has_no_best_epoch(tmp_path: Path) -> None:
    shares = [0.2533, 0.3067, 0.4133, 0.3067, 0.28, 0.3067, 0.28, 0.2933, 0.4, 0.2667]
    epochs = [(1.1 + k / 1000, 0.33 + (-1) ** k / 100, 1.1, s) for k, s in enumerate(shares)]
    found = audit([write_keras(tmp_path / "a.txt", epochs)])
    run = only(found)
    length, fit = finding(run, "length"), finding(run, "fit")
    assert "no epoch is better than the others" in length.evidence
    assert fit.numbers["kind"] == "underfit"
    assert "guessing among 3 classes" in fit.evidence
    assert "single batch" in fit.fix
    assert (run.best_epoch, run.best_step) == (None, None)
    assert not {"early_stopping", "epochs_differ"} & {each.check for each in run.findings}
    assert "keep the best weights" not in audit_text(found)


def test_a_good_fit_of_a_training_that_still_improved_is_one_so_far(tmp_path: Path) -> None:
    rise = [0.5 + 0.03 * k for k in range(12)]
    path = write_keras(tmp_path / "a.txt", [(1.5 - s, s, 1.5 - s, s) for s in rise])
    assert finding(only(audit([path])), "fit").evidence.startswith("good fit so far;")


def test_a_first_epoch_of_keras_without_its_line_is_read(tmp_path: Path) -> None:
    run = only(audit([write_keras(tmp_path / "a.txt", PAST_BEST, first=2)]))
    whole = only(audit([write_keras(tmp_path / "b.txt", PAST_BEST)]))
    assert run.log.rows == whole.log.rows
    assert run.log.total_s == whole.log.total_s == 1400
    late = only(audit([write_keras(tmp_path / "c.txt", PAST_BEST, first=4)]))
    assert late.log.rows[0].epoch == 3, "the lines of two epochs without their numbers"
    assert any("the log begins with epoch 3" in note for note in late.log.notes)


def test_a_log_of_the_last_epochs_says_which_it_has(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    rows = [{"epoch": k, "train_loss": 3.2 - k / 1000} for k in range(245, 261)]
    rows[5] |= {"test_loss": 0.93, "test_acc1": 78.8}
    rows[15] |= {"test_loss": 0.94, "test_acc1": 78.9}
    path.write_text("\n".join(map(json.dumps, rows)))
    found = audit([str(path)])
    run = only(found)
    assert "whose 16 epochs are 245 to 260" in finding(run, "length").evidence
    assert "16 (245 to 260)" in audit_text(found)
    tenth = tmp_path / "tenth.csv"
    tenth.write_text("epoch,val_loss\n" + "".join(f"{k},{1 / k}\n" for k in range(10, 60, 10)))
    assert only(audit([str(tenth)])).log.first_epoch is None, "every tenth epoch, from the first"


@pytest.mark.parametrize("names", [
    ("source_train_acc", "target_train_acc", "target_val_acc"),
    ("train/acc_src", "train/acc_tgt", "val/acc_tgt"),
])  # fmt: skip
def test_the_training_accuracy_of_a_domain_adaptation_is_that_of_its_source(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    rows = [(k, 1 / k, 1 - 0.4 / k**2, 0.2 + k / 100, 0.3 + (k % 3) / 100) for k in range(1, 13)]
    lines = [",".join(map(str, row)) for row in rows]
    path.write_text("\n".join([f"epoch,loss,{','.join(names)}", *lines]))
    run = only(audit([str(path)]))
    assert [row.train_accuracy for row in run.log.rows] == [row[2] for row in rows]
    assert [row.val_accuracy for row in run.log.rows] == [row[4] for row in rows]
    assert finding(run, "fit").numbers["kind"] == "overfit"
    assert any(names[0] in note and names[2] in note for note in run.log.notes)


def test_a_loss_of_validation_far_above_that_of_training_is_no_good_fit(tmp_path: Path) -> None:
    """timm with a pretrained model: validation on other classes, 7.9 against 1.03."""
    path = tmp_path / "summary.csv"
    head = "epoch,train_loss,eval_loss,eval_top1\n"
    rows = [f"{k},{1.036 - k / 1e4:.4f},{7.89 + k / 250:.4f},{5.0 - k / 99:.4f}" for k in range(9)]
    path.write_text(head + "\n".join(rows))
    found = finding(only(audit([str(path)])), "fit")
    assert (found.outcome, found.numbers["kind"]) == (Outcome.WARNED, "overfit")
    assert "far higher on validation than on training, if both are the same loss" in found.evidence
    assert "validation has not become worse" not in found.evidence


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_a_test_loss_that_climbs_back_while_training_falls_is_overfit(
    share: float, tmp_path: Path
) -> None:
    """TensorFlow for R: with a gap at the end, and without one."""
    train = [92.0, 71.3, 51.7, 44.6, 39.0, 35.2, 32.9]
    test = [99.4, 93.2, 93.7, 89.5, 91.2, 95.0, 99.1]
    train = [92 - share * (92 - loss) for loss in train]
    pairs = enumerate(zip(train, test, strict=True), start=1)
    path = tmp_path / "out.txt"
    path.write_text("".join(
        f"EPOCH {k} TRAIN Loss: {a:.1f}\nEPOCH {k} TEST Loss: {b}\n" for k, (a, b) in pairs
    ))  # fmt: skip
    found = finding(only(audit([str(path)])), "fit")
    assert (found.outcome, found.numbers["kind"]) == (Outcome.WARNED, "overfit")
    assert "validation loss rose after epoch 4" in found.evidence
    assert "to 99.1 from 89.5" in found.evidence


def test_a_loss_that_is_nan_is_one_alarm_with_its_epoch(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("epoch,loss,val_loss\n1,2.0,1.9\n2,1.5,1.4\n3,nan,nan\n4,nan,nan\n")
    run = only(audit([str(path)]))
    found = finding(run, "finite")
    assert found.outcome is Outcome.FAILED
    assert "from epoch 3 on" in found.evidence
    alarms = [f.check for f in run.findings if f.is_alarm]
    assert alarms.count("finite") == 1
    assert "learning_rate" not in alarms


def test_a_few_evaluations_of_a_log_are_no_underfit(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    for text in (KERAS_CUT, "epoch,loss,val_loss\n1,0.5,0.4\n2,0.4,0.3\n"):
        path.write_text(text)
        found = finding(only(audit([str(path)])), "fit")
        assert found.outcome is Outcome.COULD_NOT_RUN
        assert "2 evaluations show no trend" in found.evidence


def test_a_short_training_that_was_logged_to_its_end_is_underfit(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(KERAS_CUT.split("Epoch 3")[0].replace("/60", "/2"))
    assert finding(only(audit([str(path)])), "fit").numbers["kind"] == "underfit"


def test_waiting_for_data_is_reported_where_it_is_logged(tmp_path: Path) -> None:
    for percent, outcome in ((40, Outcome.WARNED), (2, Outcome.PASSED)):
        log = write_log(tmp_path / "a.csv", [700, 710, 720], extra=f"data_loading(%)={percent}")
        assert finding(only(audit([log])), "data_wait").outcome is outcome


def test_a_log_without_validation_says_so_and_reports_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("epoch,loss\n" + "".join(f"{i},{3 / i}\n" for i in range(1, 8)))
    run = only(audit([str(path)]))
    assert finding(run, "held_out").outcome is Outcome.FAILED
    assert run.log.epochs == 7
    assert "no held-out metric was recognised" in audit_text(audit([str(path)]))


# -- several logs -------------------------------------------------------------------------


def test_a_clear_difference_is_clear_and_a_small_one_is_not(tmp_path: Path) -> None:
    logs = [
        write_log(tmp_path / f"{top}.csv", rising_then_flat(12, best=10, top=top))
        for top in (700, 702, 800)
    ]
    small, large = audit(logs, sizes=Sizes(num_val=NUM)).differences
    assert (small.is_clear, large.is_clear) == (False, True)
    assert large.in_sems == pytest.approx(5.0, abs=0.3)


def test_logs_that_cannot_be_read_are_listed_and_the_others_reported(tmp_path: Path) -> None:
    good = write_log(tmp_path / "a.csv", [700, 710, 720])
    (tmp_path / "b.csv").write_text("")
    found = audit([good, str(tmp_path / "b.csv")])
    assert len(found.runs) == 1
    assert "this log is an empty file" in found.unreadable[0]
    assert "Not read" in audit_text(found)
    with pytest.raises(DataError, match="empty"):
        audit([str(tmp_path / "b.csv")])


def test_an_audit_comes_back_from_its_json(tmp_path: Path) -> None:
    found = audit([write_log(tmp_path / "a.csv", rising_then_flat(30, best=10))])
    again = from_json(Audit, to_json(found))
    assert again.runs[0].log == found.runs[0].log
    assert [f.evidence for f in again.runs[0].findings] == [
        f.evidence for f in found.runs[0].findings
    ]


# -- missing and unreadable input ---------------------------------------------------------


def test_a_cell_that_is_not_a_number_is_named_and_logging_is_not_blamed(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("epoch;val_accuracy;val_loss\n1;0,5;2,0\n2;0,6;-\n3;0,65;1,5\n4;x;1,3\n")
    run = only(audit([str(log)]))
    assert run.log.num_unreadable == 1
    assert "row 4, val_accuracy: 'x' is not a number and is ignored" in run.log.notes
    length = finding(run, "length")
    assert "1 cell could not be read" in length.evidence
    assert "Log the validation after every epoch" not in length.fix


def test_a_text_is_not_a_log_whatever_its_commas(tmp_path: Path) -> None:
    text = tmp_path / "README.md"
    text.write_text("# Title\n\nScale training in the right order: a sound job, a fast one.\n")
    with pytest.raises(DataError, match="not a training log of a known format"):
        audit([str(text)])


@pytest.mark.parametrize("stop", [None, "signal"])
def test_a_run_that_is_not_at_its_end_is_not_judged_by_it(tmp_path: Path, stop: str | None) -> None:
    lines: list[dict[str, object]] = [{"event": "start", "elapsed_s": 0.0}]
    for epoch in range(1, 11):
        place = {"step": 10 * epoch, "epoch": epoch, "elapsed_s": 2.0 * epoch}
        lines.append({"event": "train", **place, "train_loss": 0.5 - 0.01 * epoch})
        loss = 0.5 - 0.01 * epoch
        lines.append({"event": "validation", **place, "val_loss": loss, "val_loss_sem": 0.001})
    if stop:
        lines.append({"event": "stop", "reason": stop, "elapsed_s": 30.0})
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = only(audit([str(tmp_path)]))
    length = finding(run, "length")
    assert length.outcome is Outcome.NOT_APPLICABLE
    assert "interrupted: it is not judged whether the training was long enough" in length.evidence
    fit = finding(run, "fit")
    assert fit.outcome is Outcome.COULD_NOT_RUN
    judged = judge_fit(curves_of_run(read_run(tmp_path)))
    assert fit.numbers["kind"] == judged.kind.value == "not_yet_known"


SPACY = """\
\N{INFORMATION SOURCE} Pipeline: ['tok2vec', 'ner']
E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  ENTS_P  ENTS_R  SCORE
---  ------  ------------  --------  ------  ------  ------  ------
  0       0          0.00     29.14    0.00    0.00    0.00    0.00
  7     200         10.45    850.01   60.71   65.38   56.67    0.61
 15     400         20.45    350.01   70.71   75.38   66.67    0.78
 24     600         30.45    150.01   75.71   79.38   72.67    0.76
✔ Saved pipeline to output directory
"""


def test_the_table_of_spacy_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(SPACY)
    run = only(audit([str(path)]))
    assert (run.metric, run.result, run.best_step) == ("val_score", 0.78, 400)
    assert [row.train_loss for row in run.log.rows] == [None, 850.01, 350.01, 150.01]
    path.write_text(SPACY + SPACY)
    assert len(audit([str(path)]).runs) == 2


def test_the_results_txt_of_yolov5_is_read(tmp_path: Path) -> None:
    path = tmp_path / "results.txt"
    rows = [
        f"{k}/9 3.5G 0.{95 - k} 0.06 0.04 {1.05 - k / 100:.2f} 32 640 0.5 0.6 0.{40 + k} "
        f"0.{30 + k} 0.5 0.25 0.125"
        for k in range(10)
    ]
    path.write_text("\n".join(f"   {row.replace(' ', '   ')}" for row in rows))
    run = only(audit([str(path)]))
    assert (run.metric, run.result, run.best_epoch) == ("metrics/mAP_0.5:0.95", 0.39, 10)
    assert (run.log.rows[0].train_loss, run.log.rows[0].val_loss) == (1.05, 0.875)
    assert (run.log.epochs, run.log.max_epochs) == (10, 10)


def test_the_time_to_read_a_log_grows_with_its_length_alone(tmp_path: Path) -> None:
    """Counted in calls, not in seconds: a row for each of many steps, as loggers write them."""

    def num_calls(num: int) -> int:
        path = tmp_path / f"{num}.csv"
        rows = "".join(f"0,{k},{1 / (k + 1):.4f},\n" for k in range(num))
        path.write_text(f"epoch,step,train_loss,val_loss\n{rows}0,{num},,0.5\n")
        num_lines = 0

        def count(*_: object) -> Callable[..., Any]:
            nonlocal num_lines
            num_lines += 1
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            audit([str(path)])
        finally:
            sys.settrace(before)
        return num_lines

    assert num_calls(400) < 3 * num_calls(200)


def test_a_file_beyond_the_limit_is_refused_with_a_way_to_shorten_it(tmp_path: Path) -> None:
    path = tmp_path / "my log.txt"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1_000_000)
    with pytest.raises(DataError, match=r"the file has 201 MB, and logs up to 200 MB") as caught:
        audit([str(path)])
    assert f"grep -iE 'epoch|val' '{path}' > short.log" in str(caught.value.fix)


def test_an_accuracy_that_is_stuck_while_the_losses_move_is_a_finding(tmp_path: Path) -> None:
    hits = [640, 700, *[684] * 14]
    losses = [0.9 - idx / 50 for idx in range(16)]
    run = only(audit([write_log(tmp_path / "a.csv", hits, losses=losses)]))
    length = finding(run, "length")
    assert length.outcome is Outcome.WARNED
    assert "val_accuracy is exactly 68.4 % at the last 14 of 16 evaluations" in length.evidence
    assert "predicts a single class" in length.evidence
    assert not [found for found in run.findings if found.check == "early_stopping"]


@pytest.mark.parametrize(
    ("hits", "is_moving"),
    [
        ([640, 700, *[684] * 14], False),  # nothing was trained any more
        ([600, 610, 640, 650, 660, 664, 670, 680, 684, 684, 684, 684], True),
        ([600, 800, *[1000] * 8], True),  # perfect
    ],
)
def test_equal_evaluations_that_may_be_right_are_no_finding(
    hits: list[int], is_moving: bool, tmp_path: Path
) -> None:
    losses = [0.9 - idx / 50 if is_moving else 0.5 for idx in range(len(hits))]
    train = losses if is_moving else [0.4] * len(hits)
    run = only(audit([write_log(tmp_path / "a.csv", hits, losses=losses, train=train)]))
    assert "exactly" not in finding(run, "length").evidence


def test_a_constant_loss_beside_an_accuracy_that_moves_is_a_finding(tmp_path: Path) -> None:
    hits = [600 + 9 * idx for idx in range(9)]
    run = only(audit([write_log(tmp_path / "a.csv", hits, losses=[0.693] * 9)]))
    stuck = finding(run, "stuck_loss")
    assert stuck.outcome is Outcome.WARNED
    assert stuck.evidence.startswith("val_loss is 0.693 at all 9 evaluations")


def test_the_advised_patience_loses_no_more_than_noise(tmp_path: Path) -> None:
    """Of a slow rise with a dip of five epochs, a patience of 3 would lose all after the dip."""
    hits = [600, 640, 680, 720, 718, 716, 717, 715, 719, 760, 800, 840, 880]
    hits += [879 - idx % 3 for idx in range(9)]
    run = only(audit([write_log(tmp_path / "a.csv", hits)]))
    early, length = finding(run, "early_stopping"), finding(run, "length")
    assert early.numbers["lost"] == pytest.approx(0.16)
    assert "patience of 6" in length.fix
    assert "with a patience of 6, it would have ended after epoch 19" in early.evidence


def test_no_patience_is_advised_if_each_that_saves_epochs_loses(tmp_path: Path) -> None:
    hits = [600, 640, 680, 720, 718, 716, 717, 715, 719, 760, 800, 840, 880, 879, 878, 879, 878]
    run = only(audit([write_log(tmp_path / "a.csv", hits)]))
    assert finding(run, "length").fix == "Keep the best weights."


def test_a_log_from_epoch_0_says_how_epochs_are_counted(tmp_path: Path) -> None:
    rows = [f"{idx},{1 / (idx + 1)},{0.5 + idx / 50:.4f}" for idx in range(8)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["epoch,loss,val_accuracy", *rows]))
    note = "note: epochs are counted from 1 here: epoch 0 of the log is 1"
    assert note in audit_text(audit([str(path)]))
    path.write_text("\n".join(["epoch,loss,val_accuracy", *rows[1:]]))
    assert note not in audit_text(audit([str(path)]))


# -- sizes that fractions alone do not show ------------------------------------------------


FASTAI = """\
epoch     train_loss  valid_loss  error_rate  accuracy  time
0         1.283774    0.512209    0.172414    0.827586  00:24
epoch     train_loss  valid_loss  error_rate  accuracy  time
0         0.611203    0.401877    0.137931    0.862069  00:31
1         0.452318    0.352001    0.110345    0.889655  00:31
2         0.310442    0.301255    0.089655    0.910345  00:31
3         0.221907    0.287731    0.082759    0.917241  00:31
4         0.170036    0.291560    0.086207    0.913793  00:31
"""


def test_one_accuracy_shows_only_a_divisor_of_the_size(tmp_path: Path) -> None:
    """0.827586 is 24 of 29, and 240 of 290, as which the second table shows it."""
    path = tmp_path / "fastai.txt"
    path.write_text(FASTAI)
    found = audit([str(path)])
    assert [run.num_val for run in found.runs] == [None, 290]
    assert "a multiple of 29" in finding(found.runs[0], "evaluation_size").evidence
    (difference,) = found.differences
    assert difference.relation is Relation.NOT_SAID
    assert "different examples" not in difference.words
    assert difference.words.startswith("+9 points")


def test_sets_of_which_one_inferred_size_divides_the_other_may_be_the_same(tmp_path: Path) -> None:
    right = [500, 600, 700, 760, 750]
    few = write_log(tmp_path / "few.csv", right, num=1000)  # multiples of 1 / 100
    many = write_log(tmp_path / "many.csv", [501, 603, 703, 757, 751], num=1000)
    found = audit([few, many])
    assert [run.num_val for run in found.runs] == [100, 1000]
    assert found.differences[0].relation is Relation.NOT_SAID
    assert round(found.differences[0].in_examples or 0) == -3
    logged = write_log(tmp_path / "logged.csv", right, num=1000, extra="num_val=100")
    assert audit([logged, many]).differences[0].relation is Relation.OTHER_EXAMPLES


@pytest.mark.parametrize(
    ("before", "num"),
    [
        ("Found 1600 files belonging to 2 classes.\nFound 400 files belonging to 2 classes.", 400),
        ("Found 90 images belonging to 2 classes.\nFound 400 images belonging to 2 classes.", 400),
        ("Found 2000 files belonging to 2 classes.\nUsing 1600 files for training.\n"
         "Found 2000 files belonging to 2 classes.\nUsing 400 files for validation.", 400),
        ("***** Running Evaluation *****\n  Num examples = 400", 400),
        ("Found 1600 files belonging to 2 classes.\nFound 333 files belonging to 2 classes.", None),
        ("Found 1600 files belonging to 2 classes.", None),
        ("", None),
    ],
)  # fmt: skip
def test_a_size_that_the_output_states_goes_before_an_inferred_one(
    before: str, num: int | None, tmp_path: Path
) -> None:
    """An accuracy that is always 0.5 is possible with 2 examples, which nobody has."""
    epochs = "\n".join(
        f"Epoch {k}/8\n50/50 - 7s - loss: 0.69 - accuracy: 0.49 - val_loss: 0.69{k} - "
        "val_accuracy: 0.5000"
        for k in range(1, 9)
    )
    path = tmp_path / "train.log"
    path.write_text(f"{before}\n{epochs}\n")
    run = only(audit([str(path)]))
    assert run.num_val == num
    assert run.num_val_from is (None if num is None else SizeSource.LOGGED)


# -- losses in parts -----------------------------------------------------------------------


def yolo(val: str = "val/box_loss,val/cls_loss,val/dfl_loss") -> str:
    head = f"epoch,train/box_loss,train/cls_loss,train/dfl_loss,metrics/mAP50-95(B),{val}\n"
    rows = [
        f"{k},{2 - k / 10:.2f},{3 - k / 5:.2f},{1.6 - k / 20:.2f},{0.4 - 0.3 / k:.4f},"
        f"{1.5 + abs(k - 6) / 10:.2f},{1.6 + abs(k - 6) / 10:.2f},1.4"
        for k in range(1, 9)
    ]
    return head + "\n".join(rows) + "\n"


def test_the_parts_of_a_detection_s_loss_are_its_validation_loss(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(yolo())
    run = only(audit([str(path)]))
    assert run.metric == "metrics/mAP50-95(B)"
    losses = [row.val_loss for row in run.log.rows]
    assert losses == pytest.approx([4.5 + abs(k - 6) / 5 for k in range(1, 9)])
    assert run.log.rows[0].train_loss == pytest.approx(1.9 + 2.8 + 1.55)
    assert any("sum of val/box_loss, val/cls_loss, val/dfl_loss" in n for n in run.log.notes)
    fit = finding(run, "fit")
    assert "neither" not in fit.evidence
    assert (
        "lowest validation loss was at epoch 6" in fit.evidence or "after epoch 6" in fit.evidence
    )


def test_parts_that_training_does_not_have_are_not_added(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(yolo("val/box_loss,val/obj_loss,val/dfl_loss"))
    run = only(audit([str(path)]))
    assert {row.val_loss for row in run.log.rows} == {None}
    assert "no total loss, of training or of validation" in finding(run, "fit").evidence


def test_text_around_a_table_in_markdown_is_no_row_of_it(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    rows = "\n".join(f"| {1 / k:.4f} | {k}.0 | {1.2 / k:.4f} | 0.{80 + k} |" for k in range(1, 6))
    path.write_text(
        "# model\n\n| Training Loss | Epoch | Validation Loss | Accuracy |\n"
        f"|:---:|:---:|:---:|:---:|\n{rows}\n\n### Versions\n\n- Transformers 4.46.0\n- a | b\n"
    )
    run = only(audit([str(path)]))
    assert len(run.log.rows) == 5
    assert run.log.notes == ()
