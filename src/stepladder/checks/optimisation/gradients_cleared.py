"""Gradients are cleared before each step: a batch has the same gradient five times."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.growth import NUM_CALLS, is_growing, norms_in_words
from stepladder.checks.evidence.practice import short_subject, stop_dropping
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Precision
from stepladder.data.batch import Batch
from stepladder.measuring.subject import Subject
from stepladder.records.findings import Severity


def gradients_cleared(job: CheckedJob) -> Answer:
    """Call the run's step five times with fixed weights: the gradient must not grow."""
    if job.recipe.device.precision is Precision.FP16_MASTER:
        return not_applicable("weights are stored twice, in the model and in the optimizer")
    plain = replace(job.recipe.optimizer, clip_norm=None)
    with short_subject(job, optimizer=plain) as subject:
        stop_dropping(subject.model)
        norms = _norms(subject, job.first_batch)
    if min(norms) <= 0 or not all(norm < float("inf") for norm in norms):
        return not_applicable("the gradient of the first batch is 0, or not finite")
    said = f"the gradient of one batch has norm {norms_in_words(norms)}"
    if not is_growing(norms):
        return passed(f"{said} in {NUM_CALLS} steps with fixed weights", norms=[*norms])
    return found(
        "missing_zero_grad",
        f"{said} in {NUM_CALLS} steps with fixed weights: gradients of earlier steps are added to "
        "those of later ones",
        fix="Remove code in loss() or the model that keeps losses or gradients for the next call.",
        norms=[*norms],
    )


def _norms(subject: Subject, batch: Batch) -> list[float]:
    """Take steps, restore the weights after each, and return the gradient norms."""
    optimizer = subject.parts.update.optimizer
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    before = [weight.detach().clone() for weight in weights]
    norms = []
    for _ in range(NUM_CALLS):
        subject.parts.step(batch, step=0, lr=0.0, wants_norm=True)
        norms.append(subject.parts.update.read_grad_norm() or 0.0)
        with torch.no_grad():
            for weight, value in zip(weights, before, strict=True):
                weight.copy_(value)
    return norms


def broken() -> Example:
    """A Task that adds the losses of earlier batches to those of the current one."""

    class Running(SoundPictures):
        def __init__(self) -> None:
            self.kept: list[Batch] = []

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            if torch.is_grad_enabled():
                self.kept.append(batch)
            total = super().loss(model, batch)
            for earlier in self.kept[:-1]:
                if len(earlier.targets) == len(batch.targets):
                    total = total + super().loss(model, earlier)
            return total

    return Example(task=Running())


CHECK = Check(
    name="gradients_cleared",
    reason="Gradients that accumulate from step to step make each step larger than intended, and "
    "Adam hides it.",
    source="PyTorch, documentation of Optimizer.zero_grad; measured: with weights held, kept "
    "gradients grow as 1, 2, 3, 4, 5",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=("missing_zero_grad",),
    run=gradients_cleared,
    broken=broken,
    least_s=0.5,
    needs_loss=True,
)
