"""All trainable weights change in a few real steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.practice import short_subject
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.checks.wording import listed
from stepladder.config.choices import Precision
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.measuring.subject import Subject
from stepladder.records.findings import Severity

NUM_STEPS = 4  # more than one: weights behind a zero weight change a step later


@dataclass
class _Moves:
    """Changes of the weights in some steps.

    Attributes:
        before: values at the start, by name.
        sizes: largest gradient of each, by name; absent without a gradient.
        outside: names that are in the model but not in the optimizer.
        first_bad: first step whose loss or gradient was not finite, or None.
    """

    before: dict[str, Tensor]
    sizes: dict[str, float] = field(default_factory=dict)
    outside: list[str] = field(default_factory=list)
    first_bad: int | None = None


def parameters_move(job: CheckedJob) -> Answer:
    """Take some steps with the run's optimizer, and compare weights and gradients."""
    batches = [job.augmented(batch) for batch in job.train_batches(NUM_STEPS)]
    with short_subject(job) as subject:
        names = {id(weight): name for name, weight in subject.model.named_parameters()}
        learning = {names[id(weight)]: weight for weight in subject.learning()}
        moves = _take_steps(job, subject, learning, batches)
        still = [
            name for name, weight in learning.items() if torch.equal(weight, moves.before[name])
        ]
    return _judge(moves, list(learning), still)


def _take_steps(
    job: CheckedJob, subject: Subject, learning: dict[str, nn.Parameter], batches: list[Batch]
) -> _Moves:
    moves = _Moves({name: weight.detach().clone() for name, weight in learning.items()})
    hooks = [
        weight.register_post_accumulate_grad_hook(_sizer(name, moves.sizes))  # type: ignore[no-untyped-call]
        for name, weight in learning.items()
    ]
    for idx in range(NUM_STEPS):
        subject.parts.step(batches[idx % len(batches)], step=idx, lr=subject.lr)
    for hook in hooks:
        hook.remove()
    moves.first_bad = subject.parts.update.read_first_bad()
    if job.recipe.device.precision is not Precision.FP16_MASTER:  # there it holds their masters
        groups = subject.parts.update.optimizer.param_groups
        held = {id(weight) for group in groups for weight in group["params"]}
        moves.outside = [
            name
            for name, weight in subject.model.named_parameters()
            if weight.requires_grad and id(weight) not in held
        ]
    return moves


def _sizer(name: str, sizes: dict[str, float]) -> Any:
    def note(weight: Tensor) -> None:
        if weight.grad is not None:
            grad = weight.grad.coalesce().values() if weight.grad.is_sparse else weight.grad
            largest = float(grad.abs().max()) if grad.numel() else 0.0
            sizes[name] = max(sizes.get(name, 0.0), largest)

    return note


def _judge(moves: _Moves, names: list[str], still: list[str]) -> Answer:
    steps = f"{NUM_STEPS} steps"
    if moves.outside:
        return found(
            "parameters_not_in_optimizer",
            f"{len(moves.outside)} weights were added to the model after the optimizer was "
            f"created, so they are not trained: {listed(moves.outside)}",
            fix="Create all layers in build_model, not in the first forward pass.",
            coverage=steps,
            names=[*moves.outside],
        )
    if moves.first_bad is not None:
        return not_applicable(
            f"the loss or its gradient is not finite at step {moves.first_bad}, so the step is "
            "skipped"
        )
    held = [name for name in still if moves.sizes.get(name, 0.0) > 0]
    if held:
        return found(
            "frozen_by_accident",
            f"{len(held)} weights have a gradient but did not change in {steps}: {listed(held)}",
            fix="Look for code that sets these weights back. Without such code, the learning rate "
            "is too small for their dtype.",
            coverage=steps,
            names=[*held],
        )
    if len(still) == len(names):
        return found(
            "frozen_by_accident",
            f"no weight changed in {steps}: all gradients are 0",
            fix="Look for units that always output 0, and for a loss that does not depend on the "
            "model.",
            coverage=steps,
        )
    idle = [name for name in still if name in moves.sizes]
    unused = [name for name in still if name not in moves.sizes]
    if not names:
        return not_applicable("the model has no trainable weights")
    said = f"{len(names) - len(still)} of {len(names)} weights changed in {steps}"
    said += f"; {len(idle)} had a gradient of 0: {listed(idle)}" if idle else ""
    said += f"; {len(unused)} were not used: {listed(unused)}" if unused else ""
    return passed(said, coverage=steps, idle=[*idle], unused=[*unused])


def broken() -> Example:
    """A head that is created in the first forward pass, after the optimizer."""

    class LateHead(nn.Module):
        def __init__(self, trunk: nn.Module) -> None:
            super().__init__()
            self.trunk = trunk
            self.head: nn.Module | None = None

        def forward(self, x: Tensor) -> Tensor:
            features = self.trunk(x)
            if self.head is None:
                self.head = nn.Linear(features.shape[1], 4)
            scores: Tensor = self.head(features)
            return scores

    class Late(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            model = super().build_model(recipe)
            assert isinstance(model, nn.Sequential)
            return LateHead(model[:-1])

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    return Example(task=Late())


CHECK = Check(
    name="parameters_move",
    reason="Weights that should be trained but never change are hidden by the rest of the model.",
    source="torchtest (Suriyadeepan 2018); TrainCheck (Jiang et al. 2025, OSDI); SageMaker "
    "Debugger, UnchangedTensor over 3 steps",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=("parameters_not_in_optimizer", "frozen_by_accident"),
    run=parameters_move,
    broken=broken,
    least_s=1.0,
    needs_loss=True,
)
