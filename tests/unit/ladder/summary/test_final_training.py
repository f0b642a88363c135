"""The training at the end of a climb: the user's own task, once, with a clean end."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stepladder.config.choices import Encoding, Split, WeightsSource, Where
from stepladder.config.load import load_job
from stepladder.config.options import JobConfig, LadderConfig, RunConfig
from stepladder.config.recipe import FeaturesConfig, ModelConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.data.reading.memory import resolve_where
from stepladder.data.store.store import Store
from stepladder.errors import InterruptedRun
from stepladder.ladder import climb as climb_module
from stepladder.ladder import climb_run as run_module
from stepladder.ladder.climb_run import climb
from stepladder.ladder.ledger import LEDGER_FILE, Ledger
from stepladder.ladder.summary.final_training import run_whole, task_for, train_kept
from stepladder.task import Metrics
from stepladder.task.image_classification import ImageClassification
from stepladder.training.output.display import Display, PlainDisplay
from stepladder.training.run import train

MARK = 7.0
NUM_TRAIN = 90


class Mine(ImageClassification):
    """Pictures with a user's own model and metric."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        super().build_model(replace(recipe, model=TINY))
        return nn.Sequential(Scaled(), nn.Linear(8 * 8 * 3, len(self.classes)))

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        assert isinstance(model, nn.Sequential)
        return model[0], model[1]

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        found = super().metrics(model, batch)
        return replace(found, losses=torch.full_like(found.losses, MARK))


class Scaled(nn.Module):
    """Converts a picture to a row of numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).float() / 255


TINY = ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE)
SPLITS = {"train": 24, "val": 8, "test": 8}


@pytest.fixture(name="job")
def _job(tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> JobConfig:
    monkeypatch.setattr(run_module, "RUNGS", ())
    monkeypatch.setattr(climb_module, "PROFILE_S", 0.2)
    ladder = LadderConfig(block_s=0.01, num_seeds=2)
    return JobConfig(recipe=recipe, run=RunConfig(dir=tmp_path / "runs" / "run"), ladder=ladder)


def quiet() -> Display:
    return Display(io.StringIO())


def test_a_subclass_of_the_built_in_task_trains_by_its_own_code_to_the_end(
    job: JobConfig, build_store, tmp_path: Path
) -> None:
    build_store(tmp_path / "store", num_rows=SPLITS)
    found = climb(job, Mine(tmp_path / "store"), task_name="mine", display=quiet())
    assert found["result"]["test_loss"] == pytest.approx(MARK)


def test_a_trial_that_reads_another_form_is_of_the_subclass_too(
    make_lab, recipe, build_store, tmp_path: Path
) -> None:
    build_store(tmp_path / "store", num_rows=SPLITS, encoding=Encoding.JPEG)
    lab = make_lab(recipe, Mine(tmp_path / "store"))
    decoded = replace(recipe, data=replace(recipe.data, decode_once=True))
    material = lab.material(decoded)
    assert type(material.task) is Mine
    assert (lab.cache / "copies").is_dir()
    assert not list(tmp_path.glob("store.pixels*"))
    assert type(task_for(lab.task, decoded)) is Mine


def test_the_choice_of_auto_is_kept_by_a_resumed_climb(
    job: JobConfig, build_store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_store(tmp_path / "store", num_rows=SPLITS)
    auto = replace(job, recipe=replace(job.recipe, data=replace(job.recipe.data, where=Where.AUTO)))
    climb(auto, Mine(tmp_path / "store"), task_name="mine", display=quiet())
    assert Ledger(job.run.dir).where() is Where.MEMORY

    monkeypatch.setattr("stepladder.data.reading.memory.available_memory_bytes", lambda: 0)
    train_split = Store.open(tmp_path / "store").split(Split.TRAIN)
    assert resolve_where(train_split, Where.AUTO) is Where.STREAM, "now the choice would differ"
    said = io.StringIO()
    climb(auto, Mine(tmp_path / "store"), task_name="mine", display=PlainDisplay(said))
    assert "already holds a finished climb" in said.getvalue()


class Interrupting(Display):
    """Ends the training at its first access to the validation split: features are computed."""

    def validation(self, values: Mapping[str, object]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(name="on_features")
def _on_features(job: JobConfig, blobs, tmp_path: Path) -> Callable[..., float]:
    """Train on features next to a store; return the time of the existing features."""
    recipe = replace(  # as a climb resolves it
        job.recipe,
        data=replace(job.recipe.data, hosts=1),
        loader=replace(job.recipe.loader, threads=0),
        features=FeaturesConfig(cached=True),
        device=replace(job.recipe.device, keep_freed_memory=True),
    )
    cached = replace(job, recipe=recipe)
    task = blobs()
    task.store = SimpleNamespace(path=tmp_path / "store")

    def run(folder: str, display: Display | None = None, *, is_new: bool = False) -> float:
        mine = replace(cached, run=RunConfig(dir=tmp_path / folder))
        mine.run.dir.mkdir(exist_ok=True)
        ledger = Ledger(mine.run.dir)
        return train_kept(
            mine,
            task,
            task_name="blobs",
            display=display or quiet(),
            is_new=is_new,
            ledger=ledger,
            again="",
        )

    return run


def test_features_that_a_training_found_ready_count_however_often_it_is_asked(
    on_features: Callable[..., float],
) -> None:
    assert on_features("first") == 0, "it computed them itself, by its own clock"
    assert on_features("first") == 0
    once = on_features("second")
    assert once > 0
    assert on_features("second") == once, "nothing was trained, and it still depends on them"
    assert on_features("first", is_new=True) == once, "a new training measures it again"


def test_features_of_an_interrupted_training_are_those_of_its_own_clock(
    on_features: Callable[..., float], tmp_path: Path
) -> None:
    with pytest.raises(InterruptedRun):
        on_features("first", Interrupting(io.StringIO()))
    assert list(tmp_path.glob("store.features/*/manifest.json")), "they exist by now"
    assert on_features("first") == 0


class Impatient(Display):
    """Ends the training during feature computation, after train is done."""

    def features(self, done: int, total: int, per_s: float, left_s: float | None) -> None:
        if done >= NUM_TRAIN:
            os.kill(os.getpid(), signal.SIGTERM)


def test_features_that_were_computed_before_there_was_a_clock_to_keep_count(
    on_features: Callable[..., float], tmp_path: Path
) -> None:
    with pytest.raises(InterruptedRun):
        on_features("first", Impatient(io.StringIO()))
    assert not list(tmp_path.glob("first/checkpoints/step-*"))
    assert len(list(tmp_path.glob("store.features/*/manifest.json"))) == 1, "those of train"
    assert on_features("first") > 0


def test_features_that_an_interrupted_training_found_ready_count_when_it_ends(
    on_features: Callable[..., float],
) -> None:
    on_features("first")
    with pytest.raises(InterruptedRun):
        on_features("second", Interrupting(io.StringIO()))
    assert on_features("second") > 0


def test_features_of_a_training_count_if_its_end_was_not_logged(
    on_features: Callable[..., float], tmp_path: Path
) -> None:
    on_features("first")
    once = on_features("second")
    ledger = tmp_path / "second" / LEDGER_FILE
    *lines, _ = ledger.read_bytes().splitlines(keepends=True)  # the line that says it has ended
    ledger.write_bytes(b"".join(lines))
    assert on_features("second") == once


def test_a_training_that_is_replaced_leaves_the_ledger_to_the_climb(job: JobConfig, blobs) -> None:
    train(job, blobs(), task_name="blobs", display=quiet())
    ledger = Ledger(job.run.dir)
    ledger.begin(job="one", machine="here", options="some", commit="one", is_fresh=False)
    lines = (job.run.dir / LEDGER_FILE).read_bytes()
    (job.run.dir / "climb.json").write_text("{}")
    before = (job.run.dir / "summary.json").stat().st_mtime_ns
    train_kept(
        job, blobs(), task_name="blobs", display=quiet(), is_new=True, ledger=ledger, again=""
    )
    assert (job.run.dir / "summary.json").stat().st_mtime_ns > before
    assert (job.run.dir / LEDGER_FILE).read_bytes().startswith(lines)
    assert not (job.run.dir / "climb.json").exists()


def test_a_training_of_before_does_not_come_back_from_the_mirror(job: JobConfig, blobs) -> None:
    job = replace(job, run=replace(job.run, mirror=job.run.dir.with_name("mirror")))
    train(job, blobs(), task_name="blobs", display=quiet())
    kept = replace(job, recipe=replace(job.recipe, batch=replace(job.recipe.batch, lr=0.01)))
    ledger = Ledger(job.run.dir)
    train_kept(
        kept, blobs(), task_name="blobs", display=quiet(), is_new=False, ledger=ledger, again=""
    )
    assert load_job(job.run.dir / "config.yaml").recipe.batch.lr == 0.01


def test_the_original_job_is_trained_without_its_mirror(make_lab, profile, tmp_path: Path) -> None:
    lab = make_lab()
    lab.job = replace(lab.job, run=replace(lab.job.run, mirror=tmp_path / "mirror"))
    whole = run_whole(lab, profile)
    assert whole is not None
    assert whole.epochs == lab.job.recipe.schedule.max_epochs
    assert not (tmp_path / "mirror").exists()


class Ending(Display):
    """Sends a signal while the job is measured, or in the final training."""

    def __init__(self, when: str) -> None:
        super().__init__(io.StringIO())
        self.when = when

    def message(self, text: str) -> None:
        if text.startswith(self.when):
            os.kill(os.getpid(), signal.SIGTERM)

    def start(self, title: str, lines: Sequence[str] = ()) -> None:
        self.message("training at the end")


@pytest.mark.parametrize(
    ("when", "flags", "without"),
    [
        ("measuring", (), ""),
        ("measuring", ("is_fresh",), " without --fresh"),
        ("measuring", ("may_overwrite",), ""),
        ("training at the end", (), ""),
        ("training at the end", ("is_fresh", "may_overwrite"), " without --fresh and --overwrite"),
    ],
    ids=str,
)
def test_an_interrupted_climb_says_which_command_resumes_it(
    job: JobConfig, blobs, when: str, flags: tuple[str, ...], without: str
) -> None:
    with pytest.raises(InterruptedRun) as ended:
        climb(job, blobs(), task_name="blobs", display=Ending(when), **dict.fromkeys(flags, True))
    assert ended.value.fix == f"The same command{without} resumes from there."
