"""What choosing the best of several evaluations adds to the result that is reported."""

from __future__ import annotations

from stepladder.diagnosis.audit_series import Series
from stepladder.records.audit import RunLog
from stepladder.records.findings import Finding, Outcome
from stepladder.stats.maxima import expected_max


def judge_selection(log: RunLog, series: Series, num: int | None) -> Finding:
    """Say whether the set that chose the epoch is also the one that is reported, and its price.

    The expected largest of k equally good evaluations lies E[max of k] standard deviations above
    their mean. That deviation lies between the jumps of the curve (the examples are the same ones
    each time) and the binomial error (as if each evaluation had its own): the price is bounded, not
    known.

    Source: Cawley and Talbot 2010, "On Over-fitting in Model Selection and Subsequent Selection
    Bias in Performance Evaluation", JMLR 11.
    """
    check = "selection"
    if log.test_accuracy is not None or log.test_loss is not None:
        return Finding(
            check=check,
            outcome=Outcome.PASSED,
            evidence="a test result stands beside the validation that chose the epoch",
        )
    k = _num_looks(log, series)
    if k < 2:
        return Finding(
            check=check,
            outcome=Outcome.COULD_NOT_RUN,
            evidence="how often it was evaluated is not logged",
        )
    most = series.sem(series.values[series.best], num)
    least = series.jitter()
    numbers = {"num_looks": k, "expected_max": expected_max(k), "sem": most, "jitter": least}
    said = f"{series.name} is the only held-out number: if it chose among {k} epochs and is "
    said += "reported, it is too good by"
    if most is None and least is None:
        said += " an amount that the log does not tell"
    elif least is not None and most is not None and least < most:
        low, high = (series.say_change(expected_max(k) * part) for part in (least, most))
        said += f" {low} (by its own jumps) to {high} (by the number of examples)"
    else:
        part = max(value for value in (most, least) if value is not None)
        said += f" up to {series.say_change(expected_max(k) * part)} (the largest of {k} readings)"
    return Finding(
        check=check,
        outcome=Outcome.WARNED,
        fault="stopping_on_noise",
        evidence=said,
        fix="Report a test set that chose nothing, read once.",
        numbers=numbers,
    )


def _num_looks(log: RunLog, series: Series) -> int:
    """Give how many evaluations there were to choose from; one an epoch where they are not logged.

    Where only the result was logged, the epochs are those that were done.
    """
    logged = len(series.values)
    return max(logged, int(log.epochs)) if logged == 1 and log.epochs else logged
