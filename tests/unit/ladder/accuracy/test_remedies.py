"""Real climbs for accuracy: what helps is kept and what does not is not, by the measured fit."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepladder.config.choices import ClimbAim, Encoding, Split, WeightsSource
from stepladder.config.recipe import AugmentConfig, FeaturesConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.data.reading.examples import Examples, Source
from stepladder.ladder import climb as climb_module
from stepladder.ladder.accuracy.fit import larger_part
from stepladder.ladder.accuracy.remedies import AccuracyClimb, FitRecipe
from stepladder.ladder.lab import Lab
from stepladder.ladder.ledger import Ledger
from stepladder.ladder.trainings import training_cache
from stepladder.ladder.trial import run_trial
from stepladder.records.ladder import Decision, Trial, Verdict
from stepladder.records.profile import Profile
from stepladder.rungs import Against, Rung
from stepladder.rungs.accuracy.augmentation import Augmentation
from stepladder.rungs.accuracy.dropout import Dropout
from stepladder.rungs.accuracy.earlier_stop import EarlierStop
from stepladder.rungs.accuracy.learning_rate_higher import LearningRateHigher
from stepladder.rungs.accuracy.train_longer import TrainLonger
from stepladder.rungs.accuracy.weight_decay import WeightDecay
from stepladder.rungs.speed.all_data import AllData
from stepladder.task import Metrics, Task
from stepladder.task.image_classification import ImageClassification
from stepladder.training.output.display import Display

NUM_DIMS, NUM_TELLING = 100, 5
KEPT = Decision.KEPT


class MakeClimb(Protocol):
    def __call__(
        self, *rungs: Rung, lab: Lab, kind: type[AccuracyClimb] = ..., **facts: Any
    ) -> AccuracyClimb: ...


class Held(Source):
    """Examples in memory; those of a batch are read at once."""

    default_threads = 0

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets
        self.fingerprint = f"{len(targets)} {targets.sum()}"

    def __len__(self) -> int:
        return len(self.targets)

    def read(self, rows: np.ndarray) -> Examples:
        return Examples(self.inputs[rows], self.targets[rows])


class WideTask(Task):
    """More weights than examples, with large initial weights that hide the signal.

    Without decay, weights that no training example uses stay as initialized; with it, they shrink.
    """

    is_random_before_head = False

    def data(self, split: Split) -> Held:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        num = {Split.TRAIN: 120, Split.VAL: 200, Split.TEST: 8}[split]
        targets = torch.randint(2, (num,), generator=generator)
        inputs = torch.randn(num, NUM_DIMS, generator=generator)
        inputs[:, :NUM_TELLING] += 0.6 * (2 * targets - 1).unsqueeze(1)
        return Held(inputs, targets)

    def build_model(self, recipe: Recipe) -> nn.Module:
        model = nn.Linear(NUM_DIMS, 2)
        nn.init.normal_(model.weight, std=2.0)
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        logits = model(batch.inputs)
        losses = F.cross_entropy(logits, batch.targets, reduction="none")
        return Metrics(losses=losses, outputs=logits)


class TenTimesHigher(LearningRateHigher):
    """The middle one of the candidate rates: the others need trainings to choose from."""

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:
        return super().variants(profile, recipe)[:1]


@pytest.fixture(name="make_climb")
def _make_climb(tmp_path: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch) -> MakeClimb:
    """Start a climb with known profiles, as time is not tested here."""

    def make(
        *rungs: Rung, lab: Lab, kind: type[AccuracyClimb] = AccuracyClimb, **facts: Any
    ) -> AccuracyClimb:
        epochs = lab.job.recipe.schedule.max_epochs
        known = replace(profile, time=replace(profile.time, epochs=epochs), **facts)
        monkeypatch.setattr(climb_module, "take_profile", lambda *_, **__: known)
        folder = tmp_path / "runs" / "run"
        folder.mkdir(parents=True)
        return kind(
            lab=lab,
            ledger=Ledger(folder),
            display=Display(io.StringIO()),
            show=lambda _: None,
            job="job",
            machine="machine",
            recipe=lab.job.recipe,
            rungs=rungs,
            profiles=[known],
        )

    return make


@pytest.fixture(name="slow_rate")
def _slow_rate(recipe: Recipe) -> Recipe:
    """A hundredth of a good learning rate."""
    return replace(recipe, batch=replace(recipe.batch, lr=recipe.batch.lr / 100))


@pytest.fixture(name="by_heart")
def _by_heart(recipe: Recipe) -> Recipe:
    """Long enough to memorize all training examples."""
    return replace(
        recipe,
        batch=replace(recipe.batch, lr=0.1, global_batch_size=16),
        schedule=replace(recipe.schedule, max_epochs=30),
        stopping=replace(recipe.stopping, validate_every_epochs=30),
    )


def for_accuracy(make_lab: Callable[..., Lab], *job: Any, **options: Any) -> Lab:
    return make_lab(*job, **{"aim": ClimbAim.ACCURACY, "time_per_point": 10.0} | options)


def verdicts(climb: AccuracyClimb) -> dict[str, Verdict]:
    return {trial.rung: trial.verdict for trial in climb.trials}


def test_where_the_rate_is_far_too_low_a_higher_one_is_kept_and_nothing_is_regularised(
    make_lab, make_climb: MakeClimb, slow_rate: Recipe
) -> None:
    lab = for_accuracy(make_lab, slow_rate)
    regularising = (WeightDecay(), EarlierStop(), AllData())
    climb = make_climb(*regularising, LearningRateHigher(), lab=lab)
    before = climb.fit_of(slow_rate)
    assert before is not None
    assert larger_part(before) is Against.TRAINING
    after = climb.run()
    said = verdicts(climb)
    assert said["learning_rate_higher"].decision is Decision.KEPT, said
    assert said["learning_rate_higher"].accuracy is not None
    assert said["learning_rate_higher"].accuracy.low > 0
    assert after.batch.lr > slow_rate.batch.lr
    for rung in regularising[:2]:
        assert said[rung.name].decision is Decision.NOT_HERE
        assert "training error is the larger part" in said[rung.name].reason
    found = climb.fit_of(after)
    assert found is not None
    assert found.training < before.training


@pytest.mark.thorough
def test_where_all_is_learnt_by_heart_decay_is_kept_and_no_rate_is_tried(
    make_lab, make_climb: MakeClimb, by_heart: Recipe
) -> None:
    lab = for_accuracy(make_lab, by_heart, WideTask())
    climb = make_climb(LearningRateHigher(), TrainLonger(), WeightDecay(), lab=lab)
    after = climb.run()
    said = verdicts(climb)
    assert said["weight_decay"].decision is Decision.KEPT, said
    assert after.optimizer.weight_decay == 0.1, "the strongest of three"
    assert said["weight_decay"].gap_before is not None
    assert said["weight_decay"].gap_before > 0.1
    for name in ("learning_rate_higher", "train_longer"):
        assert said[name].decision is Decision.NOT_HERE
        assert "training error is the smaller part" in said[name].reason


def test_a_remedy_that_does_not_help_is_not_kept_and_says_how_many_examples_would_suffice(
    make_lab, make_climb: MakeClimb, by_heart: Recipe
) -> None:
    class NextToNothing(WeightDecay):
        def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:
            return (replace(recipe, optimizer=replace(recipe.optimizer, weight_decay=1e-7)),)

    climb = make_climb(NextToNothing(), lab=for_accuracy(make_lab, by_heart, WideTask()))
    assert climb.run() == by_heart
    verdict = verdicts(climb)["weight_decay"]
    assert verdict.decision in (Decision.DROPPED, Decision.UNDECIDED)
    assert verdict.accuracy is not None
    assert verdict.accuracy.low <= 0 <= verdict.accuracy.high


def test_what_the_fit_did_not_need_is_tried_again_once_it_does(
    make_lab, make_climb: MakeClimb, slow_rate: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = for_accuracy(make_lab, slow_rate)
    climb = make_climb(EarlierStop(), LearningRateHigher(), lab=lab)
    parts = iter((Against.TRAINING, Against.TRAINING, *[Against.GAP] * 4))
    monkeypatch.setattr("stepladder.ladder.accuracy.fit.larger_part", lambda _: next(parts))
    climb.run()
    assert [trial.rung for trial in climb.trials] == ["learning_rate_higher", "earlier_stop"]
    assert verdicts(climb)["earlier_stop"].decision is not Decision.NOT_HERE


def test_the_training_error_of_a_sample_is_known_and_all_data_wait_for_it(
    make_lab, make_climb: MakeClimb, slow_rate: Recipe
) -> None:
    sample = replace(slow_rate, data=replace(slow_rate.data, fraction=0.5))
    climb = make_climb(AllData(), lab=for_accuracy(make_lab, sample))
    fit = climb.fit_of(sample)
    assert fit is not None
    assert larger_part(fit) is Against.TRAINING
    climb.run()
    assert "training error is the larger part" in verdicts(climb)["all_data"].reason


def test_a_task_without_classes_is_judged_by_its_loss(
    make_lab, make_climb: MakeClimb, slow_rate: Recipe, blobs: type[Task]
) -> None:
    class Losses(blobs):  # type: ignore[misc, valid-type]
        def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
            return Metrics(losses=self.loss(model, batch))

    lab = for_accuracy(make_lab, slow_rate, Losses())
    climb = make_climb(LearningRateHigher(), lab=lab)
    climb.run()
    verdict = verdicts(climb)["learning_rate_higher"]
    assert verdict.decision is Decision.KEPT, verdict
    assert verdict.accuracy is None
    assert verdict.loss is not None
    assert verdict.loss.high < 0


@pytest.mark.thorough
@pytest.mark.slow
def test_a_recipe_is_grown_until_it_overfits_and_then_given_remedies(
    make_lab, make_climb: MakeClimb, by_heart: Recipe
) -> None:
    slow = replace(by_heart, batch=replace(by_heart.batch, lr=1e-4))
    lab = for_accuracy(make_lab, slow, WideTask(), aim=ClimbAim.FIT, num_seeds=2)
    climb = make_climb(TenTimesHigher(), WeightDecay(), lab=lab, kind=FitRecipe)
    before = climb.fit_of(slow)
    assert before is not None
    assert larger_part(before) is Against.TRAINING
    shown: list[str] = []
    climb.show = lambda trial: shown.append(trial.rung)
    after = climb.run()
    said = verdicts(climb)
    assert shown[0] == "learning_rate_higher"
    assert shown.index("weight_decay") > shown.index("learning_rate_higher")
    assert after.batch.lr > slow.batch.lr
    found = climb.fit_of(after)
    assert found is not None
    assert found.held_out < before.held_out
    assert climb.together is not None
    assert climb.together.accuracy is not None
    assert climb.together.accuracy.low > 0, said


@pytest.mark.slow
def test_while_it_grows_a_step_is_kept_for_its_training_error_alone(
    make_lab, make_climb: MakeClimb, by_heart: Recipe
) -> None:
    slow = replace(by_heart, batch=replace(by_heart.batch, lr=1e-4))

    class ALittleHigher(LearningRateHigher):
        """Too small for held-out examples to show."""

        def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:
            lr = recipe.batch.lr * (10 if recipe.batch.lr < 1e-3 else 3)
            return (replace(recipe, batch=replace(recipe.batch, lr=lr)),)

        def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
            return None if recipe.batch.lr < 0.05 else "enough"

    lab = for_accuracy(make_lab, slow, WideTask(), aim=ClimbAim.FIT, num_seeds=2)
    climb = make_climb(ALittleHigher(), lab=lab, kind=FitRecipe)
    shown: list[Verdict] = []
    climb.show = lambda trial: shown.append(trial.verdict)
    climb.run()
    kept = [verdict for verdict in shown if verdict.decision is Decision.KEPT]
    assert len(kept) >= 2, "repeatedly, while the training error dominates"
    grown = [verdict for verdict in kept if verdict.reason.startswith("grown: training error")]
    for verdict in grown:
        assert verdict.accuracy is not None
        assert verdict.accuracy.low <= 0, "otherwise it would have been kept for that"


class MisleadingTask(WideTask):
    """Validation examples that contradict the training examples."""

    def data(self, split: Split) -> Held:
        held = super().data(split)
        return Held(held.inputs, 1 - held.targets) if split is Split.VAL else held


@pytest.mark.slow
def test_what_was_grown_and_gets_less_right_in_the_end_is_undone(
    make_lab, make_climb: MakeClimb, by_heart: Recipe
) -> None:
    slow = replace(by_heart, batch=replace(by_heart.batch, lr=1e-4))
    lab = for_accuracy(make_lab, slow, MisleadingTask(), aim=ClimbAim.FIT)
    climb = make_climb(TenTimesHigher(), lab=lab, kind=FitRecipe)
    shown: list[Trial] = []
    climb.show = shown.append
    after = climb.run()
    grown = [trial.change["batch.lr"][1] for trial in shown if trial.verdict.decision is KEPT]
    assert grown, "the training error falls"
    assert after.batch.lr < grown[-1]
    assert shown[-1].is_undone
    assert "against the original job: " in shown[-1].verdict.reason
    assert climb.together is not None
    assert set(climb.together.undone) == {"learning_rate_higher"}
    assert climb.together.accuracy is not None
    assert climb.together.accuracy.estimate >= 0
    assert (after == slow) == (len(climb.together.undone) == len(grown))


@pytest.fixture(name="on_pictures")
def _on_pictures(
    build_store, tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> Recipe:
    """Two epochs of a head on a small trunk, with few seeds, each of which builds its trunk."""
    monkeypatch.setattr(training_cache, "STACKED_ROUNDS", 1)
    store = tmp_path / "store"
    rows = {"train": 40, "val": 16}
    build_store(store, num_rows=rows, size=32, encoding=Encoding.PIXELS)
    return replace(
        recipe,
        data=replace(recipe.data, store=store),
        model=replace(recipe.model, name="test_efficientnet", weights=WeightsSource.NONE),
        schedule=replace(recipe.schedule, max_epochs=2),
    )


def test_views_of_held_out_examples_are_not_what_they_are_judged_by(
    make_lab, on_pictures: Recipe
) -> None:
    """Folds mix training and validation examples; only the former have views."""
    job = on_pictures
    lab = for_accuracy(make_lab, job, ImageClassification(job.data.store, job))
    views = replace(
        job,
        augment=AugmentConfig(crop=0.5, flip=True),
        features=FeaturesConfig(cached=True, cached_views=3),
    )
    found = lab.outcomes(views).found
    plain = lab.outcomes(job).found
    assert [one.why_not for one in found] == [None] * len(found)
    assert len(found) == 3
    assert {one.rows for one in found} == {one.rows for one in plain[:3]}
    assert all(one.train_accuracy is not None for one in found)
    frozen = replace(views, batch=replace(views.batch, lr=1e-12))
    still = replace(job, batch=replace(job.batch, lr=1e-12))
    for one, other in zip(lab.outcomes(frozen).found, lab.outcomes(still).found, strict=False):
        assert one.losses == pytest.approx(other.losses, abs=1e-4), "the same initial weights"
        assert one.train_loss == pytest.approx(other.train_loss, abs=1e-4)


@pytest.mark.parametrize("rung", [Augmentation(), Dropout()], ids=lambda rung: rung.name)
def test_remedies_of_pictures_are_trained_next_to_the_recipe_without(
    make_lab, profile: Profile, on_pictures: Recipe, rung: Rung
) -> None:
    job = on_pictures
    lab = for_accuracy(make_lab, job, ImageClassification(job.data.store, job), num_seeds=2)
    known = replace(
        profile,
        is_built_in=True,
        has_head=True,
        is_trunk_frozen=True,
        trunk_s=1e-3,
        head_step_s=1e-4,
        num_train=40,
        num_val=16,
    )
    assert rung.why_not(known, job) is None
    trial = run_trial(lab, rung, known, job, rung.predict(known, job)).trial
    verdict = trial.verdict
    assert verdict.num_trainings >= 2, verdict
    assert verdict.accuracy is not None
    assert verdict.is_replayed
    assert verdict.gap_after is not None
    assert trial.change
