"""Early stopping and the choice of weights use held-out data, and allow for its noise."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.classes import class_labels
from stepladder.checks.evidence.sample import same_tensors, tensors_of
from stepladder.checks.evidence.spread import by_row, spread_rows
from stepladder.checks.examples import Example, SoundPictures, sound_recipe
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Monitor, Split
from stepladder.config.recipe import StoppingConfig
from stepladder.data.batch import Batch
from stepladder.records.findings import Severity
from stepladder.stats import resolvable_margin
from stepladder.training.output.wording import percent

_NUM_COMPARED = 16
_LEAST_EPOCH_FRAC = 0.1  # of an epoch within patience: the weights have hardly changed
_DISAGREEMENT = 0.1  # between the predictions of two epochs


def stopping_rule(job: CheckedJob) -> Answer:
    """Check what early stopping and the choice of weights are based on."""
    stopping = job.recipe.stopping
    if not stopping.early and not stopping.restore_best:
        return not_applicable("there is no early stopping, and the last weights are kept")
    if job.source(Split.VAL) is None:
        return not_applicable("there is no validation split")
    if _is_train(job):
        return found(
            "stopping_on_noise",
            "the validation split is the training data: its loss keeps falling while the model "
            "overfits, so it shows neither when to stop nor which weights are best",
            fix="Hold out examples for validation that are not in train.",
        )
    if not stopping.early:
        return passed("the best weights on held-out data are kept")
    return _impatient(job) or _single_example(job) or _fine(job)


def _is_train(job: CheckedJob) -> bool:
    """Return True if validation has the examples of train, in the same rows."""
    train, val = job.source(Split.TRAIN), job.source(Split.VAL)
    assert train is not None
    assert val is not None
    if train is val:
        return True
    if not by_row(job, Split.TRAIN) or not by_row(job, Split.VAL) or len(val) < 2:
        return False
    if len(val) > len(train):
        return False
    rows = spread_rows(len(val), _NUM_COMPARED)
    one, other = job.rows(Split.TRAIN, rows), job.rows(Split.VAL, rows)
    return _is_same(one, other) and _varies(one)


def _is_same(one: Batch, other: Batch) -> bool:
    """Compare inputs and targets: splits may share inputs with different measured targets."""
    values = tensors_of((one.inputs, one.targets)), tensors_of((other.inputs, other.targets))
    return bool(values[0]) and same_tensors(*values)


def _varies(batch: Batch) -> bool:
    """Return True if examples differ: if all are equal, equal rows mean nothing."""
    return any(bool((value[1:] != value[:-1]).any()) for value in tensors_of(batch.inputs))


def _impatient(job: CheckedJob) -> Answer | None:
    """Find a rule that ends at a single validation, or validates too often."""
    stopping = job.recipe.stopping
    num_train = max(1, round(len(job.sources.train) * job.recipe.data.fraction))
    per_epoch = math.ceil(num_train / job.recipe.batch.global_batch_size)
    every = stopping.validate_every_steps or stopping.validate_every_epochs * per_epoch
    if stopping.patience == 1 and not stopping.allow_noise:
        return found(
            "stopping_on_noise",
            "early stopping ends training at the first validation without an improvement "
            "(patience 1), but such a validation happens by chance when learning is slow",
            fix="Use --stopping.patience 3 or more, or --stopping.allow-noise.",
            severity=Severity.WARNING,
            patience=1,
        )
    steps = stopping.patience * every
    if steps >= _LEAST_EPOCH_FRAC * per_epoch:
        return None
    plural = "" if stopping.patience == 1 else "s"
    needed = math.ceil(per_epoch / every)
    return found(
        "stopping_on_noise",
        f"early stopping waits for only {stopping.patience} validation{plural} ({steps} steps, "
        f"{percent(steps / per_epoch)} of an epoch). The weights hardly change in that time, so "
        "differences in the validation metric are mostly noise",
        fix=f"Wait for a full epoch, which is {needed} validations: --stopping.patience {needed}. "
        "Or validate less often.",
        severity=Severity.WARNING,
        patience_steps=steps,
        steps_per_epoch=per_epoch,
    )


def _single_example(job: CheckedJob) -> Answer | None:
    """Find a rule in which a single example counts as an improvement of accuracy."""
    stopping = job.recipe.stopping
    val = job.source(Split.VAL)
    assert val is not None
    if stopping.monitor is not Monitor.VAL_ACCURACY or stopping.allow_noise:
        return None
    if class_labels(job, Split.VAL) is None or stopping.min_improvement_frac <= 0:
        return None
    n = len(val)
    if stopping.min_improvement_frac >= 1 / n:
        return None
    noise = resolvable_margin(n, disagreement=_DISAGREEMENT)
    return found(
        "stopping_on_noise",
        f"early stopping counts a gain in accuracy of {percent(stopping.min_improvement_frac, 2)} "
        f"as an improvement. That is less than one of the {n} validation examples, and the "
        f"accuracy varies by {percent(noise)} by chance, so chance decides when training stops",
        fix="Use --stopping.monitor val_loss, or --stopping.allow-noise.",
        severity=Severity.WARNING,
        one_example=1 / n,
        noise=noise,
    )


def _fine(job: CheckedJob) -> Answer:
    stopping = job.recipe.stopping
    noise = "with" if stopping.allow_noise else "without"
    plural = "" if stopping.patience == 1 else "s"
    return passed(
        f"training ends after {stopping.patience} validation{plural} on held-out data without "
        f"improvement, {noise} allowance for noise",
        patience=stopping.patience,
    )


def broken() -> Example:
    """Validation on the training split."""

    class Again(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            return super().data(Split.TRAIN if split is Split.VAL else split)

    recipe = sound_recipe()
    return Example(task=Again(), recipe=replace(recipe, stopping=StoppingConfig(early=True)))


CHECK = Check(
    name="stopping_rule",
    reason="A rule based on noise, or on training data, ends training at an arbitrary step.",
    source="Prechelt 1998, Early Stopping - But When?",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("stopping_on_noise",),
    run=stopping_rule,
    broken=broken,
)
