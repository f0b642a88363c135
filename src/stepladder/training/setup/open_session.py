"""Open a session: fresh, or in the state of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stepladder.config.options import JobConfig
from stepladder.task.contract import Task
from stepladder.training.baseline import Against, read_baseline
from stepladder.training.best import BestWeights
from stepladder.training.checkpoint.checkpoint import Checkpoints, check_fits
from stepladder.training.checkpoint.checkpoint_files import Loaded
from stepladder.training.checkpoint.saving import load_weights, restore, restore_position
from stepladder.training.clock import Clock, Phase
from stepladder.training.output.display import Display
from stepladder.training.output.events import EventLog
from stepladder.training.position import Position
from stepladder.training.session import Session
from stepladder.training.setup.build import (
    MEMORY_FORMATS,
    Sources,
    StageParts,
    make_held_out_reader,
    make_stage_parts,
    make_train_reader,
)
from stepladder.training.setup.warm_up import warm_up
from stepladder.training.signals import SignalGuard
from stepladder.training.stage import stages_of
from stepladder.training.stopping import EarlyStopping


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a session writes to and listens to."""

    checkpoints: Checkpoints
    events: EventLog
    display: Display
    guard: SignalGuard


def open_session(
    job: JobConfig,
    task: Task,
    sources: Sources,
    *,
    model: nn.Module,
    device: torch.device,
    clock: Clock,
    around: Surroundings,
    facts: dict[str, Any],
    loaded: Loaded | None,
) -> Session:
    """Build a session, and put it where a checkpoint stands if one is given.

    Args:
        model: as `make_model` gave it.
        facts: JSON values that every checkpoint of the run holds (task, describe, environment).

    Raises:
        DataError: if the checkpoint belongs to another model.
    """
    recipe = job.recipe
    position = restore_position(loaded) if loaded is not None else Position()
    stage = stages_of(recipe)[position.stage]
    if loaded is not None:
        check_fits(model.state_dict(), loaded)
    parts = make_stage_parts(recipe, stage, task, model, device=device, clock=clock)
    run = Session(
        recipe=recipe,
        config=job.run,
        task=task,
        model=model,
        device=device,
        memory_format=MEMORY_FORMATS[recipe.device.memory_format],
        train_reader=make_train_reader(recipe, sources.train),
        val_reader=make_held_out_reader(recipe, sources.val),
        clock=clock,
        events=around.events,
        display=around.display,
        guard=around.guard,
        checkpoints=around.checkpoints,
        position=position,
        stopping=EarlyStopping(recipe.stopping),
        best=BestWeights(job.run.save_top_k),
        against=Against(
            read_baseline(job.run),
            patience=job.run.baseline_patience,
            min_frac=recipe.stopping.min_improvement_frac,
        ),
        stage=stage,
        step=parts.step,
        update=parts.update,
        frozen=parts.frozen,
        facts=facts,
    )
    if loaded is not None:
        clock.go_on_from(**loaded.state["clock"])
        restore(run, loaded)
    if recipe.device.compile:
        warm_up(run)
    return run


def start_next_stage(run: Session) -> None:
    """Go to the next stage, from the best weights of this one.

    The best weights are put on disk first: in memory they lack what this stage froze, and the next
    one changes it.

    Raises:
        DivergedError: if a loss was not finite.
        ResourceError: if they cannot be written.
    """
    run.commit()
    restore_best(run)
    run.best.forget_weights()
    run.position.start_stage()
    run.stage = stages_of(run.recipe)[run.position.stage]
    parts: StageParts = make_stage_parts(
        run.recipe,
        run.stage,
        run.task,
        run.model,
        device=run.device,
        clock=run.clock,
    )
    run.step, run.update, run.frozen = parts.step, parts.update, parts.frozen
    run.stopping.reset_patience()
    if run.recipe.device.compile:
        with run.clock.phase(Phase.SETUP):
            warm_up(run)


def restore_best(run: Session) -> bool:
    """Put the best weights into the model, from memory or from disk.

    Returns:
        Whether there were any, and the recipe wants them.
    """
    best = run.best.best
    if best is None or not run.recipe.stopping.restore_best:
        return False
    if best.weights is not None:
        load_weights(run, best.weights)
    else:
        kept = run.checkpoints.load(best.name)
        load_weights(run, kept.frozen, kept.tensors["model"])
    return True
