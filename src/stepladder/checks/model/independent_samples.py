"""The output for an example depends on that example only."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.one_pass import look
from stepladder.checks.evidence.sample import take, training_sample
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.config.recipe import Recipe
from stepladder.records.findings import Severity

NUM_EXAMPLES = 8
CHANGED = 1e-3  # of the spread of the outputs; rounding is a thousand times smaller


def independent_samples(job: CheckedJob) -> Answer:
    """Change half of a batch, in evaluation mode: outputs of the other half must not change."""
    batch = training_sample(job, 2 * NUM_EXAMPLES)
    num = batch.ids.numel()
    if num < 4:
        return not_applicable(f"{num} training examples are too few")
    model = job.model().eval()
    half = num // 4
    same = torch.arange(half)
    first = take(batch, torch.cat([same, torch.arange(half, 2 * half)]))
    second = take(batch, torch.cat([same, torch.arange(2 * half, 3 * half)]))
    a, b, again = (look(job, model, part).outputs for part in (first, second, first))
    if a is None or b is None or again is None:
        return not_applicable("the model does not return one row per example")
    if not torch.equal(a, again):
        return not_applicable("the model draws random numbers in evaluation mode")
    moved = _moved(a[:half], b[:half], a)
    seen = f"{2 * half} training examples"
    if moved <= CHANGED:
        return passed(
            f"outputs of an example change by {moved:.1g} standard deviations when the other "
            "examples of its batch change",
            coverage=seen,
            moved=moved,
        )
    without = [module for module in model.modules() if _has_no_statistics(module)]
    why = f"; {len(without)} BatchNorm layers have no running statistics" if without else ""
    return found(
        "samples_not_independent",
        f"outputs of an example change by {moved:.2g} standard deviations when the other examples "
        f"of its batch change, even in evaluation mode{why}",
        fix="Use BatchNorm with running statistics (track_running_stats=True)."
        if without
        else "Check for a view, reshape, transpose, softmax or mean that mixes dimension 0.",
        severity=Severity.WARNING if without else None,
        coverage=seen,
        moved=moved,
    )


def _moved(a: Tensor, b: Tensor, whole: Tensor) -> float:
    spread = float(whole.float().std()) or float(whole.float().abs().mean())
    change = float((a.float() - b.float()).abs().max())
    return change / spread if spread > 0 else 0.0


def _has_no_statistics(module: nn.Module) -> bool:
    return isinstance(module, BatchNorm) and not module.track_running_stats


def broken() -> Example:
    """Features minus their mean over dimension 0, the batch."""

    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0, keepdim=True)

    class Mixed(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            model = super().build_model(recipe)
            assert isinstance(model, nn.Sequential)
            model.insert(len(model) - 1, Centred())
            return model

    return Example(task=Mixed())


CHECK = Check(
    name="independent_samples",
    reason="If examples of a batch influence each other, results depend on the batch, and "
    "inference on one example fails.",
    source="Karpathy 2019, A Recipe for Training Neural Networks: use backprop to chart "
    "dependencies; here by changing other examples, which also works for token ids",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("samples_not_independent",),
    run=independent_samples,
    broken=broken,
    needs_loss=True,
)
