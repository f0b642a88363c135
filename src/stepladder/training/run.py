"""One run from its folder to its summary: set up or resume, train each stage, evaluate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepladder.config.load import load_job
from stepladder.config.options import JobConfig
from stepladder.config.schema import values_of
from stepladder.config.show import dump_job
from stepladder.data.reading.examples import Source
from stepladder.errors import DivergedError, StepladderError
from stepladder.machine import EnergyMeter, SystemSampler
from stepladder.machine.activity import doing, on_its_own
from stepladder.parallel.handshake import differences_of_hosts, require_same_data
from stepladder.parallel.world import ALONE, World
from stepladder.records import read_json, to_json, write_json
from stepladder.task.contract import Task
from stepladder.training.asynchronous.attach import require_workers
from stepladder.training.baseline import STOP_REASON, read_baseline
from stepladder.training.checkpoint.folder_checks import limits, require_space
from stepladder.training.checkpoint.mirror import Mirror, begin_mirror
from stepladder.training.checkpoint.training_state import begin_on_new_data, checkpoints_bytes
from stepladder.training.clock import Clock, Phase
from stepladder.training.evaluate import EvaluationCancelled
from stepladder.training.features.feature_stage import go_on_features
from stepladder.training.features.feature_task import features_folder, require_features
from stepladder.training.loop import fit
from stepladder.training.output.display import Display
from stepladder.training.output.events import EventLog
from stepladder.training.output.finish import SUMMARY_FILE, finish_run, partial_summary
from stepladder.training.output.sinks import MlflowSink, TensorBoardSink
from stepladder.training.randomness import use_deterministic
from stepladder.training.ranks.follower import Settled, follow, require_parallel, share_start
from stepladder.training.ranks.hosts import counts_downloads, hosts_warnings
from stepladder.training.ranks.joint_features import RankEngine
from stepladder.training.session import Session
from stepladder.training.setup.announcement import opening_lines, opening_warnings
from stepladder.training.setup.attempt import Start, begin, data_changed, fingerprints_of
from stepladder.training.setup.automatic import as_before, make_settled_model
from stepladder.training.setup.build import (
    Sources,
    make_clock,
    make_trunk_pass,
    open_device,
    resolve_auto,
    use_threads,
)
from stepladder.training.setup.memory import require_memory
from stepladder.training.setup.open_session import Surroundings, open_session, start_next_stage
from stepladder.training.setup.rehearsal import rehearse
from stepladder.training.setup.run_folder import CONFIG, RunFolder, beside
from stepladder.training.setup.table_version import (
    at_table_version,
    earlier_version,
    name_table_version,
    open_at_version,
)
from stepladder.training.setup.world_change import adapt_to_world, batch_facts
from stepladder.training.signals import SignalGuard
from stepladder.training.stage import stages_of


def train(
    job: JobConfig,
    task: Task,
    *,
    task_name: str,
    display: Display,
    dry_run: bool = False,
    overwrite: bool = False,
    accept_new_data: bool = False,
    check: _Check | None = None,
    world: World = ALONE,
) -> dict[str, Any]:
    """Train a task by a recipe in a run folder, or resume an earlier attempt.

    Args:
        task_name: "image_classification", or "FILE.py:NAME" of the user's own.
        dry_run: try two steps, validation, save and load in a temporary folder, and leave no
            files.
        overwrite: remove an earlier run in the folder first.
        accept_new_data: resume although the data has changed.
        check: called before the first step of a fresh run; returns warnings about the job, a
            sentence each, and a line about what was not checked, if any; may raise.
        world: the ranks that train together, each of which calls this function. Rank 0 alone writes
            the run folder and decides what happens; the others follow it.

    Returns:
        The summary, as in summary.json; for a dry run, the plan. Empty on other ranks than 0.

    Raises:
        UsageError: if the folder has a run with a different config.
        DataError: if images, store or checkpoints cannot be used.
        ResourceError: if a disk, a device or the folder's lock is not available.
        DivergedError: if a loss is not finite.
        InterruptedRun: after a signal; the run is saved and can be resumed.
    """
    device = open_device(job.recipe, local_rank=world.local_rank)
    clock = make_clock(device)
    use_threads(job.recipe)
    with (
        clock.phase(Phase.SETUP),
        doing("opening the data"),  # a store may be decoded here
        on_its_own("opening the data"),
    ):
        earlier = None if overwrite else earlier_version(job.run.dir)
        sources = open_at_version(task, job.recipe.data.table_version, earlier=earlier)
    if job.recipe.asynchronous.is_on:
        require_workers(job.recipe, task, sources, world)
    if not world.is_alone:
        require_parallel(job.recipe, sources, world)
        require_same_data(world, fingerprints_of(sources))
    if not world.is_main:
        follow(task, sources, device=device, clock=clock, display=display, world=world)
        return {}
    if not overwrite:
        job = _as_before(job)
    if dry_run:
        world.met()
        world.from_main(None)
        return rehearse(
            resolve_auto(job, sources),
            task,
            sources,
            task_name=task_name,
            device=device,
            display=display,
        )
    way = _Way(device=device, clock=clock, display=display, world=world)
    return _train_in_folder(
        job,
        task,
        sources,
        way,
        task_name=task_name,
        overwrite=overwrite,
        accept_new_data=accept_new_data,
        check=check,
    )


_OPENING = "opening the run folder"
_Check = Callable[[JobConfig, Sources, nn.Module, torch.device], tuple[list[str], str | None]]


@dataclass(frozen=True, kw_only=True)
class _Way:
    """With what a run is made and shown."""

    device: torch.device
    clock: Clock
    display: Display
    world: World


def _train_in_folder(
    job: JobConfig,
    task: Task,
    sources: Sources,
    way: _Way,
    *,
    task_name: str,
    overwrite: bool,
    accept_new_data: bool,
    check: _Check | None,
) -> dict[str, Any]:
    """Train in the run folder, as rank 0 of the world."""
    device, clock, display, world = way.device, way.clock, way.display, way.world
    stored = sources.train
    with clock.phase(Phase.SETUP):
        read_baseline(job.run)  # fails on a wrong one before anything is written
        job, model, chosen = _settle_model(job, task, sources, device, world)
    world.met()  # the others wait for this rank, so that only its work with a name is limited
    with ExitStack() as stack:
        with on_its_own(_OPENING):
            folder = RunFolder(job.run.dir)
            stack.enter_context(folder.lock())
            if overwrite:
                folder.overwrite()
        with clock.phase(Phase.SETUP):
            with on_its_own(_OPENING):
                mirror = begin_mirror(job.run, folder, display, brings_back=not overwrite)
                job, changes = _settle_config(job, sources, folder, world)
                sources = at_table_version(sources, job.recipe.data.table_version)
            if (finished := _finished_summary(folder.path, job)) is not None:
                trained_on = None if accept_new_data else finished.get("fingerprint")
                _say_finished(folder.path, trained_on, sources, display)
                world.from_main(None)
                return finished
            operations = stack.enter_context(use_deterministic(job.recipe.deterministic))
            guard = stack.enter_context(SignalGuard())
            energy = EnergyMeter()
            energy.start()
            with on_its_own(_OPENING):
                start = begin(
                    job,
                    sources,
                    folder,
                    device=device,
                    described=to_json(task.describe()),
                    accept_new_data=accept_new_data,
                    world_size=world.size,
                )
            job, start, world_change = adapt_to_world(job, start, sources)
            look = None if start.loaded is not None else check
            with doing("checking the job"):
                found, not_run = (
                    look(job, sources, model, device) if look is not None else ([], None)
                )
            _say(display, chosen if not_run is None else [*chosen, not_run])
            downloaded = stored if counts_downloads(stored, world) else None
            found += _lead_start(job, model, start, world, counts=downloaded is not None)
            found += hosts_warnings(job.recipe.data, stored, world)
        task, sources = _as_features(job, task, sources, way, model=model, start=start, guard=guard)
        with clock.phase(Phase.SETUP):
            run = _open(
                job,
                task,
                sources,
                way,
                model=model,
                folder=folder,
                guard=guard,
                start=start,
                mirror=mirror,
                downloaded=downloaded,
                facts={
                    "task": task_name,
                    "describe": to_json(task.describe()),
                    **batch_facts(job, start),
                },
            )
            stack.callback(run.events.close)
            stack.callback(run.parts.step.close)
            for change in changes:
                display.message(f"config changed since the last attempt: {change}")
            if world_change is not None:
                display.message(world_change.sentence())
                at, values = run.position, world_change.values()
                run.events.write("world_change", step=at.step, epoch=at.epoch, **values)
            for sentence in found:
                run.warn(sentence)
            if mirror is not None:
                stack.enter_context(mirror.running(run.warn))
        stack.enter_context(_sampler(run, energy))
        return _train(run, sources, folder.path, operations=operations, energy=energy)


def _settle_model(
    job: JobConfig, task: Task, sources: Sources, device: torch.device, world: World
) -> tuple[JobConfig, nn.Module, list[str]]:
    """Build the model before anything of the run is written.

    Returns:
        The job with what `auto` chose, the model, and sentences about these choices.
    """
    with on_its_own("building the model"):
        recipe, model, chosen = make_settled_model(
            job.recipe, task, sources, device=device, folder=features_folder(job, task)
        )
    job = replace(job, recipe=recipe)
    if job.recipe.features.cached:
        trunk_pass = make_trunk_pass(job.recipe, task, model, device=device)
        require_features(trunk_pass, job.recipe.train, sources.train)
    elif not job.recipe.asynchronous.is_on:
        warning = require_memory(job.recipe, task, model, sources, device=device, world=world)
        chosen = chosen if warning is None else [*chosen, warning]
    return job, model, chosen


def _lead_start(
    job: JobConfig, model: nn.Module, start: Start, world: World, *, counts: bool
) -> list[str]:
    """Send the other ranks what is settled, and the initial weights.

    Args:
        counts: downloads are counted by host.

    Returns:
        A warning, if their own weights differed.
    """
    settled = Settled(
        job=job,
        loaded=start.loaded,
        has_new_data=start.has_new_data,
        counts_downloads=counts,
    )
    world.from_main(settled)
    if world.is_alone:
        return []
    others = share_start(model, world)
    found = [_other_start(others)] if others else []
    return found + differences_of_hosts(world, device=start.conditions.device)


def _as_features(
    job: JobConfig,
    task: Task,
    sources: Sources,
    way: _Way,
    *,
    model: nn.Module,
    start: Start,
    guard: SignalGuard,
) -> tuple[Task, Sources]:
    """Return what is trained on: features, if the job caches them."""
    if not job.recipe.features.cached:
        return task, sources
    engine = None if way.world.is_alone else RankEngine(world=way.world, sources=sources)
    with way.clock.phase(Phase.FEATURES):
        task, features = go_on_features(
            job,
            task,
            sources,
            model=model,
            device=way.device,
            loaded=start.loaded,
            display=way.display,
            guard=guard,
            engine=engine,
            is_test_wanted=engine is not None,
        )
        if engine is not None:
            engine.end()
    return task, features


def _other_start(ranks: Sequence[int]) -> str:
    return (
        f"the initial weights of rank{'s' if len(ranks) > 1 else ''} "
        f"{', '.join(map(str, ranks))} differed from those of rank 0, which all ranks use: "
        "build_model should not use the rank"
    )


def _settle_config(
    job: JobConfig, sources: Sources, folder: RunFolder, world: World
) -> tuple[JobConfig, list[str]]:
    """Resolve `auto` options, with the choices of an earlier attempt if there is one.

    Returns:
        The job, and the changes since that attempt.
    """
    earlier = _earlier_job(folder.path)
    job = resolve_auto(job, sources, earlier=earlier, num_hosts=world.even_hosts)
    job = name_table_version(job, sources, earlier=earlier)
    return job, folder.compare_config(dump_job(job))


def _say_finished(folder: Path, trained_on: str | None, sources: Sources, display: Display) -> None:
    """Report that a run is finished.

    Raises:
        DataError: if it was trained on other data.
    """
    if trained_on not in (None, sources.train.fingerprint):
        raise data_changed(folder)
    display.message(
        f"{folder} is already finished; --overwrite trains it again, and {beside(folder)} trains "
        "beside it."
    )


def _say(display: Display, chosen: Sequence[str]) -> None:
    for line in chosen:
        display.message(line)


def _as_before(job: JobConfig) -> JobConfig:
    """Use the choices of an earlier attempt in the folder for options that are `auto`."""
    earlier = _earlier_job(job.run.dir)
    return job if earlier is None else replace(job, recipe=as_before(job.recipe, earlier.recipe))


def _earlier_job(folder: Path) -> JobConfig | None:
    """Return the resolved job of an earlier attempt, or None."""
    written = folder / CONFIG
    return load_job(written) if written.exists() else None


def _finished_summary(folder: Path, job: JobConfig) -> dict[str, Any] | None:
    """Return the summary of a run that is finished, or None."""
    path = folder / SUMMARY_FILE
    if not path.exists():
        return None
    summary: dict[str, Any] = read_json(path)
    schedule = job.recipe.schedule
    num_stages = len(stages_of(job.recipe.train, job.recipe.batch))
    limits = {
        "max_epochs": schedule.max_epochs * num_stages > summary["epochs"],
        "max_steps": schedule.max_steps is None or schedule.max_steps > summary["steps"],
        STOP_REASON: job.run.baseline is None,
        "max_time": schedule.max_time_s is None or schedule.max_time_s > summary["total_s"],
    }
    may_go_on = limits.get(summary["stop_reason"], False)
    return None if summary["status"] != "finished" or may_go_on else summary


def _open(
    job: JobConfig,
    task: Task,
    sources: Sources,
    way: _Way,
    *,
    model: nn.Module,
    folder: RunFolder,
    guard: SignalGuard,
    start: Start,
    mirror: Mirror | None,
    downloaded: Source | None,
    facts: dict[str, Any],
) -> Session:
    display = way.display
    loaded = start.loaded
    events = EventLog(
        folder.path,
        attempt=start.attempt,
        sinks=_sinks(job, folder.path, start.after_step, mirror),
        start_elapsed_s=float(loaded.state["clock"]["wall_s"]) if loaded is not None else 0.0,
    )
    run = open_session(
        job,
        task,
        sources,
        model=model,
        device=way.device,
        clock=way.clock,
        around=Surroundings(
            checkpoints=start.checkpoints, events=events, display=display, guard=guard
        ),
        facts={**facts, "conditions": start.conditions.to_state()},
        loaded=loaded,
        world=way.world,
        downloaded=downloaded,
        has_new_data=start.has_new_data,
    )
    try:
        return _began(run, job, sources, folder=folder, start=start, display=display)
    except BaseException:
        run.parts.step.close()
        raise


def _began(
    run: Session,
    job: JobConfig,
    sources: Sources,
    *,
    folder: RunFolder,
    start: Start,
    display: Display,
) -> Session:
    """Check the space, and announce an open session."""
    loaded, events = start.loaded, run.events
    need_bytes = checkpoints_bytes(
        run.learned_weights(),
        run.frozen_weights(),
        config=run.config,
        optimizer=run.recipe.optimizer.name,
        has_hard_links=run.checkpoints.has_hard_links,
    )
    require_space(folder.path, need_bytes, purpose="the checkpoints of this run")
    events.write("start", step=run.position.step, epoch=run.position.epoch)
    display.start(*opening_lines(run, sources, job))
    if loaded is not None:
        display.message(f"resumed from {loaded.name} (attempt {start.attempt})")
        for sentence in start.changed:
            run.warn(
                "the weights will differ slightly from those of a run without interruption, "
                f"because this has changed since: {sentence}"
            )
        if start.has_new_data:
            begin_on_new_data(run, run.state)
            run.warn(
                "the data have changed since the last checkpoint: earlier validations no longer "
                "count for the best weights, and the current epoch starts again"
            )
    for sentence in (
        *start.checkpoints.warnings,
        *limits(folder.file_system),
        *opening_warnings(run, sources),
    ):
        run.warn(sentence)
    return run


def _sinks(job: JobConfig, folder: Path, after_step: int, mirror: Mirror | None) -> list[Any]:
    sinks: list[Any] = [] if mirror is None else [mirror]
    if job.run.tensorboard:
        sinks.append(TensorBoardSink(folder / "tensorboard", purge_after_step=after_step))
    if job.run.mlflow_uri is not None:
        sinks.append(MlflowSink(job.run.mlflow_uri, run_folder=folder, params=values_of(job)))
    return sinks


def _sampler(run: Session, energy: EnergyMeter) -> SystemSampler:
    def write(values: Mapping[str, float]) -> None:
        at = run.position
        run.events.write("system", step=at.step, epoch=at.epoch, **values)

    return SystemSampler(run.config.system_every_s, write, energy=energy)


def _train(
    run: Session,
    sources: Sources,
    folder: Path,
    *,
    operations: Sequence[str],
    energy: EnergyMeter,
) -> dict[str, Any]:
    try:
        with doing("training"):
            reason = _fit_stages(run)
        run.commit()
        for operation in operations:
            run.warn(
                f"another run with the same seed may give slightly different weights, despite "
                f"--deterministic: the operation {operation} has no deterministic implementation"
            )
        with doing("testing the trained model"):
            summary = finish_run(run, sources, folder, reason=reason, energy=energy)
    except EvaluationCancelled:
        _write_partial(run, sources, folder, status="interrupted", reason="signal")
        raise run.guard.interruption(fix=_RESUME) from None
    except DivergedError:
        _write_partial(run, sources, folder, status="diverged", reason="diverged")
        raise
    if by_host := summary["received_bytes_by_host"]:
        each = ", ".join(f"{host} {num / 1e6:,.1f} MB" for host, num in by_host.items())
        run.display.message(f"downloaded from the store: {each}")
    run.display.finish(summary)
    return summary


_RESUME = "To resume, type the same command."


def _fit_stages(run: Session) -> str:
    """Train all stages; after a signal, save a checkpoint and end the run."""
    num_stages = len(stages_of(run.recipe.train, run.recipe.batch))
    while True:
        reason = fit(run)
        if reason == "signal":
            run.guard.requested = run.guard.requested or run.agreed.signal  # or another rank's
            run.commit()
            raise EvaluationCancelled
        if reason == STOP_REASON or run.position.stage + 1 >= num_stages:
            return reason
        run.display.message(
            f"stage {run.position.stage + 1} ended ({reason}); all weights are trained now"
        )
        start_next_stage(run)


def _write_partial(
    run: Session, sources: Sources, folder: Path, *, status: str, reason: str
) -> None:
    at = run.position
    try:
        run.events.write("stop", step=at.step, epoch=at.epoch, reason=reason)
        summary = partial_summary(run, sources, status=status, reason=reason)
        write_json(folder / SUMMARY_FILE, summary)
    except (OSError, StepladderError) as error:  # the error that ended the run is more important
        run.display.warning(f"the results of the run, summary.json, could not be written: {error}")
