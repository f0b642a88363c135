"""Before it has learnt anything, a classifier guesses: its loss is near ln C."""

from __future__ import annotations

import math

import torch
from torch import nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import ClassWeights
from stepladder.config.recipe import Recipe
from stepladder.records.findings import Severity

LOW, HIGH = 0.9, 1.15  # of ln C; default initialisations lie within 0.99 to 1.04
_NUM_BATCHES = 4


def chance_level(job: CheckedJob) -> Answer:
    """Compare the first loss with that of guessing, ln C for C classes."""
    reason = _why_not(job)
    if reason is not None:
        return not_applicable(reason)
    assert job.num_classes is not None
    model = job.model()
    batches = [job.augmented(batch) for batch in job.train_batches(_NUM_BATCHES)]
    with torch.no_grad():
        losses = torch.cat([job.loss(model, batch).float() for batch in batches])
    chance = math.log(job.num_classes)
    ratio = float(losses.mean()) / chance
    seen = f"{len(losses)} training examples"
    evidence = (
        f"the first loss is {float(losses.mean()):.3f}, {ratio:.2f} of ln {job.num_classes} = "
        f"{chance:.3f}"
    )
    if LOW <= ratio <= HIGH:
        return passed(evidence, coverage=seen, ratio=ratio, loss=float(losses.mean()))
    return found(
        "loss_off_chance",
        f"{evidence}; guessing gives {LOW} to {HIGH}",
        fix="Look at the scale of the inputs, the initialisation of the last layer, and the "
        "reduction of the loss.",
        coverage=seen,
        ratio=ratio,
        loss=float(losses.mean()),
    )


def _why_not(job: CheckedJob) -> str | None:
    """Say why the first loss of this job need not be ln C, or None."""
    loss = job.recipe.loss
    call = job.loss_call
    if job.num_classes is None or call is None or call.targets is None:
        return "the loss is not one cross-entropy over classes"
    if call.targets.is_floating_point():
        return "targets are shares of classes"
    if loss.label_smoothing or call.options.get("label_smoothing"):
        return "labels are smoothed"
    if loss.class_weights is not ClassWeights.NONE or call.options.get("weight") is not None:
        return "classes are weighted"
    if float(call.scores.float().std()) == 0.0:
        return "all first scores are equal, as of a head that begins at zero"
    return None


def broken() -> Example:
    """Scores a hundred times too large, as of a head drawn with deviation 1."""

    class LoudHead(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            model = super().build_model(recipe)
            assert isinstance(model, nn.Sequential)
            head = model[-1]
            assert isinstance(head, nn.Linear)
            nn.init.normal_(head.weight, std=1.0)
            return model

    return Example(task=LoudHead())


CHECK = Check(
    name="chance_level",
    reason="A first loss far from that of guessing wastes the first epochs, or hides a fault of "
    "inputs, head or loss.",
    source="Karpathy 2019, A Recipe for Training Neural Networks; band measured on default "
    "initialisations",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("loss_off_chance",),
    run=chance_level,
    broken=broken,
)
