"""Examples that hold NaN or infinity, and whether the job's own loss bears them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from stepladder.checks.contract import Answer, found
from stepladder.checks.evidence.sample import take, tensors_of
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.data.batch import Batch
from stepladder.measuring.probe import untouched

_MAX_TRIED = 32
_MAX_NAMED = 6


@dataclass(kw_only=True)
class Gaps:
    """Examples with numbers that are not finite.

    Attributes:
        num_examples, num_numbers: looked at; whole numbers do not count.
        rows: examples with gaps in their inputs or targets.
        in_inputs, in_targets: how many of them.
        tried: some of them, to try the loss on.
    """

    num_examples: int = 0
    num_numbers: int = 0
    rows: list[int] = field(default_factory=list)
    in_inputs: int = 0
    in_targets: int = 0
    tried: Batch | None = None

    def add(self, batch: Batch) -> None:
        """Look at a batch."""
        num = len(batch.ids)
        self.num_examples += num
        bad_inputs, bad_targets = self._bad(batch.inputs, num), self._bad(batch.targets, num)
        is_bad = bad_inputs | bad_targets
        self.in_inputs += int(bad_inputs.sum())
        self.in_targets += int(bad_targets.sum())
        places = is_bad.nonzero().flatten()
        self.rows += batch.ids[places].tolist()
        if len(places) and self.tried is None:
            self.tried = take(batch, places[:_MAX_TRIED])

    def _bad(self, value: object, num: int) -> Tensor:
        is_bad = torch.zeros(num, dtype=torch.bool)
        for tensor in tensors_of(value):
            if not tensor.is_floating_point() or tensor.layout is not torch.strided:
                continue
            if tensor.dim() == 0 or len(tensor) != num:
                continue
            self.num_numbers += tensor.numel()
            is_bad |= (~torch.isfinite(tensor)).reshape(num, -1).any(dim=1).cpu()
        return is_bad


def first_gaps(job: CheckedJob, split: Split, gaps: Gaps, *, coverage: str | None) -> Answer | None:
    """Tell examples with gaps, if the job's own loss of them is not finite either.

    A loss that is finite leaves them out on purpose, as for missing labels.
    """
    if gaps.tried is None or _is_borne(job, split, gaps.tried):
        return None
    parts = [(gaps.in_inputs, "inputs"), (gaps.in_targets, "targets")]
    places = " and ".join(f"the {name} of {num}" for num, name in parts if num)
    return found(
        "not_finite_data",
        f"NaN or infinity stands in {places} of {gaps.num_examples} {split.value} examples, and "
        "their loss is not finite",
        fix="Look for a division by 0, the logarithm of 0 or an empty cell; fill or drop it.",
        examples=tuple(job.describe(split, row) for row in gaps.rows[:_MAX_NAMED]),
        coverage=coverage,
        num_bad=len(gaps.rows),
        num_looked_at=gaps.num_examples,
    )


def is_loss_finite(job: CheckedJob) -> bool:
    """Return True if the losses of the first training batch are finite, before any step."""
    return bool(torch.isfinite(job.first_losses).all())


def lost_loss(job: CheckedJob) -> Answer | None:
    """Tell a first training loss that is not finite, whatever it comes from; None: it is."""
    if is_loss_finite(job):
        return None
    gaps, augmented = Gaps(), Gaps()
    gaps.add(job.train_batches(1)[0])
    answer = first_gaps(job, Split.TRAIN, gaps, coverage="the first batch")
    if answer is not None:
        return answer
    augmented.add(job.first_batch)
    losses = job.first_losses
    num_lost = int((~torch.isfinite(losses)).sum())
    said = f"the first training loss is not finite, for {num_lost} of {losses.numel()} examples"
    if augmented.rows and not gaps.rows:
        return found(
            "not_finite_data",
            f"{said}: augment() puts NaN or infinity into {len(augmented.rows)} of them",
            fix="Look for a division by 0 or the logarithm of 0 in augment().",
        )
    return found(
        "loss_not_finite",
        f"{said}, and their inputs and targets are",
        fix="Look for the logarithm or root of 0, a division by 0 or exp of a large number in "
        "model and loss; torch.autograd.set_detect_anomaly(True) names it.",
        num_lost=num_lost,
    )


def _is_borne(job: CheckedJob, split: Split, batch: Batch) -> bool:
    """Return True if the loss of examples with gaps is finite."""
    model = job.model().eval()  # in training mode a BatchNorm would refuse a single example
    ready = job.augmented(batch) if split is Split.TRAIN else batch
    with untouched(), torch.no_grad():
        try:
            losses = job.loss(model, ready)
        except Exception:  # a loss that refuses them does not bear them
            return False
    return bool(torch.isfinite(losses).all())
