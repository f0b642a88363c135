"""`population.engine ray`: Ray Tune's scheduler trains our members on a local cluster."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest

from stepladder.config.choices import Monitor, PopulationEngine, Selection
from stepladder.config.options import JobConfig, PopulationConfig, RunConfig
from stepladder.config.recipe import StoppingConfig
from stepladder.errors import UsageError
from stepladder.populations.run import WINNER, train_population
from stepladder.records.population import LINEAGE_FILE, PopulationSummary
from stepladder.task.load import load_task
from stepladder.training.checkpoint.checkpoint import load_best
from stepladder.training.output.display import Display
from tests.unit.populations import conftest

TASK = f"{conftest.__file__}:Blobs"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray.tune")
    root = Path(__file__).parents[2]
    paths = [str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("RAY_ADDRESS", "local")


def train(folder: Path, *, monitor=Monitor.VAL_LOSS, **options) -> PopulationSummary:
    recipe = replace(conftest.RECIPE, device=replace(conftest.RECIPE.device, threads=1))
    recipe = replace(recipe, stopping=StoppingConfig(monitor=monitor))
    settings = {"genes": "batch.lr 1e-3..1e-1 log", "engine": PopulationEngine.RAY, **options}
    job = JobConfig(
        recipe=recipe,
        run=RunConfig(dir=folder),
        population=PopulationConfig(members=4, top_frac=0.25, **settings),
    )
    task = load_task(TASK, store=job.recipe.data.store)
    return train_population(job, task, task_name=TASK, display=Display(io.StringIO()))


def test_tune_trains_and_selects_members(tmp_path: Path) -> None:
    found = train(tmp_path / "run")
    lines = (tmp_path / "run" / LINEAGE_FILE).read_text().splitlines()
    assert len(lines) == len(found.moments)
    assert found.engine == PopulationEngine.RAY
    assert [moment.generation for moment in found.moments] == [0] * 4 + [1] * 4 + [2] * 4
    assert all(one.parent == one.member for one in found.moments if one.generation == 0)
    assert len({one.score.loss for one in found.moments if one.generation == 0}) == 4
    copies = [moment for moment in found.moments if moment.parent != moment.member]
    assert copies, "someone took the weights of another"
    assert all(1e-3 <= moment.genes["batch.lr"] <= 1e-1 for moment in found.moments)
    best = min(moment.score.loss for moment in found.moments)
    assert found.winner.validation.loss == best
    assert found.winner.judged is not None
    assert load_best(tmp_path / "run" / WINNER).weights
    # a copy begins with the weights of its parent, so that it is as good at once
    first = [moment.score.loss for moment in found.moments if moment.generation == 0]
    for copy in (one for one in copies if one.generation == 1):
        assert first[copy.parent] < first[copy.member]

    with pytest.raises(UsageError, match="has a population"):
        train(tmp_path / "run")
    assert load_best(tmp_path / "run" / WINNER).weights, "nothing was lost"


def test_what_tunes_scheduler_does_not_do_is_refused(tmp_path: Path) -> None:
    for options in ({"selection": Selection.TOP_K}, {"patience": 3}, {"target": 0.5}):
        with pytest.raises(UsageError, match=rf"population\.{next(iter(options))} is not"):
            train(tmp_path / "run", **options)


def test_members_are_chosen_by_what_is_monitored(tmp_path: Path) -> None:
    """The highest accuracy of an interval is never among those that take from others."""
    found = train(tmp_path / "run", monitor=Monitor.VAL_ACCURACY)
    accuracies = [one.score.accuracy for one in found.moments]
    assert found.winner.validation.accuracy == max(accuracies)
    for one in found.moments:
        if one.parent != one.member:
            before = [m for m in found.moments if m.generation == one.generation - 1]
            assert before[one.parent].score.accuracy >= before[one.member].score.accuracy
