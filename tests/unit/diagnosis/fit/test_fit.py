"""The fit rules, on curves with a known answer and on trainings of small nets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stepladder.diagnosis.fit.curves import Curves, Point
from stepladder.diagnosis.fit.fit import judge_fit
from stepladder.records.diagnosis import Confidence, FitKind


def curves(
    train: Sequence[float],
    val: Sequence[float],
    *,
    train_accuracy: Sequence[float] | None = None,
    val_accuracy: Sequence[float] | None = None,
    sem: float | None = 0.01,
    num_val: int | None = 1000,
    num_classes: int | None = 10,
    is_equal: bool = False,
) -> Curves:
    """Return curves with one evaluation per epoch of ten steps."""
    points = []
    for idx, (loss, held_out) in enumerate(zip(train, val, strict=True)):
        accuracy = None if train_accuracy is None else train_accuracy[idx]
        points.append(
            Point(
                step=10 * (idx + 1),
                epoch=idx + 1,
                train_loss=loss,
                train_accuracy=accuracy,
                equal_train_loss=loss if is_equal else None,
                equal_train_accuracy=accuracy if is_equal else None,
                val_loss=held_out,
                val_loss_sem=sem,
                val_accuracy=None if val_accuracy is None else val_accuracy[idx],
            )
        )
    return Curves(points=tuple(points), num_val=num_val, num_classes=num_classes)


FALLING = [2.0, 1.2, 0.7, 0.4, 0.2, 0.1, 0.06, 0.04]
HIGH = [0.3, 0.6, 0.8, 0.88, 0.94, 0.97, 0.99, 0.99]
RISING = [1.8, 1.2, 0.9, 0.8, 0.95, 1.1, 1.25, 1.4]


def test_validation_that_rises_while_training_falls_is_overfit() -> None:
    accuracy = [0.35, 0.6, 0.7, 0.72, 0.7, 0.69, 0.68, 0.68]
    fit = judge_fit(curves(FALLING, RISING, train_accuracy=HIGH, val_accuracy=accuracy))
    assert fit.kind is FitKind.OVERFIT
    assert fit.best_epoch == 4
    assert not fit.is_overconfident
    rise = fit.numbers["rise"]
    assert isinstance(rise, float)
    assert rise > 0.2


def test_on_equal_terms_it_is_sure() -> None:
    fit = judge_fit(curves(FALLING, RISING, train_accuracy=HIGH, is_equal=True))
    assert fit.kind is FitKind.OVERFIT
    assert fit.confidence is Confidence.SURE


def test_a_rise_within_twice_its_noise_is_not_overfit() -> None:
    fit = judge_fit(curves(FALLING, RISING, train_accuracy=HIGH, sem=0.4))
    assert fit.kind is not FitKind.OVERFIT


FLAT = [1.8, 1.2, 0.9, 0.8, 0.8, 0.81, 0.8, 0.8]


@pytest.mark.parametrize(
    ("train", "val", "num_val", "kind", "confidence"),
    [
        (0.99, 0.94, 1000, FitKind.GOOD_FIT, Confidence.SURE),
        (0.994, 0.877, 1000, FitKind.OVERFIT, Confidence.SURE),
        (0.994, 0.877, 57, FitKind.OVERFIT, Confidence.LIKELY),
        (0.994, 0.877, 20, FitKind.GOOD_FIT, Confidence.SURE),
        (0.96, 0.88, 1000, FitKind.OVERFIT, Confidence.LIKELY),
        (0.92, 0.80, 5000, FitKind.OVERFIT, Confidence.LIKELY),
        (0.80, 0.72, 5000, FitKind.UNDERFIT, Confidence.LIKELY),
        (0.60, 0.45, 5000, FitKind.UNDERFIT, Confidence.LIKELY),
    ],
)
def test_a_gap_is_overfitting_from_the_limit_and_the_noise_on(
    train: float, val: float, num_val: int, kind: FitKind, confidence: Confidence
) -> None:
    found = curves(
        FALLING, FLAT, train_accuracy=[*HIGH[:3], *[train] * 5],
        val_accuracy=[*HIGH[:3], *[val] * 5], num_val=num_val, is_equal=True,
    )  # fmt: skip
    fit = judge_fit(found)
    assert (fit.kind, fit.confidence) == (kind, confidence)
    assert any("percentage points higher" in said for said in fit.evidence) == (
        kind is FitKind.OVERFIT
    )


def test_labels_that_nobody_predicts_are_no_gap() -> None:
    found = curves(
        FALLING, FLAT, train_accuracy=HIGH, val_accuracy=[*HIGH[:3], *[0.88] * 5], is_equal=True
    )
    assert judge_fit(found).kind is FitKind.OVERFIT
    assert judge_fit(replace(found, target_error=0.1)).kind is FitKind.GOOD_FIT


def test_a_loss_that_is_twice_that_of_training_is_overfitting_beyond_its_noise() -> None:
    train = [2.0, 1.2, 0.7, 0.5, 0.4, 0.35, 0.32, 0.31]
    for val, sem, kind in (
        (0.5, 0.01, FitKind.GOOD_FIT),
        (0.8, 0.01, FitKind.OVERFIT),
        (0.8, 0.3, FitKind.GOOD_FIT),
    ):
        held_out = [1.8, 1.2, *[val] * 6]
        found = curves(train, held_out, sem=sem, is_equal=True)
        assert judge_fit(found).kind is kind
    small = [loss / 100 for loss in train]
    found = curves(small, [0.02, 0.012, *[0.008] * 6], sem=1e-4, is_equal=True)
    assert judge_fit(found).kind is FitKind.GOOD_FIT, "both are next to nothing"


def test_the_saved_weights_are_judged_not_the_last_ones() -> None:
    """The best ones fit well; those of later epochs, which are not saved, no longer do."""
    train = [0.3, 0.6, 0.9, 0.96, 0.98, 0.99, 1.0, 1.0]
    val = [0.3, 0.6, 0.88, 0.95, 0.9, 0.86, 0.84, 0.82]
    last = curves(FALLING, RISING, train_accuracy=train, val_accuracy=val, is_equal=True)
    assert judge_fit(last).kind is FitKind.OVERFIT
    fit = judge_fit(replace(last, best_step=40, keeps_best=True))
    assert fit.kind is FitKind.GOOD_FIT
    assert fit.best_epoch == 4
    assert (fit.numbers["train_error"], fit.numbers["val_error"]) == pytest.approx((0.04, 0.05))
    assert fit.numbers["val_loss"] == 0.8
    said = " ".join(fit.evidence)
    assert "rose after epoch 4" in said
    assert "the saved weights are from before that" in said
    assert "of the saved weights, of epoch 4" in said
    assert "validation has not become worse" not in said


def test_saved_weights_that_overfit_are_named_so_from_either_end() -> None:
    train = [0.3, 0.6, 0.9, 0.98, 0.99, 0.99, 1.0, 1.0]
    val = [0.3, 0.6, 0.78, 0.8, 0.8, 0.79, 0.8, 0.8]
    for held_out in (RISING, FLAT):
        found = curves(FALLING, held_out, train_accuracy=train, val_accuracy=val, is_equal=True)
        fit = judge_fit(replace(found, best_step=40, keeps_best=True))
        assert fit.kind is FitKind.OVERFIT
        assert fit.numbers["train_error"] == pytest.approx(0.02)


def test_weights_saved_before_they_learnt_the_data_are_not_a_good_fit() -> None:
    """They would overfit before they have learnt it: regularise, do not grow the model."""
    train = [0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0]
    val = [0.3, 0.5, 0.58, 0.66, 0.62, 0.6, 0.6, 0.6]
    found = curves(FALLING, RISING, train_accuracy=train, val_accuracy=val, is_equal=True)
    assert judge_fit(replace(found, best_step=40, keeps_best=True)).kind is FitKind.OVERFIT


def test_the_best_epoch_is_that_of_the_run_not_of_the_smoothed_curve() -> None:
    val = [1.8, 1.2, 0.9, 0.8, 0.62, 0.81, 0.7, 0.69]
    found = curves(FALLING, val, train_accuracy=HIGH, val_accuracy=HIGH)
    assert judge_fit(found).best_epoch == 5, "the lowest value"
    by_accuracy = judge_fit(replace(found, best_step=80))
    assert by_accuracy.best_epoch == 8, "the run monitors another metric"
    assert not any("epoch 5" in said for said in by_accuracy.evidence)


def test_a_loss_that_rises_with_accuracy_is_overconfidence() -> None:
    accuracy = [0.55, 0.7, 0.8, 0.84, 0.88, 0.91, 0.93, 0.94]
    fit = judge_fit(curves(FALLING, RISING, train_accuracy=HIGH, val_accuracy=accuracy))
    assert fit.is_overconfident
    assert fit.kind is FitKind.GOOD_FIT
    lower = [share - 0.12 for share in accuracy]
    both = judge_fit(curves(FALLING, RISING, train_accuracy=HIGH, val_accuracy=lower))
    assert both.is_overconfident
    assert both.kind is FitKind.OVERFIT, "17 points below training"


def test_accuracy_that_rose_once_and_no_more_is_both() -> None:
    accuracy = [0.35, 0.6, 0.7, 0.72, 0.8, 0.8, 0.8, 0.8]
    fit = judge_fit(curves(FALLING, RISING, train_accuracy=HIGH, val_accuracy=accuracy))
    assert fit.kind is FitKind.OVERFIT
    assert fit.is_overconfident


def test_accuracy_that_rises_within_its_noise_is_not_called_overconfidence() -> None:
    accuracy = [0.35, 0.6, 0.7, 0.72, 0.725, 0.73, 0.73, 0.73]
    fit = judge_fit(curves(FALLING, RISING, train_accuracy=HIGH, val_accuracy=accuracy, num_val=50))
    assert fit.kind is FitKind.OVERFIT


def test_fewer_worse_evaluations_than_patience_are_not_enough() -> None:
    found = curves(FALLING[:6], RISING[:6], train_accuracy=HIGH[:6])
    assert judge_fit(found).kind is not FitKind.OVERFIT
    assert judge_fit(replace(found, patience=2)).kind is FitKind.OVERFIT


CLIMBING = [99.4, 93.2, 93.7, 89.5, 91.2, 95.0, 99.1]  # noisy: 91.2 is within it
LEARNING = [92.0, 88.0, 84.0, 80.0, 76.0, 72.0, 68.0]


def test_a_climb_in_each_of_the_last_evaluations_is_overfit_although_it_begins_in_noise() -> None:
    found = curves(LEARNING, CLIMBING, sem=None, num_val=None, num_classes=None)
    fit = judge_fit(found)
    assert fit.kind is FitKind.OVERFIT
    assert fit.best_epoch == 4
    assert "to 99.1 from 89.5" in " ".join(fit.evidence)
    steady = [*CLIMBING[:5], 91.6, 92.0]
    fit = judge_fit(curves(LEARNING, steady, sem=None, num_val=None, num_classes=None))
    assert fit.kind is not FitKind.OVERFIT, "within the noise"
    worse = [92.0, 60.0, 45.0, 38.0, 39.0, 41.0, 43.0]
    fit = judge_fit(curves(worse, CLIMBING, sem=None, num_val=None, num_classes=None))
    assert fit.kind is FitKind.NOT_YET_KNOWN, "training rose, too"


def test_a_single_jump_at_the_end_is_named_but_is_no_trend() -> None:
    jump = [1.8, 1.2, 0.9, 0.8, 0.8, 0.79, 0.8, 1.1]
    fit = judge_fit(curves(FALLING, jump, train_accuracy=HIGH, val_accuracy=HIGH))
    assert fit.kind is FitKind.GOOD_FIT
    said = " ".join(fit.evidence)
    assert "the last validation loss (1.1) is above the lowest (0.79)" in said
    assert "has not become worse" not in said


def test_independent_noise_around_a_plateau_is_seldom_called_a_climb() -> None:
    rng = torch.Generator().manual_seed(0)
    kinds = []
    for _ in range(400):
        noise = 0.05 * torch.randn(15, generator=rng)
        val = [1 + math.exp(-idx / 2) + float(noise[idx]) for idx in range(15)]
        train = [0.9 - 0.02 * idx for idx in range(15)]
        found = curves(train, val, sem=None, num_val=None, num_classes=10)
        kinds.append(judge_fit(found).kind)
    assert kinds.count(FitKind.OVERFIT) <= 0.04 * len(kinds)


def test_a_gap_of_logged_losses_has_a_caveat_and_claims_no_saved_weights() -> None:
    train = [1.036, 1.035, 1.034, 1.033, 1.032]
    found = curves(train, [7.89, 7.9, 7.91, 7.92, 7.93], num_classes=None)
    fit = judge_fit(found)
    said = " ".join(fit.evidence)
    assert fit.kind is FitKind.OVERFIT
    assert "far higher on validation than on training, if both are the same loss" in said
    assert "saved weights" not in said
    said = " ".join(judge_fit(replace(found, best_step=10, keeps_best=True)).evidence)
    assert "of the saved weights is far higher" in said
    equal = curves(train, [7.89, 7.9, 7.91, 7.92, 7.93], num_classes=None, is_equal=True)
    assert "same loss" not in " ".join(judge_fit(equal).evidence)


def test_a_rise_with_training_that_rises_too_is_not_overfit() -> None:
    worse = [2.0, 1.2, 0.7, 0.4, 0.5, 0.6, 0.7, 0.8]
    fit = judge_fit(curves(worse, RISING, train_accuracy=HIGH))
    assert fit.kind is FitKind.NOT_YET_KNOWN
    assert any("unstable" in sentence for sentence in fit.evidence)


def test_poor_training_with_no_gap_is_underfit() -> None:
    poor = [2.0, 1.6, 1.5, 1.49, 1.485, 1.48, 1.48, 1.48]
    shares = [0.3, 0.4, 0.43, 0.45, 0.46, 0.46, 0.46, 0.46]
    fit = judge_fit(curves(poor, poor, train_accuracy=shares, val_accuracy=shares))
    assert fit.kind is FitKind.UNDERFIT
    assert not fit.is_learning_rate_too_high
    assert not fit.is_still_improving


def test_errors_that_nobody_avoids_do_not_count() -> None:
    poor = [2.0, 1.6, 1.5, 1.49, 1.485, 1.48, 1.48, 1.48]
    shares = [0.3, 0.4, 0.43, 0.45, 0.46, 0.46, 0.46, 0.46]
    found = curves(poor, poor, train_accuracy=shares, val_accuracy=shares)
    assert judge_fit(replace(found, target_error=0.52)).kind is FitKind.GOOD_FIT


def test_poor_training_that_still_improves_says_so() -> None:
    slow = [2.2 - 0.05 * idx for idx in range(8)]
    shares = [0.2 + 0.01 * idx for idx in range(8)]
    found = curves(slow, slow, train_accuracy=shares, val_accuracy=shares)
    fit = judge_fit(found)
    assert fit.kind is FitKind.UNDERFIT
    assert fit.is_still_improving
    assert judge_fit(replace(found, is_running=True)).kind is FitKind.NOT_YET_KNOWN


def test_what_still_falls_is_no_sure_good_fit() -> None:
    train = [2.0 * 0.5**idx for idx in range(8)]
    val = [2.1 * 0.7**idx for idx in range(8)]
    found = curves(train, val, train_accuracy=HIGH, is_equal=True)
    fit = judge_fit(found)
    assert (fit.kind, fit.confidence) == (FitKind.GOOD_FIT, Confidence.LIKELY)
    assert fit.is_still_improving
    assert judge_fit(replace(found, is_running=True)).kind is FitKind.NOT_YET_KNOWN


def test_a_steep_start_is_not_a_falling_end() -> None:
    val = [2.0, 1.2, 0.75, 0.7, 0.72, 0.69]
    fit = judge_fit(curves(FALLING[:6], val, train_accuracy=HIGH[:6]))
    assert not fit.is_still_improving
    assert judge_fit(curves(FALLING[:6], [2.0, 1.2, 0.9, 0.7, 0.5, 0.35])).is_still_improving


def test_a_loss_that_is_nan_before_the_first_step_is_not_of_the_learning_rate() -> None:
    found = replace(curves([], []), is_diverged=True)
    assert judge_fit(found).is_learning_rate_too_high
    assert judge_fit(replace(found, diverged_step=30)).is_learning_rate_too_high
    fit = judge_fit(replace(found, diverged_step=0))
    assert fit.kind is FitKind.NOT_YET_KNOWN
    assert not fit.is_learning_rate_too_high
    assert "before the first step" in fit.evidence[0]


def test_a_few_evaluations_are_underfit_only_where_they_are_all_and_are_known() -> None:
    poor, shares = [2.0, 1.6, 1.5], [0.3, 0.4, 0.43]
    found = curves(poor, poor, train_accuracy=shares, val_accuracy=shares)
    assert judge_fit(found).kind is FitKind.UNDERFIT
    assert judge_fit(replace(found, is_whole=False)).kind is FitKind.NOT_YET_KNOWN
    assumed = curves(poor, poor, num_classes=None)
    assert judge_fit(assumed).kind is FitKind.NOT_YET_KNOWN


def test_a_loss_far_above_that_of_guessing_is_a_learning_rate_too_high() -> None:
    wild = [6.0, 4.1, 5.2, 3.9, 5.5, 4.8, 5.1, 4.6]
    shares = [0.1, 0.12, 0.1, 0.11, 0.1, 0.12, 0.1, 0.11]
    fit = judge_fit(curves(wild, wild, train_accuracy=shares, val_accuracy=shares))
    assert fit.kind is FitKind.UNDERFIT
    assert fit.is_learning_rate_too_high


def test_training_that_stays_poor_and_jumps_is_a_learning_rate_too_high() -> None:
    train = [2.1, 2.05, 2.1, 2.0, 2.08, 2.02, 2.1, 2.04]
    val = [2.0, 2.3, 1.9, 2.4, 1.95, 2.25, 1.9, 2.3]
    shares = [0.2, 0.22, 0.2, 0.21, 0.2, 0.22, 0.2, 0.21]
    fit = judge_fit(curves(train, val, train_accuracy=shares, val_accuracy=shares))
    assert fit.is_learning_rate_too_high


def test_without_a_known_noise_nothing_is_said_of_overfit() -> None:
    found = curves(FALLING[:3], RISING[:3], sem=None, num_val=None)
    fit = judge_fit(found)
    assert fit.kind is FitKind.NOT_YET_KNOWN
    assert fit.confidence is Confidence.WEAK


def test_no_evaluation_is_not_yet_known() -> None:
    fit = judge_fit(Curves(points=()))
    assert fit.kind is FitKind.NOT_YET_KNOWN
    assert fit.best_step is None


def test_a_loss_that_is_not_a_number_is_left_out_of_validation() -> None:
    val = [*RISING[:7], math.nan]
    fit = judge_fit(curves(FALLING, val, train_accuracy=HIGH))
    assert fit.numbers["num_evaluations"] == 7


def test_accuracies_alone_are_judged_in_their_binomial_noise() -> None:
    def points(shares: list[float]) -> tuple[Point, ...]:
        return tuple(
            Point(step=idx, epoch=idx, train_accuracy=0.5 + 0.06 * idx, val_accuracy=share)
            for idx, share in enumerate(shares)
        )

    falling = [0.5, 0.6, 0.7, 0.72, 0.66, 0.63, 0.61, 0.6]
    many = Curves(points=points(falling), num_val=5000)
    assert judge_fit(many).kind is FitKind.OVERFIT
    assert "rose after epoch 3" in judge_fit(many).evidence[0]
    few = judge_fit(replace(many, num_val=60))
    assert not any("rose" in said for said in few.evidence)


def trained(
    *, width: int, num_train: int, lr: float, wrong: float = 0.0, epochs: int = 15, seed: int = 0
) -> Curves:
    """Train a small net on points of five classes, and evaluate it after each epoch."""
    torch.manual_seed(seed)
    teacher = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 5))
    for weight in teacher.parameters():
        nn.init.normal_(weight)
    x = torch.randn(num_train + 300, 12)
    y = teacher(x).argmax(1)
    y = torch.where(torch.rand(len(y)) < wrong, torch.randint(5, (len(y),)), y)
    net = nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 5))
    adam = torch.optim.Adam(net.parameters(), lr=lr)
    best: torch.Tensor | None = None
    points = []
    for epoch in range(1, epochs + 1):
        total, hits = 0.0, 0.0
        for rows in torch.randperm(num_train).split(32):
            adam.zero_grad()
            scores = net(x[rows])
            loss = F.cross_entropy(scores, y[rows])
            loss.backward()
            adam.step()
            total += loss.item() * len(rows)
            hits += float((scores.argmax(1) == y[rows]).sum())
        with torch.no_grad():
            scores = net(x)
            losses = F.cross_entropy(scores, y, reduction="none")
        right = (scores.argmax(1) == y).float()
        held_out = losses[num_train:]
        rise_sem = None if best is None else float((held_out - best).std()) / math.sqrt(300)
        best = held_out if best is None or held_out.mean() < best.mean() else best
        points.append(
            Point(
                step=epoch * math.ceil(num_train / 32),
                epoch=epoch,
                train_loss=total / num_train,
                train_accuracy=hits / num_train,
                equal_train_loss=float(losses[:num_train].mean()),
                equal_train_accuracy=float(right[:num_train].mean()),
                val_loss=float(held_out.mean()),
                val_loss_sem=float(held_out.std()) / math.sqrt(300),
                rise_sem=rise_sem,
                val_accuracy=float(right[num_train:].mean()),
            )
        )
    return Curves(points=tuple(points), num_val=300, num_classes=5)


@pytest.mark.parametrize("seed", range(3))
def test_small_nets_are_distinguished(seed: int) -> None:
    overfit = trained(width=128, num_train=150, lr=0.01, wrong=0.3, epochs=25, seed=seed)
    assert judge_fit(overfit).kind is FitKind.OVERFIT
    underfit = judge_fit(trained(width=2, num_train=800, lr=0.02, epochs=12, seed=seed))
    assert underfit.kind is FitKind.UNDERFIT
    assert not underfit.is_learning_rate_too_high
    too_low = judge_fit(trained(width=64, num_train=500, lr=2e-5, epochs=8, seed=seed))
    assert too_low.kind is FitKind.UNDERFIT
    assert too_low.is_still_improving
    assert not too_low.is_learning_rate_too_high
    too_high = judge_fit(trained(width=64, num_train=1000, lr=30.0, epochs=10, seed=seed))
    assert too_high.is_learning_rate_too_high


AUGMENTED = [0.69, 0.80, 0.836, 0.84, 0.857, 0.869, 0.861, 0.881]
TUTORIAL = [0.24, 0.19, 0.22, 0.18, 0.19, 0.174, 0.181, 0.18]


@pytest.mark.parametrize(
    ("lower", "held_out", "kind"),
    [
        (0.0, 0.95, FitKind.GOOD_FIT),
        (0.0, 0.91, FitKind.GOOD_FIT),
        (0.0, 0.875, FitKind.GOOD_FIT),
        (0.3, 0.68, FitKind.NOT_YET_KNOWN),
        (0.3, 0.575, FitKind.UNDERFIT),
    ],
)
def test_training_that_is_worse_than_validation_only_as_logged_is_no_underfit(
    lower: float, held_out: float, kind: FitKind
) -> None:
    """Augmentation and dropout raise the training error that is logged; a small lag does not."""
    trained = [share - lower for share in AUGMENTED]
    logged = curves(
        AUGMENTED, TUTORIAL, train_accuracy=trained, val_accuracy=[held_out] * 8, num_val=5000
    )
    fit = judge_fit(logged)
    assert fit.kind is kind
    is_above = 1 - trained[-1] > 1.25 * (1 - held_out)
    is_said = any("training error as logged is above" in said for said in fit.evidence)
    assert is_said == is_above
    is_underfit = kind is FitKind.UNDERFIT
    assert any("many training examples" in said for said in fit.evidence) == is_underfit
    equal = curves(
        AUGMENTED, TUTORIAL, train_accuracy=trained, val_accuracy=[held_out] * 8, is_equal=True
    )
    assert judge_fit(equal).kind is FitKind.UNDERFIT, "measured on equal terms, it is known"


def as_logged(train: float, val: float, *, num_val: int = 240) -> Curves:
    """Return curves that level off at two errors, in a log without the number of classes."""
    shares = [0.3, 0.5, 0.6]
    return curves(
        FALLING, FLAT, train_accuracy=[*shares, *[1 - train] * 5],
        val_accuracy=[*shares, *[1 - val] * 5], num_val=num_val, num_classes=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("train", "val", "kind"),
    [
        (0.054, 0.091, FitKind.GOOD_FIT),
        (0.098, 0.146, FitKind.GOOD_FIT),
        (0.126, 0.160, FitKind.GOOD_FIT),
        (0.269, 0.261, FitKind.GOOD_FIT),
        (0.292, 0.321, FitKind.GOOD_FIT),
        (0.101, 0.212, FitKind.OVERFIT),
        (0.102, 0.202, FitKind.OVERFIT),
        (0.099, 0.180, FitKind.OVERFIT),
        (0.101, 0.182, FitKind.OVERFIT),
        (0.32, 0.60, FitKind.OVERFIT),
        (0.35, 0.60, FitKind.OVERFIT),
        (0.40, 0.42, FitKind.UNDERFIT),
        (0.70, 0.72, FitKind.UNDERFIT),
    ],
)
def test_a_logged_training_error_is_underfit_only_where_much_of_guessing_is_left(
    train: float, val: float, kind: FitKind
) -> None:
    fit = judge_fit(as_logged(train, val, num_val=2400))
    assert fit.kind is kind
    if kind is FitKind.GOOD_FIT:
        assert fit.confidence is Confidence.WEAK
        assert any("a log does not show" in said for said in fit.evidence)
    if train == 0.40:
        assert fit.confidence is Confidence.WEAK, "more than a third of guessing, less than half"


def test_the_error_of_guessing_is_that_of_the_classes_where_they_are_known() -> None:
    found = as_logged(0.28, 0.29, num_val=2400)
    assert judge_fit(found).kind is FitKind.GOOD_FIT
    assert judge_fit(replace(found, num_classes=2)).kind is FitKind.UNDERFIT


def test_a_small_gap_is_named_with_its_limit() -> None:
    said = " ".join(judge_fit(as_logged(0.054, 0.091, num_val=2400)).evidence)
    assert "gap between training and validation, 3.7 points, is below the 7 from which on" in said


def test_a_first_logged_loss_is_no_loss_of_guessing() -> None:
    train = [0.45, 0.35, 0.32, 0.30, 0.29, 0.28, 0.28, 0.28]
    found = curves(train, train, num_classes=None)
    assert judge_fit(found).kind is FitKind.NOT_YET_KNOWN
    high = curves(train, train, val_accuracy=[0.87, 0.9, *[0.92] * 6], num_classes=None)
    assert judge_fit(high).kind is FitKind.GOOD_FIT, "few validation examples are wrong"
    low = curves(train, train, val_accuracy=[0.4, 0.42, *[0.45] * 6], num_classes=None)
    assert judge_fit(low).kind is FitKind.NOT_YET_KNOWN
    for found in (high, low):
        assert not judge_fit(found).is_learning_rate_too_high


def test_an_epoch_after_the_last_validation_is_not_compared_with_it() -> None:
    found = as_logged(0.14, 0.19, num_val=2400)
    later = replace(found.points[-1], step=90, epoch=9, train_accuracy=0.99)
    later = replace(later, val_loss=None, val_accuracy=None)
    more = replace(found, points=(*found.points, later))
    assert judge_fit(more).kind is judge_fit(found).kind is FitKind.GOOD_FIT
    assert judge_fit(more).numbers["train_error"] == pytest.approx(0.14)


def test_without_a_training_accuracy_nothing_is_said_about_training_examples() -> None:
    """DeiT's training loss is that of mixup and label smoothing, far above that of validation."""
    mixed = [4.8, 4.1, 3.66, 3.39, 3.19, 3.04, 2.93, 2.85, 2.79, 2.75]
    held_out = [2.9, 2.2, 1.8, 1.6, 1.45, 1.344, 1.3, 1.259, 1.24, 1.231]
    fit = judge_fit(curves(mixed, held_out, num_classes=None))
    assert fit.kind is FitKind.GOOD_FIT
    assert any("training loss as logged is above" in said for said in fit.evidence)
    poor = judge_fit(curves([4.8, 4.6, 4.5, 4.4, 4.4, 4.4], [4.6, 4.5, 4.45, 4.4, 4.4, 4.4]))
    assert poor.kind is FitKind.UNDERFIT
    assert not any("training examples" in said for said in (*fit.evidence, *poor.evidence))


def test_a_mean_of_two_validations_is_called_one() -> None:
    rising = [1.8, 1.2, 0.9, 0.8, 0.81, 0.85]
    fit = judge_fit(curves(FALLING[:6], rising))
    assert any("validation loss 0.83 (mean of the last two" in said for said in fit.evidence)
    fit = judge_fit(curves(FALLING[:6], rising, is_equal=True))
    assert any(said.endswith("validation loss 0.85") for said in fit.evidence)
