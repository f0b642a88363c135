"""Examples with NaN or infinity, and whether the job's loss tolerates them."""

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
    """Examples with values that are not finite.

    Attributes:
        num_examples, num_numbers: that were checked; integers do not count.
        rows: examples with NaN or infinity in their inputs or targets.
        in_inputs, in_targets: how many of them.
        tried: some of them, to test the loss with.
    """

    num_examples: int = 0
    num_numbers: int = 0
    rows: list[int] = field(default_factory=list)
    in_inputs: int = 0
    in_targets: int = 0
    tried: Batch | None = None

    def add(self, batch: Batch) -> None:
        """Count the values of a batch that are not finite."""
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
    """Report examples with NaN or infinity, if their loss is not finite either.

    A finite loss ignores them on purpose, for example as missing labels.
    """
    if gaps.tried is None or _is_borne(job, split, gaps.tried):
        return None
    parts = [(gaps.in_inputs, "inputs"), (gaps.in_targets, "targets")]
    places = " and ".join(f"the {name} of {num}" for num, name in parts if num)
    return found(
        "not_finite_data",
        f"NaN or infinity in {places} of {gaps.num_examples} {split.value} examples, and their "
        "loss is not finite",
        fix="Check for division by 0, log(0) or empty cells; fill or drop these values.",
        examples=tuple(job.describe(split, row) for row in gaps.rows[:_MAX_NAMED]),
        coverage=coverage,
        num_bad=len(gaps.rows),
        num_looked_at=gaps.num_examples,
    )


def is_loss_finite(job: CheckedJob) -> bool:
    """Return True if the losses of the first training batch are finite, before any step."""
    return bool(torch.isfinite(job.first_losses).all())


def lost_loss(job: CheckedJob) -> Answer | None:
    """Report a first training loss that is not finite, with its origin; None if it is finite."""
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
            f"{said}: augment() introduces NaN or infinity in {len(augmented.rows)} of them",
            fix="Check augment() for division by 0 or log(0).",
        )
    return found(
        "loss_not_finite",
        f"{said}, although the inputs and targets of these examples are finite",
        fix="Check model and loss for log(0), sqrt(0), division by 0 or exp of large values; "
        "torch.autograd.set_detect_anomaly(True) finds the line.",
        num_lost=num_lost,
    )


def _is_borne(job: CheckedJob, split: Split, batch: Batch) -> bool:
    """Return True if the loss of examples with NaN or infinity is finite."""
    model = job.model().eval()  # in training mode, BatchNorm raises for a single example
    ready = job.augmented(batch) if split is Split.TRAIN else batch
    with untouched(), torch.no_grad():
        try:
            losses = job.loss(model, ready)
        except Exception:  # a loss that raises does not tolerate them
            return False
    return bool(torch.isfinite(losses).all())
