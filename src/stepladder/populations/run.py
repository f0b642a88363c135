"""Train the population of a job in its folder, or resume it."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from stepladder.config.choices import Monitor, PopulationEngine, TrainMode
from stepladder.config.load import load_job
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.config.schema import values_of
from stepladder.config.show import dump_job
from stepladder.errors import UsageError
from stepladder.machine.activity import doing
from stepladder.measuring.probe import untouched
from stepladder.populations.engines import Material, members_of, require_file, slices_of
from stepladder.populations.genes import Gene, Scale, genes_of, own_values, require_effect
from stepladder.populations.on_ray import RAY_STORAGE, train_on_ray
from stepladder.populations.opening import split_judges
from stepladder.populations.population import (
    MAX_EPOCHS,
    STATE_FILE,
    Limits,
    Population,
    State,
    all_diverged,
    forget,
    ranking_loss,
    read_state,
    refuse_other,
    write_moments,
)
from stepladder.populations.slices import (
    SLICES,
    score_of,
    weights_of,
    with_groups,
)
from stepladder.populations.stack import mean_score
from stepladder.records import to_json, write_bytes, write_json
from stepladder.records.population import (
    POPULATION_FILE,
    Moment,
    PopulationSummary,
    Score,
    Winner,
)
from stepladder.records.run_files import RUN_MARKS, has_any
from stepladder.task.contract import Task
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.features.feature_task import features_folder
from stepladder.training.output.display import Display
from stepladder.training.setup.automatic import settled
from stepladder.training.setup.build import (
    Sources,
    make_model,
    open_device,
    resolve_auto,
    use_threads,
)
from stepladder.training.setup.run_folder import CHECKPOINTS, CONFIG, RunFolder
from stepladder.training.setup.table_version import name_table_version, open_at_version
from stepladder.training.signals import SignalGuard

WINNER: Final = "winner"
_FREE: Final = ("device.threads", "population.workers", "data.where")
_FIX: Final = "To resume, type the same command: all members are saved at each selection."


def train_population(
    job: JobConfig,
    task: Task,
    *,
    task_name: str,
    display: Display,
    overwrite: bool = False,
    show: Callable[[Sequence[Moment], State], None] = lambda *_: None,
) -> PopulationSummary:
    """Train a population, and write population.json, population.jsonl and the winner.

    Args:
        task_name: "image_classification", or "FILE.py:NAME" of the user's own.
        overwrite: remove an earlier population in the folder first.
        show: called with the moments of each interval.

    Raises:
        UsageError: if the job, its genes or the folder do not fit.
        DataError: if there are no validation examples, or saved members are damaged.
        DivergedError: if all members diverged in one interval.
        ResourceError: if the members do not fit into memory.
        InterruptedRun: after a signal; the same command resumes.
    """
    genes = genes_of(job.population.genes, job.recipe)
    _require_job(job.recipe)
    _require_target(job)
    require_effect(genes, job.recipe)
    with untouched():
        return _train(
            job,
            task,
            genes,
            task_name=task_name,
            display=display,
            overwrite=overwrite,
            show=show,
        )


def _train(
    job: JobConfig,
    task: Task,
    genes: tuple[Gene, ...],
    *,
    task_name: str,
    display: Display,
    overwrite: bool,
    show: Callable[[Sequence[Moment], State], None],
) -> PopulationSummary:
    """Open the job and its folder, train, and write the results."""
    device = open_device(job.recipe)
    use_threads(job.recipe)
    with doing("opening the data"):
        sources = open_at_version(task, job.recipe.data.table_version)
    sources, judged_on = split_judges(sources, task)
    key = _key(job, task_name, sources)
    folder = RunFolder(job.run.dir, is_population=True)
    with ExitStack() as until_end:
        until_end.enter_context(folder.lock())
        _refuse_run(folder.path)
        if overwrite:
            _forget_all(folder.path)
        refuse_other(folder.path, key)
        if job.population.engine is PopulationEngine.RAY:
            _refuse_finished(folder.path)
        job = _fixed(_as_before(job), task, sources, device)
        folder.write_config(dump_job(job))
        guard = until_end.enter_context(SignalGuard())
        material = Material(
            job=job,
            task=task,
            task_name=task_name,
            sources=sources,
            device=device,
            genes=genes,
            judged_on=judged_on,
            display=display,
            guard=guard,
        )
        if job.population.engine is PopulationEngine.RAY:
            summary, weights = _by_ray(material)
        else:
            summary, weights = _here(material, key, until_end, show)
        _write_winner(material, summary, weights)
    write_json(folder.path / POPULATION_FILE, to_json(summary))
    return summary


_Shown = Callable[[Sequence[Moment], State], None]
_Result = tuple[PopulationSummary, Mapping[str, Tensor]]


def _here(material: Material, key: str, until_end: ExitStack, show: _Shown) -> _Result:
    """Train the members on this machine; return the summary and the winner's weights."""
    job, sources = material.job, material.sources
    engine, members = members_of(material)
    until_end.enter_context(closing(members))
    population = Population(
        members=members,
        genes=material.genes,
        config=job.population,
        seed=job.recipe.seed,
        limits=Limits(
            examples=job.recipe.schedule.max_epochs * len(sources.train),
            seconds=job.recipe.schedule.max_time_s,
        ),
        interval=material.interval,
        folder=job.run.dir,
        key=key,
        monitor=job.recipe.stopping.monitor,
        own=own_values(job.recipe, material.genes),
        show=show,
        is_cancelled=lambda: bool(material.guard.requested),
    )
    with doing("training the population"):
        state = population.run()
    if state.ended is None:
        raise material.guard.interruption(fix=_FIX)
    assert state.best is not None
    with doing("judging the winner"):
        summary = _summary(
            material,
            population.moments,
            state.best,
            members.judge(),
            engine=engine,
            ended=state.ended,
            seconds=state.seconds,
        )
    weights = members.kept_weights()
    return summary, _of_model(material, weights) if members.is_head else weights


def _by_ray(material: Material) -> _Result:
    """Let Ray Tune train the members; return the summary and the winner's weights."""
    job, test = material.job, material.sources.test
    require_file(material, "population.engine")
    folder = job.run.dir / SLICES
    _forget_all(job.run.dir)
    folder.mkdir(parents=True)
    began = time.monotonic()
    total = job.recipe.schedule.max_epochs * len(material.sources.train)
    with doing("training the population on Ray"):
        found = train_on_ray(
            job,
            material.genes,
            config=job.run.dir / CONFIG,
            task=material.task_name,
            folder=folder,
            interval=material.interval,
            num_intervals=-(-total // material.interval),
            is_cuda=material.device.type == "cuda",
        )
    write_moments(job.run.dir, found.moments)
    finite = [moment for moment in found.moments if moment.score.is_finite]
    if not finite:
        raise all_diverged(job.run.dir, 0, material.genes)
    loss = partial(ranking_loss, job.recipe.stopping.monitor)
    best = min(finite, key=lambda moment: loss(moment.score))
    last = max(moment.generation for moment in found.moments)
    own = slices_of(material, folder)
    judged = None

    def name_of(moment: Moment) -> str:
        return found.checkpoints[moment.generation, moment.member]

    def on_test(moment: Moment) -> Score:
        assert own.sources.test is not None
        recipe = with_groups(material.recipe_of(tuple(moment.genes.values())))
        return score_of(own, recipe, name_of(moment), own.sources.test)

    with doing("judging the winner"):
        if test is not None:
            others = [on_test(moment) for moment in finite if moment.generation == last]
            judged = on_test(best), mean_score(others)
        summary = _summary(
            material,
            found.moments,
            best,
            judged,
            engine=PopulationEngine.RAY,
            ended=MAX_EPOCHS,
            seconds=time.monotonic() - began,
        )
    return summary, weights_of(own, name_of(best))


def _require_job(recipe: Recipe) -> None:
    """Raise UsageError if a population cannot train a recipe."""
    others = {
        "train head_then_all": recipe.train is TrainMode.HEAD_THEN_ALL,
        "several devices": recipe.device.count > 1 or recipe.device.replicas > 1,
        "asynchronous workers": recipe.asynchronous.is_on,
        "a sample of the data": recipe.data.fraction < 1,
        "schedule.max_steps": recipe.schedule.max_steps is not None,
    }
    other = next((name for name, is_set in others.items() if is_set), None)
    if other is not None:
        raise UsageError(
            f"a population does not go with {other}",
            where="stepladder population",
            fix=f"Leave out {other}; each member is trained in one stage, on one device, on all "
            "training examples, for schedule.max_epochs epochs.",
        )


def _require_target(job: JobConfig) -> None:
    """Raise UsageError if the target is an accuracy outside of its range."""
    target, monitor = job.population.target, job.recipe.stopping.monitor
    if target is None or monitor is Monitor.VAL_LOSS or 0 < target <= 1:
        return
    raise UsageError(
        f"an accuracy of {target:g} cannot be reached",
        where="population.target",
        fix=f"Write it as a fraction: --population.target {target / 100:g}"
        if 1 < target <= 100
        else "Write a fraction, such as --population.target 0.9",
    )


def _refuse_run(folder: Path) -> None:
    """Raise UsageError if a folder has a training or a climb."""
    if has_any(folder, RUN_MARKS):
        raise UsageError(
            "the folder has a training or a climb",
            where=str(folder),
            fix="Choose another folder for the population: --run.dir FOLDER",
        )


def _refuse_finished(folder: Path) -> None:
    """Raise UsageError if Ray would replace a population: it cannot resume one."""
    if any((folder / name).is_file() for name in (STATE_FILE, POPULATION_FILE)):
        raise UsageError(
            "the folder has a population, and one that Ray trains begins again each time",
            where=str(folder),
            fix="Choose another folder with --run.dir FOLDER, or add --overwrite.",
        )


def _as_before(job: JobConfig) -> JobConfig:
    """Return a job with the choices of its population that has begun in the folder.

    Left to chance, they might differ: they depend on free memory and disk.
    """
    path = job.run.dir / CONFIG
    if read_state(job.run.dir) is None or not path.is_file():
        return job
    own, earlier = job.recipe, load_job(path).recipe
    recipe = replace(
        earlier,
        data=replace(earlier.data, where=own.data.where),
        loader=own.loader,
        device=replace(earlier.device, threads=own.device.threads),
    )
    return replace(job, recipe=recipe)


def _fixed(job: JobConfig, task: Task, sources: Sources, device: torch.device) -> JobConfig:
    """Make all choices that are `auto`."""
    recipe = settled(job.recipe, task, sources, device=device, folder=features_folder(job, task))
    job = resolve_auto(replace(job, recipe=recipe), sources)
    return name_table_version(job, sources)


def _key(job: JobConfig, task_name: str, sources: Sources) -> str:
    """Return what identifies a population: another one does not resume from its state.

    Args:
        job: as it was given, before choices are made that depend on the machine.
    """
    prints = [None if one is None else one.fingerprint for one in vars(sources).values()]
    free = ("run.", "ladder.", "prepare.", "loader.", *_FREE)
    task_name = os.path.normpath(task_name)  # ./task.py:Task is task.py:Task
    values = {key: value for key, value in values_of(job).items() if not key.startswith(free)}
    text = json.dumps([task_name, prints, values], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _summary(
    material: Material,
    moments: Sequence[Moment],
    best: Moment,
    judged: tuple[Score, Score] | None,
    *,
    engine: PopulationEngine,
    ended: str,
    seconds: float,
) -> PopulationSummary:
    job, last = material.job, max(moment.generation for moment in moments)
    winner = Winner(
        generation=best.generation,
        member=best.member,
        validation=best.score,
        judged=None if judged is None else judged[0],
        mean_validation=mean_score([one.score for one in moments if one.generation == last]),
        mean_judged=None if judged is None else judged[1],
    )
    total = job.recipe.schedule.max_epochs * len(material.sources.train)
    return PopulationSummary(
        job=job.run.dir.name,
        engine=engine.value,
        monitor=job.recipe.stopping.monitor.value,
        genes=material.keys,
        log_genes=tuple(gene.key for gene in material.genes if gene.scale is Scale.LOG),
        num_members=job.population.members,
        interval=material.interval,
        examples=min(total, (last + 1) * material.interval),
        ended=ended,
        target=job.population.target,
        seconds=seconds,
        judged_on=material.judged_on,
        winner=winner,
        moments=tuple(moments),
    )


def _write_winner(
    material: Material, summary: PopulationSummary, weights: Mapping[str, Tensor]
) -> None:
    """Write the winner as a run, which `predict` and `export` take."""
    values = tuple(summary.path()[-1].genes.values())
    recipe = material.recipe_of(values)
    task = copy.copy(material.task)
    model = make_model(recipe, task, material.device)
    frozen = {name: t for name, t in model.state_dict().items() if name not in weights}
    folder = material.job.run.dir / WINNER
    shutil.rmtree(folder, ignore_errors=True)
    Checkpoints(folder / CHECKPOINTS).save(
        f"step-{summary.winner.generation + 1:09d}",
        {"model": weights},
        {"task": material.task_name, "describe": to_json(task.describe()), "top": []},
        frozen,
    )
    job = replace(material.job, recipe=recipe, run=replace(material.job.run, dir=folder))
    write_bytes(folder / CONFIG, dump_job(job).encode())


def _of_model(material: Material, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a head by their names in the model."""
    task = copy.copy(material.task)
    model = make_model(material.recipe, task, material.device)
    parts = task.split(model)
    assert parts is not None
    names = {id(tensor): name for name, tensor in model.state_dict(keep_vars=True).items()}
    head = parts[1].state_dict(keep_vars=True)
    return {names[id(head[name])]: weight for name, weight in weights.items()}


def _forget_all(folder: Path) -> None:
    forget(folder)
    for name in (SLICES, WINNER, RAY_STORAGE):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / POPULATION_FILE).unlink(missing_ok=True)
