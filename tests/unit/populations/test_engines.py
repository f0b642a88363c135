"""The engines on a Task: small models at once, and slices from checkpoint to checkpoint."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from stepladder.config.choices import (
    Monitor,
    OptimizerName,
    PopulationEngine,
    Split,
    TrainMode,
    Where,
)
from stepladder.config.recipe import (
    BatchConfig,
    FeaturesConfig,
    HeadConfig,
    OptimizerConfig,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.errors import DataError, DivergedError, InterruptedRun, ResourceError, UsageError
from stepladder.optim.table import spec_of
from stepladder.populations import engines, slices, stacked
from stepladder.populations import run as module
from stepladder.populations.opening import HALF_OF_VAL
from stepladder.populations.population import LINEAGE_FILE, STATE_FILE
from stepladder.populations.run import WINNER
from stepladder.records.from_json import read_record
from stepladder.records.population import POPULATION_FILE, PopulationSummary
from stepladder.reporting.pages.population_page import population_text
from stepladder.task.contract import Metrics
from stepladder.training import course
from stepladder.training.checkpoint.checkpoint import load_best
from tests.unit.populations.conftest import RECIPE, Blobs, Train, same

BOTH = pytest.mark.parametrize("engine", [PopulationEngine.STACKED, PopulationEngine.SLICES])


@BOTH
def test_a_population(train: Train, engine: PopulationEngine, tmp_path) -> None:
    found = train(engine=engine)
    assert found.engine == engine
    assert (found.num_generations, found.examples) == (3, 3 * 96)
    assert len(found.moments) == 12
    assert found.winner.judged is not None
    assert found.judged_on == "test"
    assert found.optimism() is not None
    best = min(moment.score.loss for moment in found.moments)
    assert found.winner.validation.loss == best
    assert found.path()[-1].score == found.winner.validation
    assert read_record(PopulationSummary, tmp_path / "run" / POPULATION_FILE) == found
    assert same(found, train("again", engine=engine)), "the same seed, the same population"
    assert not same(found, train("other", engine=engine, recipe=replace(RECIPE, seed=1)))


@BOTH
def test_the_winner_is_a_model_that_can_be_loaded(train: Train, engine, tmp_path) -> None:
    found = train(engine=engine)
    task, model = Blobs(), Blobs().build_model(RECIPE)
    model.load_state_dict(load_best(tmp_path / "run" / WINNER).weights)
    model.eval()
    inputs, targets = task.data(Split.VAL).tensors
    loss = nn.functional.cross_entropy(model(inputs), targets).item()
    assert loss == pytest.approx(found.winner.validation.loss, rel=1e-5)


def test_both_engines_train_a_member_alike(train: Train) -> None:
    """With one order for all and no selection yet, the first intervals are the same."""
    one = train("stacked", engine=PopulationEngine.STACKED)
    other = train("slices", engine=PopulationEngine.SLICES)
    first = [found.moments[0] for found in (one, other)]  # the member with the recipe's seed
    assert first[0].genes == first[1].genes
    assert first[0].score.loss == pytest.approx(first[1].score.loss, rel=1e-3)


def test_an_interval_may_end_within_an_epoch_and_a_batch(train: Train) -> None:
    for engine in (PopulationEngine.STACKED, PopulationEngine.SLICES):
        found = train(str(engine), engine=engine, interval=40)
        assert (found.examples, found.num_generations) == (288, 8)


def test_slices_do_not_add_up_to_more_examples(train: Train, monkeypatch) -> None:
    """Batches of 16 end beyond 40 examples; the next slice is shorter for it."""
    seen = []
    original = slices.fit

    def fitted(training):
        reason = original(training)
        seen.append(training.position.num_examples_seen)
        return reason

    monkeypatch.setattr(slices, "fit", fitted)
    train(engine=PopulationEngine.SLICES, interval=40, members=2)
    assert seen[::2] == [48, 80, 128, 160, 208, 240, 288, 288]


@pytest.mark.parametrize("fatal", range(1, 12, 2))
def test_slices_go_on_after_a_kill(train: Train, monkeypatch, fatal: int) -> None:
    class Killed(BaseException):
        pass

    expected = train("whole", engine=PopulationEngine.SLICES)
    left = [fatal]
    original = slices.train_slice

    def dying(*args, **kwargs):
        score = original(*args, **kwargs)
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return score

    with monkeypatch.context() as patch:
        patch.setattr(slices, "train_slice", dying)
        with pytest.raises(Killed):
            train("cut", engine=PopulationEngine.SLICES)
    assert same(train("cut", engine=PopulationEngine.SLICES), expected)


def test_slices_keep_only_what_they_need(train: Train, tmp_path) -> None:
    train(engine=PopulationEngine.SLICES)
    kept = list((tmp_path / "run" / slices.SLICES).iterdir())
    assert len(kept) <= 2 * 4 + 1


@pytest.mark.parametrize("name", OptimizerName)
def test_each_optimizer_goes_on_from_another_members_state(train: Train, name) -> None:
    recipe = replace(RECIPE, optimizer=OptimizerConfig(name=name, momentum=0.8))
    recipe = replace(recipe, schedule=ScheduleConfig(max_epochs=2))
    genes = "batch.lr 1e-4..1e-2 log, optimizer.weight_decay 0..0.1"
    found = train(recipe=recipe, genes=genes, engine=PopulationEngine.SLICES)
    assert any(moment.parent != moment.member for moment in found.moments)
    assert all(math.isfinite(moment.score.loss) for moment in found.moments)


def test_the_settings_of_a_slice_are_its_own(train: Train, monkeypatch) -> None:
    seen = []
    original = slices._open

    def opened(job, recipe, loaded, num):
        training = original(job, recipe, loaded, num)
        groups = training.parts.update.optimizer.param_groups
        seen.append((recipe.optimizer, [(g["betas"][0], g["weight_decay"]) for g in groups]))
        return training

    monkeypatch.setattr(slices, "_open", opened)
    genes = "optimizer.beta1 0.1..0.9, optimizer.weight_decay 0..0.1"
    train(genes=genes, engine=PopulationEngine.SLICES)
    assert len({wanted.beta1 for wanted, _ in seen}) > 4
    for wanted, groups in seen:
        assert {beta for beta, _ in groups} == {wanted.beta1}
        assert {decay for _, decay in groups} == {wanted.weight_decay, 0.0}


def test_a_task_of_its_own_takes_the_fastest_engine_that_can(train: Train) -> None:
    assert train().engine == PopulationEngine.STACKED
    genes = "optimizer.beta1 0.1..0.9"
    assert train("slices", genes=genes).engine == PopulationEngine.SLICES


class Normalised(Blobs):
    """Has running statistics."""

    def build_model(self, recipe):
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


class Stubborn(Blobs):
    """Its loss reads a number, which vmap refuses."""

    def loss(self, model, batch):
        losses = super().loss(model, batch)
        return losses if losses.sum().item() < 1e9 else losses / 2


@pytest.mark.parametrize(
    ("task", "reason"), [(Normalised(), "buffers"), (Stubborn(), "fails under torch.vmap")]
)
def test_what_cannot_be_stacked(train: Train, task, reason: str) -> None:
    assert train(task=task).engine == PopulationEngine.SLICES
    with pytest.raises(UsageError, match=reason):
        train("asked", task=task, engine=PopulationEngine.STACKED)


def test_linear_heads_need_the_built_in_loss(train: Train) -> None:
    with pytest.raises(UsageError, match="its own model or loss"):
        train(engine=PopulationEngine.HEADS)


def test_without_a_test_split_half_of_validation_judges(train: Train) -> None:
    task = Blobs()
    task.splits = (Split.TRAIN, Split.VAL)
    for engine in (PopulationEngine.STACKED, PopulationEngine.SLICES):
        found = train(str(engine), task=task, engine=engine)
        assert found.judged_on == HALF_OF_VAL
        assert found.winner.judged is not None


def test_without_validation_there_is_nothing_to_choose_by(train: Train) -> None:
    task = Blobs()
    task.splits = (Split.TRAIN,)
    with pytest.raises(DataError, match="no validation examples"):
        train(task=task)


def test_members_that_diverge_are_replaced_in_both_engines(train: Train) -> None:
    recipe = replace(RECIPE, optimizer=OptimizerConfig(name=OptimizerName.SGD))
    for engine in (PopulationEngine.STACKED, PopulationEngine.SLICES):
        genes = "batch.lr 1e-3..1e39 log"
        found = train(str(engine), recipe=recipe, genes=genes, engine=engine, members=8)
        assert found.num_diverged > 0
        assert found.winner.validation.is_finite


def test_if_all_diverge_it_ends_with_5(train: Train) -> None:
    recipe = replace(RECIPE, optimizer=OptimizerConfig(name=OptimizerName.SGD))
    recipe = replace(recipe, batch=BatchConfig(global_batch_size=16, lr=3e38))
    for engine in (PopulationEngine.STACKED, PopulationEngine.SLICES):
        with pytest.raises(DivergedError) as caught:
            train(str(engine), recipe=recipe, genes="batch.lr 1e38..1e39 log", engine=engine)
        assert caught.value.exit_code == 5


def test_a_signal_ends_it_and_the_same_call_resumes(train: Train, monkeypatch, tmp_path) -> None:
    expected = train("whole", engine=PopulationEngine.SLICES)

    class Guard(module.SignalGuard):
        def __enter__(self):
            self.requested = 15
            return self

    with monkeypatch.context() as patch:
        patch.setattr(module, "SignalGuard", Guard)
        with pytest.raises(InterruptedRun, match="state is saved"):
            train("cut", engine=PopulationEngine.SLICES)
    assert (tmp_path / "cut" / STATE_FILE).is_file()
    assert same(train("cut", engine=PopulationEngine.SLICES), expected)


def test_another_population_is_not_overwritten_unasked(train: Train, tmp_path) -> None:
    found = train(engine=PopulationEngine.SLICES)
    with pytest.raises(UsageError, match="another population") as caught:
        train(engine=PopulationEngine.SLICES, members=5)
    assert "--overwrite" in str(caught.value.fix)
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "members: 4" in config, "also the config is that of the population"
    assert same(train(engine=PopulationEngine.SLICES), found), "nothing was lost"
    other = train(engine=PopulationEngine.SLICES, members=5, overwrite=True)
    assert other.num_members == 5
    assert len((tmp_path / "run" / LINEAGE_FILE).read_text().splitlines()) == 15


def test_the_folder_of_a_run_is_refused(train: Train, tmp_path) -> None:
    train()
    (tmp_path / "run" / "events.jsonl").write_text("{}")
    with pytest.raises(UsageError, match="a training"):
        train(overwrite=True)


@pytest.mark.parametrize(
    ("recipe", "what"),
    [
        (replace(RECIPE, train=TrainMode.HEAD_THEN_ALL), "head_then_all"),
        (replace(RECIPE, device=replace(RECIPE.device, count=2)), "several devices"),
        (replace(RECIPE, data=replace(RECIPE.data, fraction=0.5)), "a sample"),
        (replace(RECIPE, schedule=ScheduleConfig(max_epochs=3, max_steps=9)), "max_steps"),
    ],
)
def test_jobs_that_a_population_refuses(train: Train, recipe, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        train(recipe=recipe)


def test_dropout_is_a_gene_of_slices(train: Train) -> None:
    recipe = replace(RECIPE, head=HeadConfig(dropout=0.1))
    found = train(recipe=recipe, genes="head.dropout 0..0.8")
    assert found.engine == PopulationEngine.SLICES
    assert found.moments[0].genes == {"head.dropout": 0.1}, "the first is the recipe's own"


def test_random_states_are_left_alone(train: Train) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train(engine=PopulationEngine.STACKED)
    assert torch.equal(torch.get_rng_state(), before)


def test_more_small_models_than_memory_holds(train: Train, monkeypatch) -> None:
    monkeypatch.setattr(engines, "free_bytes", lambda _: 5_000)
    with pytest.raises(ResourceError, match=r"4 members need .* of memory") as caught:
        train(engine=PopulationEngine.STACKED)
    assert "--population.engine slices" in str(caught.value.fix)
    monkeypatch.setattr(engines, "free_bytes", lambda _: 10**9)
    assert train(engine=PopulationEngine.STACKED).num_generations == 3


WHOLE = [name for name in OptimizerName if not spec_of(name).is_elementwise]


@pytest.mark.parametrize("name", WHOLE)
def test_optimizers_that_use_whole_weights_train_members_apart(train: Train, name) -> None:
    recipe = replace(RECIPE, optimizer=OptimizerConfig(name=name))
    assert train(recipe=recipe, members=2, top_frac=0.5).engine == PopulationEngine.SLICES
    for engine in (PopulationEngine.STACKED, PopulationEngine.HEADS):
        with pytest.raises(UsageError, match=r"uses whole weights|its own model or loss"):
            train(f"asked-{engine}", recipe=recipe, engine=engine)


def test_whole_numbers_stay_whole_after_a_kill(train: Train, monkeypatch) -> None:
    class Killed(BaseException):
        pass

    options = {
        "genes": "batch.lr 1e-3..1e-1 log, batch.global_batch_size 4..32 log",
        "engine": PopulationEngine.SLICES,
    }
    expected = train("whole", **options)
    original, left = slices.train_slice, [6]

    def dying(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(slices, "train_slice", dying)
        with pytest.raises(Killed):
            train("cut", **options)
    assert same(train("cut", **options), expected)
    assert same(train("cut", **options), expected), "also once it is finished"


class Trunk(Blobs):
    """A trunk whose weights are drawn, and a head."""

    is_random = True

    def build_model(self, recipe):
        return nn.Sequential(
            nn.Linear(4, 4), nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4))
        )

    def split(self, model):
        return model[:2], self.head_of(model)

    def head_of(self, model):
        return model[2]

    @property
    def is_random_before_head(self):
        return self.is_random


class Wrapped(Trunk):
    """Its head has other names than in the model."""

    is_random = False

    def head_of(self, model):
        return nn.Sequential(model[2])


class Flat(Trunk):
    """The names of its head are also those of the trunk."""

    is_random = False


@pytest.mark.parametrize(
    ("task", "engine"),
    [
        (Trunk(), PopulationEngine.SLICES),
        (Wrapped(), PopulationEngine.STACKED),
        (Flat(), PopulationEngine.STACKED),
        (Flat(), PopulationEngine.SLICES),
    ],
)
def test_the_winner_has_the_trunk_that_its_head_was_trained_on(
    train: Train, task: Trunk, engine, tmp_path
) -> None:
    recipe = replace(RECIPE, train=TrainMode.HEAD)
    recipe = replace(recipe, features=FeaturesConfig(cached=not task.is_random))
    found = train(task=task, recipe=recipe, engine=engine, members=6)
    best = load_best(tmp_path / "run" / WINNER)
    model = task.build_model(recipe)
    model.load_state_dict(best.weights)
    model.eval()
    for split, wanted in (
        (Split.VAL, found.winner.validation),
        (Split.TEST, found.winner.judged),
    ):
        inputs, targets = task.data(split).tensors
        loss = nn.functional.cross_entropy(model(inputs), targets).item()
        assert loss == pytest.approx(wanted.loss, rel=1e-5)


@BOTH
def test_the_schedule_ends_with_the_last_epoch(train: Train, monkeypatch, engine) -> None:
    """Also if intervals end within batches, and batches are of different sizes."""
    seen = []

    def rate(step, *, base, schedule, steps_per_epoch):
        seen.append(step / (schedule.max_epochs * steps_per_epoch))
        return base

    monkeypatch.setattr(stacked, "lr_at", rate)
    monkeypatch.setattr(course, "lr_at", rate)
    genes = "batch.lr 1e-3..1e-1 log"
    if engine is PopulationEngine.SLICES:
        genes += ", batch.global_batch_size 4..32"
    train(engine=engine, genes=genes, interval=20, members=2)
    assert 0.9 < max(seen) < 1


class Line(Blobs):
    """A number for each example, without classes."""

    def build_model(self, recipe):
        return nn.Linear(4, 1)

    def data(self, split: Split):
        inputs = super().data(split).tensors[0]
        return TensorDataset(inputs, inputs.sum(1, keepdim=True))

    def loss(self, model, batch):
        return (model(batch.inputs) - batch.targets).square().mean(1)

    def metrics(self, model, batch):
        outputs = model(batch.inputs)
        return Metrics(losses=(outputs - batch.targets).square().mean(1), outputs=outputs)


@BOTH
def test_a_task_without_accuracy_has_none(train: Train, engine) -> None:
    found = train(task=Line(), engine=engine)
    assert all(moment.score.accuracy is None for moment in found.moments)
    by_accuracy = replace(RECIPE, stopping=StoppingConfig(monitor=Monitor.VAL_ACCURACY))
    with pytest.raises(UsageError, match="cannot be chosen by accuracy"):
        train("other", task=Line(), engine=engine, recipe=by_accuracy, target=0.9)


def test_a_target_outside_its_range_is_refused_and_one_not_reached_is_told(train: Train) -> None:
    recipe = replace(RECIPE, stopping=StoppingConfig(monitor=Monitor.VAL_ACCURACY))
    with pytest.raises(UsageError, match="accuracy of 90") as caught:
        train(recipe=recipe, target=90.0)
    assert "0.9" in str(caught.value.fix)
    assert "the target 1 was not reached, but 0." in population_text(
        train(recipe=recipe, target=1.0)
    )
    assert "target" not in population_text(train("plain", recipe=recipe))


def test_choices_that_depend_on_the_machine_are_kept(train: Train, monkeypatch) -> None:
    """Another free memory, a Task at the same place, or the data elsewhere are the same job."""
    recipe = replace(RECIPE, train=TrainMode.HEAD)
    task = Flat()
    found = train(task=task, recipe=recipe)
    seen = []
    original = module.settled

    def settled(own, *args, **kwargs):
        seen.append(own.features.cached)
        return original(own, *args, **kwargs)

    monkeypatch.setattr(module, "settled", settled)
    there = replace(recipe, data=replace(recipe.data, where=Where.MEMORY))
    assert same(train(task=task, recipe=there, task_name="./own.py:Blobs"), found)
    assert seen == [found.engine == PopulationEngine.STACKED]
    assert seen != [recipe.features.cached], "it was left open"


def test_a_signal_ends_a_slice_at_its_next_step(train: Train, monkeypatch) -> None:
    expected = train("whole", engine=PopulationEngine.SLICES)
    steps = iter(range(1000))

    class Guard(module.SignalGuard):
        @property
        def requested(self):
            return 15 if next(steps) > 40 else 0

        @requested.setter
        def requested(self, value):
            pass

    with monkeypatch.context() as patch:
        patch.setattr(module, "SignalGuard", Guard)
        with pytest.raises(InterruptedRun, match="state is saved"):
            train("cut", engine=PopulationEngine.SLICES)
    assert next(steps) < 60
    assert same(train("cut", engine=PopulationEngine.SLICES), expected)
