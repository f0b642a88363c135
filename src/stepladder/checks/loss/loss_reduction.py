"""The loss has one value per example, which does not depend on the batch size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.one_pass import look
from stepladder.checks.evidence.sample import take, training_sample
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.data.batch import Batch
from stepladder.records.findings import Severity

NUM_EXAMPLES = 16
LEAST_EXAMPLES = 4
TOLERANCE = 1e-3  # of a loss; rounding depends on the batch size
_FIX = "Return one loss per example (reduction='none'); stepladder averages over the batch."


def loss_reduction(job: CheckedJob) -> Answer:
    """Compare the losses of the same examples in a batch and in half a batch."""
    batch = training_sample(job, NUM_EXAMPLES)
    num = batch.ids.numel()
    model = job.model().eval()
    whole = look(job, model, batch)
    if tuple(whole.losses.shape) != (num,):
        return found(
            "loss_reduction_mismatch",
            f"loss() returns a tensor of shape {tuple(whole.losses.shape)} for {num} examples",
            fix=_FIX,
        )
    if num < LEAST_EXAMPLES:
        return not_applicable(f"{num} examples are too few to compare batch sizes")
    half = num // 2
    part = look(job, model, take(batch, torch.arange(half)))
    seen = f"{num} training examples"
    is_one = _is_equal(whole.losses) and not _is_equal_rows(whole.outputs)
    if is_one and not _is_same(whole.losses[:half], part.losses):
        return _is_shared(whole.losses, part.losses, num / half, seen)
    ratio = _ratio(whole.losses[:half], part.losses)
    if ratio is None:
        return passed("each example has its own loss", coverage=seen)
    for factor, what in (
        (num / half, "grows with the batch size"),
        (half / num, "falls as the batch grows"),
    ):
        if abs(ratio / factor - 1) < TOLERANCE:
            return found(
                "loss_reduction_mismatch",
                f"the loss of an example {what}: in a batch of {num} it is {ratio:.2f} times that "
                f"in a batch of {half}",
                fix=_FIX,
                coverage=seen,
                ratio=ratio,
            )
    return passed(
        f"the loss of an example in a batch of {num} is {ratio:.4f} times that in a batch of "
        f"{half}",
        coverage=seen,
        ratio=ratio,
    )


def _is_shared(whole: Tensor, part: Tensor, factor: float, seen: str) -> Answer:
    """Distinguish a sum over the batch, which is an error, from a mean."""
    ratio = float(whole[0].double() / part[0].double())
    is_sum = ratio > (1 + factor) / 2
    what = "sum" if is_sum else "mean"
    return found(
        "loss_reduction_mismatch",
        f"loss() returns the same value for all examples of a batch, {float(whole[0]):.4g}: the "
        f"{what} over the batch instead of one loss per example",
        fix=_FIX,
        severity=Severity.ERROR if is_sum else Severity.WARNING,
        coverage=seen,
        ratio=ratio,
    )


def _is_equal(losses: Tensor) -> bool:
    values = losses.double()
    return float((values - values[0]).abs().max()) <= 1e-9 * float(values.abs().max())


def _is_equal_rows(outputs: Tensor | None) -> bool:
    """Return True if all outputs are equal, or unknown: losses may be equal then."""
    if outputs is None:
        return True
    values = outputs.double()
    return float((values - values[:1]).abs().max()) <= 1e-6 * float(values.abs().max() + 1e-12)


def _is_same(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a.float(), b.float(), rtol=TOLERANCE, atol=1e-9))


def _ratio(whole: Tensor, part: Tensor) -> float | None:
    """Return whole / part if it is the same for all examples, else None."""
    is_seen = part.abs() > 1e-12
    if int(is_seen.sum()) < 2:
        return None
    ratios = (whole.double() / part.double())[is_seen]
    if float((ratios - ratios.median()).abs().max()) > TOLERANCE * float(ratios.abs().max()):
        return None
    return float(ratios.median())


def broken() -> Example:
    """The sum over the batch, returned for each example."""

    class Summed(SoundPictures):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            total = F.cross_entropy(model(batch.inputs), batch.targets, reduction="sum")
            return total.expand(len(batch.targets))

    return Example(task=Summed())


CHECK = Check(
    name="loss_reduction",
    reason="If the loss is summed or averaged over the batch twice, the effective learning rate "
    "depends on the batch size, and losses of single examples are unknown.",
    source="Goyal et al. 2017, Accurate, Large Minibatch SGD, section 3, arXiv:1706.02677",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("loss_reduction_mismatch",),
    run=loss_reduction,
    broken=broken,
    needs_loss=True,
)
