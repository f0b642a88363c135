"""Whether the learning rate looks too high: training stays poor, and its loss jumps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from stepladder.diagnosis.fit.curves import Curves
from stepladder.diagnosis.fit.levels import guess_loss, levels_of
from stepladder.stats.scatter import scatter
from stepladder.training.output.wording import percent

POOR_ERROR = 0.5  # share of the error of guessing
POOR_LOSS = 0.5  # share of the loss of guessing
STAYS = 0.1  # share by which the second half is better, at most
WORSE_THAN_GUESSING = 1.5
# Scatter of a loss relative to its level, between evaluations, while training stays poor. Small
# nets with good learning rates have 0.003 and less on validation, with ones too high 0.005 to 0.2.
# Training losses are averages over different batches and augmentations, and jump for that reason.
VALIDATION_JUMPS = 0.01
TRAINING_JUMPS = 0.05
CLEAR = 3.0


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A sign that the learning rate is too high.

    Attributes:
        said: what was seen, with its numbers.
        is_clear: it is far outside of what good trainings show.
    """

    said: str
    is_clear: bool


def learning_rate_too_high(curves: Curves) -> Sign | None:
    """Return why the learning rate looks too high, or None.

    Training is poor and stays poor, and its loss jumps between evaluations: a model that is too
    small, or a learning rate that is too low, gives a smooth curve instead. Or the loss is far
    above that of guessing.

    Source: Zhang et al. 2021, "AutoTrainer: An Automatic DNN Training Problem Detection and Repair
    System", "oscillating loss"; Godbole et al. 2023, "Deep Learning Tuning Playbook",
    "step-to-step variance".
    """
    losses = [point.train_loss for point in curves.points if point.train_loss is not None]
    finite = [loss for loss in losses if math.isfinite(loss)]
    if len(finite) < len(losses):
        said = "the training loss was not finite in some evaluations"
        return Sign(said=said, is_clear=True)
    guess, is_assumed = guess_loss(curves)
    if not _is_poor(curves, finite, guess):
        return None
    if guess is not None and not is_assumed and finite[1:]:
        worst = max(finite[1:])
        if worst > WORSE_THAN_GUESSING * guess:
            said = f"the training loss reached {worst:.4g}; guessing gives {guess:.4g}"
            return Sign(said=said, is_clear=True)
    sign = _jumps(curves, finite) if _stays(finite) else None
    is_level_known = levels_of(curves).train_error is not None or not is_assumed
    # a first logged loss may be that of a pretrained model: only clear jumps count
    return sign if sign is None or is_level_known or sign.is_clear else None


def _jumps(curves: Curves, train: list[float]) -> Sign | None:
    val = curves.values() if curves.has_loss else []
    for name, losses, most in (
        ("validation", val, VALIDATION_JUMPS),
        ("training", train, TRAINING_JUMPS),
    ):
        found, level = scatter(losses), fmean(losses or [0.0])
        if found is None or level <= 0 or found / level <= most:
            continue
        size = found / level
        said = (
            f"training stays poor and the {name} loss jumps by {percent(size)} of its level "
            f"between evaluations (more than {percent(most)} is unusual)"
        )
        return Sign(said=said, is_clear=size > CLEAR * most)
    return None


def _is_poor(curves: Curves, losses: list[float], guess: float | None) -> bool:
    levels = levels_of(curves)
    if levels.bounded_train_error is not None:
        classes = curves.num_classes
        chance = 1 - 1 / classes if classes and classes > 1 else 1.0
        return levels.bounded_train_error > POOR_ERROR * chance
    if not losses or guess is None or (not levels.is_equal and levels.is_metric_good):
        return False
    last = losses[-1]
    if levels.is_training_above and levels.val_loss is not None:
        last = min(last, levels.val_loss)
    return last > POOR_LOSS * guess


def _stays(losses: list[float]) -> bool:
    half = len(losses) // 2
    if half < 2:
        return False
    return fmean(losses[half:]) > (1 - STAYS) * fmean(losses[half // 2 : half])
