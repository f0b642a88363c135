"""A model that reads its inputs learns more from them than from one input for all."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.one_pass import look
from stepladder.checks.evidence.practice import practise
from stepladder.checks.evidence.sample import each_tensor
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.checks.optimisation.overfit_one_batch import NUM_STEPS, one_batch, try_one_batch
from stepladder.data.batch import Batch
from stepladder.records.findings import Severity

BETTER_FRAC = 0.9  # of what one input for all comes to; by heart it is far below
EQUAL_FRAC = 0.02  # about it: no better
SPREAD = 1e-4  # of the outputs' size: the same for all examples
BUDGET_S = 3.0
LEAST_STEPS = 40


def input_independent(job: CheckedJob) -> Answer:
    """Learn one batch by heart once more, with the first example's inputs for all of them."""
    batch = one_batch(job)
    num = batch.ids.numel()
    reason = _why_not(job, batch)
    if reason is not None:
        return not_applicable(reason)
    tries = try_one_batch(job)
    seen = f"{num} training examples"
    factor = tries.learnt_at
    if factor is None:
        factor = min(tries.courses, key=lambda key: tries.courses[key].last)
    own = tries.courses[factor]
    if own.spread is not None and own.spread < SPREAD and own.num_steps >= LEAST_STEPS:
        return found(
            "no_better_than_baseline",
            f"after {own.num_steps} steps outputs are the same for all examples, whatever their "
            "inputs",
            fix="Look for the place where the inputs are lost: a wrong variable, a mean over "
            "everything, dead units.",
            coverage=seen,
            spread=own.spread,
        )
    blind = practise(
        job,
        [batch._replace(inputs=alike(batch.inputs))],
        lr_factor=factor,
        num_steps=NUM_STEPS,
        budget_s=min(BUDGET_S, 0.2 * job.left_s()),
    )
    numbers: dict[str, Any] = {"loss": own.last, "blind_loss": blind.best}
    said = f"the loss comes to {own.last:.3g}, with one input for all to {blind.best:.3g}"
    if own.last <= BETTER_FRAC * blind.best or not math.isfinite(blind.best):
        return passed(said, coverage=seen, **numbers)
    if min(own.num_steps, blind.num_steps) < LEAST_STEPS or blind.best > 0.98 * own.first:
        return not_applicable(f"{said}: too little was learnt to tell")
    if abs(own.best / blind.best - 1) > EQUAL_FRAC:
        return passed(said, coverage=seen, **numbers)
    return found(
        "no_better_than_baseline",
        f"{said}: the inputs do not matter",
        fix="Look for the place where the inputs are lost: a wrong variable, a scale that makes "
        "them all alike, dead units.",
        severity=Severity.WARNING,
        coverage=seen,
        **numbers,
    )


def alike(inputs: object) -> object:
    """Return every example the inputs of the first."""
    return each_tensor(lambda value: value[:1].expand_as(value).clone(), inputs)


def _why_not(job: CheckedJob, batch: Batch) -> str | None:
    if batch.ids.numel() < 4:
        return "there are not four different examples"
    if not isinstance(batch.targets, Tensor):
        return "there are no targets: the inputs are all that there is to learn"
    rows = batch.targets.reshape(len(batch.targets), -1)
    if bool((rows == rows[:1]).all()):
        return "all targets of the batch are equal"
    model = job.model().eval()
    losses = look(job, model, batch).losses
    others = batch._replace(targets=batch.targets.roll(1, 0))
    if torch.equal(look(job, model, others).losses, losses):
        return "the loss does not read the targets"
    if not bool(torch.isfinite(losses).all()) or float(losses.min()) < 0:
        return "the loss can be below 0, or is not finite"
    return None


def broken() -> Example:
    """A loss that calls the model with an empty picture of the right shape."""

    class Blind(SoundPictures):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            picture = torch.zeros_like(batch.inputs)
            return F.cross_entropy(model(picture), batch.targets, reduction="none")

    return Example(task=Blind())


CHECK = Check(
    name="input_independent",
    reason="A model whose inputs get lost on the way learns how often each answer is right, and "
    "nothing else.",
    source="Karpathy 2019, A Recipe for Training Neural Networks: input-independent baseline",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=("no_better_than_baseline",),
    run=input_independent,
    broken=broken,
    least_s=3.0,
    needs_loss=True,
)
