"""BatchNorm has enough examples per forward pass for its statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.examples import Example, SoundPictures, sound_recipe
from stepladder.checks.job import CheckedJob
from stepladder.config.recipe import BatchConfig, Recipe
from stepladder.measuring.probe import untouched
from stepladder.records.findings import Severity

FEW = 4  # examples; Wu and He measure a loss of accuracy below 16, and a large one at 2
_NO_REST = (
    "Choose {option} so that no single example is left at the end of an epoch, or use GroupNorm "
    "or a frozen BatchNorm."
)
_FIX = "Use more examples per forward pass ({option}), GroupNorm, or a frozen BatchNorm."


def batch_norm(job: CheckedJob) -> Answer:
    """Count the examples in the forward passes of an epoch, including the last one."""
    model = job.model()
    layers = [m for m in model.modules() if isinstance(m, BatchNorm) and m.training]
    if not layers:
        return not_applicable("the model has no BatchNorm in training mode")
    sizes = pass_sizes(job)
    smallest, usual = min(sizes), max(sizes)
    option = "--batch.micro-batch-size"
    if job.recipe.batch.micro_batch_size is None:
        option = "--batch.global-batch-size"
    fix = _FIX.format(option=option)
    numbers: dict[str, Any] = {"smallest": smallest, "usual": usual, "num_layers": len(layers)}
    if smallest == 1 and _has_one_value(job, model, layers):
        return found(
            "batch_norm_tiny_batch",
            "training would fail: a forward pass of an epoch has only 1 example (sizes: "
            f"{_listed(sizes)}), and BatchNorm cannot normalise a single value per channel",
            fix=fix if usual == 1 else _NO_REST.format(option=option),
            severity=Severity.ERROR,
            **numbers,
        )
    if usual <= FEW:
        return found(
            "batch_norm_tiny_batch",
            f"{len(layers)} BatchNorm layers normalise by the mean and variance of only {usual} "
            f"example{'s' if usual > 1 else ''} at a time, which are mostly noise",
            fix=fix,
            **numbers,
        )
    return passed(f"BatchNorm has {_listed(sizes)} examples per forward pass", **numbers)


def pass_sizes(job: CheckedJob) -> set[int]:
    """Return the sizes of the forward passes in a training epoch."""
    batch = job.recipe.batch
    num = max(1, round(len(job.sources.train) * job.recipe.data.fraction))
    size = min(batch.global_batch_size, num)
    micro = batch.micro_batch_size or size
    sizes: set[int] = set()
    for whole in {size, num % size} - {0}:
        sizes.update({min(micro, whole), whole % micro} - {0})
    return sizes


def _listed(sizes: set[int]) -> str:
    return " and ".join(str(size) for size in sorted(sizes, reverse=True))


def _has_one_value(job: CheckedJob, model: nn.Module, layers: Sequence[nn.Module]) -> bool:
    """Return True if a layer gets one value per channel and example, as after pooling."""
    counts: list[int] = []

    def note(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        values = args[0]
        counts.append(values.numel() // (values.shape[0] * values.shape[1]))

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        with untouched(model):
            job.mean_loss(model.eval(), job.first_batch)
    finally:
        for hook in hooks:
            hook.remove()
    return 1 in counts


def broken() -> Example:
    """BatchNorm with two examples per step."""

    class Normed(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            model = super().build_model(recipe)
            assert isinstance(model, nn.Sequential)
            model.insert(1, nn.BatchNorm2d(16))
            return model

    recipe = sound_recipe(batch=replace(BatchConfig(), global_batch_size=2, lr=0.003))
    return Example(task=Normed(), recipe=recipe)


CHECK = Check(
    name="batch_norm",
    reason="Statistics of very few examples are mostly noise: training is worse than without the "
    "layer, and validation, which uses running statistics, even worse.",
    source="Wu and He 2018, Group Normalization, figure 1, arXiv:1803.08494",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("batch_norm_tiny_batch",),
    run=batch_norm,
    broken=broken,
)
