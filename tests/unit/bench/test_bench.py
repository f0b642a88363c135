"""What benchmarks compute before and after they time anything."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from types import ModuleType

import pytest

from stepladder.ladder.summary.calibration import Case
from stepladder.records.ladder import Interval


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.usefixtures("bench")
def test_held_out_pictures_are_those_with_the_smallest_hashes(tmp_path: Path) -> None:
    rows = []
    for label in ("apple", "bread"):
        for idx in range(6):
            path = tmp_path / label / f"{idx}.jpg"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(f"{label}{idx}".encode())
            rows.append((path, label, "train" if idx < 5 else "test"))
    found = module("pictures").hold_out(rows, 2)
    splits = [split for _, _, split in found]
    assert {split: splits.count(split) for split in splits} == {"train": 6, "val": 4, "test": 2}
    shuffled = module("pictures").hold_out(reversed(rows), 2)
    assert found == shuffled, "the choice goes by content, not by order"


def case(rung: str, predicted: float, measured: float) -> Case:
    return Case(
        rung=rung,
        predicted=predicted,
        measured=Interval(estimate=measured, low=measured, high=measured),
        run="text_batch_8",
        machine="here",
        error=abs(math.log(predicted / measured)),
        counts=True,
    )


@pytest.mark.usefixtures("bench")
def test_predictors_are_judged_by_the_same_cases() -> None:
    predictions = module("predictions")
    cases = [case("early_stopping", 4.0, 5.0), case("channels_last", 2.0, 2.0)]
    ours = predictions.statistics_of(cases, "stepladder")
    assert ours["worst_factor"] == pytest.approx(1.25)
    always = predictions.statistics_of(cases, "always 1.0")
    assert always["worst_factor"] == pytest.approx(5.0)
    published = predictions.statistics_of(cases, "the published number")
    assert published["worst_factor"] == pytest.approx(2.0 / 1.3)


@pytest.mark.usefixtures("bench")
def test_half_of_the_workloads_are_held_out() -> None:
    workloads = module("workloads").WORKLOADS
    assert len(workloads) >= 12
    assert len({workload.name for workload in workloads}) == len(workloads)
    assert 2 * sum(workload.is_held_out for workload in workloads) == len(workloads)


@pytest.mark.usefixtures("bench")
def test_the_page_of_the_six_steps_is_what_its_script_writes() -> None:
    six_steps = module("six_steps")
    results = json.loads(six_steps.RESULTS.read_text()) if six_steps.RESULTS.exists() else None
    assert six_steps.PAGE.read_text() == six_steps.page(results)
    first, third = six_steps.PUBLISHED[0], six_steps.PUBLISHED[2]
    assert first.passes / third.passes == pytest.approx(7.5)  # of the 7.7 times in minutes
