"""Train the population of a job in its folder, or resume it."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from stepladder.config.choices import PopulationEngine, TrainMode, Where
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.config.schema import values_of
from stepladder.config.show import dump_job
from stepladder.data.order.order_choice import order_of
from stepladder.data.reading.examples import ArrivalSource
from stepladder.data.reading.reader import Source
from stepladder.data.reading.rows import rows_of
from stepladder.errors import DataError, UsageError
from stepladder.machine.activity import doing
from stepladder.measuring.probe import untouched
from stepladder.populations.crew import Crew, CrewSpec
from stepladder.populations.genes import Gene, Scale, Values, applied, genes_of, own_values
from stepladder.populations.heads import (
    HeadMembers,
    HeldOut,
    Level,
    require_memory,
    why_no_heads,
)
from stepladder.populations.members import Members
from stepladder.populations.on_ray import RAY_STORAGE, train_on_ray
from stepladder.populations.population import (
    MAX_EPOCHS,
    Limits,
    Population,
    State,
    all_diverged,
    forget,
    ranking_loss,
)
from stepladder.populations.slices import (
    SLICES,
    Job,
    SliceMembers,
    score_of,
    weights_of,
    with_groups,
)
from stepladder.populations.stack import mean_score
from stepladder.populations.stacked import StackedMembers, why_not_stacked
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
from stepladder.task.image_classification import ImageClassification, balanced_weights
from stepladder.task.load import BUILT_IN
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.features.feature_pass import read_batch
from stepladder.training.features.feature_rules import why_no_features
from stepladder.training.features.feature_stage import go_on_features
from stepladder.training.features.feature_task import features_folder
from stepladder.training.features.head_task import HeadTask
from stepladder.training.output.display import Display
from stepladder.training.setup.automatic import settled
from stepladder.training.setup.build import (
    Sources,
    make_held_out_reader,
    make_model,
    make_train_reader,
    make_trunk_pass,
    open_device,
    resolve_auto,
    use_threads,
)
from stepladder.training.setup.memory import free_bytes
from stepladder.training.setup.run_folder import CHECKPOINTS, CONFIG, RunFolder
from stepladder.training.setup.table_version import name_table_version, open_at_version
from stepladder.training.signals import SignalGuard

WINNER: Final = "winner"
TEST: Final = "test"
HALF_OF_VAL: Final = "half of val"
_SPLIT_SEED: Final = 42
_MAGNITUDE: Final = "augment.randaugment_magnitude"
_NUM_LEVELS: Final = 4
_FIX: Final = "To resume, type the same command: all members are saved at each selection."


@dataclass(frozen=True, kw_only=True)
class _Material:
    """What members are made of: a job whose choices are made, its task and its splits.

    Attributes:
        judged_on: the split that judges the winner; empty without one.
    """

    job: JobConfig
    task: Task
    task_name: str
    sources: Sources
    device: torch.device
    genes: tuple[Gene, ...]
    judged_on: str
    display: Display
    guard: SignalGuard

    @property
    def recipe(self) -> Recipe:
        return self.job.recipe

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(gene.key for gene in self.genes)

    @property
    def interval(self) -> int:
        """Examples of each member between two selections."""
        return self.job.population.interval or len(self.sources.train)

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.recipe.seed + idx for idx in range(self.job.population.members))

    def recipe_of(self, values: Values) -> Recipe:
        """Return the recipe of a member."""
        return applied(self.recipe, self.genes, values)


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
    job = _fixed(job, task, sources, device)
    folder = RunFolder(job.run.dir)
    with ExitStack() as until_end:
        until_end.enter_context(folder.lock())
        _refuse_run(folder.path)
        if overwrite:
            _forget_all(folder.path)
        folder.write_config(dump_job(job))
        guard = until_end.enter_context(SignalGuard())
        material = _Material(
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
            summary, weights = _here(material, until_end, show)
        _write_winner(material, summary, weights)
    write_json(folder.path / POPULATION_FILE, to_json(summary))
    return summary


_Shown = Callable[[Sequence[Moment], State], None]
_Result = tuple[PopulationSummary, Mapping[str, Tensor]]


def _here(material: _Material, until_end: ExitStack, show: _Shown) -> _Result:
    """Train the members on this machine; return the summary and the winner's weights."""
    job, sources = material.job, material.sources
    engine, members = _members(material)
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
        key=_key(job, material.task_name, sources),
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
    return summary, members.kept_weights()


def _by_ray(material: _Material) -> _Result:
    """Let Ray Tune train the members; return the summary and the winner's weights."""
    job, test = material.job, material.sources.test
    _require_file(material, "population.engine")
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
        )
    finite = [moment for moment in found.moments if moment.score.is_finite]
    if not finite:
        raise all_diverged(job.run.dir, 0, material.genes)
    loss = partial(ranking_loss, job.recipe.stopping.monitor)
    best = min(finite, key=lambda moment: loss(moment.score))
    last = max(moment.generation for moment in found.moments)
    own = _slice_job(material, folder)
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


def split_judges(sources: Sources, task: Task) -> tuple[Sources, str]:
    """Return the splits, with a test split that chooses nothing, and its name.

    A population overfits the examples that choose its members. Without a test split, half of the
    validation examples judge the winner instead, and choose nothing.

    Raises:
        DataError: if there is no validation split.
    """
    val = sources.val
    if val is None or isinstance(val, ArrivalSource):
        raise DataError(
            "the task has no validation examples with numbers, by which a population chooses its "
            "members",
            where=type(task).__name__,
            fix="Return a Dataset with __getitem__ from data(Split.VAL).",
        )
    if sources.test is not None:
        return sources, TEST
    if len(val) < 2:
        return sources, ""
    rows = np.random.default_rng(_SPLIT_SEED).permutation(len(val))
    half = len(val) // 2
    chooses, judges = (rows_of([val], np.sort(part)) for part in (rows[half:], rows[:half]))
    return replace(sources, val=chooses, test=judges), HALF_OF_VAL


def _require_job(recipe: Recipe) -> None:
    """Raise UsageError if a population cannot train a recipe."""
    others = {
        "train head_then_all": recipe.train is TrainMode.HEAD_THEN_ALL,
        "several devices": recipe.device.count > 1 or recipe.device.replicas > 1,
        "asynchronous workers": recipe.asynchronous.is_on,
        "a sample of the data": recipe.data.fraction < 1,
    }
    other = next((name for name, is_set in others.items() if is_set), None)
    if other is not None:
        raise UsageError(
            f"a population does not go with {other}",
            where="stepladder population",
            fix=f"Leave out {other}; each member is trained in one stage, on one device, on all "
            "training examples.",
        )


def _refuse_run(folder: Path) -> None:
    """Raise UsageError if a folder has a training or a climb."""
    if has_any(folder, RUN_MARKS):
        raise UsageError(
            "the folder has a training or a climb",
            where=str(folder),
            fix="Choose another folder for the population: --run.dir FOLDER",
        )


def _fixed(job: JobConfig, task: Task, sources: Sources, device: torch.device) -> JobConfig:
    """Make all choices that are `auto`."""
    recipe = settled(job.recipe, task, sources, device=device, folder=features_folder(job, task))
    job = resolve_auto(replace(job, recipe=recipe), sources)
    return name_table_version(job, sources)


def _key(job: JobConfig, task_name: str, sources: Sources) -> str:
    """Return what identifies a population: another one does not resume from its state."""
    prints = [None if one is None else one.fingerprint for one in vars(sources).values()]
    free = ("run.", "ladder.", "prepare.", "loader.", "device.threads", "population.workers")
    values = {key: value for key, value in values_of(job).items() if not key.startswith(free)}
    text = json.dumps([task_name, prints, values], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


# -- engines -------------------------------------------------------------------------------------


def _members(material: _Material) -> tuple[PopulationEngine, Members]:
    """Return the engine and the members: of the first engine that can train the job.

    Raises:
        UsageError: if the engine that was asked for cannot.
    """
    asked = material.job.population.engine
    reasons: dict[PopulationEngine, str] = {}
    for engine, make in _ENGINES.items():
        if asked not in (engine, PopulationEngine.AUTO):
            continue
        found = make(material)
        if not isinstance(found, str):
            return engine, found
        reasons[engine] = found
    raise UsageError(
        "; ".join(f"{engine}: {reason}" for engine, reason in reasons.items()),
        where="population.engine",
        fix="Leave the option out, so that an engine is chosen that can train this job.",
    )


def _heads(material: _Material) -> Members | str:
    """Return members that are linear heads, or why they cannot be."""
    recipe, task = material.recipe, material.task
    refusal = why_no_heads(recipe, material.keys) or _why_not_cross_entropy(task)
    if refusal is not None:
        return refusal
    assert isinstance(task, ImageClassification)
    refusal = _why_no_features(material)
    if refusal is not None:
        return refusal
    levels, features = _levels(material)
    num_features, num_classes = levels[0].features.shape[-1], len(task.classes)
    require_memory(
        material.job.population.members,
        free_bytes=free_bytes(material.device),
        num_features=num_features,
        num_classes=num_classes,
        batch=recipe.batch.global_batch_size,
        held_bytes=sum(level.features.nbytes for level in levels),
    )
    train = features.train
    targets = read_batch(train, np.arange(len(train))).targets
    assert features.val is not None
    counts = torch.bincount(targets, minlength=num_classes)
    return HeadMembers(
        recipe,
        material.recipe_of,
        seeds=material.seeds,
        levels=levels,
        targets=targets.to(material.device),
        order=order_of(recipe.data, material.sources.train, seed=recipe.seed),
        val=_held_out(features.val, material.device),
        test=None if features.test is None else _held_out(features.test, material.device),
        class_weights=balanced_weights(counts),
    )


def _stacked(material: _Material) -> Members | str:
    """Return members that are small models, or why they cannot be."""
    recipe, task, sources = material.recipe, material.task, material.sources
    if isinstance(sources.train, ArrivalSource):
        return "the examples of an IterableDataset can be read only once"
    first = make_model(replace(recipe, seed=material.seeds[0]), copy.copy(task), material.device)
    has_head = recipe.train is TrainMode.HEAD and task.split(first) is not None
    if has_head and not recipe.features.cached:
        return "the trunk is part of each step, as its features are not cached"
    trained: Task = HeadTask(task, first, seed=recipe.seed) if has_head else task
    refusal = why_not_stacked(recipe, trained.build_model(recipe), material.keys)
    if refusal is not None:
        return refusal
    models = [_model_of(material, seed, has_head=has_head) for seed in material.seeds]
    if has_head:
        sources = _as_features(material, recipe)[1]
    where = Where.STREAM if has_head else recipe.data.where  # features are in memory
    held = replace(recipe, data=replace(recipe.data, where=where))
    val = make_held_out_reader(sources.val, held.batch, held.loader, held.data.where)
    assert val is not None
    members = StackedMembers(
        recipe,
        material.recipe_of,
        task=trained,
        models=models,
        train=make_train_reader(held, sources.train),
        val=val,
        test=make_held_out_reader(sources.test, held.batch, held.loader, held.data.where),
        device=material.device,
    )
    refusal = members.why_it_fails()
    if refusal is not None:
        members.close()
        return refusal
    return members


def _model_of(material: _Material, seed: int, *, has_head: bool) -> nn.Module:
    """Return the model, or the head, that a run with this seed begins with."""
    task = copy.copy(material.task)
    model = make_model(replace(material.recipe, seed=seed), task, material.device)
    if not has_head:
        return model
    parts = task.split(model)
    assert parts is not None
    return parts[1]


def _slices(material: _Material) -> Members | str:
    """Return members that are trained in turn, or by several processes."""
    config = material.job.population
    folder = material.job.run.dir / SLICES
    folder.mkdir(parents=True, exist_ok=True)
    job = _slice_job(material, folder)
    if config.workers == 1:
        return SliceMembers(job, material.recipe_of, seeds=material.seeds)
    _require_file(material, "population.workers")
    crew = Crew(
        CrewSpec(
            num=min(config.workers, config.members),
            config=material.job.run.dir / CONFIG,
            task=material.task_name,
            folder=folder,
        )
    )
    return SliceMembers(
        job,
        material.recipe_of,
        seeds=material.seeds,
        train_all=crew.train,
        close=crew.close,
    )


def _require_file(material: _Material, where: str) -> None:
    """Raise UsageError if other processes cannot load the Task."""
    if material.task_name != BUILT_IN and ".py:" not in material.task_name:
        raise UsageError(
            "other processes cannot load this Task, which has no file",
            where=where,
            fix="Pass it as FILE.py:NAME, or train in this process: --population.workers 1, and no "
            "--population.engine ray",
        )


def slice_job(job: JobConfig, task: Task, *, folder: Path, display: Display) -> Job:
    """Return what slices are made of, in a process that trains some of them.

    Args:
        job: of a population that has begun: all choices are made.
    """
    sources = open_at_version(task, job.recipe.data.table_version)
    sources, judged_on = split_judges(sources, task)
    material = _Material(
        job=job,
        task=task,
        task_name="",
        sources=sources,
        device=open_device(job.recipe),
        genes=(),
        judged_on=judged_on,
        display=display,
        guard=SignalGuard(),
    )
    return _slice_job(material, folder)


def _slice_job(material: _Material, folder: Path) -> Job:
    task, sources = material.task, material.sources
    if material.recipe.features.cached:
        task, sources = _as_features(material, material.recipe)
    return Job(task=task, sources=sources, device=material.device, folder=folder)


_ENGINES: Final[Mapping[PopulationEngine, Callable[[_Material], Members | str]]] = {
    PopulationEngine.HEADS: _heads,
    PopulationEngine.STACKED: _stacked,
    PopulationEngine.SLICES: _slices,
}
"""The engines, the fastest first."""


def _why_not_cross_entropy(task: Task) -> str | None:
    """Return why the gradient of the loss is not that of the built-in cross-entropy."""
    kind = type(task)
    own = ("loss", "metrics", "split", "build_model")
    if isinstance(task, ImageClassification) and all(
        getattr(kind, name) is getattr(ImageClassification, name) for name in own
    ):
        return None
    return "the Task has its own model or loss"


def _why_no_features(material: _Material) -> str | None:
    recipe, task = material.recipe, copy.copy(material.task)
    model = make_model(recipe, task, material.device)
    way = make_trunk_pass(recipe, task, model, device=material.device)
    return why_no_features(way, recipe.train, material.sources.train)


def _as_features(material: _Material, recipe: Recipe) -> tuple[Task, Sources]:
    """Return the task and the splits as features, computed if they are not there."""
    task = copy.copy(material.task)
    model = make_model(recipe, task, material.device)
    return go_on_features(
        replace(material.job, recipe=recipe),
        task,
        material.sources,
        model=model,
        device=material.device,
        loaded=None,
        display=material.display,
        guard=material.guard,
        is_test_wanted=True,
    )


def _levels(material: _Material) -> tuple[list[Level], Sources]:
    """Return the features of train for each strength of augmentation, and of the other splits."""
    recipe = material.recipe
    gene = next((gene for gene in material.genes if gene.key == _MAGNITUDE), None)
    strengths = [recipe.augment.randaugment_magnitude]
    if gene is not None:
        strengths = np.linspace(gene.low, gene.high, _NUM_LEVELS).round(6).tolist()
    levels, features = [], None
    for strength in strengths:
        augment = replace(recipe.augment, randaugment_magnitude=strength)
        _, features = _as_features(material, replace(recipe, augment=augment))
        train = read_batch(features.train, np.arange(len(features.train))).inputs
        if train.dim() == 2:
            train = train.unsqueeze(1)  # a single view
        levels.append(Level(strength=strength, features=train.to(material.device)))
    assert features is not None
    return levels, features


def _held_out(source: Source, device: torch.device) -> HeldOut:
    batch = read_batch(source, np.arange(len(source)))
    return HeldOut(features=batch.inputs.float().to(device), targets=batch.targets.to(device))


# -- the end -------------------------------------------------------------------------------------


def _summary(
    material: _Material,
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
        seconds=seconds,
        judged_on=material.judged_on,
        winner=winner,
        moments=tuple(moments),
    )


def _write_winner(
    material: _Material, summary: PopulationSummary, weights: Mapping[str, Tensor]
) -> None:
    """Write the winner as a run, which `predict` and `export` take."""
    values = tuple(summary.path()[-1].genes.values())
    recipe = material.recipe_of(values)
    task = copy.copy(material.task)
    model = make_model(recipe, task, material.device)
    if not weights.keys() <= model.state_dict().keys():
        parts = task.split(model)
        assert parts is not None
        prefix = next(name for name, module in model.named_modules() if module is parts[1])
        weights = {f"{prefix}.{name}": weight for name, weight in weights.items()}
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


def _forget_all(folder: Path) -> None:
    forget(folder)
    for name in (SLICES, WINNER, RAY_STORAGE):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / POPULATION_FILE).unlink(missing_ok=True)
