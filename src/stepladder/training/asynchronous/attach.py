"""Let workers compute the steps of a training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import nn

from stepladder.config.choices import AsyncMethod, Precision, TrainMode
from stepladder.config.options import RunConfig
from stepladder.config.recipe import Recipe
from stepladder.data.reading.examples import ArrivalSource, RowsOnly
from stepladder.errors import UsageError
from stepladder.optim.outer import outer_optimizer
from stepladder.parallel.asynchronous.link import zeromq
from stepladder.parallel.asynchronous.shared import SharedWeights
from stepladder.parallel.world import World
from stepladder.task.contract import Task
from stepladder.task.load import name_for_others
from stepladder.training.asynchronous.contribution import Trained
from stepladder.training.asynchronous.crew import Crew, SimulatedCrew
from stepladder.training.asynchronous.process_crew import ProcessCrew
from stepladder.training.asynchronous.step import AsynchronousStep
from stepladder.training.clock import Clock
from stepladder.training.course import Position
from stepladder.training.setup.build import Sources, StageParts
from stepladder.training.training import Training
from stepladder.training.update import Update

_LOGS: Final = "logs"


def require_workers(recipe: Recipe, task: Task, sources: Sources, world: World) -> None:
    """Check that workers can train a recipe.

    Raises:
        UsageError: if they cannot.
    """
    config = recipe.asynchronous
    if not world.is_alone or recipe.device.count > 1 or recipe.device.replicas > 1:
        num = max(world.size, recipe.device.count, recipe.device.replicas)
        raise UsageError(
            f"{config.method} starts its own workers, beside {num} devices",
            where="asynchronous.method",
            fix=f"Start it without torchrun, srun or --devices: --asynchronous.workers {num}",
        )
    if isinstance(sources.train, ArrivalSource):
        raise UsageError(
            "the training data are an IterableDataset, which cannot be divided among workers",
            where="asynchronous.method",
            fix="Return a Dataset with __getitem__ from data(Split.TRAIN) of the Task.",
        )
    if recipe.train is TrainMode.HEAD_THEN_ALL:
        raise UsageError(
            "workers train one stage, but --train head_then_all has two",
            where="asynchronous.method",
            fix="Use --train head or --train all.",
        )
    if recipe.device.precision in (Precision.FP16, Precision.FP16_MASTER):
        raise UsageError(
            "workers send gradients in float32, without the loss scale that fp16 needs",
            where="device.precision",
            fix="Use --device.precision bf16 or fp32.",
        )
    if recipe.features.cached is True:
        raise UsageError(
            "workers do not read cached features: a step of the head is too short to be divided",
            where="features.cached",
            fix="Leave out --asynchronous.method: the head trains faster in one process.",
        )
    if recipe.augment.mixup_alpha:
        raise UsageError(
            "MixUp draws partners from the whole batch, of which each worker has a part",
            where="augment.mixup_alpha",
            fix="Leave out augment.mixup_alpha.",
        )
    if config.method is AsyncMethod.HOGWILD and config.simulate:
        raise UsageError(
            "what workers do to shared memory at the same time cannot be simulated",
            where="asynchronous.simulate",
            fix="Simulate its nearest relative: --asynchronous.method parameter_server",
        )
    if recipe.batch.global_batch_size < config.workers:
        raise UsageError(
            f"a batch of {recipe.batch.global_batch_size} examples leaves nothing to do for some "
            f"of {config.workers} workers",
            where="asynchronous.workers",
            fix=f"Use --asynchronous.workers {recipe.batch.global_batch_size} or fewer.",
        )
    if not config.simulate:
        zeromq()
        name_for_others(task)


def rows_only(sources: Sources) -> Sources:
    """Return what the process of the server reads: examples for validation, rows to be counted."""
    return replace(sources, train=RowsOnly(sources.train))


@dataclass(frozen=True, kw_only=True)
class Employer:
    """Where workers log, and how long they are waited for.

    Attributes:
        folder: of the run.
        restarts, meet_s, stall_s: see `ProcessCrew`.
    """

    folder: Path
    restarts: int = RunConfig.restarts
    meet_s: float = RunConfig.meet_s
    stall_s: float = RunConfig.stall_s

    @classmethod
    def of(cls, config: RunConfig) -> Employer:
        """Return that of a run."""
        return cls(
            folder=Path(config.dir),
            restarts=config.restarts,
            meet_s=config.meet_s,
            stall_s=config.stall_s,
        )


def parts_of_workers(
    recipe: Recipe,
    task: Task,
    sources: Sources,
    *,
    model: nn.Module,
    parts: StageParts,
    device: torch.device,
    clock: Clock,
    employer: Employer,
    position: Position | None = None,
) -> StageParts:
    """Start workers, and return the parts of a stage with a step on what they send.

    Args:
        sources: that the workers read.
        parts: of the same stage without workers.
        position: of the run; None: at its beginning.

    Raises:
        UsageError: if the model or the device does not allow it.
    """
    at = position or Position()
    begins = (at.epoch, at.offset)
    num_train = max(1, round(len(sources.train) * recipe.data.fraction))
    _require_float32(recipe, model, device)
    trained = Trained.of(model, parts)
    update = parts.update
    if recipe.asynchronous.is_local:
        update = Update(outer_optimizer(recipe.asynchronous, trained.params), device=device)
    crew: Crew
    shared = None
    if recipe.asynchronous.simulate:
        crew = SimulatedCrew(recipe, task, sources, device, at=begins)
    else:
        crew = ProcessCrew(
            recipe,
            name_for_others(task),
            logs=employer.folder / _LOGS,
            at=begins,
            num_train=num_train,
            restarts=employer.restarts,
            meet_s=employer.meet_s,
            stall_s=employer.stall_s,
        )
        if crew.shared is not None:
            num = sum(param.numel() for param in trained.params)
            shared = SharedWeights.open(crew.shared, num)
    step = AsynchronousStep(
        recipe,
        crew,
        task=task,
        model=model,
        update=update,
        trained=trained,
        device=device,
        clock=clock,
        num_seen=at.epoch * num_train + at.offset,
        num_train=num_train,
        shared=shared,
    )
    return replace(parts, update=update, step=step)


def train_by_workers(run: Training, sources: Sources, employer: Employer) -> None:
    """Replace the step of a training by one on what workers send; see `parts_of_workers`."""
    run.parts = parts_of_workers(
        run.recipe,
        run.task,
        sources,
        model=run.model,
        parts=run.parts,
        device=run.device,
        clock=run.clock,
        employer=employer,
        position=run.position,
    )
    step = run.parts.step
    assert isinstance(step, AsynchronousStep)
    step.should_stop = lambda: run.reason_to_stop() is not None


def _require_float32(recipe: Recipe, model: nn.Module, device: torch.device) -> None:
    others = {w.dtype for w in model.parameters() if w.requires_grad} - {torch.float32}
    if others:
        kind = str(next(iter(others))).removeprefix("torch.")
        raise UsageError(
            f"the model has weights of type {kind}, but workers send float32",
            where="asynchronous.method",
            fix="Build it with float32 weights, or leave out --asynchronous.method.",
        )
    if recipe.asynchronous.method is AsyncMethod.HOGWILD and device.type != "cpu":
        raise UsageError(
            "Hogwild shares the weights in the memory of the host",
            where="asynchronous.method",
            fix="Use --asynchronous.method parameter_server, or --device.kind cpu.",
        )
