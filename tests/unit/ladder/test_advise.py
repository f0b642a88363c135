"""The one next step."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

from stepladder.config.options import LadderConfig
from stepladder.config.recipe import Recipe
from stepladder.ladder.advise import advice_text, advise_on
from stepladder.records import to_json
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import EpochRange, Profile, Provenance
from stepladder.rungs import Rung


class Gaining(Rung):
    """A rung with a given predicted gain."""

    level: ClassVar[int] = 6

    def __init__(self, name: str, gain: float, exactness: Exactness) -> None:
        self.name = name  # type: ignore[misc]
        self.exactness = exactness  # type: ignore[misc]
        self.gain = gain

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        return Prediction(rung=self.name, gain=self.gain, provenance=Provenance.MODELLED)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        return recipe


@pytest.mark.parametrize(
    ("free", "chosen", "larger"),
    [
        (1.5, "free", "costly"),
        (1.2, "free", "costly"),
        (1.06, "costly", None),
        (5.0, "free", None),
    ],
)
def test_what_costs_no_accuracy_is_advised_first(
    profile, recipe, free: float, chosen: str, larger: str | None
) -> None:
    """Unless its predicted gain is negligible: then by ln(gain), halved if it may cost accuracy."""
    rungs = (
        Gaining("costly", 3.0, Exactness.STATISTICAL),
        Gaining("small", 1.04, Exactness.ROUNDING),
        Gaining("free", free, Exactness.ROUNDING),
    )
    advice = advise_on(profile, recipe, LadderConfig(), rungs=rungs)
    assert advice.next is not None
    assert advice.next.rung == chosen
    assert (advice.largest.rung if advice.largest else None) == larger
    said = {one.rung: one.reason for one in advice.others}
    assert said["small"] == "predicted 1.04×: try later"
    if chosen == "free":
        assert said["costly"] == "predicted 3.0×: try later, as it may cost accuracy"
    is_told = "larger gain, but it may cost accuracy: costly: predicted 3.0×" in advice_text(
        advice, profile
    )
    assert is_told == (larger == "costly")


def test_among_small_gains_one_that_may_cost_accuracy_counts_half(profile, recipe) -> None:
    rungs = (
        Gaining("costly", 1.08, Exactness.STATISTICAL),
        Gaining("first", 1.06, Exactness.ROUNDING),
        Gaining("second", 1.06, Exactness.ROUNDING),
    )
    advice = advise_on(profile, recipe, LadderConfig(), rungs=rungs)
    assert advice.next is not None
    assert advice.next.rung == "first", "among equal ones, the first in climbing order"


def test_what_reading_takes_is_said_as_far_as_it_was_measured(profile, recipe) -> None:
    def second_line(**facts: float) -> str:
        measured = replace(profile, **facts)
        advice = advise_on(measured, recipe, LadderConfig(), rungs=())
        return advice_text(advice, measured).splitlines()[1]

    assert second_line() == ""
    jpegs = {"loader_fetch_s": 2e-4, "loader_decode_s": 3e-3, "fetch_bytes_per_s": 1e8}
    said = "reading: one thread fetches an example in 0.2 ms (100 MB/s) and decodes it in 3 ms"
    assert second_line(**jpegs) == said
    far = second_line(**jpegs, link_bytes_per_s=4.5e7, cache_hit_frac=0.25)
    assert far == f"{said}; files are downloaded at 45 MB/s; cache hit rate 25 %"


def test_a_job_that_stops_early_has_ranges_instead_of_single_numbers(profile, recipe) -> None:
    """Of epochs, time, and each gain that depends on them."""
    found = EpochRange(low=12, high=21, mean=15, num_seeds=20, provenance=Provenance.REPLAYED)
    time = replace(profile.time, epochs=15.0, step_s=3.0)
    early = replace(profile, time=time, epoch_range=found)
    once_s = 20.0

    class Cached(Gaining):
        def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
            after = replace(profile.time, one_time_s={"features": once_s}, step_s=0.01)
            gain = profile.time.total_s / after.total_s
            return replace(super().predict(profile, recipe), gain=gain, time=after)

    rungs = (Cached("cached", 1.0, Exactness.ROUNDING), Gaining("free", 1.3, Exactness.ROUNDING))
    advice = advise_on(early, recipe, LadderConfig(), rungs=rungs)
    lines = advice_text(advice, early).splitlines()
    assert lines[0] == (
        "now: 12 to 21 epochs, 6.8 to 12 min to a trained model "
        "(10th to 90th percentile of 20 replays)"
    )
    assert lines[2] == "next: cached: predicted 19 to 32×, to 21 to 22 s (modelled)"
    assert any("free" in line and "predicted 1.3×: try later" in line for line in lines)
    values = to_json(advice)
    assert (values["epochs"]["low"], values["epochs"]["high"]) == (12, 21)
    assert values["now_low_s"] == pytest.approx(12 * 3 * 90 / 8)
    assert values["now_high_s"] == pytest.approx(21 * 3 * 90 / 8)
    assert values["next"]["prediction"]["gain_low"] < values["next"]["prediction"]["gain_high"]


def test_a_job_that_was_not_replayed_may_take_any_of_its_epochs(profile, recipe) -> None:
    found = EpochRange(low=4, high=60, mean=60, num_seeds=0, provenance=Provenance.ASSUMED)
    time = replace(profile.time, epochs=60.0, step_s=7.3)
    early = replace(profile, time=time, epoch_range=found)
    first = advice_text(advise_on(early, recipe, LadderConfig(), rungs=()), early).splitlines()[0]
    assert first == (
        "now: 4 to 60 epochs, 5.5 to 82 min to a trained model "
        "(not replayed; early stopping may end it at any of these)"
    )
