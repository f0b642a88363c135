"""Trainings at the level of guessing, and others that only look like it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from stepladder.diagnosis.fit.chance import at_chance
from stepladder.diagnosis.fit.curves import Curves, Point
from stepladder.diagnosis.fit.fit import judge_fit
from stepladder.records.diagnosis import FitKind

NOISE = (0.004, -0.003, 0.006, -0.002, 0.001, -0.005)


def curves_at(
    loss: float, accuracy: float, *, off: Sequence[float] = NOISE, num_val: int | None = None
) -> Curves:
    return Curves(
        points=tuple(
            Point(
                step=idx,
                epoch=idx,
                train_loss=loss * (1 + part),
                val_loss=loss * (1 - part),
                train_accuracy=accuracy * (1 + part),
                val_accuracy=accuracy * (1 - 2 * part),
            )
            for idx, part in enumerate(off, start=1)
        ),
        num_val=num_val,
    )


@pytest.mark.parametrize("num_classes", [2, 3, 10, 100])
def test_losses_and_accuracies_of_guessing_are_at_chance(num_classes: int) -> None:
    found = curves_at(math.log(num_classes), 1 / num_classes)
    chance = at_chance(found)
    assert chance is not None
    assert chance.num_classes == num_classes
    fit = judge_fit(found)
    assert fit.kind is FitKind.UNDERFIT
    assert "the model learned nothing" in fit.evidence[0]
    assert fit.best_epoch is None
    assert not any("lowest validation" in said for said in fit.evidence)


@pytest.mark.parametrize(
    ("loss", "accuracy"),
    [(math.log(2), 0.7), (math.log(10), 0.3), (0.9 * math.log(3), 1 / 3), (0.2, 0.95)],
)
def test_one_of_both_alone_is_not(loss: float, accuracy: float) -> None:
    assert at_chance(curves_at(loss, accuracy)) is None


def test_a_training_that_leaves_the_level_of_guessing_is_not() -> None:
    assert at_chance(curves_at(math.log(10), 0.1, off=(0.0, 0.0, -0.02, -0.1, -0.2))) is None
    assert at_chance(curves_at(math.log(10), 0.1, off=NOISE[:3])) is None, "too few"


def test_with_few_examples_the_noise_of_their_number_is_allowed() -> None:
    assert at_chance(curves_at(math.log(3), 0.30, num_val=None)) is None
    points = curves_at(math.log(3), 1 / 3).points
    assert at_chance(Curves(points=points, num_val=75)) is not None
