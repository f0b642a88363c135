"""A climb continues whatever a rung does, and finally tests what it kept."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest
from torch import Tensor, nn

from stepladder.config.recipe import LoaderConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.errors import InterruptedRun, StepladderError
from stepladder.ladder import climb as climb_module
from stepladder.ladder.advise import advice_text, advise_on
from stepladder.ladder.climb import Climb, NoAdvice
from stepladder.ladder.keys import options_key, recipe_key
from stepladder.ladder.lab import Lab
from stepladder.ladder.ledger import Ledger, trials_of
from stepladder.ladder.timing import patience as patience_module
from stepladder.ladder.trial import change_between
from stepladder.measuring.profile import PROFILE_S
from stepladder.records.ladder import Aim, Decision, Interval, Prediction, Trial, Verdict
from stepladder.records.profile import Profile, Provenance
from stepladder.rungs import Rung
from stepladder.rungs.devices.cost import cost_words
from stepladder.training.output.display import Display, PlainDisplay

KEPT, DROPPED = Decision.KEPT, Decision.DROPPED


def boom() -> Any:
    raise ValueError("boom")


class Change(Rung):
    """A rung that makes any change."""

    level: ClassVar[int] = 8

    def __init__(self, name: str = "it", change: Callable[[Recipe], Recipe] = lambda r: r) -> None:
        self.name = name  # type: ignore[misc]
        self.change = change

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        return Prediction(rung=self.name, gain=2.0, provenance=Provenance.MODELLED)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        return self.change(recipe)


class Refusing(Change):
    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        return "not here"


class MakeClimb(Protocol):
    def __call__(self, *rungs: Rung, lab: Lab | None = ..., **fields: Any) -> Climb: ...


@pytest.fixture(name="make_climb")
def _make_climb(
    make_lab, tmp_path: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> MakeClimb:
    """Start a climb whose first profile is known; later ones are short."""
    monkeypatch.setattr(climb_module, "PROFILE_S", 0.2)

    def make(*rungs: Rung, lab: Lab | None = None, **fields: Any) -> Climb:
        lab = lab or make_lab()
        folder = tmp_path / "runs" / "run"
        folder.mkdir(parents=True, exist_ok=True)
        known: dict[str, Any] = {
            "lab": lab,
            "ledger": Ledger(folder),
            "display": Display(io.StringIO()),
            "show": lambda _: None,
            "job": "job",
            "machine": "machine",
            "recipe": lab.job.recipe,
            "rungs": rungs,
            "profiles": [profile],
        }
        return Climb(**known | fields)

    return make


def write_kept(climb: Climb, rung: Change, before: Recipe, **found: Any) -> Recipe:
    """Write to the ledger that a rung was kept on a recipe; return the recipe after it."""
    after = rung.change(before)
    trial = Trial(
        rung=rung.name,
        level=rung.level,
        change=change_between(before, after),
        prediction=None,
        verdict=Verdict(
            decision=KEPT, reason="", speed=Interval(estimate=2.0, low=1.9, high=2.1), **found
        ),
        job="job",
        machine="machine",
        options=options_key(climb.options),
        commit=climb.lab.commit,
        recipe=recipe_key(before),
    )
    climb.ledger.trial(trial)
    return after


def verdicts(climb: Climb) -> dict[str, Verdict]:
    return {trial.rung: trial.verdict for trial in climb.trials}


@pytest.mark.parametrize("method", ["why_not", "predict", "disk_bytes"])
def test_a_rung_whose_own_code_raises_is_dropped_with_a_reason_and_the_climb_continues(
    make_climb: MakeClimb, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    bad = Change("bad")
    monkeypatch.setattr(bad, method, lambda *_: boom())
    climb = make_climb(bad, Refusing("after"))
    assert climb.run() == climb.lab.job.recipe
    said = verdicts(climb)
    assert said["bad"].decision is DROPPED
    assert said["bad"].reason == "error in the rung: raised ValueError: boom"
    assert said["after"].decision is Decision.NOT_HERE
    assert [trial.rung for trial in trials_of(climb.ledger.path)] == ["bad", "after"]


@pytest.mark.parametrize("method", ["why_not", "predict", "disk_bytes"])
def test_advice_names_a_rung_whose_own_code_raises_among_those_refused(
    make_climb: MakeClimb, profile: Profile, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    bad, good = Change("bad"), Change("good")
    monkeypatch.setattr(bad, method, lambda *_: boom())
    climb = make_climb()
    advice = advise_on(profile, climb.recipe, climb.options, rungs=(bad, good))
    assert advice.next is not None
    assert advice.next.rung == "good"
    assert advice.next.flags == ()
    assert [(other.rung, other.reason) for other in advice.others] == [
        ("bad", "error in the rung: raised ValueError: boom")
    ]


def test_advice_says_what_takes_the_step(make_climb: MakeClimb, profile: Profile) -> None:
    climb = make_climb()

    def other(recipe: Recipe) -> Recipe:
        stopping = replace(recipe.stopping, early=True, validate_every_steps=5)
        return replace(fewer_epochs(recipe), stopping=stopping)

    advice = advise_on(profile, climb.recipe, climb.options, rungs=(Change("good", other),))
    assert advice.next is not None
    assert "--stopping.early" in advice.next.flags
    assert "--stopping.validate-every-steps 5" in advice.next.flags
    text = advice_text(advice, profile)
    assert (
        "`stepladder climb` tries it and keeps it if it pays off. To apply it by hand, add:" in text
    )
    assert [f"    {flag}" in text.splitlines() for flag in advice.next.flags] == [True] * 3


def test_what_is_for_accuracy_is_listed_separately(make_climb: MakeClimb, profile: Profile) -> None:
    better = Change("better", fewer_epochs)
    better.aim = Aim.ACCURACY  # type: ignore[misc]
    climb = make_climb()
    advice = advise_on(profile, climb.recipe, climb.options, rungs=(better, Refusing("other")))
    assert [one.rung for one in advice.besides] == ["better"]
    assert [one.rung for one in advice.others] == ["other"]
    lines = advice_text(advice, profile).splitlines()
    at = lines.index("for accuracy or memory, not for speed:")
    assert lines[at + 1].split()[:2] == ["8", "better"]


def test_advice_on_a_rung_that_cannot_be_applied_names_no_flags(
    make_climb: MakeClimb, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Change("bad")
    monkeypatch.setattr(bad, "apply", lambda *_: boom())
    climb = make_climb()
    advice = advise_on(profile, climb.recipe, climb.options, rungs=(bad,))
    assert advice.next is not None
    assert advice.next.flags == ()
    assert "keeps it if it pays off." in advice_text(advice, profile)


@pytest.mark.parametrize("asked", [KeyboardInterrupt(), InterruptedRun("end", signal_number=15)])
def test_a_request_to_end_passes_through_a_rung(
    make_climb: MakeClimb, monkeypatch: pytest.MonkeyPatch, asked: BaseException
) -> None:
    def end(*_: object) -> Prediction:
        raise asked

    rung = Change()
    monkeypatch.setattr(rung, "predict", end)
    climb = make_climb(rung)
    with pytest.raises(type(asked)):
        climb.run()
    assert not climb.trials


def with_threads(recipe: Recipe) -> Recipe:
    return replace(recipe, loader=LoaderConfig(prefetch_batches=3))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("boom"), "raised ValueError: boom"),
        (MemoryError(), "ran out of memory"),
    ],
    ids=["raises", "out of memory"],
)
def test_a_kept_rung_whose_profile_cannot_be_taken_is_rolled_back(
    make_climb: MakeClimb, make_lab, blobs, error: Exception, words: str
) -> None:
    class FailsWithIt(blobs):
        def build_model(self, recipe: Recipe) -> nn.Module:
            if recipe.loader.prefetch_batches == 3:
                raise error
            return super().build_model(recipe)

    rung = Change("it", with_threads)
    climb = make_climb(rung, Refusing("after"), lab=make_lab(task=FailsWithIt()))
    before = climb.recipe
    write_kept(climb, rung, before)
    assert climb.run() == before
    said = verdicts(climb)
    assert said["it"].decision is DROPPED
    assert said["it"].reason == f"rolled back, as its profile failed: {words}"
    assert said["after"].decision is Decision.NOT_HERE
    *_, dropped, _ = trials_of(climb.ledger.path)
    assert dropped.verdict == said["it"]
    assert len(climb.profiles) == 1, "the profile of the previous recipe is still valid"


def test_timelines_that_do_not_close_end_the_climb_at_the_last_kept_rung(
    make_climb: MakeClimb, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ = replace(profile, no_advice_because="20 % of the time is in no phase")
    monkeypatch.setattr(climb_module, "take_profile", lambda *_, **__: open_)
    rung, after = Change("it", with_threads), Change("after", with_threads)
    climb = make_climb(rung, after)
    write_kept(climb, rung, climb.recipe)
    assert climb.run() == rung.apply(profile, climb._as_written), "what was proven stays"
    said = verdicts(climb)
    assert said["it"].decision is KEPT
    assert said["after"].decision is Decision.UNTRIED
    assert "20 % of the time is in no phase" in said["after"].reason
    assert climb.why_no_advice == said["after"].reason


def test_findings_of_a_first_pass_stay_where_timelines_stop_closing_in_the_second(
    make_climb: MakeClimb,
) -> None:
    first, second = Change("first", fewer_epochs), Change("second", with_threads)
    climb = make_climb(first, second)
    write_kept(climb, first, climb.recipe)
    (written,) = trials_of(climb.ledger.path)
    dropped = replace(written.verdict, decision=DROPPED, reason="measured")
    climb.ledger.trial(replace(written, verdict=dropped))
    write_kept(climb, second, climb.recipe)

    def stop() -> None:
        climb.why_no_advice = "times do not add up"

    climb._measure_or_stop = stop  # type: ignore[method-assign]
    climb.run()
    assert verdicts(climb)["second"].decision is KEPT
    assert verdicts(climb)["first"].reason == "measured"


def test_timelines_of_the_original_job_that_do_not_close_end_the_climb(
    make_climb: MakeClimb, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ = replace(profile, no_advice_because="20 % of the time is in no phase")
    monkeypatch.setattr(climb_module, "take_profile", lambda *_, **__: open_)
    with pytest.raises(NoAdvice, match="20 % of the time"):
        make_climb(Change("it", with_threads), profiles=[]).run()


def test_a_job_that_cannot_be_measured_is_named_with_the_cause(
    make_climb: MakeClimb, make_lab, blobs
) -> None:
    class Broken(blobs):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            return boom()

    climb = make_climb(lab=make_lab(task=Broken()), profiles=[])
    with pytest.raises(StepladderError) as raised:
        climb.run()
    assert raised.value.where == "Broken"
    assert "could not be measured: it raised ValueError: boom" in raised.value.what
    assert isinstance(raised.value.__cause__, ValueError)


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer.fusd": [False, True]},
        {"batch.global_batch_size": [8, -1]},
    ],
    ids=str,
)
def test_an_invalid_line_of_the_ledger_is_skipped_and_its_rung_tried_again(
    make_climb: MakeClimb, change: dict[str, Any]
) -> None:
    rung = Change("it", with_threads)
    climb = make_climb(rung)
    write_kept(climb, rung, climb.recipe)
    (written,) = trials_of(climb.ledger.path)
    climb.ledger.trial(replace(written, change=change))
    climb.run()
    assert climb.num_from_ledger == 0
    assert climb.trials[0].prediction is not None, "it is a separate trial"


@pytest.mark.parametrize(
    ("then_s", "now_s", "is_tried"),
    [
        (60.0, None, True),
        (60.0, 90.0, True),
        (60.0, 60.0, False),
        (None, 60.0, False),
        (None, None, False),
        (None, 7200.0, True),  # without a budget, trainings get what ten minutes would allow
        (7200.0, None, False),
    ],
)
def test_what_stayed_undecided_on_a_budget_is_tried_once_there_is_more(
    make_climb: MakeClimb,
    make_lab,
    then_s: float | None,
    now_s: float | None,
    is_tried: bool,
) -> None:
    rung = Change("it", with_threads)
    climb = make_climb(rung, lab=make_lab(budget_s=now_s))
    write_kept(climb, rung, climb.recipe)
    (written,) = trials_of(climb.ledger.path)
    undecided = replace(written.verdict, decision=Decision.UNDECIDED)
    climb.ledger.trial(replace(written, verdict=undecided, budget_s=then_s))
    climb.run()
    assert (climb.num_from_ledger == 0) == is_tried


def test_a_profile_takes_a_tenth_of_the_budget_and_later_ones_half_of_that(
    make_climb: MakeClimb, make_lab, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(climb_module, "PROFILE_S", PROFILE_S)
    for budget_s, first_s in ((None, PROFILE_S), (1e6, PROFILE_S), (30.0, 3.0)):
        climb = make_climb(lab=make_lab(budget_s=budget_s), profiles=[])
        assert climb.profile_s() == pytest.approx(first_s)
        climb.profiles.append(profile)
        assert climb.profile_s() == pytest.approx(first_s / 2)


def test_a_profile_that_others_disturbed_is_taken_again(
    make_climb: MakeClimb, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long a climb may wait is known from the first profile, whatever disturbed it."""
    monkeypatch.setattr(patience_module, "MAX_WAIT_S", 300.0)
    monkeypatch.setattr(patience_module, "_LOOK_S", 0.01)
    others = iter([1.0, 1.0, 0.0, 0.0])  # the first profile, two looks, the second profile
    monkeypatch.setattr(patience_module, "cores_missing_since", lambda _: next(others, 0.0))
    climbing = make_climb()
    climbing.profiles = []
    taken = []
    take = climb_module.take_profile

    def noted(*args: Any, **options: Any) -> Profile:
        taken.append(take(*args, **options))
        return replace(taken[-1], time=replace(taken[-1].time, epochs=1000.0))

    monkeypatch.setattr(climb_module, "take_profile", noted)
    profile = climbing.measure()
    assert len(taken) == 2
    assert profile.time.step_s == taken[-1].time.step_s
    assert climbing.lab.patience.used_s > 0
    assert climbing.lab.patience.left_s > 0


def test_a_climb_that_resumes_may_wait_as_a_new_one_may(
    make_climb: MakeClimb, profile: Profile, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience_module, "MAX_WAIT_S", 300.0)
    climbing = make_climb(reads_ledger=True)
    climbing.ledger.profile(profile, recipe=recipe_key(climbing.recipe), at_s=0.0)
    climbing.profiles = []
    assert climbing.measure() == profile
    assert climbing.lab.patience.left_s == min(300.0, 2 * profile.time.total_s)


@pytest.mark.parametrize(
    ("spent_s", "reason"),
    [
        (99.5, "too little for a trial"),
        (101.0, "the budget ran out"),
    ],
)
def test_no_trial_begins_at_the_end_of_the_budget(
    make_climb: MakeClimb, make_lab, spent_s: float, reason: str
) -> None:
    lab = make_lab(budget_s=100.0)
    lab._started = time.monotonic() - spent_s
    climb = make_climb(Change("it", with_threads), lab=lab)
    climb.run()
    assert climb.trials[0].verdict.decision is Decision.UNTRIED
    assert climb.trials[0].verdict.reason.endswith(reason)


# -- everything kept, compared with the original job ----------------------------------------

NO_WORSE = {"accuracy": Interval(estimate=0.0, low=-0.01, high=0.01)}


def fewer_epochs(recipe: Recipe) -> Recipe:
    return replace(recipe, schedule=replace(recipe.schedule, max_epochs=5))


def fewer_validations(recipe: Recipe) -> Recipe:
    return replace(recipe, stopping=replace(recipe.stopping, validate_every_epochs=2))


def crippled(recipe: Recipe) -> Recipe:
    return replace(recipe, batch=replace(recipe.batch, lr=1e-7))


def climb_of_kept(
    make_climb: MakeClimb, profile: Profile, *rungs: tuple[Change, dict[str, Any]], **fields: Any
) -> Climb:
    """Start a climb that takes all of these rungs as kept from its ledger."""
    climb = make_climb(*(rung for rung, _ in rungs), **fields)
    recipes = [climb.recipe]
    for rung, found in rungs:
        recipes.append(write_kept(climb, rung, recipes[-1], **found))
    for recipe in recipes:
        climb.ledger.profile(profile, recipe=recipe_key(recipe), at_s=0.0)
    return climb


def test_what_was_kept_is_tested_once_more_against_the_original_job(
    make_climb: MakeClimb, profile: Profile
) -> None:
    said = io.StringIO()
    climb = climb_of_kept(
        make_climb,
        profile,
        (Change("fewer", fewer_epochs), NO_WORSE),
        (Change("fewer_validations", fewer_validations), NO_WORSE),
        display=PlainDisplay(said),
    )
    after = climb.run()
    assert after.schedule.max_epochs == 5
    assert climb.together is not None
    assert climb.together.undone == ()
    assert climb.together.num_trainings > 0
    assert climb.together.accuracy is not None
    assert abs(climb.together.accuracy.estimate) <= climb.options.max_accuracy_loss
    assert "all kept rungs" in said.getvalue()


def test_one_rung_that_may_lose_was_tested_by_its_own_trial(
    make_climb: MakeClimb, profile: Profile
) -> None:
    climb = climb_of_kept(
        make_climb,
        profile,
        (Change("fewer", fewer_epochs), NO_WORSE),
        (Change("exact", with_threads), {"exactness": "equal"}),
    )
    climb.run()
    assert climb.together is None


def test_the_last_rung_that_loses_is_undone_and_exact_ones_above_it_stay(
    make_climb: MakeClimb, profile: Profile
) -> None:
    climb = climb_of_kept(
        make_climb,
        profile,
        (Change("fewer", fewer_epochs), NO_WORSE),
        (Change("crippled", crippled), NO_WORSE),
        (Change("exact", with_threads), {"exactness": "equal"}),
    )
    before = climb.recipe
    held = with_threads(fewer_epochs(before))
    climb.ledger.profile(profile, recipe=recipe_key(held), at_s=0.0)
    num_profiles = len(climb.profiles) + 3
    assert climb.run() == held
    said = verdicts(climb)
    assert said["fewer"].decision is said["exact"].decision is KEPT
    assert said["crippled"].decision is DROPPED
    assert said["crippled"].reason.startswith(
        "tested together with fewer against the original job: it loses "
    )
    assert said["crippled"].reason.endswith(" points of accuracy")
    *_, last = trials_of(climb.ledger.path)
    assert last.verdict == said["crippled"]
    assert climb.together is not None
    assert climb.together.undone == ("crippled",)
    assert climb.together.accuracy is not None
    assert climb.together.accuracy.estimate >= -climb.options.max_accuracy_loss
    assert len(climb.profiles) == num_profiles + 1, "the profile is taken again"
    assert last.is_undone
    again = make_climb(*climb.rungs, profiles=list(climb.profiles[:1]))
    assert again.run() == held, "a climb resumed from the ledger takes the same path"
    assert again.num_from_ledger == len(climb.rungs)
    assert again.together == climb.together


def test_what_is_left_when_a_rung_is_undone_stays_where_it_cannot_be_measured(
    make_climb: MakeClimb, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    climb = climb_of_kept(
        make_climb,
        profile,
        (Change("fewer", fewer_epochs), NO_WORSE),
        (Change("crippled", crippled), NO_WORSE),
        (Change("exact", with_threads), {"exactness": "equal"}),
    )
    before, tried = climb.recipe, list[int]()

    def fail(*_: Any, **__: Any) -> Profile:
        tried.append(1)
        return boom()

    monkeypatch.setattr(climb_module, "take_profile", fail)
    assert climb.run() == with_threads(fewer_epochs(before))
    assert len(tried) == 1
    assert climb.together is not None
    assert climb.together.undone == ("crippled",)


def test_a_rung_that_another_would_block_is_tried_again_before_it(
    make_climb: MakeClimb, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Last(Change):
        looks_first: ClassVar[tuple[str, ...]] = ("first",)

    taken: list[str] = []
    take = Climb._take
    monkeypatch.setattr(Climb, "_take", lambda c, rung: (taken.append(rung.name), take(c, rung)))
    first, kept, last = Refusing("first"), Change("kept", with_threads), Last("last")
    climb = make_climb(first, kept, last)
    write_kept(climb, kept, climb.recipe)
    monkeypatch.setattr(
        first, "why_not", lambda _, recipe: "not here" if recipe == climb._as_written else None
    )
    climb.run()
    assert taken[:4] == ["first", "kept", "first", "last"]


def test_an_inapplicable_rung_is_tried_again_under_other_conditions(
    make_climb: MakeClimb,
) -> None:
    class Waits(Change):
        def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
            return None if recipe.loader.prefetch_batches == 3 else "not yet"

    first, second = Waits("first", fewer_epochs), Change("second", with_threads)
    climb = make_climb(first, second)
    climb.ledger.profile(climb.profile, recipe=recipe_key(with_threads(climb.recipe)), at_s=0.0)
    both = write_kept(climb, first, write_kept(climb, second, climb.recipe))
    climb.ledger.profile(climb.profile, recipe=recipe_key(both), at_s=0.0)
    assert climb.run() == both
    assert verdicts(climb)["first"].decision is KEPT


def test_no_second_trial_begins_once_the_budget_has_ended(make_climb: MakeClimb, make_lab) -> None:
    class Ends(Change):
        def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
            if (
                recipe.loader.prefetch_batches == 3
            ):  # at its second trial: the rung after it was kept
                climb.lab._started -= 1000.0
            return super().predict(profile, recipe)

    first, second = Ends("first", fewer_epochs), Change("second", with_threads)
    climb = make_climb(first, second, lab=make_lab(budget_s=500.0))
    write_kept(climb, first, climb.recipe)
    (written,) = trials_of(climb.ledger.path)
    dropped = replace(written.verdict, decision=DROPPED, reason="measured")
    climb.ledger.trial(replace(written, verdict=dropped))
    climb.ledger.profile(climb.profile, recipe=recipe_key(with_threads(climb.recipe)), at_s=0.0)
    write_kept(climb, second, climb.recipe)
    climb.run()
    assert verdicts(climb)["second"].decision is KEPT
    assert verdicts(climb)["first"].reason == "measured", "the budget ended before the second trial"
    assert climb.left == ["first"]


def test_rungs_are_undone_until_no_more_is_lost_than_may_be(
    make_climb: MakeClimb, profile: Profile
) -> None:
    climb = climb_of_kept(
        make_climb,
        profile,
        (Change("crippled", crippled), NO_WORSE),
        (Change("fewer", fewer_epochs), NO_WORSE),
    )
    assert climb.run() == climb.lab.job.recipe
    assert climb.together is not None
    assert climb.together.undone == ("fewer", "crippled")
    assert verdicts(climb)["crippled"].reason.startswith(
        "tested against the original job: it loses "
    )
    assert {trial.verdict.decision for trial in climb.trials} == {DROPPED}


def test_where_nothing_may_be_trained_any_more_it_says_so_and_undoes_nothing(
    make_climb: MakeClimb, make_lab, profile: Profile
) -> None:
    lab = make_lab(budget_s=100.0)
    lab._started = time.monotonic() - 200.0
    climb = climb_of_kept(
        make_climb,
        profile,
        (Change("fewer", fewer_epochs), NO_WORSE),
        (Change("crippled", crippled), NO_WORSE),
        lab=lab,
    )
    assert climb.run() == crippled(fewer_epochs(climb.lab.job.recipe))
    assert climb.together is not None
    assert climb.together.why_not is not None
    assert climb.together.why_not.startswith("not compared: ")
    assert climb.together.undone == ()


class Priced(Change):
    """A rung on hardware of another price."""

    def __init__(self, price: float | None) -> None:
        super().__init__(change=lambda recipe: replace(recipe, seed=recipe.seed))
        self.price = price

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        return Prediction(
            rung=self.name,
            gain=1.28,
            price=self.price,
            provenance=Provenance.MODELLED,
            note=cost_words(1.28, self.price),
        )


def test_what_would_cost_more_is_not_tried_and_says_what_it_would_cost(
    make_climb: MakeClimb,
) -> None:
    climb = make_climb(Priced(2.0))
    climb.run()
    (trial,) = climb.trials
    assert trial.verdict.decision is Decision.SKIPPED
    words = "1.28× as fast at +100 % per hour costs 56 % more; worth it up to +28 % per hour"
    assert trial.verdict.reason == f"predicted 1.28×: {words}"
    advice = advise_on(climb.profile, climb.recipe, climb.options, rungs=climb.rungs)
    assert advice.next is None
    assert [one.reason for one in advice.others] == [f"predicted 1.3×: {words}"]
    cheap = advise_on(climb.profile, climb.recipe, climb.options, rungs=(Priced(1.06),))
    assert cheap.next is not None


@pytest.mark.parametrize(("price", "is_reused"), [(1.06, True), (1.1, False), (None, False)])
def test_a_verdict_is_reused_only_at_the_same_price(
    make_climb: MakeClimb, price: float | None, is_reused: bool
) -> None:
    climb = make_climb(Priced(price))
    known = Trial(
        rung="it",
        level=8,
        change={},
        prediction=Priced(1.06).predict(climb.profile, climb.recipe),
        verdict=Verdict(
            decision=DROPPED,
            reason="known",
            speed=Interval(estimate=0.9, low=0.8, high=1.0),
        ),
        job="job",
        machine="machine",
        options=options_key(climb.options),
        commit=climb.lab.commit,
        recipe=recipe_key(climb.recipe),
    )
    climb.ledger.trial(known)
    trial, _ = climb.consider(climb.rungs[0])
    assert (trial.verdict.reason == "known") is is_reused
