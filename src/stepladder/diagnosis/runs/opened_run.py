"""A run opened again with its Task and data, for further measurements."""

from __future__ import annotations

import math
import shlex
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from stepladder.config.choices import OrderMode, WeightsSource, Where
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.data.order.order_choice import order_of
from stepladder.data.reading.reader import Reader, Source
from stepladder.data.reading.rows import rows_of
from stepladder.errors import DataError, ResourceError
from stepladder.measuring.probe import untouched
from stepladder.task.contract import Task
from stepladder.task.load import BUILT_IN, name_of
from stepladder.training.checkpoint.checkpoint import check_fits, load_best, load_last
from stepladder.training.checkpoint.checkpoint_files import Loaded
from stepladder.training.evaluate import Evaluation, EvaluationCancelled, evaluate
from stepladder.training.features.feature_task import (
    FeatureTask,
    features_folder,
    num_views,
    open_features,
)
from stepladder.training.setup.build import (
    MEMORY_FORMATS,
    Sources,
    make_held_out_reader,
    make_model,
    open_device,
    use_threads,
)
from stepladder.training.setup.run_lock import may_be_held
from stepladder.training.setup.table_version import open_at_version


@dataclass(kw_only=True)
class OpenedRun:
    """A run, its Task and its data.

    Attributes:
        run: the folder.
        job: its resolved config.
        task: the user's, or the built-in one.
        sources: the splits.
        device: the device that the run would use here.
    """

    run: Path
    job: JobConfig
    task: Task
    sources: Sources
    device: torch.device

    @property
    def recipe(self) -> Recipe:
        """Return the run's recipe, streaming from disk; nothing is compiled or folded."""
        recipe = self.job.recipe
        return replace(
            recipe,
            data=replace(recipe.data, where=Where.STREAM),
            model=replace(recipe.model, fold_batchnorm=False),
            device=replace(recipe.device, compile=False),
        )

    @property
    def has_features(self) -> bool:
        """Return whether the run trained on features, one per example."""
        recipe = self.job.recipe
        return bool(recipe.features.cached) and not num_views(recipe.features, self.task)

    @contextmanager
    def model(self) -> Iterator[nn.Module]:
        """Build the model for the block; random states and threads are restored afterwards.

        Its initial weights are loaded only if features are looked up by those of the trunk.
        """
        recipe = self.job.recipe
        if not self.has_features:
            bare = replace(self.recipe.model, weights=WeightsSource.NONE)
            recipe = replace(self.recipe, model=bare)
        threads = torch.get_num_threads()
        with untouched():
            use_threads(recipe)
            try:
                yield make_model(recipe, self.task, self.device)
            finally:
                torch.set_num_threads(threads)

    def on_features(self, model: nn.Module, *, deadline: float = math.inf) -> tuple[Task, Sources]:
        """Return the task on features, and the features: read if they exist, otherwise computed.

        Args:
            model: with the initial weights of the run's trunk.
            deadline: `time.perf_counter()` at which computing stops.

        Raises:
            ResourceError: if they are missing, and there is too little time to compute them.
        """
        try:
            sources = open_features(
                self.job.recipe,
                self.task,
                model,
                replace(self.sources, test=None),
                folder=features_folder(self.job, self.task),
                device=self.device,
                is_cancelled=lambda: time.perf_counter() > deadline,
            )
        except EvaluationCancelled:
            raise ResourceError(
                "the cached features of the run (outputs of its frozen network) are missing, and "
                "computing them again would take longer than the diagnosis may take",
                fix="Allow it more time, in seconds: --max-time-s 600",
            ) from None
        return FeatureTask(
            self.task, num_views=num_views(self.job.recipe.features, self.task)
        ), sources

    def weights(self, *, is_best: bool) -> Loaded:
        """Load the best weights, or the last.

        Raises:
            DataError: if there is no valid checkpoint.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other damaged ones: `verify` reports them
            try:
                return load_best(self.run) if is_best else load_last(self.run)
            except DataError as error:
                where = str(self.run)
                raise DataError(error.what, where=where, fix=self._instead()) from error

    def _instead(self) -> str:
        """Return what to do if the run has no valid weights."""
        if may_be_held(self.run):
            return "Wait: the run is still running, and has not saved any yet."
        run, task = shlex.quote(str(self.run)), name_of(self.task)
        again = f"stepladder train {shlex.quote(str(self.run / 'config.yaml'))} --overwrite"
        again += "" if task == BUILT_IN else f" --task {shlex.quote(task)}"
        return f"Check what is damaged: stepladder verify {run}\nOr train again: {again}"

    def put(self, loaded: Loaded, model: nn.Module) -> None:
        """Put weights into a model.

        Raises:
            DataError: if they belong to another model.
        """
        check_fits(model.state_dict(), loaded)
        model.load_state_dict(loaded.weights)

    def train_rows(self, train: Source, num: int) -> Source:
        """Return a fixed sample of the examples that the run trains on, the same at each call.

        Args:
            train: the training split, as examples or as features.
            num: number of examples, if there are as many.
        """
        order = order_of(self.recipe.data, self.sources.train, seed=0, mode=OrderMode.GLOBAL)
        rows = order.samples(0, 0, min(num, order.num_samples))
        return rows_of([train], np.sort(rows))

    def evaluate(
        self, task: Task, model: nn.Module, source: Source, *, budget_s: float
    ) -> Evaluation:
        """Evaluate a model on a source in eval mode; only its first batches if time is short."""
        recipe = self.recipe
        reader = make_held_out_reader(source, recipe.batch, recipe.loader, recipe.data.where)
        assert reader is not None
        with closing(reader):
            started = time.perf_counter()
            first = self._evaluate(task, model, reader, max_batches=1)
            batch_s = time.perf_counter() - started
            if reader.steps_per_epoch <= 1:
                return first
            limit = max(2, math.floor(budget_s / max(batch_s, 1e-6)))
            return self._evaluate(task, model, reader, max_batches=limit)

    def _evaluate(
        self, task: Task, model: nn.Module, reader: Reader, *, max_batches: int
    ) -> Evaluation:
        return evaluate(
            task,
            model,
            reader,
            device=self.device,
            precision=self.recipe.device.precision,
            memory_format=MEMORY_FORMATS[self.recipe.device.memory_format],
            max_batches=max_batches,
        )


def open_run(run: Path, job: JobConfig, task: Task) -> OpenedRun:
    """Open a run's data again.

    Raises:
        DataError: if it is missing or cannot be read.
        ResourceError: if its device is not available.
    """
    return OpenedRun(
        run=run,
        job=job,
        task=task,
        sources=open_at_version(task, job.recipe.data.table_version),
        device=open_device(job.recipe),
    )
