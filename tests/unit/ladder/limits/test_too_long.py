"""Trainings that are too long name the smallest sufficient budget of two alternatives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepladder.ladder.lab import too_long


@pytest.mark.parametrize(
    ("num", "each_s", "features_s", "words"),
    [
        (1, 120, None, "it would take a training of 2.0 min; --budget 15m would allow it"),
        (5, 120, None, "it would take 5 trainings of 2.0 min each; --budget 75m would allow it"),
        (40, 0.84, None, "it would take 40 trainings of 0.8 s each; --budget 5m would allow it"),
        (40, 0.02, None, "40 trainings of less than 0.1 s each; --budget 1m would allow it"),
        (5, 7200, None, "it would take 5 trainings of 2.0 h each; --budget 75h would allow it"),
        (5, 120, 600, "5 trainings of 2.0 min each; --budget 75m would allow it"),
        (
            5,
            7200,
            300,
            "5 trainings of 2.0 h each, or 5.0 min to compute features for fast trainings of the "
            "head; --budget 38m would allow these",
        ),
    ],
)
def test_the_budget_is_the_least_that_does(
    num: int, each_s: float, features_s: float | None, words: str
) -> None:
    assert too_long(num, each_s, features_s=features_s).endswith(words)


def test_what_is_spent_comes_on_top() -> None:
    """Five trainings of 5.6 s were refused late in a budget of 5 minutes, which named 4."""
    assert too_long(5, 5.6, spent_s=240).endswith("--budget 8m would allow it")


def test_a_lab_names_features_where_these_are_what_takes_too_long(make_lab, recipe) -> None:
    long = replace(recipe, schedule=replace(recipe.schedule, max_epochs=10_000_000))
    lab = make_lab(long, budget_s=1e-5)
    outcomes = lab.outcomes(long)
    assert outcomes.why_not is not None
    assert "to compute features for fast trainings of the head" in outcomes.why_not
    assert "features" not in str(make_lab(long, budget_s=5.0).outcomes(long).why_not)
