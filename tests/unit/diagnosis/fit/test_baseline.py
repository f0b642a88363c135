"""A trained model compared with baselines that need no training."""

from __future__ import annotations

from collections import Counter

import pytest

from stepladder.diagnosis.fit.baseline import against_majority, baseline_finding
from stepladder.records.findings import Outcome


def test_always_the_commonest_class_is_the_bar() -> None:
    found = against_majority(Counter({("a", "a"): 60, ("b", "a"): 10, ("b", "b"): 30}))
    assert found is not None
    assert (found.num, found.accuracy, found.majority, found.label) == (100, 0.9, 0.6, "a")
    assert found.p == pytest.approx(2**-30 * 2, rel=1e-6)  # 30 pairs, all for the model, two-sided


def test_a_model_that_always_says_it_does_not_beat_it() -> None:
    finding = baseline_finding(Counter({("a", "a"): 60, ("b", "a"): 40}))
    assert finding.outcome is Outcome.WARNED
    assert finding.fault == "no_better_than_baseline"


def test_a_little_better_is_not_beyond_doubt() -> None:
    little = Counter({("a", "a"): 60, ("b", "a"): 37, ("b", "b"): 3})
    assert baseline_finding(little).outcome is Outcome.WARNED
    clear = Counter({("a", "a"): 60, ("b", "a"): 10, ("b", "b"): 30})
    assert baseline_finding(clear).outcome is Outcome.PASSED


def test_a_probe_that_does_better_is_named() -> None:
    outcomes = Counter({("a", "a"): 60, ("b", "a"): 10, ("b", "b"): 30})
    assert baseline_finding(outcomes, probe_accuracy=0.89).outcome is Outcome.PASSED
    finding = baseline_finding(outcomes, probe_accuracy=0.95)
    assert finding.outcome is Outcome.WARNED
    assert "a linear probe 95.0 %" in finding.evidence


def test_without_predictions_nothing_is_said() -> None:
    assert baseline_finding({}).outcome is Outcome.NOT_APPLICABLE


def test_the_finding_says_which_split_the_constant_class_is_the_most_frequent_of() -> None:
    finding = baseline_finding({("a", "a"): 30, ("b", "b"): 20})
    assert "always predicting a, their most frequent class, gives 60.0 %" in finding.evidence
