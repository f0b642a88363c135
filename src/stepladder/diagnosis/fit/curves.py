"""The curves that a training is judged by: one point per evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stepladder.stats import binomial_sem
from stepladder.stats.scatter import scatter, smoothed

DEFAULT_PATIENCE = 3
MIN_PATIENCE = 2
MAX_PATIENCE = 5  # a run with more patience shows as much by then
MIN_FOR_SCATTER = 6


@dataclass(frozen=True, kw_only=True)
class Point:
    """One evaluation, and the training before it. None: not measured.

    Attributes:
        step: optimizer steps done.
        epoch: epochs done.
        train_loss, train_accuracy: as logged: in training mode, with dropout and augmentation,
            averaged over the steps since the last evaluation.
        equal_train_loss, equal_train_accuracy: on training examples under the terms of validation:
            with these weights, in eval mode, without augmentation.
        val_loss: mean over the validation examples.
        val_loss_sem: its standard error.
        rise_sem: standard error of its difference to the best one before, paired by example.
        val_accuracy: in [0, 1].
        val_score: the metric that the training is judged by, if it is not the accuracy, as F1 is;
            higher is better, in [0, 1].
        is_remeasured: measured by a diagnosis; the run did not validate here.
    """

    step: int
    epoch: float | None = None
    train_loss: float | None = None
    train_accuracy: float | None = None
    equal_train_loss: float | None = None
    equal_train_accuracy: float | None = None
    val_loss: float | None = None
    val_loss_sem: float | None = None
    rise_sem: float | None = None
    val_accuracy: float | None = None
    val_score: float | None = None
    is_remeasured: bool = False


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The evaluations of one training, in order.

    Attributes:
            points: one per evaluation.
            num_val: number of validation examples; None if unknown.
            num_classes: None if unknown, or not a classification.
            patience: number of consecutive evaluations that must be worse before it counts.
            train_windows: (step, training loss as logged), finer than the points if that is known.
            is_running: training has not ended: it is running, or was interrupted.
            is_whole: these are all evaluations; False if some may be missing or were still to come.
            is_diverged: a loss was not finite.
            diverged_step: optimizer steps done when it first was not; None if unknown.
            best_step: step of the best validation according to the run, by the metric that it
                monitors; None if unknown.
            keeps_best: the saved weights are those of the best validation; otherwise the last ones.
            target_error: share of examples that cannot be predicted correctly, such as wrong
                labels, in [0, 1].
            score_name: of `val_score`; None if the points have none.
            score_noise: standard deviation of a difference of scores; None if unknown.
    """

    points: tuple[Point, ...]
    num_val: int | None = None
    num_classes: int | None = None
    patience: int = DEFAULT_PATIENCE
    train_windows: tuple[tuple[int, float], ...] = ()
    is_running: bool = False
    is_whole: bool = True
    is_diverged: bool = False
    diverged_step: int | None = None
    best_step: int | None = None
    keeps_best: bool = False
    target_error: float = 0.0
    score_name: str | None = None
    score_noise: float | None = None

    @property
    def has_loss(self) -> bool:
        """Return whether the validation loss is judged; otherwise it is the accuracy."""
        return sum(_is_number(point.val_loss) for point in self.points) >= min(2, len(self.points))

    def judged(self) -> tuple[Point, ...]:
        """Return the points with a finite value of what is judged."""
        return tuple(point for point in self.points if _is_number(self._value(point)))

    def best(self) -> Point | None:
        """Return the best validation: that of the run if known, else the lowest value."""
        points, values = self.judged(), self.values()
        named = next((point for point in points if point.step == self.best_step), None)
        if named is not None or not points:
            return named
        return points[min(range(len(values)), key=values.__getitem__)]

    def saved(self) -> Point | None:
        """Return the evaluation of the weights that are saved, if it is not the last one."""
        best = self.best() if self.keeps_best else None
        return best if best is not None and best.step < self.points[-1].step else None

    def metric(self, point: Point) -> float | None:
        """Return the metric beside the loss that shows how often the model is wrong."""
        return point.val_accuracy if self.score_name is None else point.val_score

    def metric_noise(self) -> float | None:
        """Return the standard deviation, due to chance, of a difference of two metrics."""
        if self.score_name is not None:
            return self.score_noise
        floor = self.accuracy_floor()
        return None if floor is None else math.sqrt(2) * floor

    def values(self) -> list[float]:
        """Return what is judged at each of `judged()`, lower is better: loss or error rate."""
        found = (self._value(point) for point in self.judged())
        return [value for value in found if value is not None]

    def course(self) -> list[float]:
        """Return the values, smoothed."""
        return smoothed(self.values())

    def noise(self) -> float | None:
        """Return the standard deviation, due to chance, of a difference between two evaluations.

        It is the larger of two: the scatter of the curve between evaluations, and what a different
        sample of validation examples would change. The former is taken from the last two thirds,
        as the first steep fall of a short curve looks like scatter. The latter is the paired
        standard error if known; otherwise that of the mean (as for two means with a correlation of
        one half); otherwise, for losses, that of examples whose standard deviation equals their
        mean.

        Returns:
            In the unit of the values; None if unknown.
        """
        values, of_examples = self.values(), self._noise_of_examples()
        late = values[len(values) // 3 :]
        if of_examples is not None and len(late) < MIN_FOR_SCATTER:
            return of_examples
        of_steps = scatter(late if len(late) >= MIN_FOR_SCATTER else values)
        return max((part for part in (of_steps, of_examples) if part), default=None)

    def accuracy_floor(self) -> float | None:
        """Return the standard error of the last accuracy, sqrt(p (1 - p) / n); None if unknown.

        A share of 0 or 1 is moved by half an example: its error is not known to be 0. If earlier
        weights are saved, of theirs.
        """
        saved = self.saved()
        points = self.points if saved is None else (saved,)
        shares = [point.val_accuracy for point in points if point.val_accuracy is not None]
        return self._share_error(shares[-1]) if shares and self.num_val else None

    def _noise_of_examples(self) -> float | None:
        points = self.judged()
        if not self.has_loss:
            errors = [self._share_error(1 - value) for value in self.values() if self.num_val]
            return max(errors[-self.patience :], default=None)
        for name in ("rise_sem", "val_loss_sem"):
            known = [getattr(point, name) for point in points]
            finite = [sem for sem in known if _is_number(sem)]
            if len(finite) > len(points) / 2:
                return float(max(finite[-self.patience :]))
        values = self.values()
        return abs(values[-1]) / math.sqrt(self.num_val) if self.num_val and values else None

    def _share_error(self, share: float) -> float:
        n = self.num_val or 0
        half = 0.5 / n
        return binomial_sem(min(max(share, half), 1 - half), n)

    def _value(self, point: Point) -> float | None:
        if self.has_loss:
            return point.val_loss
        return None if point.val_accuracy is None else 1 - point.val_accuracy


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
