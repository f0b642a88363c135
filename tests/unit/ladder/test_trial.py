"""Trials of a small real job: what pays is kept, what does not is discarded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from stepladder.config.choices import TrainMode
from stepladder.config.recipe import Recipe
from stepladder.errors import UsageError
from stepladder.ladder import trial as trial_module
from stepladder.ladder.accuracy.comparison import compare, compare_outcomes
from stepladder.ladder.lab import LENGTH_ROUNDS
from stepladder.ladder.limits.guard import TrialFailed, Watchdog
from stepladder.ladder.timing.speedup import Speed, few_steps_s
from stepladder.ladder.trainings.training_cache import STACKED_ROUNDS
from stepladder.ladder.trial import apply_change, change_between, run_trial
from stepladder.ladder.variants import Choice, choose_variant
from stepladder.records.ladder import Aim, Decision, Exactness, Interval, Prediction
from stepladder.records.profile import Profile, Provenance
from stepladder.rungs import Rung
from stepladder.rungs.devices.stronger_optimizer import StrongerOptimizer
from stepladder.rungs.speed.cached_features import CachedFeatures
from stepladder.rungs.speed.early_stopping import EarlyStopping


class Changed(Rung):
    """A rung that makes one change."""

    name: ClassVar[str] = "changed"
    level: ClassVar[int] = 8

    def __init__(
        self,
        *recipes: Recipe,
        exactness: Exactness = Exactness.ROUNDING,
        aim: Aim = Aim.TIME,
    ) -> None:
        self.recipes = recipes
        self.exactness = exactness  # type: ignore[misc]
        self.aim = aim  # type: ignore[misc]

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        return Prediction(rung=self.name, gain=2.0, provenance=Provenance.MODELLED)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        return self.recipes[0]

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:
        return self.recipes


def epochs(recipe: Recipe, number: int) -> Recipe:
    return replace(recipe, schedule=replace(recipe.schedule, max_epochs=number))


def with_prefetch(recipe: Recipe) -> Recipe:
    return replace(recipe, loader=replace(recipe.loader, prefetch_batches=3))


def tried(lab, rung, profile, recipe):  # type: ignore[no-untyped-def]
    prediction = rung.predict(profile, recipe)
    return run_trial(lab, rung, profile, recipe, prediction)


def test_half_of_the_epochs_at_equal_accuracy_is_kept(make_lab, profile, recipe) -> None:
    lab = make_lab(recipe, max_accuracy_loss=0.2)
    rung = Changed(epochs(recipe, 3), exactness=Exactness.STATISTICAL)
    result = tried(lab, rung, profile, recipe)
    trial = result.trial
    assert trial.verdict.decision is Decision.KEPT, trial.verdict
    assert result.recipe == epochs(recipe, 3)
    assert trial.verdict.speed is not None
    assert trial.verdict.speed.estimate == pytest.approx(2)
    assert trial.verdict.is_replayed
    assert trial.verdict.num_epochs == 3
    assert trial.verdict.num_trainings >= 3
    assert trial.before_s == (), "only the length differs: no block is run"
    assert trial.change == {"schedule.max_epochs": (6, 3)}


def test_twice_the_epochs_is_dropped(make_lab, profile, recipe) -> None:
    lab = make_lab(recipe, max_accuracy_loss=0.2)
    rung = Changed(epochs(recipe, 12), exactness=Exactness.STATISTICAL)
    result = tried(lab, rung, profile, recipe)
    assert result.trial.verdict.decision is Decision.DROPPED
    assert result.trial.verdict.reason == "slower"
    assert result.recipe == recipe


def test_nothing_is_trained_for_what_is_not_known_to_be_faster(
    make_lab, profile, recipe, monkeypatch
) -> None:
    measured = trial_module.measure_speed

    def unsure(*args: Any, **more: Any) -> Speed:
        speed = measured(*args, **more)
        return replace(speed, interval=Interval(estimate=2.0, low=0.9, high=4.4))

    monkeypatch.setattr(trial_module, "measure_speed", unsure)
    rung = Changed(epochs(recipe, 3), exactness=Exactness.STATISTICAL)
    trial = tried(make_lab(recipe), rung, profile, recipe).trial
    assert trial.verdict.decision is Decision.UNDECIDED
    assert trial.verdict.reason == "the noise is larger than the effect"
    assert trial.verdict.accuracy is None
    assert trial.verdict.num_trainings == 0


def test_what_learns_nothing_is_dropped_as_worse(make_lab, profile, recipe) -> None:
    lab = make_lab(recipe, num_seeds=5)
    lost = replace(epochs(recipe, 1), batch=replace(recipe.batch, lr=1e-9))
    result = tried(lab, Changed(lost, exactness=Exactness.STATISTICAL), profile, recipe)
    assert result.trial.verdict.decision is Decision.DROPPED
    assert result.trial.verdict.reason.startswith("worse")
    assert result.trial.verdict.accuracy is not None
    assert result.trial.verdict.accuracy.high < -0.01


def test_too_few_examples_leave_it_undecided_and_say_what_they_resolve(
    make_lab, profile, recipe
) -> None:
    lab = make_lab(recipe, max_accuracy_loss=0.0001)
    result = tried(
        lab, Changed(epochs(recipe, 5), exactness=Exactness.STATISTICAL), profile, recipe
    )
    assert result.trial.verdict.decision is Decision.UNDECIDED
    assert (
        "with 120 held-out examples, the change in accuracy is known only to ±"
        in result.trial.verdict.reason
    )


def test_early_stopping_is_judged_by_the_epochs_of_each_seed(make_lab, profile, recipe) -> None:
    long = epochs(replace(recipe, batch=replace(recipe.batch, lr=0.5)), 60)
    lab = make_lab(long, max_accuracy_loss=0.3, num_seeds=5)
    result = tried(lab, EarlyStopping(), profile, long)
    trial = result.trial
    assert trial.verdict.decision is Decision.KEPT, trial.verdict
    assert len(trial.after_epochs) == 5 * LENGTH_ROUNDS
    assert trial.after_range is not None
    assert trial.after_range.low <= np.mean(trial.after_epochs) <= trial.after_range.high
    assert trial.before_epochs == ()
    assert max(trial.after_epochs) < 60
    assert trial.verdict.num_epochs == pytest.approx(np.mean(trial.after_epochs))


def test_features_are_the_same_to_rounding_and_timed_by_blocks(make_lab, profile, recipe) -> None:
    lab = make_lab(recipe)
    trial = tried(lab, CachedFeatures(), profile, recipe).trial
    assert trial.verdict.exactness.startswith(("same to 1e-", "equal"))
    assert len(trial.before_s) == len(trial.after_s) >= 8
    assert trial.after is not None
    assert trial.after.one_time_s["features"] > 0
    assert not list((lab.cache).glob("trial-*")), "files of a trial are removed with it"


def test_a_change_of_nothing_is_not_kept(make_lab, profile, recipe) -> None:
    result = tried(make_lab(recipe), Changed(recipe), profile, recipe)
    assert result.trial.verdict.decision is Decision.DROPPED
    assert result.trial.verdict.exactness == "equal"
    assert result.trial.verdict.reason == "speed-up is at most 1.00×"
    assert result.trial.change == {}


def test_what_computes_something_else_is_not_rounding(make_lab, profile, recipe) -> None:
    other = replace(recipe, seed=5)
    result = tried(make_lab(recipe), Changed(other), profile, recipe)
    assert result.trial.verdict.decision is Decision.DROPPED
    assert result.trial.verdict.reason.startswith("different results: ")


def test_the_variant_that_learns_is_chosen(make_lab, profile, recipe) -> None:
    still = replace(recipe, batch=replace(recipe.batch, lr=1e-9))
    fast = replace(recipe, batch=replace(recipe.batch, lr=0.06))
    rung = Changed(still, fast, exactness=Exactness.STATISTICAL)
    trial = tried(make_lab(recipe), rung, profile, recipe).trial
    assert trial.change == {"batch.lr": (0.05, 0.06)}


def ways_to_stop(recipe: Recipe) -> tuple[Recipe, Recipe, Recipe]:
    """Return a slow training, and two stopping rules: one much too early, and one in time."""
    slow = epochs(replace(recipe, batch=replace(recipe.batch, lr=0.003)), 150)
    hasty, patient = (
        replace(slow, stopping=replace(slow.stopping, early=True, patience=patience, **how))
        for patience, how in ((1, {"min_improvement_frac": 0.9}), (5, {}))
    )
    return slow, hasty, patient


@pytest.mark.thorough
def test_the_way_to_stop_that_has_learnt_is_chosen(make_lab, profile, recipe) -> None:
    slow, hasty, patient = ways_to_stop(recipe)
    lab = make_lab(slow, max_accuracy_loss=0.1)
    rung = Changed(hasty, patient, exactness=Exactness.STATISTICAL)
    assert choose_variant(lab, rung, profile, slow, watchdog=Watchdog()).first == patient
    endless = replace(patient, stopping=replace(patient.stopping, patience=1000))
    rung = Changed(hasty, endless, exactness=Exactness.STATISTICAL)
    assert choose_variant(lab, rung, profile, slow, watchdog=Watchdog()).first == hasty, (
        "a variant that saves nothing does not replace one that costs too much"
    )
    rung = Changed(hasty, patient, exactness=Exactness.STATISTICAL)
    lenient = make_lab(slow, max_accuracy_loss=0.9)
    assert choose_variant(lenient, rung, profile, slow, watchdog=Watchdog()).first == hasty


@pytest.mark.thorough
def test_a_safer_way_to_stop_comes_second(make_lab, profile, recipe) -> None:
    slow, hasty, patient = ways_to_stop(recipe)
    lab = make_lab(slow, max_accuracy_loss=0.4)
    rung = Changed(hasty, patient, exactness=Exactness.STATISTICAL)
    choice = choose_variant(lab, rung, profile, slow, watchdog=Watchdog())
    assert choice.first == hasty
    assert choice.second is not None
    assert choice.second() == patient
    assert choice.along == (patient,)


def test_variants_of_slower_steps_are_probed_for_a_second_choice(make_lab, profile, recipe) -> None:
    def of_batch(size: int, lr: float) -> Recipe:
        return replace(recipe, batch=replace(recipe.batch, global_batch_size=size, lr=lr))

    still, safe = of_batch(32, 1e-9), of_batch(16, 0.1)
    long = replace(profile, step_fixed_s=1e-3, step_per_example_s=0.0)
    lab = make_lab(recipe, max_accuracy_loss=0.9)
    rung = Changed(still, safe, exactness=Exactness.STATISTICAL)
    choice = choose_variant(lab, rung, long, recipe, watchdog=Watchdog())
    assert choice.first == still, "almost any loss is allowed"
    assert choice.second is not None
    assert choice.second() == safe
    assert choice.along == ()


def test_a_rung_whose_change_no_training_would_know_of_is_a_fault(
    make_lab, profile, recipe
) -> None:
    rung = Changed(with_prefetch(recipe), exactness=Exactness.STATISTICAL)
    verdict = tried(make_lab(recipe), rung, profile, recipe).trial.verdict
    assert verdict.decision is Decision.DROPPED
    assert "error in the rung" in verdict.reason
    assert "ladder/keys.py" in verdict.reason


def test_decoding_all_pictures_is_granted_its_time(
    make_lab, profile, recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Decodes(Changed):
        def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
            time = replace(profile.time, one_time_s={"store": 1000.0})
            return replace(super().predict(profile, recipe), time=time)

    granted: list[float] = []
    grant = Watchdog.grant
    monkeypatch.setattr(
        Watchdog, "grant", lambda dog, seconds: (granted.append(seconds), grant(dog, seconds))
    )
    tried(make_lab(recipe), Decodes(with_prefetch(recipe)), profile, recipe)
    assert max(granted[:2]) >= 1000, "before anything is compared"


@pytest.mark.thorough
@pytest.mark.parametrize("is_second_good", [True, False, None])
def test_a_second_variant_is_tried_where_the_first_costs_too_much(
    make_lab, profile, recipe, monkeypatch, is_second_good: bool | None
) -> None:
    long = epochs(recipe, 60)
    still = epochs(replace(recipe, batch=replace(recipe.batch, lr=1e-9)), 6)
    good = epochs(replace(recipe, batch=replace(recipe.batch, lr=0.1)), 30)
    bad = epochs(replace(recipe, batch=replace(recipe.batch, lr=1e-8)), 7)
    second = {True: good, False: bad, None: None}[is_second_good]
    monkeypatch.setattr(
        trial_module, "choose_variant", lambda *_, **__: Choice(first=still, second=lambda: second)
    )
    rung = Changed(still, good, bad, exactness=Exactness.STATISTICAL)
    result = tried(make_lab(long, max_accuracy_loss=0.1, num_seeds=5), rung, profile, long)
    verdict, change = result.trial.verdict, result.trial.change
    if is_second_good:
        assert verdict.decision is Decision.KEPT, verdict
        assert result.recipe == good
        assert change["batch.lr"] == (0.05, 0.1)
        assert verdict.accuracy is not None
        assert verdict.accuracy.confidence == 0.975
        assert verdict.reason == "learning rate 1e-09 was dropped"
        return
    assert verdict.decision is Decision.DROPPED
    assert result.recipe == long
    assert change["batch.lr"] == (0.05, 1e-9)
    assert verdict.reason.startswith("worse: ")
    assert ("learning rate 1e-08 was dropped as well" in verdict.reason) == (second is not None)


def test_a_second_variant_that_is_the_likeliest_has_the_rungs_own_prediction(
    make_lab, profile, recipe, monkeypatch
) -> None:
    class Two(Changed):
        def predict_variant(self, profile, recipe, variant):
            return Prediction(rung=self.name, gain=7.0, provenance=Provenance.MODELLED)

    long = epochs(recipe, 60)
    good = epochs(replace(recipe, batch=replace(recipe.batch, lr=0.1)), 30)
    still = epochs(replace(recipe, batch=replace(recipe.batch, lr=1e-9)), 6)
    monkeypatch.setattr(
        trial_module, "choose_variant", lambda *_, **__: Choice(first=still, second=lambda: good)
    )
    rung = Two(good, still, exactness=Exactness.STATISTICAL)
    lab = make_lab(long, max_accuracy_loss=0.1, num_seeds=5)
    trial = tried(lab, rung, profile, long).trial
    assert trial.change["batch.lr"] == (0.05, 0.1)
    assert trial.prediction is not None
    assert trial.prediction.gain == 2.0


@pytest.mark.thorough
def test_the_chosen_variant_is_predicted_again(make_lab, profile, recipe) -> None:
    class Two(Changed):
        def predict_variant(self, profile, recipe, variant):
            return Prediction(rung=self.name, gain=variant.batch.lr, provenance=Provenance.MODELLED)

    still = replace(recipe, batch=replace(recipe.batch, lr=1e-9))
    fast = replace(recipe, batch=replace(recipe.batch, lr=0.06))
    told: list[Prediction] = []
    for rung, gain in (
        (Two(still, fast, exactness=Exactness.STATISTICAL), 0.06),
        (Two(fast, still, exactness=Exactness.STATISTICAL), 2.0),
    ):
        prediction = rung.predict(profile, recipe)
        lab = make_lab(recipe)
        trial = run_trial(lab, rung, profile, recipe, prediction, on_prediction=told.append).trial
        assert trial.prediction is not None
        assert trial.prediction.gain == gain
    assert [prediction.gain for prediction in told] == [0.06], "only if it differs"


@pytest.mark.thorough
def test_more_accuracy_is_kept_at_the_users_rate(make_lab, profile, recipe) -> None:
    little = epochs(replace(recipe, batch=replace(recipe.batch, lr=1e-6)), 2)
    rung = Changed(epochs(recipe, 4), exactness=Exactness.STATISTICAL, aim=Aim.ACCURACY)
    kept = tried(
        make_lab(little, time_per_point=1.5, num_seeds=5), rung, profile, little
    ).trial.verdict
    assert kept.decision is Decision.KEPT, kept
    assert kept.accuracy is not None
    assert kept.accuracy.low > 0
    dear = tried(
        make_lab(little, time_per_point=1.0, num_seeds=5), rung, profile, little
    ).trial.verdict
    assert dear.decision is Decision.DROPPED
    assert "allows at most" in dear.reason


def test_trainings_that_take_too_long_are_not_begun(make_lab, profile, recipe) -> None:
    lab = make_lab(epochs(recipe, 100_000), budget_s=5.0)
    rung = Changed(epochs(recipe, 50_000), exactness=Exactness.STATISTICAL)
    verdict = tried(lab, rung, profile, epochs(recipe, 100_000)).trial.verdict
    assert verdict.decision is Decision.UNDECIDED
    assert f"it would take {3 * STACKED_ROUNDS} trainings of" in verdict.reason


@pytest.mark.parametrize("train", [TrainMode.HEAD, TrainMode.ALL])
def test_stopping_that_cannot_be_tried_is_undecided_and_not_no_faster(
    make_lab, profile, recipe, train: TrainMode
) -> None:
    long = replace(epochs(recipe, 100_000), train=train)
    trial = tried(make_lab(long, budget_s=5.0), EarlyStopping(), profile, long).trial
    assert trial.verdict.decision is Decision.UNDECIDED
    assert "it would take 3 trainings of" in trial.verdict.reason
    assert "--budget" in trial.verdict.reason
    assert trial.verdict.speed is None, "nothing was measured"
    assert trial.before is None


@pytest.mark.parametrize("num_steps", [1, 40])
def test_the_time_of_steps_and_compilers_is_not_a_hang(profile, recipe, num_steps: int) -> None:
    slow = replace(profile, time=replace(profile.time, step_s=15.0), trunk_s=None)
    watchdog = Watchdog()
    watchdog.expect(few_steps_s(slow, recipe, recipe))
    assert watchdog.deadline_s >= 60 * 15, "many times a warm-up of a few steps"
    compiled = replace(recipe, device=replace(recipe.device, compile=True))
    watchdog.expect(few_steps_s(profile, recipe, compiled))
    assert watchdog.deadline_s >= 600
    larger = replace(recipe, batch=replace(recipe.batch, global_batch_size=8 * num_steps))
    assert few_steps_s(slow, recipe, larger) == num_steps * few_steps_s(slow, recipe, recipe)


def test_trainings_that_fail_before_as_well_are_said_to(make_lab, recipe) -> None:
    lab = make_lab(recipe)
    failed = [replace(one, why_not="diverged") for one in lab.outcomes(recipe).found]
    assert (
        compare_outcomes(lab, failed, failed).why_not
        == "every training diverged, also before the change"
    )


def test_a_compilers_start_is_timed_before_the_trial_compiles(
    make_lab, profile, recipe, monkeypatch
) -> None:
    seen = []
    monkeypatch.setattr(trial_module, "compiler_start_s", lambda _: seen.append("start"))

    def check(*_: object) -> str:
        seen.append("check")
        raise TrialFailed("that was all")

    monkeypatch.setattr(trial_module, "_check_exact", check)
    compiled = replace(recipe, device=replace(recipe.device, compile=True))
    trial = tried(make_lab(recipe), Changed(compiled), profile, recipe).trial
    assert seen == ["start", "check"]
    assert trial.verdict.reason == "that was all"


def test_a_change_can_be_set_again(recipe) -> None:
    after = CachedFeatures().apply(None, EarlyStopping().apply(None, recipe))  # type: ignore[arg-type]
    change = change_between(recipe, after)
    assert set(change) == {"features.cached", "stopping.early", "stopping.restore_best"}
    assert apply_change(recipe, change) == after
    with pytest.raises(UsageError, match="there is no such option"):
        apply_change(recipe, {"batch.size": (1, 2)})


def test_the_generalisation_gap_is_that_of_each_training(make_lab, recipe, profile) -> None:
    lab = make_lab(recipe)
    fewer = replace(recipe, schedule=replace(recipe.schedule, max_epochs=1))
    comparison = compare(lab, fewer, recipe)
    wanted = [
        one.train_accuracy - sum(one.hits) / len(one.hits) for one in lab.outcomes(fewer).found
    ]
    assert comparison.gap_before == pytest.approx(np.mean(wanted))
    assert comparison.gap_after != comparison.gap_before
    assert comparison.before == tuple(
        sum(one.hits) / len(one.hits) for one in lab.outcomes(fewer).found
    )


@pytest.mark.thorough
def test_a_stronger_optimizer_is_judged_by_its_time_to_the_end(make_lab, profile, recipe) -> None:
    recipe = replace(
        recipe,
        train=TrainMode.ALL,
        stopping=replace(recipe.stopping, early=True),
        schedule=replace(recipe.schedule, max_epochs=20),
    )
    profile = replace(profile, phases_s={"optimizer": 1e-4})
    rung = StrongerOptimizer()
    trial = tried(make_lab(recipe), rung, profile, recipe).trial
    name = trial.change["optimizer.name"][1]
    assert name in {one.optimizer.name for one in rung.variants(profile, recipe)}
    assert trial.verdict.speed is not None, trial.verdict.reason
    assert trial.verdict.num_epochs is not None
    assert trial.verdict.num_trainings > 0
