"""The model learns more from its inputs than from the same input for all examples."""

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

BETTER_FRAC = 0.9  # of the loss with the same input for all; memorisation is far below
EQUAL_FRAC = 0.02  # from it: no better
SPREAD = 1e-4  # of the size of the outputs: the same for all examples
BUDGET_S = 3.0
LEAST_STEPS = 40


def input_independent(job: CheckedJob) -> Answer:
    """Overfit one batch again, with the inputs of the first example for all examples."""
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
            f"after {own.num_steps} steps of training, the model's outputs are the same for all "
            "examples",
            fix="Find where the inputs are lost: a wrong variable, a mean over all dimensions, or "
            "dead units.",
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
    said = (
        f"trained on one batch, the model reaches a loss of {own.last:.3g}, and of "
        f"{blind.best:.3g} if all examples have the same input"
    )
    if own.last <= BETTER_FRAC * blind.best or not math.isfinite(blind.best):
        return passed(said, coverage=seen, **numbers)
    if min(own.num_steps, blind.num_steps) < LEAST_STEPS or blind.best > 0.98 * own.first:
        return not_applicable(f"{said}: the model learned too little to compare these")
    if abs(own.best / blind.best - 1) > EQUAL_FRAC:
        return passed(said, coverage=seen, **numbers)
    return found(
        "no_better_than_baseline",
        f"{said}: the model does not use its inputs",
        fix="Find where the inputs are lost: a wrong variable, a scale that makes them all equal, "
        "or dead units.",
        severity=Severity.WARNING,
        coverage=seen,
        **numbers,
    )


def alike(inputs: object) -> object:
    """Return inputs with those of the first example for all examples."""
    return each_tensor(lambda value: value[:1].expand_as(value).clone(), inputs)


def _why_not(job: CheckedJob, batch: Batch) -> str | None:
    if batch.ids.numel() < 4:
        return "the batch has fewer than four different examples"
    if not isinstance(batch.targets, Tensor):
        return "targets are not a tensor"
    rows = batch.targets.reshape(len(batch.targets), -1)
    if bool((rows == rows[:1]).all()):
        return "all targets of the batch are equal"
    model = job.model().eval()
    losses = look(job, model, batch).losses
    others = batch._replace(targets=batch.targets.roll(1, 0))
    if torch.equal(look(job, model, others).losses, losses):
        return "the loss does not depend on the targets"
    if not bool(torch.isfinite(losses).all()) or float(losses.min()) < 0:
        return "the loss is negative, or not finite"
    return None


def broken() -> Example:
    """A loss that calls the model with zeros instead of the inputs."""

    class Blind(SoundPictures):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            picture = torch.zeros_like(batch.inputs)
            return F.cross_entropy(model(picture), batch.targets, reduction="none")

    return Example(task=Blind())


CHECK = Check(
    name="input_independent",
    reason="A model that does not use its inputs learns the class frequencies only.",
    source="Karpathy 2019, A Recipe for Training Neural Networks: input-independent baseline",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=("no_better_than_baseline",),
    run=input_independent,
    broken=broken,
    least_s=3.0,
    needs_loss=True,
)
