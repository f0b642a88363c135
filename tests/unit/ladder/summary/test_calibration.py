from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from stepladder.ladder.summary.calibration import (
    calibration_of,
    calibration_table,
    calibration_words,
)
from stepladder.records import to_json
from stepladder.records.ladder import Decision, Interval, Prediction, Trial, Verdict
from stepladder.records.profile import Provenance


def tried(rung: str, predicted: float, measured: float, seed: int = 0) -> Trial:
    speed = Interval(estimate=measured, low=measured * 0.95, high=measured * 1.05)
    return Trial(
        rung=rung,
        level=6,
        change={},
        prediction=Prediction(rung=rung, gain=predicted, provenance=Provenance.MODELLED),
        verdict=Verdict(decision=Decision.KEPT, reason="", speed=speed),
        seed=seed,
        machine="m" * 16,
    )


def write_ledger(folder: Path, *trials: Trial) -> Path:
    folder.mkdir()
    file = folder / "trials.jsonl"
    lines = [json.dumps({"kind": "trial", "trial": to_json(trial)}) for trial in trials]
    file.write_text("".join(f"{line}\n" for line in lines) + '{"kind": "tri')
    return file


def test_errors_are_ratios_and_only_gains_far_from_one_count(tmp_path: Path) -> None:
    first = write_ledger(tmp_path / "a", tried("bf16", 2.0, 2.2), tried("tiny", 1.05, 1.1))
    second = write_ledger(tmp_path / "b", tried("slower", 0.8, 1.0), tried("caught", 1.1, 1.3))
    calibration = calibration_of([first, second.parent])
    assert [case.counts for case in calibration.cases] == [True, False, True, True]
    assert [case.run for case in calibration.cases] == ["a", "a", "b", "b"]
    errors = [math.log(1.1), math.log(1.25), math.log(1.3 / 1.1)]
    counted = [case.error for case in calibration.cases if case.counts]
    assert counted == pytest.approx(errors)
    assert calibration.num_counted == 3
    assert calibration.median_error == pytest.approx(math.log(1.3 / 1.1))
    assert calibration.p90_error == pytest.approx(math.log(1.3 / 1.1) * 0.2 + math.log(1.25) * 0.8)


def test_a_verdict_taken_from_an_earlier_ledger_counts_once(tmp_path: Path) -> None:
    trial = tried("bf16", 2.0, 2.2)
    first = write_ledger(tmp_path / "a", trial, trial)
    second = write_ledger(tmp_path / "b", trial, replace(trial, seed=1))
    assert [case.run for case in calibration_of([first, second]).cases] == ["a", "b"]


def test_rungs_that_were_not_tried_or_not_predicted_are_no_cases(tmp_path: Path) -> None:
    skipped = replace(tried("a", 1.01, 1.0), verdict=Verdict(decision=Decision.SKIPPED, reason=""))
    unpredicted = replace(tried("b", 1.0, 3.0), prediction=None)
    endless = tried("c", math.inf, 3.0)
    calibration = calibration_of([write_ledger(tmp_path / "a", skipped, unpredicted, endless)])
    assert calibration.cases == ()
    assert calibration.median_error is None
    assert calibration_table(calibration).startswith("No rung has been predicted")


def test_the_table_shows_every_case_and_what_they_come_to(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "demo", tried("bf16", 2.0, 2.2), tried("tiny", 1.05, 1.1))
    assert calibration_table(calibration_of([path])).splitlines() == [
        " rung                    predicted  measured             off by    run",
        " bf16                    2.0×       2.2× [2.1, 2.3]      1.10×     demo",
        " tiny                    1.05×      1.10× [1.04, 1.16]   –         demo",
        "",
        "1 gain of at least 1.2× or at most 0.83×, predicted or measured: off by a factor of "
        "1.10× in the median. 1 gain closer to 1 not counted.",
    ]


def test_the_90th_percentile_is_reported_from_ten_cases_on(tmp_path: Path) -> None:
    trials = [tried(f"rung {idx}", 2.0, 2.2) for idx in range(10)]
    path = write_ledger(tmp_path / "demo", *trials)
    words = calibration_words(calibration_of([path]))
    assert words.endswith("in the median, 1.10× at the 90th percentile.")
