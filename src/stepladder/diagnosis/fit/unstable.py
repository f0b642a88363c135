"""A learning rate that is too high: it looks like underfit, and is told by its jumps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stepladder.diagnosis.fit.curves import Curves
from stepladder.diagnosis.fit.levels import guess_loss, levels_of
from stepladder.stats.scatter import scatter
from stepladder.training.output.wording import percent

POOR_ERROR = 0.5  # share of the errors of guessing that is left
POOR_LOSS = 0.5  # share of the loss of guessing that is left
STAYS = 0.1  # share by which the second half is better, at most
WORSE_THAN_GUESSING = 1.5
# Scatter of a loss over its level, from evaluation to evaluation, while training stays poor. Small
# nets of sound learning rates: 0.003 and less on validation, and of those too high: 0.005 to 0.2.
# Training losses are means over other batches and augmentations each time, and jump by that alone.
VALIDATION_JUMPS = 0.01
TRAINING_JUMPS = 0.05
CLEAR = 3.0


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A sign of a learning rate that is too high.

    Attributes:
        said: what was seen, with its numbers.
        is_clear: it is far from what sound trainings show.
    """

    said: str
    is_clear: bool


def learning_rate_too_high(curves: Curves) -> Sign | None:
    """Say why the learning rate looks too high, or None.

    Training is poor and stays poor, and its loss jumps from evaluation to evaluation: a model that
    is too small, or a learning rate that is too low, gives a smooth course instead. Or its loss
    lies far above that of guessing.

    Source: Zhang et al. 2021, "AutoTrainer: An Automatic DNN Training Problem Detection and Repair
    System", "oscillating loss"; Godbole et al. 2023, "Deep Learning Tuning Playbook",
    "step-to-step variance".
    """
    losses = [point.train_loss for point in curves.points if point.train_loss is not None]
    finite = [loss for loss in losses if math.isfinite(loss)]
    if len(finite) < len(losses):
        said = "the training loss was no finite number in some evaluations"
        return Sign(said=said, is_clear=True)
    guess, is_assumed = guess_loss(curves)
    if not _is_poor(curves, finite, guess):
        return None
    if guess is not None and not is_assumed and finite[1:]:
        worst = max(finite[1:])
        if worst > WORSE_THAN_GUESSING * guess:
            said = f"the training loss reached {worst:.4g}, and guessing gives {guess:.4g}"
            return Sign(said=said, is_clear=True)
    return _jumps(curves, finite) if _stays(finite) else None


def _jumps(curves: Curves, train: list[float]) -> Sign | None:
    val = curves.values() if curves.has_loss else []
    for name, losses, most in (
        ("validation", val, VALIDATION_JUMPS),
        ("training", train, TRAINING_JUMPS),
    ):
        found, level = scatter(losses), _mean(losses)
        if found is None or level <= 0 or found / level <= most:
            continue
        size = found / level
        said = (
            f"training stays poor and the {name} loss jumps by {percent(size)} of its level from "
            f"one evaluation to the next, where {percent(most)} would be much"
        )
        return Sign(said=said, is_clear=size > CLEAR * most)
    return None


def _is_poor(curves: Curves, losses: list[float], guess: float | None) -> bool:
    levels = levels_of(curves)
    if levels.train_error is not None:
        classes = curves.num_classes
        chance = 1 - 1 / classes if classes and classes > 1 else 1.0
        return levels.train_error > POOR_ERROR * chance
    return bool(losses) and guess is not None and losses[-1] > POOR_LOSS * guess


def _stays(losses: list[float]) -> bool:
    half = len(losses) // 2
    if half < 2:
        return False
    return _mean(losses[half:]) > (1 - STAYS) * _mean(losses[half // 2 : half])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
