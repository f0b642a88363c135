"""Validation is large enough for the decisions based on it."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.classes import class_labels
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Monitor, Split
from stepladder.records.findings import Severity
from stepladder.stats import binomial_sem, resolvable_margin, t_quantile
from stepladder.training.output.wording import percent

_DISAGREEMENT = 0.1  # between two trainings of one job on photographs
_ACCURACY = 0.8  # at which the noise of an accuracy is reported
_LEAST_MARGIN = 0.01  # if speed-ups may not cost any accuracy
_FEW_NUMBERS = 8  # in a target: with more, an example has many observations
_LEAST_MEAN = 30  # examples, for a confidence interval of ±0.37 standard deviations
_MANY = 1e7  # degrees of freedom of a normal distribution


def validation_size(job: CheckedJob) -> Answer:
    """Compute the smallest significant difference in accuracy on this validation split."""
    val = job.source(Split.VAL)
    if val is None:
        return not_applicable("there is no validation split")
    n = len(val)
    if class_labels(job, Split.VAL) is None:
        return _of_means(job, n)
    paired = resolvable_margin(n, disagreement=_DISAGREEMENT)
    unpaired = t_quantile(0.95, _MANY) * np.sqrt(2) * binomial_sem(_ACCURACY, n)
    wanted = job.config.ladder.max_accuracy_loss or _LEAST_MARGIN
    half, by_mean = _of_mean(job, n)
    text = (
        f"one of {n} validation examples is {percent(1 / n)}; the smallest significant difference "
        f"between two trainings is {percent(paired)} (paired, if they disagree on "
        f"{percent(_DISAGREEMENT, 0)}), or {percent(unpaired)} (unpaired, at an accuracy of "
        f"{percent(_ACCURACY, 0)}){by_mean}"
    )
    numbers: dict[str, Any] = {
        "num_examples": n,
        "one_example": 1 / n,
        "paired_margin": paired,
        "unpaired_margin": float(unpaired),
        "wanted": wanted,
        "half_width": half,
    }
    if by_mean and n < _LEAST_MEAN:
        return found(
            "validation_too_small",
            text,
            fix=f"Validate on at least {_LEAST_MEAN} examples, so that training does not stop by "
            "chance; with 100 examples the noise is half as large.",
            **numbers,
        )
    if 1 / n <= wanted:
        return passed(text, **numbers)
    needed = _needed(wanted)
    return found(
        "validation_too_small",
        f"{text}; the option ladder.max_accuracy_loss allows a speed-up to lower the accuracy "
        f"by {percent(wanted)}, but a single example changes it by more than that",
        fix=f"Validate on at least {int(np.ceil(1 / wanted))} examples; {needed} are needed to "
        f"measure a difference of {percent(wanted)}.",
        **numbers,
        num_needed=needed,
    )


def _of_mean(job: CheckedJob, n: int) -> tuple[float | None, str]:
    """Return the precision of the mean loss, if early stopping or the choice of weights use it."""
    half = float(t_quantile(0.975, n - 1) / np.sqrt(n)) if n > 1 else None
    stopping = job.recipe.stopping
    if stopping.monitor is not Monitor.VAL_LOSS or not (stopping.early or stopping.restore_best):
        return half, ""
    within = "unknown" if half is None else f"±{half:.2g} standard deviations"
    return half, f"; early stopping uses their mean loss, with a 95 % interval of {within}"


def _of_means(job: CheckedJob, n: int) -> Answer:
    """Report the precision of the mean loss of examples with a few numbers as targets."""
    targets = job.first_batch.targets
    if not isinstance(targets, Tensor) or targets[0].numel() > _FEW_NUMBERS:
        return not_applicable("examples have no single class, so the noise depends on the metric")
    half = t_quantile(0.975, n - 1) / np.sqrt(n) if n > 1 else np.inf
    text = (
        f"{n} validation examples: the 95 % confidence interval of their mean loss is "
        f"±{half:.2g} standard deviations"
    )
    if n >= _LEAST_MEAN:
        return passed(text, num_examples=n, half_width=float(half))
    return found(
        "validation_too_small",
        f"{text}; early stopping and the choice of the best checkpoint depend on that mean, so "
        "chance decides about them",
        fix=f"Validate on at least {_LEAST_MEAN} examples; with 100 the noise is half as large.",
        num_examples=n,
        half_width=float(half) if n > 1 else None,
    )


def _needed(margin: float) -> int:
    """Return the number of examples that resolve a margin in a paired comparison."""
    n = 1
    while resolvable_margin(n, disagreement=_DISAGREEMENT) > margin and n < 1 << 30:
        n *= 2
    low, high = n // 2, n
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        is_enough = resolvable_margin(middle, disagreement=_DISAGREEMENT) <= margin
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def broken() -> Example:
    """Twenty examples to validate on."""

    class Few(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            pictures, numbers = draw(split)
            num = 20 if split is Split.VAL else len(numbers)
            return labelled(pictures[:num], numbers[:num])

    return Example(task=Few())


CHECK = Check(
    name="validation_size",
    reason="If one example is more than the difference to detect, choices between trainings are "
    "random.",
    source="Dietterich 1998, Approximate Statistical Tests, Neural Computation 10(7); Agresti and "
    "Min 2005 for the paired margin",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("validation_too_small",),
    run=validation_size,
    broken=broken,
)
