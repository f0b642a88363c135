"""Cached features: computed once, shared, refused with a reason, same training."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from stepladder.config.choices import Precision, Split, TrainMode
from stepladder.config.options import JobConfig
from stepladder.config.recipe import DataConfig, FeaturesConfig, Recipe, StoppingConfig
from stepladder.data.batch import Batch
from stepladder.data.store.store import Store
from stepladder.errors import InterruptedRun, UsageError
from stepladder.records import read_json, read_jsonl
from stepladder.task import Metrics, Task
from stepladder.task.image_classification import ImageClassification
from stepladder.training.checkpoint.checkpoint import Checkpoints, load_best
from stepladder.training.evaluate import EvaluationCancelled
from stepladder.training.features.feature_pass import read_batch
from stepladder.training.features.feature_rules import agree
from stepladder.training.features.feature_stage import compute_features
from stepladder.training.features.feature_task import (
    FeatureTask,
    features_folder,
    open_features,
    why_no_features,
)
from stepladder.training.output.display import Display, PlainDisplay
from stepladder.training.run import train
from stepladder.training.setup import build
from stepladder.training.setup.build import (
    Sources,
    make_clock,
    make_model,
    make_stage_parts,
    make_trunk_pass,
    open_sources,
)
from stepladder.training.stage import stages_of

CPU = torch.device("cpu")
MakeJob = Callable[..., Any]
RunJob = Callable[..., dict[str, Any]]


@pytest.fixture
def still(points: Any) -> Any:
    """The points task with a frozen trunk, counting the rows that go through it."""

    class Still(points):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.num_passed = 0
            self.on_loss: Callable[[Batch], None] = lambda batch: None

        @property
        def is_random_before_head(self) -> bool:
            return False

        def build_model(self, recipe: Recipe) -> nn.Module:
            model: nn.Module = super().build_model(recipe)
            model.trunk.register_forward_pre_hook(self._count)
            return model

        def loss(self, model: nn.Module, batch: Batch) -> Any:
            self.on_loss(batch)
            return super().loss(model, batch)

        def _count(self, trunk: nn.Module, inputs: Any) -> None:
            self.num_passed += len(inputs[0])

    return Still


@pytest.fixture
def cached(job: MakeJob) -> MakeJob:
    """A job whose head is trained on cached features."""

    def make(folder: Path, **changes: Any) -> JobConfig:
        wanted = {"train": TrainMode.HEAD, "features": FeaturesConfig(cached=True), **changes}
        made: JobConfig = job(folder, **wanted)
        return made

    return make


def why_not(recipe: Recipe, task: Task) -> str | None:
    model = make_model(recipe, task, CPU)
    return why_no_features(make_trunk_pass(recipe, task, model, device=CPU), recipe.train)


def opened(task: Task, folder: Path, recipe: Recipe, **options: Any) -> Sources:
    model = make_model(recipe, task, CPU)
    return open_features(
        recipe, task, model, open_sources(task), folder=folder, device=CPU, **options
    )


def at_call(number: int, action: Callable[[], None]) -> Callable[[Batch], None]:
    calls = iter(range(10**9))
    return lambda batch: action() if next(calls) == number else None


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def newest(folder: Path) -> Any:
    loaded = Checkpoints(folder / "checkpoints").newest()
    assert loaded is not None
    return loaded


def test_each_example_passes_the_trunk_once_whatever_the_epochs(
    tmp_path: Path, cached: MakeJob, still: Any, run: RunJob
) -> None:
    task = still()
    summary = run(cached(tmp_path / "run"), task)
    probed, checked = 2 * 3 + 4, 2 * 3  # two rows in three ways, and among others; per split
    assert task.num_passed == 37 + 20 + 15 + probed + checked
    assert summary["phases_s"]["features"] > 0
    assert summary["epochs"] == 5


def test_later_runs_find_the_features_of_earlier_ones(
    tmp_path: Path, cached: MakeJob, still: Any
) -> None:
    recipe = cached(tmp_path / "run").recipe
    first, later = still(), still()
    told: list[tuple[int, int]] = []
    opened(first, tmp_path / "features", recipe, on_progress=lambda *at: told.append(at))
    assert told[-1] == (57, 57)
    told.clear()
    features = opened(later, tmp_path / "features", recipe, on_progress=lambda *at: told.append(at))
    assert not told
    assert later.num_passed < first.num_passed - 50
    other_seed = replace(recipe, seed=1)  # another trunk, as its weights are random
    opened(still(), tmp_path / "features", other_seed, on_progress=lambda *at: told.append(at))
    assert told[-1] == (57, 57)
    assert features.test is not None
    assert features.test.read(np.arange(15)).inputs.shape == (15, 8)
    assert len(list((tmp_path / "features").iterdir())) == 5


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.*")}


def test_known_features_of_another_folder_are_read_and_left_alone(
    tmp_path: Path, cached: MakeJob, still: Any
) -> None:
    recipe, known, own = cached(tmp_path / "run").recipe, tmp_path / "known", tmp_path / "own"
    first, later, again = still(), still(), still()
    computed = opened(first, known, recipe)
    found = opened(later, own, recipe, known=known)
    assert later.num_passed < first.num_passed - 50
    assert not own.exists()
    rows = np.arange(37)
    assert torch.equal(found.train.read(rows).inputs, computed.train.read(rows).inputs)
    for file in known.rglob("features.npy"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    before = contents(known)
    opened(again, own, recipe, known=known)
    assert again.num_passed == first.num_passed, "damaged ones are computed again"
    assert contents(known) == before
    assert len(list(own.iterdir())) == 2


def test_batches_come_in_the_order_of_the_examples(
    tmp_path: Path, cached: MakeJob, still: Any
) -> None:
    task = still()
    features = opened(task, tmp_path, cached(tmp_path).recipe)
    sources = open_sources(task)
    assert features.train.fingerprint == sources.train.fingerprint
    rows = np.array([5, 0, 36, 5])
    found = features.train.read(rows)
    assert torch.equal(found.targets, sources.train.read(rows).targets)
    assert features.train.describe(3) == sources.train.describe(3)
    assert len(features.train) == 37


def test_of_a_sample_only_its_rows_are_computed(
    tmp_path: Path, cached: MakeJob, still: Any, run: RunJob
) -> None:
    task = still(num_val=0)
    data = DataConfig(fraction=0.3, where=cached(tmp_path).recipe.data.where)
    job = cached(tmp_path / "run", data=data)
    features = opened(task, tmp_path / "features", job.recipe)
    assert task.num_passed < 37
    summary = run(job, task)
    assert summary["num_train"] == 11
    whole = replace(job.recipe, data=replace(data, fraction=1.0))
    every = opened(still(num_val=0), tmp_path / "features", whole)
    used = newest(tmp_path / "run").state["position"]
    assert used["step"] == 5 * 2
    sample = features.train.rows  # type: ignore[attr-defined]
    assert len(sample) == 11
    assert torch.equal(features.train.read(sample).inputs, every.train.read(sample).inputs)


@pytest.mark.parametrize("step", [0, 7, 24])
def test_an_interrupted_run_ends_as_one_that_was_not(
    step: int, tmp_path: Path, cached: MakeJob, still: Any, run: RunJob
) -> None:
    run(cached(tmp_path / "whole"), still())
    broken = still()
    probes = 2
    broken.on_loss = at_call(step + probes, interrupt)
    with pytest.raises(InterruptedRun):
        run(cached(tmp_path / "broken"), broken)
    assert read_json(tmp_path / "broken" / "summary.json")["steps"] == step + 1
    again = still()
    run(cached(tmp_path / "broken"), again)
    whole, resumed = newest(tmp_path / "whole"), newest(tmp_path / "broken")
    for group, members in whole.tensors.items():
        for name, tensor in members.items():
            assert torch.equal(tensor, resumed.tensors[group][name]), name
    assert json.dumps(whole.state["stopping"]) == json.dumps(resumed.state["stopping"])
    best = load_best(tmp_path / "whole").weights
    assert all(torch.equal(best[k], v) for k, v in load_best(tmp_path / "broken").weights.items())


def test_a_signal_while_features_are_computed_leaves_nothing_half(
    tmp_path: Path, cached: MakeJob, still: Any, run: RunJob
) -> None:
    class Ended(still):  # type: ignore[misc]
        def _count(self, trunk: nn.Module, inputs: Any) -> None:
            super()._count(trunk, inputs)
            if self.num_passed > 20:
                interrupt()

    with pytest.raises(InterruptedRun) as caught:
        run(cached(tmp_path / "run"), Ended())
    assert caught.value.exit_code == 143
    assert [path.suffix for path in (tmp_path / "run" / "features").iterdir()] == [".partial"]
    summary = run(cached(tmp_path / "run"), still())
    assert summary["status"] == "finished"
    run(cached(tmp_path / "whole"), still())
    assert summary["test_loss"] == read_json(tmp_path / "whole" / "summary.json")["test_loss"]


def test_a_signal_while_features_of_test_are_computed_ahead_is_reported(
    tmp_path: Path, cached: MakeJob, still: Any
) -> None:
    class Ended(still):  # type: ignore[misc]
        num_told = 0

        def data(self, split: Split) -> Any:
            found, task = super().data(split), self

            class Watched(type(found)):  # type: ignore[misc]
                def __getitem__(self, idx: int) -> Any:
                    if task.num_passed > 57 and not task.num_told:  # all of train and val
                        task.num_told += 1
                        interrupt()
                    return super().__getitem__(idx)

            if split is Split.TEST:
                found.__class__ = Watched
            return found

    task = Ended()
    with pytest.raises(InterruptedRun, match="SIGTERM") as caught:
        compute_features(cached(tmp_path / "run"), task, display=Display(io.StringIO()))
    assert (caught.value.exit_code, task.num_told) == (143, 1)
    assert "kept" in str(caught.value.fix)
    made = compute_features(cached(tmp_path / "run"), still(), display=Display(io.StringIO()))
    assert made.num_rows == {"train": 37, "val": 20, "test": 15}


@pytest.mark.parametrize(("is_test_wanted", "total"), [(False, 57), (True, 72)])
def test_progress_counts_what_is_computed_now(
    is_test_wanted: bool, total: int, tmp_path: Path, cached: MakeJob, still: Any
) -> None:
    told: list[tuple[int, int]] = []
    sources = opened(
        still(),
        tmp_path / "features",
        cached(tmp_path).recipe,
        on_progress=lambda done, of: told.append((done, of)),
        is_test_wanted=is_test_wanted,
    )
    assert told[-1] == (total, total)
    assert sources.test is not None
    sources.test.read(np.arange(3))
    assert told[-1] == (total, total)


def test_what_is_computed_before_a_signal_is_not_computed_again(
    tmp_path: Path, cached: MakeJob, still: Any
) -> None:
    recipe = cached(tmp_path).recipe
    asked = iter([False, True])
    with pytest.raises(EvaluationCancelled):
        opened(still(), tmp_path / "features", recipe, is_cancelled=lambda: next(asked))
    task = still()
    opened(task, tmp_path / "features", recipe)
    probed, checked = 2 * 3 + 4, 2 * 2
    assert task.num_passed == (37 - 32) + 20 + probed + checked


def test_damaged_features_are_reported_and_computed_again(
    tmp_path: Path, cached: MakeJob, still: Any
) -> None:
    recipe = cached(tmp_path).recipe
    before = opened(still(), tmp_path / "features", recipe)
    for file in (tmp_path / "features").glob("*/features.npy"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    told: list[str] = []
    after = opened(still(), tmp_path / "features", recipe, on_message=told.append)
    assert len(told) == 2
    assert all("damaged" in text and "computing them again" in text for text in told)
    rows = np.arange(37)
    assert torch.equal(before.train.read(rows).inputs, after.train.read(rows).inputs)


def test_data_that_changed_under_an_unchanged_name_is_noticed(
    tmp_path: Path, cached: MakeJob, still: Any
) -> None:
    class Moved(Dataset[Any]):
        """Same name and length as before, which is all that is known of a Dataset."""

        def __init__(self, by: float) -> None:
            self.x = by + torch.arange(12.0).view(6, 2)

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, idx: int) -> tuple[Tensor, Tensor]:
            return self.x[idx], torch.tensor(idx % 3)

    class OnMoved(still):  # type: ignore[misc]
        by = 0.0

        def data(self, split: Split) -> Any:
            return Moved(self.by) if split is Split.TRAIN else None

    recipe = cached(tmp_path).recipe
    first, moved = OnMoved(), OnMoved()
    before = opened(first, tmp_path / "features", recipe)
    moved.by = 5.0
    told: list[str] = []
    after = opened(moved, tmp_path / "features", recipe, on_message=told.append)
    assert ["other data" in text for text in told] == [True]
    rows = np.arange(6)
    assert not torch.equal(before.train.read(rows).inputs, after.train.read(rows).inputs)


def test_a_part_that_other_data_gave_is_computed_again_and_kept(
    tmp_path: Path, cached: MakeJob, still: Any
) -> None:
    class Drifting(still):  # type: ignore[misc]
        """Returns other numbers under the same name once `by` is set."""

        by = 0.0

        def build_model(self, recipe: Recipe) -> nn.Module:
            model = super().build_model(recipe)
            model.trunk.register_forward_pre_hook(lambda _, inputs: (inputs[0] + self.by,))
            return model

    recipe = cached(tmp_path).recipe
    asked = iter([False, True])
    with pytest.raises(EvaluationCancelled):
        opened(Drifting(), tmp_path / "features", recipe, is_cancelled=lambda: next(asked))
    moved = Drifting()
    moved.by = 5.0
    told: list[str] = []
    features = opened(moved, tmp_path / "features", recipe, on_message=told.append)
    assert ["other data" in text for text in told] == [True]
    fresh = opened(moved, tmp_path / "others", recipe)
    rows = np.arange(37)
    assert torch.equal(features.train.read(rows).inputs, fresh.train.read(rows).inputs)


def test_features_are_next_to_the_store_or_in_the_run(
    tmp_path: Path, cached: MakeJob, still: Any, run: RunJob, build_store: Any
) -> None:
    job = cached(tmp_path / "run")
    assert features_folder(job, still()) == tmp_path / "run" / "features"
    build_store(tmp_path / "store")
    task = ImageClassification(Store.open(tmp_path / "store"), job.recipe)
    assert features_folder(job, task) == tmp_path / "store.features"
    run(job, still())
    run(job, still(), overwrite=True)  # features belong to the run, and are no obstacle
    assert len(list((tmp_path / "run" / "features").iterdir())) == 3


def test_a_dry_run_computes_a_few_batches_and_leaves_nothing(
    tmp_path: Path, cached: MakeJob, still: Any
) -> None:
    task, out = still(num_train=400, num_val=300), io.StringIO()
    job = cached(tmp_path / "run")
    plan = train(job, task, task_name="still", display=PlainDisplay(out), dry_run=True)
    assert list(tmp_path.iterdir()) == []
    probed, steps, validation = 2 * 3 + 4, 2 * 8, 3 * 32  # two batches, and part of a third
    assert task.num_passed == probed + steps + validation
    assert plan["steps_per_epoch"] == 50
    assert 0 < plan["features_s"] < plan["at_most_s"]
    said = out.getvalue()
    assert "the features of the frozen network are computed once, before training, in abo" in said
    assert "an epoch has 50 steps and takes about" in said


class Noisy(Dataset[Any]):
    """Other values at every read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, idx: int) -> tuple[Tensor, int]:
        return torch.randn(2), idx % 3


class Arriving(IterableDataset[Any]):
    """No rows."""

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[Any]:
        yield from [(torch.zeros(2), 0)] * 8


def _data(data: Any) -> dict[str, Any]:
    return {"data": lambda self, split: data if split is Split.TRAIN else None}


def _random_trunk(self: Any, recipe: Recipe) -> nn.Module:
    class Shaken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, torch.randn(len(x), 6)], dim=1)

    return nn.Sequential(Shaken(), nn.Linear(8, 3))


class Centred(nn.Module):
    """Subtracts the mean over the batch, in batches of more than `alone` rows."""

    def __init__(self, alone: int = 0) -> None:
        super().__init__()
        self.alone = alone

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if len(x) > self.alone else x


def _centred_trunk(self: Any, recipe: Recipe) -> nn.Module:
    return nn.Sequential(Centred(), nn.Linear(2, 3))


def _trunk_without_statistics(self: Any, recipe: Recipe) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False), nn.Linear(2, 3))


def _loss_on_pairs(self: Any, model: nn.Module, batch: Batch) -> Tensor:
    logits: Tensor = model(batch.inputs.reshape(-1, 2))
    return nn.functional.cross_entropy(logits, batch.targets, reduction="none")


def _scaled_loss(self: Any, model: nn.Module, batch: Batch) -> Tensor:
    logits: Tensor = model(batch.inputs / 10)
    return nn.functional.cross_entropy(logits, batch.targets, reduction="none")


def _scaled_metrics(self: Any, model: nn.Module, batch: Batch) -> Metrics:
    return Metrics(losses=_scaled_loss(self, model, batch))


SEQUENTIAL = {"split": lambda self, model: (model[0], model[1:])}
REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "no head": ({"split": lambda self, model: None}, "which part of its model is the head"),
    "random": ({"is_random_before_head": property(lambda self: True)}, "are augmented at random"),
    "arriving": (_data(Arriving()), "IterableDataset"),
    "noisy": (_data(Noisy()), "different values"),
    "random trunk": ({"build_model": _random_trunk, **SEQUENTIAL}, "does not have the same loss"),
    "centred": ({"build_model": _centred_trunk, **SEQUENTIAL}, "the rest of its batch"),
    "no statistics": (
        {"build_model": _trunk_without_statistics, **SEQUENTIAL},
        "the rest of its batch",
    ),
    "scaled": ({"loss": _scaled_loss}, "does not have the same loss"),
    "scaled metrics": ({"metrics": _scaled_metrics}, "does not have the same loss"),
    "pairs": ({"loss": _loss_on_pairs}, "fail with only the head and the features"),
}


@pytest.mark.parametrize(("changes", "words"), REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_be_cached_is_refused_in_words(
    changes: dict[str, Any], words: str, tmp_path: Path, cached: MakeJob, still: Any, run: RunJob
) -> None:
    task = type("Other", (still,), changes)()
    job = cached(tmp_path / "run")
    why = why_not(job.recipe, task)
    assert why is not None
    assert words in why
    for dry_run in (True, False):
        with pytest.raises(UsageError, match=words) as caught:
            run(job, task, dry_run=dry_run)
        assert caught.value.fix is not None
    assert list(tmp_path.iterdir()) == []


def test_features_that_come_out_otherwise_once_more_are_refused_and_removed(
    tmp_path: Path, cached: MakeJob, still: Any
) -> None:
    class Late(still):  # type: ignore[misc]
        """A trunk whose behavior does not show in a probe's few rows."""

        def build_model(self, recipe: Recipe) -> nn.Module:
            model = super().build_model(recipe)
            model.trunk.append(Centred(alone=4))
            return model

    task = Late()
    with pytest.raises(UsageError, match="the rest of its batch") as caught:
        opened(task, tmp_path / "features", cached(tmp_path).recipe, on_message=pytest.fail)
    assert caught.value.where == "features.cached"
    assert caught.value.fix is not None
    probed, checked = 2 * 3 + 4, 2
    assert task.num_passed == 37 + probed + checked
    assert not list((tmp_path / "features").iterdir())


@pytest.mark.parametrize(
    ("off", "is_same", "is_same_in_tf32"),
    [
        (5e-4, True, True),
        (5e-3, False, True),
        (5e-2, False, False),
    ],
)
def test_tf32_rounds_more(off: float, is_same: bool, is_same_in_tf32: bool) -> None:
    a = torch.ones(7)
    assert agree(a, a * (1 + off), Precision.FP32) is is_same
    assert agree(a, a * (1 + off), Precision.FP32, is_tf32=True) is is_same_in_tf32
    assert agree(a, a * (1 + 0.8 * off), Precision.BF16), "as before"


@pytest.mark.parametrize("mode", [TrainMode.ALL, TrainMode.HEAD_THEN_ALL])
def test_a_trunk_that_learns_has_no_features(
    mode: TrainMode, tmp_path: Path, cached: MakeJob, still: Any, run: RunJob
) -> None:
    with pytest.raises(UsageError, match="all weights are trained"):
        run(cached(tmp_path / "run", train=mode), still())


def test_a_plain_task_has_nothing_against_it_and_stays_as_it_was(
    tmp_path: Path, cached: MakeJob, still: Any
) -> None:
    task, recipe = still(), cached(tmp_path).recipe
    model = make_model(recipe, task, CPU)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    way = make_trunk_pass(recipe, task, model, device=CPU)
    assert why_no_features(way, recipe.train) is None
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("mixes", ["targets", "inputs"])
def test_views_that_mix_examples_are_refused(
    mixes: str, tmp_path: Path, cached: MakeJob, still: Any
) -> None:
    def augment(self: Any, batch: Batch, *, seed: int, epoch: int) -> Batch:
        if mixes == "targets":
            return Batch(batch.inputs, batch.targets.flip(0), batch.ids)
        return Batch(batch.inputs - batch.inputs.mean(0), batch.targets, batch.ids)

    changes = {"augment": augment, "is_random_before_head": property(lambda self: True)}
    task = type("Mixing", (still,), changes)()
    recipe = cached(tmp_path, features=FeaturesConfig(cached=True, cached_views=2)).recipe
    why = why_not(recipe, task)
    assert why is not None
    assert ("MixUp" if mixes == "targets" else "the rest of its batch") in why


def test_the_whole_model_is_in_the_checkpoint(
    tmp_path: Path, cached: MakeJob, still: Any, run: RunJob
) -> None:
    task = still()
    job = cached(tmp_path / "run", stopping=StoppingConfig(early=False))
    run(job, task)
    weights = load_best(tmp_path / "run").weights
    model = make_model(job.recipe, task, CPU)
    assert weights.keys() == model.state_dict().keys()
    assert torch.equal(weights["trunk.0.weight"], model.state_dict()["trunk.0.weight"])
    assert not torch.equal(weights["head.1.weight"], model.state_dict()["head.1.weight"])
    events = [e["event"] for e in read_jsonl(tmp_path / "run" / "events.jsonl")]
    assert events[0] == "start"


@pytest.mark.parametrize("is_small", [True, False])
def test_a_small_head_steps_on_one_thread_and_leaves_the_others_alone(
    still: Any, is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_small:
        monkeypatch.setattr(build, "MAX_PRODUCTS_OF_ONE_THREAD", 1)
    seen: list[int] = []
    task = still()
    task.on_loss = lambda batch: seen.append(torch.get_num_threads())
    recipe = Recipe()
    model = make_model(recipe, task, CPU)
    parts = make_stage_parts(
        recipe,
        stages_of(recipe.train, recipe.batch)[0],
        FeatureTask(task),
        model,
        device=CPU,
        clock=make_clock(CPU),
    )
    batch = read_batch(open_sources(task).train, np.arange(4))
    with torch.no_grad():
        features = task.split(model)[0](batch.inputs)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        parts.step(Batch(features, batch.targets, batch.ids), step=0, lr=0.1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1 if is_small else 2]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_that_drops_nothing_is_left_out_and_any_other_kept(
    still: Any, dropout: float
) -> None:
    class Bare(still):  # type: ignore[misc]
        def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
            return model.trunk, model.head

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            scores: Tensor = model(batch.inputs)
            return scores.sum(dim=1)

    calls: list[nn.Module] = []
    model = nn.Module()
    model.trunk = nn.Identity()
    model.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(6, 2))
    for layer in model.head:
        layer.register_forward_hook(lambda layer, *_: calls.append(layer))
    batch = Batch(torch.ones(3, 6), None, torch.arange(3))
    task = FeatureTask(Bare())
    torch.manual_seed(0)
    losses = task.loss(model, batch)
    assert calls == [layer for layer in model.head if dropout or layer is model.head[1]]
    torch.manual_seed(0)
    assert torch.equal(losses, model.head(batch.inputs).sum(dim=1))
