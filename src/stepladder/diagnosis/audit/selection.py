"""What choosing the best of several evaluations adds to the result that is reported."""

from __future__ import annotations

import math

from stepladder.diagnosis.audit.series import ACCURACY, LOSS, Series
from stepladder.records.audit import RunLog
from stepladder.records.files import Json
from stepladder.records.findings import Finding, Outcome
from stepladder.stats.maxima import expected_max

_ALIKE = 1e-6  # share by which two readings of one set differ at most: what float32 rounds


def judge_selection(log: RunLog, series: Series, num: int | None) -> Finding:
    """Say whether the set that chose the epoch is also the one that is reported, and its price.

    The expected largest of k equally good evaluations lies E[max of k] standard deviations above
    their mean. That deviation lies between the jumps of the curve (the examples are the same ones
    each time) and the binomial error (as if each evaluation had its own): the price is bounded, not
    known. Where all readings are alike, choosing among them gave nothing.

    Source: Cawley and Talbot 2010, "On Over-fitting in Model Selection and Subsequent Selection
    Bias in Performance Evaluation", JMLR 11.
    """
    check = "selection"
    if not log.is_val_test and (log.test_accuracy is not None or log.test_loss is not None):
        return _beside_a_test(log, series)
    k = _num_looks(log, series)
    if k < 2:
        return Finding(
            check=check,
            outcome=Outcome.COULD_NOT_RUN,
            evidence="how often it was evaluated is not logged",
        )
    if series.is_constant:
        return Finding(
            check=check,
            outcome=Outcome.PASSED,
            evidence=f"all {k} readings of {series.name} are alike: choosing one gave nothing",
        )
    price, numbers = _price(series, k, num)
    said = f"{series.name} is the only held-out number: if it chose among {k} epochs and is "
    fix = "Report a test set that chose nothing, read once."
    if log.is_val_test:
        said = f"the test set itself was read {k} times: if it chose the epoch and is "
        fix = "Choose the epoch by validation, split off from training; read test once."
    return Finding(
        check=check,
        outcome=Outcome.WARNED,
        fault="stopping_on_noise",
        evidence=f"{said}reported, it is too good by {price}",
        fix=fix,
        numbers=numbers,
    )


def _price(series: Series, k: int, num: int | None) -> tuple[str, dict[str, Json]]:
    """Say by how much the best of k readings is too good, with its numbers."""
    most = series.sem(series.values[series.best], num)
    least = series.jitter()
    numbers: dict[str, Json] = {
        "num_looks": k,
        "expected_max": expected_max(k),
        "sem": most,
        "jitter": least,
    }
    if not most and not least:
        return "an amount that the log does not tell", numbers
    if least is not None and most is not None and least < most:
        low, high = (series.say_change(expected_max(k) * part) for part in (least, most))
        return f"{low} (by its own jumps) to {high} (by the number of examples)", numbers
    part = max(value for value in (most, least) if value is not None)
    price = series.say_change(expected_max(k) * part)
    return f"up to {price} (the largest of {k} readings)", numbers


def _beside_a_test(log: RunLog, series: Series) -> Finding:
    """Say whether the test result is one of another set than the one that chose the epoch."""
    test = {ACCURACY: log.test_accuracy, LOSS: log.test_loss}.get(series.name)
    shown = {series.values[series.best], series.values[-1]}
    if test is not None and any(math.isclose(test, value, rel_tol=_ALIKE) for value in shown):
        return Finding(
            check="selection",
            outcome=Outcome.COULD_NOT_RUN,
            evidence=f"test and validation both say {series.say(test)}: by chance, or they are one "
            "set, and then it chose the epoch",
            fix="Make sure that no file is in both; then it is by chance.",
        )
    return Finding(
        check="selection",
        outcome=Outcome.PASSED,
        evidence="a test result stands beside the validation that chose the epoch",
    )


def _num_looks(log: RunLog, series: Series) -> int:
    """Give how many evaluations there were to choose from; one an epoch where they are not logged.

    Where only the result was logged, the epochs are those that were done.
    """
    logged = len(series.values)
    return max(logged, int(log.epochs)) if logged == 1 and log.epochs else logged
