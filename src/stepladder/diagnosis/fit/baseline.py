"""Does a trained model beat what needs no training? The same answer for `report` and `diagnose`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stepladder.records.findings import Finding, Outcome
from stepladder.stats.shares import mcnemar_p
from stepladder.training.output.wording import percent

_ALPHA: Final = 0.05
CHECK: Final = "beats_baseline"


@dataclass(frozen=True, kw_only=True)
class AgainstMajority:
    """A model beside always naming the commonest class.

    Attributes:
        num: examples.
        accuracy, majority: share of them that each gets right; that class is the commonest of these
            very examples, so that no guess of one class does better.
        label: that class.
        p: that the model is no better, by McNemar's test on the pairs; 1 where it is worse.
    """

    num: int
    accuracy: float
    majority: float
    label: str
    p: float


def against_majority(outcomes: Mapping[tuple[str, str], int]) -> AgainstMajority | None:
    """Compare predictions with the commonest class; None: there are none.

    Args:
        outcomes: how often each (label, predicted) occurs.
    """
    num = sum(outcomes.values())
    if not num:
        return None
    labels: Counter[str] = Counter()
    for (label, _), count in outcomes.items():
        labels[label] += count
    common, num_common = labels.most_common(1)[0]
    right = sum(count for (label, predicted), count in outcomes.items() if label == predicted)
    both = outcomes.get((common, common), 0)
    only_model, only_common = right - both, num_common - both
    p = mcnemar_p(only_model, only_common) if only_model > only_common else 1.0
    return AgainstMajority(
        num=num, accuracy=right / num, majority=num_common / num, label=common, p=p
    )


def baseline_finding(
    outcomes: Mapping[tuple[str, str], int], *, probe_accuracy: float | None = None
) -> Finding:
    """Return True if a trained model beats the commonest class, and a probe where one was fitted.

    Args:
        outcomes: of held-out examples, how often each (label, predicted) occurs.
        probe_accuracy: of a linear probe on the same examples, as the checks found it.
    """
    found = against_majority(outcomes)
    if found is None:
        return Finding(
            check=CHECK,
            outcome=Outcome.NOT_APPLICABLE,
            evidence="no prediction of a class was kept",
        )
    words = (
        f"{percent(found.accuracy)} of {found.num} validation examples are right, and always "
        f"{found.label} is right in {percent(found.majority)}"
    )
    loses = found.p > _ALPHA
    if probe_accuracy is not None:
        words += f", a probe in {percent(probe_accuracy)}"
        loses = loses or found.accuracy < probe_accuracy
    numbers = {"accuracy": found.accuracy, "majority_accuracy": found.majority, "p": found.p}
    if not loses:
        return Finding(check=CHECK, outcome=Outcome.PASSED, evidence=words, numbers=numbers)
    return Finding(
        check=CHECK,
        outcome=Outcome.WARNED,
        fault="no_better_than_baseline",
        evidence=f"the model does not beat what needs no training: {words}",
        fix="Look whether it learns at all: `stepladder check`, then a higher learning rate.",
        numbers=numbers,
    )
