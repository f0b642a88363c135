"""Compare a trained model with trivial baselines; used by `report` and `diagnose`."""

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
    """A model compared with always predicting the most frequent class.

    Attributes:
        num: number of examples.
        accuracy, majority: share of examples that each predicts correctly; the class is the most
            frequent one in these examples, so that no other constant prediction is better.
        label: that class.
        p: p-value of "the model is no better", by McNemar's test on the pairs; 1 if it is worse.
    """

    num: int
    accuracy: float
    majority: float
    label: str
    p: float


def against_majority(outcomes: Mapping[tuple[str, str], int]) -> AgainstMajority | None:
    """Compare predictions with the most frequent class; None if there are no predictions.

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
    """Check that a trained model beats the most frequent class, and a probe if one was fitted.

    Args:
        outcomes: for held-out examples, how often each (label, predicted) occurs.
        probe_accuracy: of a linear probe on the same examples, from the checks.
    """
    found = against_majority(outcomes)
    if found is None:
        return Finding(
            check=CHECK,
            outcome=Outcome.NOT_APPLICABLE,
            evidence="the run recorded no predicted classes, so it cannot be compared with always "
            "predicting the most frequent class",
        )
    words = (
        f"the accuracy is {percent(found.accuracy)} on {found.num} validation examples; always "
        f"predicting {found.label}, their most frequent class, gives {percent(found.majority)}"
    )
    loses = found.p > _ALPHA
    if probe_accuracy is not None:
        words += f", a linear probe {percent(probe_accuracy)}"
        loses = loses or found.accuracy < probe_accuracy
    numbers = {"accuracy": found.accuracy, "majority_accuracy": found.majority, "p": found.p}
    if not loses:
        return Finding(check=CHECK, outcome=Outcome.PASSED, evidence=words, numbers=numbers)
    return Finding(
        check=CHECK,
        outcome=Outcome.WARNED,
        fault="no_better_than_baseline",
        evidence=f"the model does not beat a trivial baseline: {words}",
        fix="Find out with `stepladder check` whether the model can learn at all; if it can, train "
        "with a higher learning rate (--batch.lr).",
        numbers=numbers,
    )
