from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from stepladder.errors import DataError
from stepladder.ladder.summary.climb_summary import end_line
from stepladder.ladder.summary.wording import (
    baseline_row,
    epoch_range_words,
    gain,
    gain_interval,
    gain_range,
    header,
    loss_interval,
    plus_minus,
    points,
    range_source,
    reason_words,
    row,
    row_json,
    time_range,
)
from stepladder.records.from_json import from_json
from stepladder.records.ladder import Decision, Interval, Prediction, Trial, Verdict
from stepladder.records.profile import EpochRange, Provenance
from stepladder.training.output.wording import rough_time

WIDE = 140


def interval(estimate: float, low: float, high: float) -> Interval:
    return Interval(estimate=estimate, low=low, high=high)


def trial(
    rung: str,
    level: int,
    decision: Decision,
    reason: str = "",
    *,
    predicted: Prediction | float | None = None,
    after_epochs: tuple[float, ...] = (),
    **verdict: Any,
) -> Trial:
    if isinstance(predicted, float):
        predicted = Prediction(rung=rung, gain=predicted, provenance=Provenance.MODELLED)
    return Trial(
        rung=rung,
        level=level,
        change={"device.precision": ("fp32", "bf16")},
        prediction=predicted,
        after_epochs=after_epochs,
        verdict=Verdict(decision=decision, reason=reason, **verdict),
    )


STOPPING = trial(
    "early_stopping", 4, Decision.KEPT, predicted=4.9, speed=interval(5.2, 4.8, 5.5),
    accuracy=interval(-0.001, -0.006, 0.004), num_epochs=11.0, is_replayed=True,
    after_epochs=(10, 11, 12, 11, 11),
)  # fmt: skip
BASELINE = {
    "total_s": 1450.0, "measured_epochs": 3.0, "epochs": 60, "global_batch_size": 2,
    "is_extrapolated": True, "val_accuracy": 0.649, "test_accuracy": 0.75, "provenance": "replayed",
}  # fmt: skip
CLIMB = {
    "baseline": BASELINE,
    "result": {"total_s": 6.04, "epochs": 17, "val_accuracy": 0.66, "test_accuracy": 0.753},
    "speedup": 240.07,
    "num_test": 661,
    "test_change": {"estimate": 0.003, "low": -0.006, "high": 0.012},
}


def test_the_columns_are_aligned_with_their_titles() -> None:
    lines = [header(WIDE), baseline_row(BASELINE, WIDE), row(STOPPING, WIDE)]
    assert lines == [
        " rung                     predicted  measured            accuracy (paired)  verdict",
        " 0 original               –          24 min              val 64.9 %         "
        "baseline: 60 epochs, batch 2 (extrapolated from 3 measured)",
        " 4 early_stopping         4.9×       5.2× [4.8, 5.5]     −0.1 [−0.6, +0.4]  "
        "kept: 11 epochs (by replay, 5 seeds)",
    ]


OVER_SEEDS = {"low": 12, "high": 21, "mean": 15.2, "num_seeds": 20, "provenance": "replayed"}


def test_a_length_that_depends_on_the_seed_is_a_range() -> None:
    early = BASELINE | {
        "epochs": 15.2, "epochs_are": "replayed", "epoch_range": OVER_SEEDS, "low_s": 546.0,
        "high_s": 960.0,
    }  # fmt: skip
    line = baseline_row(early, WIDE)
    assert "9.1 to 16 min" in line
    assert "baseline: 12 to 21 epochs (by replay), batch 2" in line
    assert "15" not in line
    kept = replace(STOPPING, after_range=from_json(EpochRange, OVER_SEEDS))
    assert reason_words(kept) == "12 to 21 epochs (by replay, 5 seeds)"
    assert row_json(kept)["epoch_range"] == OVER_SEEDS


def test_a_predicted_gain_that_depends_on_the_epochs_is_a_range() -> None:
    found = Prediction(
        rung="cached_features", gain=16.0, gain_low=12.4, gain_high=20.6,
        provenance=Provenance.MODELLED,
    )  # fmt: skip
    made = trial("cached_features", 5, Decision.SKIPPED, predicted=found)
    assert "12 to 21×" in row(made)
    assert (row_json(made)["predicted_low"], row_json(made)["predicted_high"]) == (12.4, 20.6)
    alike = replace(found, gain_low=15.9, gain_high=16.1)
    assert gain_range(alike) == "16×"


@pytest.mark.parametrize(
    ("low_s", "high_s", "said"),
    [
        (546, 960, "9.1 to 16 min"),
        (48, 170, "48 s to 2.8 min"),
        (60.0, 60.1, "60 s"),
        (300, 4920, "5.0 to 82 min"),
    ],
)
def test_a_range_of_times_names_its_unit_once(low_s: float, high_s: float, said: str) -> None:
    assert time_range(low_s, high_s) == said


def test_a_range_says_what_it_comes_from() -> None:
    found = from_json(EpochRange, OVER_SEEDS)
    assert range_source(found) == "10th to 90th percentile of 20 replays"
    real = replace(found, provenance=Provenance.MEASURED)
    assert range_source(real) == "10th to 90th percentile of 20 trainings"
    assert "may end it at any of these" in range_source(replace(found, num_seeds=0))
    assert epoch_range_words(replace(found, low=1.0, high=1.0)) == "1 epoch"


def test_the_headline_has_its_range_over_the_seeds_of_the_original_job() -> None:
    early = BASELINE | {"epoch_range": OVER_SEEDS, "low_s": 546.0, "high_s": 960.0}
    climb = CLIMB | {"baseline": early, "speedup_low": 90.4, "speedup_high": 159.0}
    said = " ".join(end_line(climb, WIDE).split())
    assert "240×, 90 to 159× over its seeds (9.1 to 16 min → 6.0 s)" in said
    assumed = climb | {"baseline": early | {"epochs_are": "assumed"}}
    assert "90 to 159× over its possible epochs" in " ".join(end_line(assumed, WIDE).split())
    assert "over its" not in end_line(CLIMB, WIDE)


def test_in_a_hundred_columns_words_wrap_below_their_column() -> None:
    made = trial(
        "gradient_checkpointing", 7, Decision.DROPPED,
        "no faster beyond doubt: the lower bound is 0.97×", predicted=1.06,
        speed=interval(1.06, 0.97, 1.11), loss=interval(-0.012, -0.02, 0.004),
    )  # fmt: skip
    assert row(made).splitlines() == [
        " 7 gradient_checkpointing 1.06×      1.06× [0.97, 1.11]  loss −0.012        "
        "dropped: no faster",
        "                                                         [−0.020, +0.004]   "
        "beyond doubt: the lower",
        "                                                                            "
        "bound is 0.97×",
    ]
    assert all(len(line) <= 100 for line in row(made).splitlines())


def test_a_kept_rung_reports_the_numbers_that_it_chose() -> None:
    change = {
        "batch.global_batch_size": (2, 8),
        "batch.lr": (None, 0.008),
        "stopping.patience": (3, 24),
        "stopping.restore_best": (False, True),
    }
    kept = replace(STOPPING, change=change)
    assert reason_words(kept).startswith(
        "batch 8, learning rate 0.008, patience 24, best weights; 11 epochs"
    )
    dropped = replace(kept, verdict=replace(kept.verdict, decision=Decision.DROPPED))
    assert "batch 8" not in reason_words(dropped)


def test_the_end_is_reported_with_its_noise() -> None:
    assert end_line(CLIMB, 200) == (
        " end to end                          240× (24 min → 6.0 s), test 75.0 → 75.3 % "
        "(661 examples, read once), difference +0.3 ± 0.9 from a single training run each"
    )
    alike = end_line(CLIMB | {"learns_alike": True}, 200)
    assert alike.endswith(
        "difference +0.3 ± 0.9 from a single training run each, identical up to rounding"
    )
    assert "(661 pictures, read once)" in end_line(CLIMB | {"are_pictures": True}, 200)
    assert end_line({"baseline": BASELINE}) == (
        " end to end                          not measured: the climb did not finish"
    )


def test_the_original_job_is_not_reported_as_a_speedup() -> None:
    same = CLIMB | {"is_as_written": True, "speedup": 0.83}
    assert end_line(same, WIDE) == (
        " end to end                          nothing paid off: the original job, 6.0 s, "
        "test 75.3 % (661 examples, read once)"
    )
    short = " ".join(end_line(same | {"untried": ["gpu"]}, 200).split())
    assert "before the budget ran out (a longer --budget tries 1 rung more): the original" in short


def test_an_end_within_the_noise_of_the_beginning_says_so() -> None:
    ends = {"result": {"total_s": 7.7}, "speedup": 7.0 / 7.7}
    said = end_line(ends | {"baseline": {"total_s": 7.0, "runs_s": [5.8, 8.2]}}, WIDE)
    assert "(7.0 s → 7.7 s; the original job took 5.8 s and 8.2 s: the noise is larger than" in said
    said = end_line(ends | {"baseline": {"total_s": 8.0, "runs_s": [7.8, 8.2]}}, WIDE)
    assert "the original job took" not in said
    said = end_line(ends | {"baseline": {"total_s": 9.0, "runs_s": [8.2, 9.8]}}, WIDE)
    assert "(9.0 s → 7.7 s; the original job took 8.2 s and 9.8 s)" in said


@pytest.mark.parametrize(
    ("before", "after", "change", "said"),
    [
        (1.342, 1.218, (-0.124, -0.2, -4e-8), "1.342 → 1.218, difference −0.124 [−0.200, 0.000]"),
        (2e-6, 3e-6, (1e-6, 0.0, 2e-6), "0.000002000 → 0.000003000, difference +0.000001000 "
         "[0.000000000, +0.000002000]"),
        (-3.5, -4.0, (-0.5, -0.6, -0.4), "−3.500 → −4.000, difference −0.500 [−0.600, −0.400]"),
    ],
)  # fmt: skip
def test_losses_are_reported_at_both_ends_to_the_same_digits(
    before: float, after: float, change: tuple[float, float, float], said: str
) -> None:
    ends = {
        "baseline": {"total_s": 9.0, "test_loss": before},
        "result": {"total_s": 3.0, "test_loss": after},
        "loss_change": dict(zip(("estimate", "low", "high"), change, strict=True)),
    }
    assert end_line(ends, 300).endswith(f"test loss {said} from a single training run each")


def test_a_small_loss_has_the_digits_that_show_its_change() -> None:
    assert loss_interval(interval(-2.1e-6, -4e-6, 0.0)) == "−0.0000021 [−0.0000040, 0.0000000]"
    assert loss_interval(interval(0.0, 0.0, 0.0)) == "0.000 [0.000, 0.000]"


def test_invalid_numbers_are_refused_and_control_characters_escaped() -> None:
    with pytest.raises(DataError, match="total_s"):
        baseline_row({"total_s": "soon"})
    assert "\x1b" not in row(trial("gpu", 3, Decision.NOT_HERE, "\x1b[2Jgone"))


def test_a_row_as_json_has_numbers_and_no_words_for_them() -> None:
    value = json.loads(json.dumps(row_json(STOPPING)))
    assert value["predicted"] == 4.9
    assert value["measured"] == {"estimate": 5.2, "low": 4.8, "high": 5.5, "confidence": 0.95}
    assert value["decision"] == "kept"
    assert value["change"] == {"device.precision": ["fp32", "bf16"]}


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.604, "0.60×"), (1.0, "1.00×"), (1.19, "1.19×"), (1.2, "1.2×"), (9.94, "9.9×"),
     (9.96, "10×"), (240.4, "240×"), (12000.0, "12,000×"), (math.inf, "unknown")],
)  # fmt: skip
def test_a_gain_has_enough_digits_to_differ_from_one(value: float, said: str) -> None:
    assert gain(value) == said


def test_bounds_have_the_digits_of_what_is_nearest_to_one() -> None:
    assert gain_interval(interval(1.31, 0.98, 1.7)) == "1.31× [0.98, 1.70]"
    assert gain_interval(interval(86.2, 81.0, 92.4)) == "86× [81, 92]"
    assert gain_interval(interval(5.2, 1.1, math.inf)) == "5.20× [1.10, unknown]"


def test_bounds_differ_from_the_estimate_if_two_decimals_suffice() -> None:
    assert gain_interval(interval(1.2187, 1.1988, 1.2388)) == "1.22× [1.20, 1.24]"
    assert gain_interval(interval(36.4, 36.1, 36.9)) == "36.4× [36.1, 36.9]"
    assert gain_interval(interval(2.0, 2.0, 2.0)) == "2.00× [2.00, 2.00]"


def test_changes_have_a_sign_and_zero_has_none() -> None:
    assert [points(x) for x in (0.004, -0.001, 0.0004, -0.0004)] == ["+0.4", "−0.1", "0.0", "0.0"]
    assert loss_interval(interval(0.0, -0.02, 0.0123)) == "0.000 [−0.020, +0.012]"


def test_noise_is_a_plus_minus_only_where_both_sides_are_equal() -> None:
    assert plus_minus(interval(0.003, -0.006, 0.012)) == "+0.3 ± 0.9"
    assert plus_minus(interval(0.003, -0.006, 0.015)) == "+0.3 [−0.6, +1.5]"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0 s"), (8.2e-6, "8.2 µs"), (0.0042, "4.2 ms"), (0.31, "0.3 s"), (6.1, "6.1 s"),
     (48.4, "48 s"),
     (170, "2.8 min"), (1450, "24 min"), (12000, "3.3 h"), (3e5, "3.5 d"), (None, "unknown"),
     (math.nan, "unknown"), (-1.0, "unknown")],
)  # fmt: skip
def test_a_time_is_said_to_two_digits_in_one_unit(seconds: float | None, said: str) -> None:
    assert rough_time(seconds) == said
