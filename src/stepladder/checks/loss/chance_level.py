"""An untrained classifier performs at chance: its loss is near ln C, its accuracy is chance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.classes import class_labels, loss_view
from stepladder.checks.evidence.guesses import Guesses, guess, hits_of, noting_ties
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.checks.model.pretrained import is_head_read
from stepladder.config.choices import ClassWeights, Split
from stepladder.config.recipe import Recipe
from stepladder.records.findings import Severity

LOW, HIGH = 0.9, 1.15  # of ln C; default initialisations are within 0.99 to 1.04
NUM_SEM = 2.0  # standard errors added to the band
_OTHER_TERMS = 1e-3  # relative difference allowed between a loss and its cross-entropy


@dataclass(frozen=True, kw_only=True)
class _Reference:
    """The loss of guessing.

    Attributes:
        loss: in nats.
        words: what it is, with its value.
    """

    loss: float
    words: str


def chance_level(job: CheckedJob) -> Answer:
    """Compare the first loss and the first accuracy with chance.

    The expected loss is ln C for C classes, or the entropy of the class frequencies if the bias of
    the head is initialised with their logarithms. The accuracy should not depend on the order of
    the classes of an untrained head.
    """
    reason = _why_not(job)
    if reason is not None:
        return not_applicable(reason)
    with noting_ties() as ties:
        guesses = guess(job)
    if guesses is None:
        return not_applicable("no batch has a single cross-entropy over all its labels")
    if ties:
        return not_applicable("the output layer shares its weights with an embedding")
    if _has_other_terms(torch.cat(guesses.losses), torch.cat(guesses.entropies)):
        return not_applicable(
            "the loss has other terms or weights in addition to its cross-entropy"
        )
    return _judge(job, guesses)


def _judge(job: CheckedJob, guesses: Guesses) -> Answer:
    losses = torch.cat(guesses.losses)
    reference = _reference(job, guesses)
    loss, num = float(losses.mean()), len(losses)
    if not math.isfinite(loss):
        return not_applicable(f"the loss is not finite on {num} training examples")
    slack = NUM_SEM * float(losses.std()) / math.sqrt(num) if num > 1 else math.inf
    is_near = LOW * reference.loss - slack <= loss <= HIGH * reference.loss + slack
    hits = hits_of(guesses)
    ratio = loss / reference.loss
    evidence = f"the first loss is {loss:.3f}, {ratio:.2f} times {reference.words}"
    numbers: dict[str, Any] = {"ratio": ratio, "loss": loss, **hits.numbers}
    seen = f"{num} training examples"
    if is_near and not hits.are_no_luck:
        return passed(f"{evidence}{hits.words}", coverage=seen, **numbers)
    if is_head_read(job, len(guesses.counts)):
        return not_applicable("the head has pretrained weights")
    if is_near:
        return found(
            "loss_off_chance",
            f"the model is better than chance before the first step{hits.words}",
            fix="Check if build_model loads trained weights, and if the inputs contain the labels.",
            coverage=seen,
            **numbers,
        )
    return found(
        "loss_off_chance",
        f"{evidence}; for an untrained model, it should be {LOW} to {HIGH} times that",
        fix="Check the scale of the inputs, the initialisation of the last layer, and the "
        "reduction of the loss.",
        coverage=seen,
        **numbers,
    )


def _why_not(job: CheckedJob) -> str | None:
    """Return why the first loss of this job may differ from ln C, or None."""
    loss = job.recipe.loss
    call = job.loss_call
    if job.num_classes is None or call is None or call.targets is None:
        return "the loss is not a single cross-entropy over classes"
    if float(call.scores.float().std()) == 0.0:
        return "all first scores are equal, as with a head initialised to zero"
    if loss.label_smoothing or call.options.get("label_smoothing"):
        return "labels are smoothed"
    if loss.class_weights is not ClassWeights.NONE or call.options.get("weight") is not None:
        return "classes are weighted"
    return _why_not_labels(job, call.targets, ignored=int(call.options.get("ignore_index", -100)))


def _why_not_labels(job: CheckedJob, targets: Tensor, *, ignored: int) -> str | None:
    if targets.is_floating_point():
        return "targets are class probabilities"
    if loss_view(job).call is None:
        return "targets are not passed unchanged to the loss"
    if bool((targets == ignored).any()):
        return "some labels are ignored by ignore_index"
    return None


def _has_other_terms(losses: Tensor, entropies: Tensor) -> bool:
    """Return True if losses are not cross-entropies times a constant factor."""
    if losses.shape != entropies.shape:
        return False
    factor = float((losses * entropies).sum() / entropies.square().sum().clamp_min(1e-12))
    apart = float((losses - factor * entropies).abs().mean())
    return apart > _OTHER_TERMS * float(losses.abs().mean())


def _reference(job: CheckedJob, guesses: Guesses) -> _Reference:
    """Return the loss of guessing uniformly, or by class frequency if the head predicts that."""
    num = len(guesses.counts)
    even = _Reference(
        loss=math.log(num), words=f"{math.log(num):.3f} = ln {num}, the loss of guessing at random"
    )
    known = class_labels(job, Split.TRAIN)
    counts = guesses.counts.numpy()
    if known is not None and known.values.max() < num:
        counts = np.bincount(known.values, minlength=num)
    prior, said = counts / counts.sum(), (guesses.shares / guesses.shares.sum()).numpy()
    entropy = float(-(prior[prior > 0] * np.log(prior[prior > 0])).sum())
    is_prior = np.abs(said - prior).sum() < 0.5 * np.abs(said - 1 / num).sum()
    if not is_prior or entropy <= 0:
        return even
    words = f"{entropy:.3f}, the entropy of the class frequencies, which the head predicts"
    return _Reference(loss=entropy, words=words)


def broken() -> Example:
    """Scores that are too large, from a head initialised with a standard deviation of 1."""

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
    reason="A first loss far from that of guessing wastes the first epochs, or is a symptom of a "
    "fault of inputs, head or loss.",
    source="Karpathy 2019, A Recipe for Training Neural Networks; band measured on default "
    "initialisations",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("loss_off_chance",),
    run=chance_level,
    broken=broken,
    needs_loss=True,
)
