"""Populations on pictures of a store: heads on cached features, and augmentation as genes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stepladder.config.choices import DeviceChoice, PopulationEngine, WeightsSource, Where
from stepladder.config.recipe import (
    AugmentConfig,
    BatchConfig,
    DataConfig,
    DeviceConfig,
    FeaturesConfig,
    ModelConfig,
    Recipe,
    ScheduleConfig,
)
from stepladder.populations.heads import HeadMembers
from stepladder.populations.run import WINNER
from stepladder.task.image_classification import ImageClassification
from stepladder.training.checkpoint.checkpoint import load_best
from stepladder.training.evaluate import evaluate
from stepladder.training.setup.build import make_held_out_reader, make_model, open_sources
from tests.unit.populations.conftest import Train, same

CPU = torch.device("cpu")
RATE = "batch.lr 1e-3..1e-1 log"
STRENGTH = "augment.randaugment_magnitude 0..10"


@pytest.fixture(name="recipe", scope="module")
def _recipe(tmp_path_factory: pytest.TempPathFactory, build_store: Any) -> Recipe:
    store = tmp_path_factory.mktemp("pictures") / "store"
    build_store(store, num_rows={"train": 45, "val": 20, "test": 12}, size=32)
    return Recipe(
        auto=False,
        data=DataConfig(store=store, where=Where.STREAM),
        model=ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE),
        features=FeaturesConfig(cached=True),
        batch=BatchConfig(global_batch_size=8),
        schedule=ScheduleConfig(max_epochs=3),
        device=DeviceConfig(kind=DeviceChoice.CPU, threads=1),
    )


def task_of(recipe: Recipe) -> ImageClassification:
    assert isinstance(recipe.data.store, Path)
    return ImageClassification(recipe.data.store, recipe)


def test_the_winner_of_heads_is_as_good_on_pictures(
    train: Train, recipe: Recipe, tmp_path: Path
) -> None:
    genes = f"{RATE}, head.dropout 0..0.5, loss.class_weights none|balanced"
    found = train(task=task_of(recipe), recipe=recipe, genes=genes)
    assert found.engine == PopulationEngine.HEADS
    assert found.examples == 3 * 45
    task = task_of(recipe)
    model = make_model(recipe, task, CPU)
    model.load_state_dict(load_best(tmp_path / "run" / WINNER).weights)
    sources, winner = open_sources(task), found.winner
    for split, wanted in ((sources.val, winner.validation), (sources.test, winner.judged)):
        reader = make_held_out_reader(split, recipe.batch, recipe.loader, Where.STREAM)
        assert reader is not None
        assert wanted is not None
        with closing(reader):
            result = evaluate(task, model, reader, device=CPU, precision=recipe.device.precision)
        assert result.loss().mean == pytest.approx(wanted.loss, rel=1e-4)
        assert result.values["accuracy"] == pytest.approx(wanted.accuracy)


def test_heads_continue_after_a_kill(train: Train, recipe: Recipe, monkeypatch) -> None:
    class Killed(BaseException):
        pass

    def dying(*_: object) -> None:
        raise Killed

    options = {"recipe": recipe, "genes": f"{RATE}, head.dropout 0..0.5"}
    whole = train("whole", task=task_of(recipe), **options)
    scores, calls = HeadMembers.scores, iter(range(9))
    with monkeypatch.context() as patch:
        patch.setattr(
            HeadMembers, "scores", lambda self: dying() if next(calls) == 1 else scores(self)
        )
        with pytest.raises(Killed):
            train("cut", task=task_of(recipe), **options)
    assert same(train("cut", task=task_of(recipe), **options), whole)


def test_the_strength_of_augmentation_is_a_gene_of_heads(train: Train, recipe: Recipe) -> None:
    """Features of four strengths are computed once; members read those next to their own."""
    views = replace(
        recipe,
        augment=AugmentConfig(randaugment_ops=2),
        features=FeaturesConfig(cached=True, cached_views=2),
    )
    found = train(task=task_of(views), recipe=views, genes=f"{RATE}, {STRENGTH}", members=6)
    assert found.engine == PopulationEngine.HEADS
    strengths = {moment.genes["augment.randaugment_magnitude"] for moment in found.moments}
    assert len(strengths) >= 6
    assert all(0 <= float(one) <= 10 for one in strengths)


def test_live_augmentation_is_a_gene_of_slices(train: Train, recipe: Recipe) -> None:
    live = replace(
        recipe,
        augment=AugmentConfig(randaugment_ops=1),
        features=FeaturesConfig(cached=False),
        schedule=ScheduleConfig(max_epochs=1),
    )
    genes = f"{RATE}, {STRENGTH}, augment.randaugment_ops 1|2|3"
    found = train(task=task_of(live), recipe=live, genes=genes, members=2, top_frac=0.5)
    assert found.engine == PopulationEngine.SLICES
    assert {moment.genes["augment.randaugment_ops"] for moment in found.moments} <= {1, 2, 3}
