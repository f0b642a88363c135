"""Open a session: fresh, or in the state of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stepladder.config.options import JobConfig
from stepladder.task.contract import Task
from stepladder.training.baseline import Against, read_baseline
from stepladder.training.checkpoint.checkpoint import Checkpoints, check_fits
from stepladder.training.checkpoint.checkpoint_files import Loaded
from stepladder.training.checkpoint.saving import RunState, restore, restore_position
from stepladder.training.clock import Clock, Phase
from stepladder.training.course import Position
from stepladder.training.output.display import Display
from stepladder.training.output.events import EventLog
from stepladder.training.session import Session
from stepladder.training.setup.build import Sources
from stepladder.training.setup.warm_up import warm_up
from stepladder.training.signals import SignalGuard
from stepladder.training.stage import stages_of


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
    if loaded is not None:
        check_fits(model.state_dict(), loaded)
    against = Against(
        read_baseline(job.run),
        patience=job.run.baseline_patience,
        min_frac=recipe.stopping.min_improvement_frac,
    )
    run = Session.open(
        recipe,
        task,
        sources,
        model=model,
        device=device,
        clock=clock,
        stage=stages_of(recipe)[position.stage],
        position=position,
        num_kept=job.run.save_top_k,
        config=job.run,
        events=around.events,
        display=around.display,
        guard=around.guard,
        checkpoints=around.checkpoints,
        state=RunState(facts=facts, against=against),
    )
    if loaded is not None:
        clock.go_on_from(**loaded.state["clock"])
        restore(run, run.state, loaded)
        run.committed_step = run.position.step
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
    run.restore_best()
    run.rule.best.forget_weights()
    run.begin_next_stage()
    if run.recipe.device.compile:
        with run.clock.phase(Phase.SETUP):
            warm_up(run)
