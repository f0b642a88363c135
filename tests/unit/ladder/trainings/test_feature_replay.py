"""Predicted cost of cached features as an instrument."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from stepladder.config.choices import Split
from stepladder.config.recipe import FeaturesConfig, Recipe
from stepladder.ladder.trainings import feature_replay as instrument_module
from stepladder.ladder.trainings.feature_replay import Instrument
from stepladder.task import Task
from stepladder.training.setup.build import open_sources


class SlowRows(Dataset[Any]):
    """Rows that take a second each, on a fake clock."""

    def __init__(self, rows: Dataset[Any], take: Callable[[float], None]) -> None:
        self.rows, self.take = rows, take

    def __len__(self) -> int:
        return len(self.rows)  # type: ignore[arg-type]

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        self.take(1.0)
        return self.rows[row]


@pytest.fixture(name="task")
def _task(blobs: type[Task]) -> Task:
    """Ninety training and thirty held-out examples: 1 s to read, 0.1 s per pass in the trunk."""

    class Slow(blobs):  # type: ignore[misc, valid-type]
        is_random_before_head = True
        now_s = 0.0
        sizes: list[int] = []  # noqa: RUF012  (of a test)

        def take(self, seconds: float) -> None:
            Slow.now_s += seconds

        def data(self, split: Split) -> SlowRows | None:
            rows = super().data(split)
            return None if rows is None else SlowRows(rows, self.take)

        def build_model(self, recipe: Recipe) -> nn.Module:
            model = super().build_model(recipe)
            model.trunk.register_forward_pre_hook(self.note)
            return model

        def note(self, _: nn.Module, args: tuple[Tensor, ...]) -> None:
            self.sizes.append(len(args[0]))
            self.take(0.1 * len(args[0]))

    return Slow()


def kept(recipe: Recipe) -> Recipe:
    return replace(recipe, features=FeaturesConfig(cached=True, cached_views=4))


# 120 examples are read, and 4 x 90 + 30 views go through the trunk
@pytest.mark.parametrize(("max_s", "is_computed"), [(160.0, True), (158.0, False)])
def test_an_example_of_many_views_is_forecast_to_be_read_once(
    max_s: float,
    is_computed: bool,
    task: Any,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: task.now_s)
    instrument = Instrument(
        task=task,
        sources=open_sources(task),
        device=torch.device("cpu"),
        folder=tmp_path,
        max_s=max_s,
    )
    assert (instrument.features(kept(recipe)) is not None) == is_computed


def test_the_forecast_is_of_a_batch_as_features_are_computed_in(
    task: Any, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instrument_module, "batch_size_on", lambda device: 7)  # a GPU has its own
    instrument = Instrument(
        task=task,
        sources=open_sources(task),
        device=torch.device("cpu"),
        folder=tmp_path,
        max_s=-1.0,
    )
    assert instrument.features(kept(recipe)) is None
    assert task.sizes[-2:] == [7, 7]


def failing_above(num_examples: int, error: Exception) -> Any:
    """Return a hook for a trunk that fails on larger batches."""

    def check(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        if len(args[0]) > num_examples:
            raise error

    return check


@pytest.fixture(name="instrument_of")
def _instrument_of(blobs: type[Task], tmp_path: Path) -> Callable[[Exception], Instrument]:
    """Return an instrument whose trunk raises on the batch size of feature computation."""

    def make(error: Exception) -> Instrument:
        class Large(blobs):  # type: ignore[misc, valid-type]
            def build_model(self, recipe: Recipe) -> nn.Module:
                model = super().build_model(recipe)
                model.trunk.register_forward_pre_hook(failing_above(12, error))
                return model

        task = Large()
        return Instrument(
            task=task,
            sources=open_sources(task),
            device=torch.device("cpu"),
            folder=tmp_path,
            max_s=1e9,
        )

    return make


def test_where_memory_does_not_hold_such_a_batch_there_are_no_features(
    instrument_of: Callable[[Exception], Instrument], recipe: Recipe, tmp_path: Path
) -> None:
    instrument = instrument_of(torch.OutOfMemoryError("CUDA out of memory"))
    assert instrument.features(recipe) is None
    assert list(tmp_path.iterdir()) == []


def test_another_error_of_the_trunk_is_no_lack_of_memory(
    instrument_of: Callable[[Exception], Instrument], recipe: Recipe
) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        instrument_of(RuntimeError("mat1 and mat2 shapes")).features(recipe)
