"""Take a few real training steps in a separate folder, save them, and resume."""

from __future__ import annotations

import copy
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Where
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.config.show import dump_job
from stepladder.data.batch import Batch
from stepladder.measuring.probe import untouched
from stepladder.records import to_json
from stepladder.task.contract import Task
from stepladder.task.image_classification import ImageClassification
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.checkpoint.checkpoint_files import Loaded
from stepladder.training.checkpoint.folder_checks import probe
from stepladder.training.checkpoint.training_state import capture, save_training
from stepladder.training.loop import fit
from stepladder.training.output.display import Display
from stepladder.training.output.events import EventLog
from stepladder.training.randomness import use_deterministic
from stepladder.training.session import Session
from stepladder.training.setup.build import make_clock, make_model
from stepladder.training.setup.open_session import Surroundings, open_session
from stepladder.training.setup.run_folder import CONFIG
from stepladder.training.signals import SignalGuard
from stepladder.training.step import autocast


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The state after some steps.

    Attributes:
        tensors: all tensors of a checkpoint, by group and name: weights, optimizer, random
        states, stopping.
        state: its other values.
        outputs: on a held-out batch, in evaluation mode; the losses if a task returns no outputs.
        is_drawn: whether the outputs are random: a second pass differs.
        saved: name of the checkpoint; None: nothing was saved.
        num_bytes: of the checkpoint.
        model: after the steps, on the device.
    """

    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    outputs: Tensor
    is_drawn: bool
    saved: str | None
    num_bytes: int
    model: nn.Module


def take_steps(
    job: CheckedJob,
    folder: Path,
    *,
    until: int,
    batch: Batch,
    loaded: Loaded | None = None,
    saves: bool = False,
) -> Reached:
    """Train up to some step, from the start or from a checkpoint, as a new process would.

    Model, optimizer, reader and task are built from scratch. The job is not changed.

    Args:
        folder: of this run; exists.
        until: total number of steps.
        batch: held-out examples to evaluate afterwards, on the device.
        loaded: checkpoint to resume from.
        saves: write a checkpoint at the end.
    """
    config = short_config(job.config, folder, max_steps=until)
    task = fresh_task(job.task, config.recipe)
    with (
        untouched(),
        use_deterministic(config.recipe.deterministic),
        EventLog(folder, attempt=1) as events,
    ):
        run = _open(job, config, task, folder, events=events, loaded=loaded)
        try:
            fit(run)
            run.check_finite()
            saved = save_training(run, run.state, run.checkpoints) if saves else None
            tensors, state = capture(run, run.state)
            outputs = outputs_of(run.task, run.model, batch, job)
            again = outputs_of(run.task, run.model, batch, job)
            return Reached(
                tensors={
                    group: {name: value.detach().clone() for name, value in members.items()}
                    for group, members in tensors.items()
                },
                state=to_json(state),
                outputs=outputs,
                is_drawn=not torch.allclose(outputs, again, rtol=1e-4, atol=1e-6, equal_nan=True),
                saved=None if saved is None else saved.name,
                num_bytes=0 if saved is None else saved.num_bytes,
                model=run.model,
            )
        finally:
            run.close()


def _open(
    job: CheckedJob,
    config: JobConfig,
    task: Task,
    folder: Path,
    *,
    events: EventLog,
    loaded: Loaded | None,
) -> Session:
    model = make_model(config.recipe, task, job.device)
    (folder / CONFIG).write_text(dump_job(config), encoding="utf-8")
    return open_session(
        config,
        task,
        job.sources,
        model=model,
        device=job.device,
        clock=make_clock(job.device),
        around=Surroundings(
            checkpoints=Checkpoints(folder / "checkpoints", file_system=probe(folder)),
            events=events,
            display=Display(io.StringIO()),
            guard=SignalGuard(),
        ),
        facts={"task": job.task_name, "describe": to_json(task.describe())},
        loaded=loaded,
    )


def short_config(config: JobConfig, folder: Path, *, max_steps: int) -> JobConfig:
    """Return the same job for a few steps: streaming, in this folder, without trackers."""
    recipe = config.recipe
    schedule = replace(
        recipe.schedule,
        max_steps=max_steps,
        max_time_s=None,
        horizon_epochs=recipe.schedule.horizon_epochs or recipe.schedule.max_epochs,
    )
    return replace(
        config,
        recipe=replace(
            recipe,
            schedule=schedule,
            data=replace(recipe.data, where=Where.STREAM),
            features=replace(recipe.features, cached=False),
            device=replace(recipe.device, compile=False),
        ),
        run=replace(
            config.run,
            dir=folder,
            tensorboard=False,
            mlflow_uri=None,
            baseline=None,
            log_every=1,
        ),
    )


def fresh_task(task: Task, recipe: Recipe) -> Task:
    """Return the task as in another process, without its accumulated state."""
    if isinstance(task, ImageClassification):
        return task.as_read_by(recipe)
    try:
        return copy.deepcopy(task)
    except Exception:
        return copy.copy(task)


def outputs_of(task: Task, model: nn.Module, batch: Batch, job: CheckedJob) -> Tensor:
    """Return a model's outputs on a batch, in evaluation mode, on the CPU in fp32."""
    flags = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.inference_mode(), autocast(job.device, job.recipe.device.precision):
            metrics = task.metrics(model, batch)
    finally:
        for module, is_training in flags.items():
            module.training = is_training
    found = metrics.losses if metrics.outputs is None else metrics.outputs
    return found.detach().float().cpu()
