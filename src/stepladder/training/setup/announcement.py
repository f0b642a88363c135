"""What a run prints before its first step."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from torch import nn

from stepladder.config.choices import (
    AsyncMethod,
    GradientCompression,
    Precision,
    ScheduleKind,
    TrainMode,
)
from stepladder.config.options import JobConfig
from stepladder.config.recipe import AsynchronousConfig, Recipe
from stepladder.optim.curvature.layers import layers_of
from stepladder.optim.schedule import horizon_steps
from stepladder.optim.table import spec_of
from stepladder.task.load import BUILT_IN
from stepladder.training.baseline import baseline_line, baseline_warnings
from stepladder.training.session import Session
from stepladder.training.setup.build import Sources

_MOST_NAMES: Final = 5


def opening_lines(run: Session, sources: Sources, job: JobConfig) -> tuple[str, list[str]]:
    """Return a title and lines: data, model, the three batch sizes, learning rate, limits."""
    recipe = run.recipe
    counts = {name: len(s) if s is not None else 0 for name, s in vars(sources).items()}
    counts["train"] = run.num_train
    own_task = run.state.facts.get("task")
    name = recipe.model.name if own_task == BUILT_IN else f"from {own_task}"
    lines = [
        "data      "
        + ", ".join(f"{n:,} {name}" for name, n in counts.items())
        + f" ({'features' if recipe.features.cached else recipe.data.where})",
        f"model     {name}, {num_learning(run.model):,} of "
        f"{num_weights(run.model):,} weights are trained",
        "batch     " + batch_line(job),
        f"lr        {run.stage.lr:.3g} ({recipe.optimizer.name}, {schedule_line(run)})",
        f"device    {run.device.type}, {recipe.device.precision}, {recipe.device.memory_format}",
    ]
    if recipe.stopping.early and run.val_reader is not None:
        most = recipe.schedule.max_epochs
        epochs = f"{most} epoch{'' if most == 1 else 's'}"
        patience = recipe.stopping.patience
        lines.append(
            f"stopping  after {patience} validation{'' if patience == 1 else 's'} without a clear "
            f"improvement of {recipe.stopping.monitor}, at most {epochs}"
        )
    if run.state.against.baseline is not None and run.val_reader is not None:
        lines.append(
            "baseline  " + baseline_line(run.state.against.baseline, run.state.against.patience)
        )
    return f"run {job.run.dir}", lines


def num_weights(model: nn.Module) -> int:
    """Count a model's parameters."""
    return sum(weight.numel() for weight in model.parameters())


_OF_METHODS: Final = {
    AsyncMethod.PARAMETER_SERVER: ("max_age", "age_rule"),
    AsyncMethod.BACKUP_WORKERS: ("num_backup",),
    AsyncMethod.HOGWILD: (),
    AsyncMethod.LOCAL_SGD: ("local_steps",),
    AsyncMethod.DILOCO: ("local_steps", "outer_lr", "outer_momentum"),
}
"""Options that only some methods use."""


def num_learning(model: nn.Module) -> int:
    """Count a model's trainable parameters."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def batch_line(job: JobConfig) -> str:
    """Describe the global batch, the batch per device, and gradient accumulation."""
    batch, device, workers = job.recipe.batch, job.recipe.device, job.recipe.asynchronous
    num = workers.num_in_batch if workers.is_on else device.count * device.replicas
    share = -(-batch.global_batch_size // num)
    micro = min(batch.micro_batch_size or share, share)
    is_uneven = micro == share and batch.global_batch_size % num
    words = [
        f"global {batch.global_batch_size}",
        f"per {'worker' if workers.is_on else 'device'} {micro}"
        + (f" or {share - 1} (unequal parts)" if is_uneven else ""),
        f"accumulation {-(-share // micro)}",
        *([f"{num} devices"] if num > 1 and not workers.is_on else []),
        *([f"{workers.workers} workers by {_of_workers(workers)}"] if workers.is_on else []),
    ]
    return ", ".join(words)


def _of_workers(config: AsynchronousConfig) -> str:
    """Return how workers train: `hogwild, one thread each`."""
    if config.method is AsyncMethod.HOGWILD:
        return f"{config.method}, one thread each"
    return f"{config.method}{', simulated' if config.simulate else ''}"


def schedule_line(run: Session) -> str:
    """Describe the learning-rate schedule and, for cosine, its horizon."""
    schedule = run.recipe.schedule
    words = [str(schedule.kind)]
    if schedule.kind is ScheduleKind.COSINE:
        per_epoch = run.schedule_steps
        epochs = horizon_steps(schedule, steps_per_epoch=per_epoch) / per_epoch
        words = [f"cosine over {epochs:.4g} epochs"]
    if schedule.warmup_steps:
        words.append(f"warm-up {schedule.warmup_steps} steps")
    if run.is_adaptive:
        words.append(f"in steps of {run.recipe.batch.base_batch_size} examples (AdaScale)")
    return ", ".join(words)


def opening_warnings(run: Session, sources: Sources) -> list[str]:
    """List warnings about this run, each a sentence with what to do."""
    recipe = run.recipe
    found = []
    if sources.val is None and recipe.stopping.early:
        found.append(
            "there is no validation split, so training cannot stop early, and the final model has "
            "the last weights instead of the best"
        )
    if recipe.train is not TrainMode.ALL and run.task.split(run.model) is None:
        found.append(
            f"--train {recipe.train} has no effect, because the Task does not say which part of "
            "its model is the head (no method split): all weights are trained. --train all turns "
            "off this warning"
        )
    if recipe.device.replicas > 1:
        num = recipe.device.replicas
        found.append(
            f"one process trains {num} copies of the model (device.replicas), and copies the "
            f"weights to each at every step; --devices {num} gives the same and is faster, with a "
            "process for each"
        )
    found += _of_power_sgd(recipe) + _of_order(recipe) + _without_effect(recipe.asynchronous)
    found += _of_division(recipe) if run.world.is_alone else []
    if recipe.batch.global_batch_size > run.num_train:
        found.append(
            f"a batch has {recipe.batch.global_batch_size} examples, but there are only "
            f"{run.num_train} for training, so each epoch is a single step; use a smaller "
            "--batch.global-batch-size"
        )
    for source in (sources.train, sources.val, sources.test):
        warning = getattr(source, "warning", None)
        if warning:
            found.append(str(warning))
    is_half = recipe.device.precision in (Precision.FP16, Precision.FP16_MASTER)
    if is_half and run.device.type == "cpu":
        found.append(
            f"{recipe.device.precision} is slow on a CPU: use --device.precision fp32, or bf16 if "
            "`stepladder doctor` lists avx512_bf16 or amx"
        )
    if run.num_train % recipe.batch.global_batch_size == 1 and _trains_batchnorm(run.model):
        found.append(
            "the last batch of each epoch has a single example, on which BatchNorm layers cannot "
            "be trained; change --batch.global-batch-size (now "
            f"{recipe.batch.global_batch_size})"
        )
    spec = spec_of(recipe.optimizer.name)
    if spec.is_scale_free and run.stage.lr > spec.most_lr:
        found.append(
            f"a learning rate of {run.stage.lr:.3g} is far too high for {recipe.optimizer.name}, "
            "so the loss will probably not fall; use a smaller --batch.lr"
        )
    found += _of_layers(spec.title, run.model) if spec.sees_layers else []
    num_val = None if sources.val is None else len(sources.val)
    found += baseline_warnings(
        run.state.against.baseline,
        num_val,
        task=run.state.facts.get("task"),
        fingerprint=sources.train.fingerprint,
    )
    return found


def _without_effect(workers: AsynchronousConfig) -> list[str]:
    """Return a warning about options that the method does not use."""
    used = {"workers", "data", "simulate", *_OF_METHODS[workers.method]} if workers.is_on else set()
    if workers.simulate:
        used.add("stragglers")
    default = AsynchronousConfig()
    unused = [
        f"asynchronous.{one.name}"
        for one in fields(workers)
        if one.name not in used | {"method"}
        and getattr(workers, one.name) != getattr(default, one.name)
    ]
    if not unused:
        return []
    verb = "has" if len(unused) == 1 else "have"
    return [f"{', '.join(unused)} {verb} no effect with asynchronous.method {workers.method}"]


def _of_order(recipe: Recipe) -> list[str]:
    workers = recipe.asynchronous
    if not (workers.is_on and recipe.deterministic) or workers.simulate:
        return []
    return [
        "time decides in which order workers change the weights, so that another run gives "
        "others despite --deterministic; --asynchronous.simulate gives the same"
    ]


def _of_division(recipe: Recipe) -> list[str]:
    """Return a warning that one device has all of the model, whatever the recipe says."""
    config = recipe.device
    if not config.divides_model:
        return []
    num = max(2, config.tensor_parallel, config.pipeline_stages)
    return [f"device.{config.division} has no effect on one device; --devices {num} divides it"]


def _of_layers(title: str, model: nn.Module) -> list[str]:
    """Return a warning about matrices that an optimizer by layers cannot take."""
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    layers, others = layers_of(model, set(named.values()))
    names = [name for name in others if named[name].dim() >= 2]
    if not layers:
        return [f"no layer that learns is one that {title} can take: it is SGD with momentum here"]
    if not names:
        return []
    shown = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
    return [f"{title} takes plain steps of SGD for {len(names)} of the matrices: {shown}"]


def _of_power_sgd(recipe: Recipe) -> list[str]:
    if recipe.device.gradient_compression is not GradientCompression.POWER_SGD:
        return []
    if recipe.device.count == 1:
        return ["PowerSGD has no effect on one device"]
    return [
        "PowerSGD keeps what it has not sent in memory only: if this run resumes, its weights will "
        "differ from those of a run without a break"
    ]


def _trains_batchnorm(model: nn.Module) -> bool:
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    return any(isinstance(module, kinds) and module.training for module in model.modules())
