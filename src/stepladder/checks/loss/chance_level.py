"""Before it has learnt anything, a classifier guesses: its loss is near ln C, its hits are luck."""

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

LOW, HIGH = 0.9, 1.15  # of ln C; default initialisations lie within 0.99 to 1.04
NUM_SEM = 2.0  # standard errors by which the band is wider
_OTHER_TERMS = 1e-3  # of its size, by which a loss may differ from its cross-entropy


@dataclass(frozen=True, kw_only=True)
class _Reference:
    """What guessing costs.

    Attributes:
        loss: in nats.
        words: what that is, with its number.
    """

    loss: float
    words: str


def chance_level(job: CheckedJob) -> Answer:
    """Compare the first loss and the first hits with guessing.

    The loss is to be ln C for C classes, or the entropy of the classes' shares where the head
    begins with those (its bias at their logarithms). Hits are to be luck: a head that is fresh
    would have as many with its classes named in any other order.
    """
    reason = _why_not(job)
    if reason is not None:
        return not_applicable(reason)
    with noting_ties() as ties:
        guesses = guess(job)
    if guesses is None:
        return not_applicable("no batch has one cross-entropy over all its labels")
    if ties:
        return not_applicable("scores come from the weights of an embedding")
    if _has_other_terms(torch.cat(guesses.losses), torch.cat(guesses.entropies)):
        return not_applicable("the loss has other terms or weights beside its cross-entropy")
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
    evidence = f"the first loss is {loss:.3f}, {ratio:.2f} of {reference.words}"
    numbers: dict[str, Any] = {"ratio": ratio, "loss": loss, **hits.numbers}
    seen = f"{num} training examples"
    if is_near and not hits.are_no_luck:
        return passed(f"{evidence}{hits.words}", coverage=seen, **numbers)
    if is_head_read(job, len(guesses.counts)):
        return not_applicable("the head has weights that were learnt before")
    if is_near:
        return found(
            "loss_off_chance",
            f"before any step{hits.words}: hardly any other order of the classes gives so many",
            fix="Look for weights of an earlier training, and for the label among the inputs.",
            coverage=seen,
            **numbers,
        )
    return found(
        "loss_off_chance",
        f"{evidence}; guessing gives {LOW} to {HIGH}",
        fix="Look at the scale of the inputs, the initialisation of the last layer, and the "
        "reduction of the loss.",
        coverage=seen,
        **numbers,
    )


def _why_not(job: CheckedJob) -> str | None:
    """Say why the first loss of this job need not be ln C, or None."""
    loss = job.recipe.loss
    call = job.loss_call
    if job.num_classes is None or call is None or call.targets is None:
        return "the loss is not one cross-entropy over classes"
    if float(call.scores.float().std()) == 0.0:
        return "all first scores are equal, as of a head that begins at zero"
    if loss.label_smoothing or call.options.get("label_smoothing"):
        return "labels are smoothed"
    if loss.class_weights is not ClassWeights.NONE or call.options.get("weight") is not None:
        return "classes are weighted"
    return _why_not_labels(job, call.targets, ignored=int(call.options.get("ignore_index", -100)))


def _why_not_labels(job: CheckedJob, targets: Tensor, *, ignored: int) -> str | None:
    if targets.is_floating_point():
        return "targets are shares of classes"
    if loss_view(job).call is None:
        return "the data's targets do not reach the loss as they are"
    if bool((targets == ignored).any()):
        return "some labels are left out by ignore_index"
    return None


def _has_other_terms(losses: Tensor, entropies: Tensor) -> bool:
    """Return True if losses are more than cross-entropies times one factor."""
    if losses.shape != entropies.shape:
        return False
    factor = float((losses * entropies).sum() / entropies.square().sum().clamp_min(1e-12))
    apart = float((losses - factor * entropies).abs().mean())
    return apart > _OTHER_TERMS * float(losses.abs().mean())


def _reference(job: CheckedJob, guesses: Guesses) -> _Reference:
    """Return the loss of a guess: with all classes alike, or by their shares if the head says so."""
    num = len(guesses.counts)
    even = _Reference(loss=math.log(num), words=f"ln {num} = {math.log(num):.3f}")
    known = class_labels(job, Split.TRAIN)
    counts = guesses.counts.numpy()
    if known is not None and known.values.max() < num:
        counts = np.bincount(known.values, minlength=num)
    prior, said = counts / counts.sum(), (guesses.shares / guesses.shares.sum()).numpy()
    entropy = float(-(prior[prior > 0] * np.log(prior[prior > 0])).sum())
    is_prior = np.abs(said - prior).sum() < 0.5 * np.abs(said - 1 / num).sum()
    if not is_prior or entropy <= 0:
        return even
    words = f"{entropy:.3f}, the entropy of the classes' shares, with which the head begins"
    return _Reference(loss=entropy, words=words)


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
    needs_loss=True,
)
