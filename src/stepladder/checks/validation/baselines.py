"""Accuracy of trivial baselines on validation, which a model has to beat."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.classes import class_labels, class_name
from stepladder.checks.evidence.probe import probed
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.records.findings import Severity
from stepladder.stats import resolvable_margin
from stepladder.stats.ridge import predict
from stepladder.training.output.wording import percent


def baselines(job: CheckedJob) -> Answer:
    """Measure the majority class and a probe on validation, and whether a model could be better."""
    train, val = class_labels(job, Split.TRAIN), class_labels(job, Split.VAL)
    if train is None or val is None:
        return not_applicable("there is no validation split with one class per example")
    usable = train.values[train.values >= 0], val.values[val.values >= 0]
    if not len(usable[0]) or not len(usable[1]) or len(np.unique(usable[0])) < 2:
        return not_applicable("there are fewer than two classes")
    majority = int(np.bincount(usable[0]).argmax())
    share = float((usable[1] == majority).mean())
    probe, num_fitted = _probe_accuracy(job)
    n = len(val.values)
    numbers: dict[str, Any] = {"majority_accuracy": share, "probe_accuracy": probe, "num_val": n}
    always = class_name(job, majority)
    words = (
        f"always predicting {always}, the most frequent class of train, has an accuracy of "
        f"{percent(share)} on {n} validation examples"
    )
    room = 1 - share
    margin = resolvable_margin(n, disagreement=room)
    if room <= margin:
        return found(
            "no_better_than_baseline",
            f"{words}; even a perfect model would be better by only {percent(room)}, but on this "
            f"validation split only differences above {percent(margin)} are more than noise",
            fix="Validate on more examples of the other classes, or use balanced accuracy.",
            margin=margin,
            **numbers,
        )
    if probe is not None:
        words += (
            f", and a probe (a small classifier) fitted to {num_fitted} training examples "
            f"{percent(probe)}"
        )
    return passed(f"{words}: a trained model should be better", **numbers)


def _probe_accuracy(job: CheckedJob) -> tuple[float | None, int]:
    """Return the validation accuracy of kernel ridge regression, and its number of examples."""
    train, val = probed(job, Split.TRAIN), probed(job, Split.VAL)
    if train is None or val is None or train.vectors.shape[1] != val.vectors.shape[1]:
        return None, 0
    kinds, marks = np.unique(train.labels, return_inverse=True)
    scores = predict(train.vectors, np.eye(len(kinds))[marks], val.vectors)
    predicted = kinds[scores.argmax(axis=1)]
    return float((predicted == val.labels).mean()), len(marks)


def broken() -> Example:
    """A validation split with a single example that is not of the majority class."""

    class OneSided(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            pictures, numbers = draw(split)
            if split is Split.VAL:
                places = [*np.flatnonzero(numbers == 0)[:20], *np.flatnonzero(numbers == 1)[:1]]
                return labelled(pictures[places], numbers[places])
            places = [*np.flatnonzero(numbers == 0), *np.flatnonzero(numbers == 1)[:20]]
            return labelled(pictures[places], numbers[places])

    return Example(task=OneSided())


CHECK = Check(
    name="baselines",
    reason="An accuracy is meaningful only in comparison with trivial baselines.",
    source="Karpathy 2019, A Recipe for Training Neural Networks; Dacrema et al. 2019, Are We "
    "Really Making Much Progress?",
    severity=Severity.WARNING,
    tier=Tier.FULL,
    faults=("no_better_than_baseline",),
    run=baselines,
    broken=broken,
    least_s=3.0,
)
