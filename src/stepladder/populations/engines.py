"""What trains the members of a population: the fastest engine that can train the job."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from stepladder.config.choices import PopulationEngine, TrainMode, Where
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.data.order.order_choice import order_of
from stepladder.data.reading.examples import ArrivalSource
from stepladder.data.reading.reader import Source
from stepladder.errors import UsageError
from stepladder.populations.crew import Crew, CrewSpec
from stepladder.populations.genes import Gene, Values, applied
from stepladder.populations.heads import (
    HeadMembers,
    HeldOut,
    Level,
    why_no_heads,
)
from stepladder.populations.members import Members
from stepladder.populations.memory import head_bytes, require_members
from stepladder.populations.opening import as_features, job_of
from stepladder.populations.slices import (
    SLICES,
    Job,
    SliceMembers,
)
from stepladder.populations.stacked import StackedMembers, why_not_stacked
from stepladder.task.contract import Task
from stepladder.task.image_classification import ImageClassification, balanced_weights
from stepladder.task.load import BUILT_IN
from stepladder.training.features.feature_pass import read_batch
from stepladder.training.features.feature_rules import why_no_features
from stepladder.training.features.head_task import HeadTask
from stepladder.training.output.display import Display
from stepladder.training.setup.build import (
    Sources,
    make_held_out_reader,
    make_model,
    make_train_reader,
    make_trunk_pass,
)
from stepladder.training.setup.memory import free_bytes, size_of_job, two_examples
from stepladder.training.setup.run_folder import CONFIG
from stepladder.training.signals import SignalGuard

_MAGNITUDE: Final = "augment.randaugment_magnitude"
_NUM_LEVELS: Final = 4


@dataclass(frozen=True, kw_only=True)
class Material:
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
        """The recipe of the job."""
        return self.job.recipe

    @property
    def keys(self) -> tuple[str, ...]:
        """The options that differ between members."""
        return tuple(gene.key for gene in self.genes)

    @property
    def interval(self) -> int:
        """Examples of each member between two selections."""
        return self.job.population.interval or len(self.sources.train)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each member."""
        return tuple(self.recipe.seed + idx for idx in range(self.job.population.members))

    def recipe_of(self, values: Values) -> Recipe:
        """Return the recipe of a member."""
        return applied(self.recipe, self.genes, values)


def members_of(material: Material) -> tuple[PopulationEngine, Members]:
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


def _heads(material: Material) -> Members | str:
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
    require_members(
        material.job.population.members,
        member_bytes=head_bytes(
            num_features=num_features,
            num_classes=num_classes,
            batch=recipe.batch.global_batch_size,
        ),
        held_bytes=sum(level.features.nbytes for level in levels),
        free_bytes=free_bytes(material.device),
        otherwise="Use a machine with more memory, or a smaller batch (--batch-size).",
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


def _stacked(material: Material) -> Members | str:
    """Return members that are small models, or why they cannot be."""
    recipe, task, sources = material.recipe, material.task, material.sources
    if isinstance(sources.train, ArrivalSource):
        return "the examples of an IterableDataset can be read only once"
    first = make_model(replace(recipe, seed=material.seeds[0]), copy.copy(task), material.device)
    has_head = recipe.train is TrainMode.HEAD and task.split(first) is not None
    if has_head and not recipe.features.cached:
        return "the trunk is part of each step, as its features are not cached"
    trained: Task = HeadTask(task, first, seed=recipe.seed) if has_head else task
    model = trained.build_model(recipe)
    refusal = why_not_stacked(recipe, model, material.keys)
    if refusal is not None:
        return refusal
    if has_head:
        sources = _as_features(material, recipe)[1]
    _require_models(material, trained, model, sources)
    models = [_model_of(material, seed, has_head=has_head) for seed in material.seeds]
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
        is_head=has_head,
    )
    refusal = members.why_it_fails()
    if refusal is not None:
        members.close()
        return refusal
    return members


def _require_models(material: Material, task: Task, model: nn.Module, sources: Sources) -> None:
    """Raise ResourceError if copies of a small model do not fit into memory."""
    recipe, device = material.recipe, material.device
    size = size_of_job(recipe, task, model.to(device), two_examples(recipe, sources, device))
    require_members(
        material.job.population.members,
        # besides a step: the weights that it began with, and what the optimizer moves
        member_bytes=size.step_bytes(recipe.batch.global_batch_size) + 2 * size.trained,
        held_bytes=0,
        free_bytes=free_bytes(device),
        otherwise="Train the members in turn: --population.engine slices",
    )


def _model_of(material: Material, seed: int, *, has_head: bool) -> nn.Module:
    """Return the model, or the head, that a run with this seed begins with."""
    task = copy.copy(material.task)
    model = make_model(replace(material.recipe, seed=seed), task, material.device)
    if not has_head:
        return model
    parts = task.split(model)
    assert parts is not None
    return parts[1]


def _slices(material: Material) -> Members | str:
    """Return members that are trained in turn, or by several processes."""
    config = material.job.population
    folder = material.job.run.dir / SLICES
    folder.mkdir(parents=True, exist_ok=True)
    job = slices_of(material, folder)
    if config.workers == 1:
        return SliceMembers(job, material.recipe_of, seeds=material.seeds)
    require_file(material, "population.workers")
    crew = Crew(
        CrewSpec(
            num=min(config.workers, config.members),
            config=material.job.run.dir / CONFIG,
            task=material.task_name,
            folder=folder,
        ),
        is_cancelled=job.is_cancelled,
    )
    return SliceMembers(
        job,
        material.recipe_of,
        seeds=material.seeds,
        train_all=crew.train,
        close=crew.close,
    )


def require_file(material: Material, where: str) -> None:
    """Raise UsageError if other processes cannot load the Task."""
    if material.task_name != BUILT_IN and ".py:" not in material.task_name:
        raise UsageError(
            "other processes cannot load this Task, which has no file",
            where=where,
            fix="Pass it as FILE.py:NAME, or train in this process: --population.workers 1, and no "
            "--population.engine ray",
        )


def slices_of(material: Material, folder: Path) -> Job:
    """Return what slices of the members are made of."""
    return job_of(
        material.job,
        material.task,
        material.sources,
        folder=folder,
        device=material.device,
        display=material.display,
        guard=material.guard,
    )


_ENGINES: Final[Mapping[PopulationEngine, Callable[[Material], Members | str]]] = {
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


def _why_no_features(material: Material) -> str | None:
    recipe, task = material.recipe, copy.copy(material.task)
    model = make_model(recipe, task, material.device)
    way = make_trunk_pass(recipe, task, model, device=material.device)
    return why_no_features(way, recipe.train, material.sources.train)


def _as_features(material: Material, recipe: Recipe) -> tuple[Task, Sources]:
    """Return the task and the splits as features, computed if they are not there."""
    return as_features(
        replace(material.job, recipe=recipe),
        material.task,
        material.sources,
        device=material.device,
        display=material.display,
        guard=material.guard,
    )


def _levels(material: Material) -> tuple[list[Level], Sources]:
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
