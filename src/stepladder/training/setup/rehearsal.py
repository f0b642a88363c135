"""A dry run: two real steps, validation, save and load, then the plan; writes no files."""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stepladder.config.options import JobConfig
from stepladder.data.features.feature_source import FreshFeatures
from stepladder.data.reading.reader import Source
from stepladder.errors import DataError
from stepladder.records import to_json
from stepladder.task.contract import Task
from stepladder.training.checkpoint.checkpoint import Checkpoints, check_fits
from stepladder.training.checkpoint.folder_checks import probe
from stepladder.training.checkpoint.training_state import save_training
from stepladder.training.clock import STEP_PHASES, Phase
from stepladder.training.evaluate import EvaluationCancelled
from stepladder.training.features.feature_task import (
    FeatureTask,
    features_folder,
    fresh_features,
    num_views,
)
from stepladder.training.loop import fit
from stepladder.training.output.display import Display
from stepladder.training.output.events import EventLog
from stepladder.training.output.wording import duration
from stepladder.training.session import Session
from stepladder.training.setup.announcement import opening_lines, opening_warnings
from stepladder.training.setup.automatic import make_settled_model
from stepladder.training.setup.build import Sources, make_clock
from stepladder.training.setup.open_session import Surroundings, open_session
from stepladder.training.signals import SignalGuard
from stepladder.training.stage import stages_of

NUM_STEPS = 2
NUM_VALIDATION_BATCHES = 2


def rehearse(
    job: JobConfig,
    task: Task,
    sources: Sources,
    *,
    task_name: str,
    device: torch.device,
    display: Display,
) -> dict[str, Any]:
    """Run every part of a run once in a temporary folder, and return the plan.

    Returns:
        The plan: batches, steps, seconds and bytes, measured in two steps.

    Raises:
        DataError: if a saved state is not restored exactly.
        StepladderError: any error that the real run would raise in its first minute.
    """
    recipe, model, chosen = make_settled_model(
        job.recipe, task, sources, device=device, folder=features_folder(job, task)
    )
    job = replace(job, recipe=recipe)
    for line in chosen:
        display.message(line)
    if job.recipe.features.cached:
        sources = fresh_features(job.recipe, task, model, sources, device=device)
        task = FeatureTask(task, num_views=num_views(job.recipe.features, task))
    parent = _nearest_folder(job.run.dir)
    with tempfile.TemporaryDirectory(prefix=".rehearsal-", dir=parent) as temporary:
        folder = Path(temporary)
        schedule = replace(job.recipe.schedule, max_steps=NUM_STEPS)
        short = replace(
            job,
            recipe=replace(job.recipe, schedule=schedule),
            run=replace(job.run, dir=folder, log_every=1, checkpoint_every_s=1e9),
        )
        with SignalGuard() as guard, EventLog(folder, attempt=1) as events:
            run = open_session(
                short,
                task,
                sources,
                model=model,
                device=device,
                clock=make_clock(device),
                around=Surroundings(
                    checkpoints=Checkpoints(folder / "checkpoints", file_system=probe(folder)),
                    events=events,
                    display=display,
                    guard=guard,
                ),
                facts={"task": task_name, "describe": to_json(task.describe())},
                loaded=None,
            )
            display.start(*opening_lines(run, sources, job))
            for sentence in opening_warnings(run, sources):
                display.warning(sentence)
            try:
                plan = _go_through(run, job, display, sources)
            except EvaluationCancelled:
                raise guard.interruption(fix="This was a dry run: no files are left.") from None
            finally:
                run.parts.step.close()
    return plan


def _nearest_folder(path: Path) -> Path:
    """Return the nearest existing parent folder of a path, which is on the disk of the run."""
    for folder in (path, *path.absolute().parents):
        if folder.is_dir():
            return folder
    return Path.cwd()


def _go_through(run: Session, job: JobConfig, display: Display, sources: Sources) -> dict[str, Any]:
    if fit(run) == "signal":
        raise EvaluationCancelled
    validation_s = None
    if run.val_reader is not None:
        started = time.perf_counter()
        result = run.evaluate(run.val_reader, max_batches=NUM_VALIDATION_BATCHES)
        took_s = time.perf_counter() - started - _spent_on_features_s(sources.val)
        validation_s = took_s * run.val_reader.num_examples / max(result.losses.size, 1)
    saved = save_training(run, run.state, run.checkpoints)
    loaded = run.checkpoints.load(saved.name)
    check_fits(run.model.state_dict(), loaded)
    _require_equal(run, loaded.weights)
    steps_s = sum(run.clock.total_s(phase) for phase in STEP_PHASES)
    step_s = (steps_s - _spent_on_features_s(sources.train)) / run.position.step
    features_s = _features_s(sources, num_train=run.num_train)
    steps = run.train_reader.steps_per_epoch
    epoch_s = steps * step_s + (validation_s or 0.0)
    schedule = job.recipe.schedule
    stages = len(stages_of(job.recipe.train, job.recipe.batch))
    epochs = min(schedule.max_epochs, (schedule.max_steps or math.inf) / steps) * stages
    plan = {
        "steps_per_epoch": steps,
        "step_s": step_s,
        "validation_s": validation_s,
        "epoch_s": epoch_s,
        "features_s": features_s,
        "at_most_s": features_s + epochs * epoch_s,
        "checkpoint_bytes": saved.num_bytes,
        "checkpoint_s": saved.seconds,
        "data_wait_s": run.clock.total_s(Phase.DATA_WAIT),
    }
    display.message("dry run passed: two steps, validation, save, load")
    once = ""
    if features_s:
        once = "the features of the frozen network are computed once, before training, in about "
        once += f"{duration(features_s)}; "
    display.message(
        f"plan: {once}an epoch has {steps:,} step{'' if steps == 1 else 's'} and takes about "
        f"{duration(epoch_s)}; all {epochs:.4g} epochs take at most "
        f"{duration(features_s + epochs * epoch_s)} (probably less: the first steps are slow); "
        f"a checkpoint has {saved.num_bytes / 1e6:,.1f} MB"
    )
    return plan


def _spent_on_features_s(source: Source | None) -> float:
    """Return the seconds spent on features, which a run computes before its first step."""
    return source.seconds if isinstance(source, FreshFeatures) else 0.0


def _features_s(sources: Sources, *, num_train: int) -> float:
    """Estimate the seconds for the features of all splits; 0 if they are not cached."""
    total_s = 0.0
    for source in vars(sources).values():
        if not isinstance(source, FreshFeatures):
            continue
        like = source if source.num_rows else sources.val or sources.train  # test is not read
        num_examples = num_train if source is sources.train else len(source)
        if isinstance(like, FreshFeatures) and like.num_rows:
            total_s += num_examples * like.seconds / like.num_rows
    return total_s


def _require_equal(run: Session, weights: dict[str, torch.Tensor]) -> None:
    for name, tensor in run.model.state_dict().items():
        if not torch.equal(tensor.cpu(), weights[name]):
            raise DataError(
                f"{name} of the model has other values after it was saved in a checkpoint and "
                "loaded again, so a resumed run would train another model",
                fix="Correct load_state_dict() of the model or its hooks, so that they restore it "
                "unchanged.",
            )
