"""The headline is measured in pairs, and the smallest of what disagrees."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stepladder.config.recipe import Recipe
from stepladder.ladder.summary import end_to_end
from stepladder.ladder.summary.end_to_end import (
    OF_DEFAULT,
    chain_of,
    over_default,
    quoted_ratio,
    time_in_pairs,
    unpaired_ratio,
)
from stepladder.ladder.timing.speedup import Length
from stepladder.records.climb import Baseline, RatioFrom
from stepladder.records.ladder import Decision, Interval, Trial, Verdict
from stepladder.rungs import RUNGS


def interval(estimate: float, factor: float = 1.1) -> Interval:
    return Interval(estimate=estimate, low=estimate / factor, high=estimate * factor)


def trial(speed: Interval | None, decision: Decision = Decision.KEPT) -> Trial:
    verdict = Verdict(decision=decision, reason="", speed=speed)
    return Trial(rung="one", level=1, change={}, prediction=None, verdict=verdict)


def test_gains_of_kept_rungs_multiply_and_their_errors_add_as_variances() -> None:
    trials = [
        trial(interval(10.0, 1.1)),
        trial(interval(2.0, 1.2)),
        trial(interval(7.0), Decision.DROPPED),
        trial(None),
    ]
    found = chain_of(trials)
    assert found is not None
    assert found.estimate == pytest.approx(20.0)
    width = math.hypot(math.log(1.1), math.log(1.2))
    assert found.high == pytest.approx(20.0 * math.exp(width))
    assert found.low == pytest.approx(20.0 / math.exp(width))


def test_without_a_measured_gain_there_is_no_chain() -> None:
    assert chain_of([trial(None), trial(interval(3.0), Decision.NOT_HERE)]) is None


def test_against_the_default_only_the_other_rungs_count() -> None:
    trials = [
        replace(trial(interval(gain)), rung=name)
        for name, gain in (*((name, 2.0) for name in sorted(OF_DEFAULT)), ("larger_batch", 3.0))
    ]
    assert over_default(interval(96.0), trials) == pytest.approx(6.0)
    assert over_default(interval(96.0), trials[-1:]) is None  # none of them was kept


def test_the_default_is_made_of_rungs_that_exist() -> None:
    assert {rung.name for rung in RUNGS} > OF_DEFAULT


@pytest.mark.parametrize(
    ("paired", "chain", "runs_s", "expected", "is_other"),
    [
        (100.0, None, (10.0, 10.0), 100.0, False),
        (100.0, 105.0, (10.0, 10.0), 100.0, False),  # within both bounds
        (100.0, 50.0, (10.0, 10.0), 50.0, True),
        (100.0, 300.0, (10.0, 10.0), 100.0, True),
        (100.0, None, (10.0, 12.0), 100.0, False),  # 20 % apart
        (100.0, None, (10.0, 20.0), 50.0, False),  # it was faster before the climb
        (100.0, None, (20.0, 10.0), 100.0, False),  # and now it is slower: the pairs count
        (100.0, 40.0, (10.0, 20.0), 40.0, True),
        (100.0, 90.0, (10.0, 200.0), 90.0, True),  # the load changed: each gain is from one load
        (100.0, 300.0, (10.0, 200.0), 100.0, True),
        (100.0, 105.0, (10.0, 200.0), 100.0, False),
    ],
)
def test_where_measurements_disagree_the_smallest_ratio_is_quoted(
    paired: float,
    chain: float | None,
    runs_s: tuple[float, float],
    expected: float,
    is_other: bool,
) -> None:
    found = quoted_ratio(interval(paired), interval(chain) if chain else None, runs_s=runs_s)
    assert found.bounds.estimate == pytest.approx(expected)
    assert found.bounds.low == pytest.approx(expected / 1.1)
    assert found.is_other_chain is is_other


@pytest.mark.parametrize(
    ("chain", "runs_s", "source"),
    [
        (None, (10.0, 10.0), RatioFrom.PAIRS),
        (300.0, (10.0, 10.0), RatioFrom.PAIRS),
        (50.0, (10.0, 10.0), RatioFrom.CHAIN),
        (None, (10.0, 20.0), RatioFrom.SHORTER),
        (None, (20.0, 10.0), RatioFrom.PAIRS),
        (40.0, (10.0, 20.0), RatioFrom.CHAIN),
        (60.0, (10.0, 20.0), RatioFrom.CHAIN),
        (105.0, (10.0, 20.0), RatioFrom.PAIRS),
    ],
)
def test_the_measurement_that_is_quoted_is_named(
    chain: float | None, runs_s: tuple[float, float], source: RatioFrom
) -> None:
    found = quoted_ratio(interval(100.0), interval(chain) if chain else None, runs_s=runs_s)
    assert found.source is source


@pytest.mark.parametrize(
    ("chain", "expected", "is_other"), [(95.0, 100.0, False), (60.0, 60.0, True)]
)
def test_a_ratio_without_pairs_is_compared_with_the_chain_too(
    chain: float, expected: float, is_other: bool
) -> None:
    found = quoted_ratio(
        unpaired_ratio(1000.0, 10.0),
        interval(chain),
        runs_s=(1000.0,),
        source=RatioFrom.TIMINGS,
    )
    assert found.bounds.estimate == pytest.approx(expected)
    assert found.is_other_chain is is_other
    assert found.source is (RatioFrom.CHAIN if is_other else RatioFrom.TIMINGS)


def _climbing(before: Recipe, after: Recipe) -> Any:
    lab = SimpleNamespace(
        job=SimpleNamespace(recipe=before, ladder=SimpleNamespace(budget_s=None)),
        budget_s=1.0,
        time_left=lambda: 1.0,
        cache=Path(),
    )
    return SimpleNamespace(lab=lab, recipe=after, profiles=[None])


def test_why_no_pairs_were_timed_is_returned(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("the third batch")

    fixed = Length(epochs=1.0, num_validations=1.0)
    monkeypatch.setattr(end_to_end, "length_of", lambda *_: fixed)
    monkeypatch.setattr(end_to_end, "measure_speed", fail)
    baseline = Baseline(total_s=1.0, epochs=1.0)
    compiled = replace(recipe, device=replace(recipe.device, compile=True))
    other = replace(recipe, batch=replace(recipe.batch, global_batch_size=64))
    for after, said in (
        (recipe, ""),
        (compiled, "a model that is compiled would have to be compiled again"),
        (other, "timing both in turn failed: raised ValueError: the third batch"),
    ):
        found = time_in_pairs(cast(Any, _climbing(recipe, after)), baseline, epochs=1.0)
        assert found == said
