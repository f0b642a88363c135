"""Measure training under the terms of validation: same weights, eval mode, no augmentation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stepladder.diagnosis.fit.curves import Curves, Point
from stepladder.diagnosis.runs.opened_run import OpenedRun
from stepladder.training.checkpoint.checkpoint_files import Loaded
from stepladder.training.evaluate import Evaluation

NUM_ROWS = 1000


@dataclass(frozen=True, kw_only=True)
class EqualTerms:
    """Training, measured again.

    Attributes:
        curves: with new values at the points whose weights are on disk.
        num_rows: number of training examples that were evaluated.
        took_s: seconds.
        note: what was left out; empty if nothing was.
    """

    curves: Curves
    num_rows: int
    took_s: float
    note: str = ""


def measure_equal_terms(
    run: OpenedRun, curves: Curves, *, budget_s: float, say: Callable[[str], None]
) -> EqualTerms:
    """Measure the best and the last weights on a fixed sample of the training examples.

    Weights between two validations are also evaluated on the validation data. Losses are plain:
    without label smoothing, class weights or mixing.

    Args:
        budget_s: time limit for all passes, in seconds.
        say: called with what is about to be measured.

    Raises:
        DataError: if the weights cannot be read or are of another model.
    """
    started = time.perf_counter()
    best, last = run.weights(is_best=True), run.weights(is_best=False)
    both = [best] if best.name == last.name or _step(best) == _step(last) else [best, last]
    say(
        f"evaluating {len(both)} checkpoint{'s' if len(both) > 1 else ''} on training examples in "
        f"eval mode, at most {budget_s:.0f} s"
    )
    points = list(curves.points)
    num_rows, notes = 0, []
    with run.model() as model:
        task, sources = run.task, run.sources
        if run.has_features:
            task, sources = run.on_features(model, deadline=started + budget_s)
        rows = run.train_rows(sources.train, NUM_ROWS)
        for loaded in both:
            run.put(loaded, model)
            share_s = budget_s / len(both)
            found = run.evaluate(task, model, rows, budget_s=share_s)
            num_rows = max(num_rows, len(found.rows))
            step = _step(loaded)
            idx = next((i for i, point in enumerate(points) if point.step == step), None)
            if idx is not None:
                points[idx] = _with_training(points[idx], found)
                continue
            bare = Point(step=step or 0, epoch=_epoch(loaded), is_remeasured=True)
            point = _with_training(bare, found)
            fresh, note = point, ""
            if sources.val is not None:
                val = run.evaluate(task, model, sources.val, budget_s=share_s)
                fresh, note = _with_validation(point, val, len(sources.val))
            notes += [note] if note else []
            points = sorted([*points, fresh], key=lambda point: point.step)
    return EqualTerms(
        curves=replace(curves, points=tuple(points), num_val=_num_val(run, curves)),
        num_rows=num_rows,
        took_s=time.perf_counter() - started,
        note="; ".join(notes),
    )


def _with_validation(point: Point, val: Evaluation, num_val: int) -> tuple[Point, str]:
    """Add validation to weights between two validations, if all of it was measured."""
    if len(val.rows) < num_val:
        return point, f"validation was not measured at step {point.step}: it ran out of time"
    loss = val.loss()
    measured = replace(
        point, val_loss=loss.mean, val_loss_sem=loss.sem, val_accuracy=accuracy_of(val)
    )
    return measured, ""


def accuracy_of(result: Evaluation) -> float | None:
    """Return the accuracy; None for a task without classes."""
    if result.predicted is not None and result.targets is not None:
        return float((result.predicted == result.targets).mean())
    return result.values.get("accuracy")


def _with_training(point: Point, found: Evaluation) -> Point:
    return replace(
        point, equal_train_loss=found.loss().mean, equal_train_accuracy=accuracy_of(found)
    )


def _num_val(run: OpenedRun, curves: Curves) -> int | None:
    val = run.sources.val
    return curves.num_val or (len(val) if val is not None else None)


def _step(loaded: Loaded) -> int | None:
    step = _place(loaded).get("step")
    return step if isinstance(step, int) else None


def _epoch(loaded: Loaded) -> float | None:
    epoch = _place(loaded).get("epoch")
    return float(epoch) if isinstance(epoch, int) else None


def _place(loaded: Loaded) -> Mapping[str, Any]:
    """Return the position of weights, which best and last ones store under different keys."""
    for key in ("position", "best"):
        place = loaded.state.get(key)
        if isinstance(place, dict):
            return place
    return {}
