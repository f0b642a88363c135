"""What logs support: trainings that others ran, judged by the numbers that they left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from stepladder.diagnosis.audit.differences import compare_results
from stepladder.diagnosis.audit.length import (
    judge_calibration,
    judge_early_stopping,
    judge_length,
    judge_noise,
)
from stepladder.diagnosis.audit.series import ACCURACY, LOSS, Series, choose_series, curves_of
from stepladder.diagnosis.audit.size import HeldOutSize, Sizes, held_out_size, with_sizes
from stepladder.diagnosis.fit.curves import Curves
from stepladder.diagnosis.fit.fit import judge_fit
from stepladder.diagnosis.logs.reader import read_logs
from stepladder.diagnosis.runs.run_curves import curves_of_run, read_run
from stepladder.errors import DataError
from stepladder.records.audit import Audit, AuditedRun, LogFormat, RunLog, SizeSource
from stepladder.records.diagnosis import Fit, FitKind
from stepladder.records.files import Json
from stepladder.records.findings import Finding, Outcome
from stepladder.stats.maxima import expected_max
from stepladder.training.output.events import EVENTS_FILE
from stepladder.training.output.wording import percent

_WAIT = 0.1  # share of the time from which waiting for data is worth a word
_FIT_WORDS = {
    FitKind.UNDERFIT: "underfit",
    FitKind.GOOD_FIT: "good fit",
    FitKind.OVERFIT: "overfit",
    FitKind.NOT_YET_KNOWN: "not yet known",
}
_FIT_FIXES = {
    FitKind.UNDERFIT: "Train longer, try other learning rates, or a larger model.",
    FitKind.OVERFIT: "Stop earlier; more data, augmentation, dropout or weight decay.",
}
_ALIKE = 1e-6  # share by which two readings of one set differ at most: what float32 rounds


def judge_selection(log: RunLog, series: Series, num: int | None) -> Finding:
    """Return True if the set that chose the epoch is also the one that is reported, and its price.

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
    """Return True if the test result is one of another set than the one that chose the epoch."""
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
    """Return how many evaluations there were to choose from; one an epoch where they are not logged.

    Where only the result was logged, the epochs are those that were done.
    """
    logged = len(series.values)
    return max(logged, int(log.epochs)) if logged == 1 and log.epochs else logged


def audit(logs: Sequence[str], *, sizes: Sizes | None = None, metric: str | None = None) -> Audit:
    """Read logs and say what their numbers support; nothing is run again.

    Args:
        logs: files, folders, addresses of MLflow; each may hold several trainings.
        sizes: of the sets, where the logs do not say.
        metric: the column that is judged; None: validation accuracy, else validation loss.

    Raises:
        DataError: if no training can be read from any of them.
    """
    found: list[RunLog] = []
    unreadable: list[DataError] = []
    for word in logs:
        try:
            found += read_logs(word, metric=metric)
        except DataError as error:
            unreadable.append(error)
    if not found:
        raise unreadable[0]
    runs = tuple(audit_run(log, sizes or Sizes()) for log in _named_apart(found))
    differences = [compare_results(first, second) for first, second in pairwise(runs)]
    return Audit(
        runs=runs,
        differences=tuple(difference for difference in differences if difference is not None),
        unreadable=tuple(str(error).splitlines()[0] for error in unreadable),
    )


def audit_run(log: RunLog, sizes: Sizes) -> AuditedRun:
    """Judge one training by its log."""
    logged = log.num_val
    log = with_sizes(log, sizes)
    series = choose_series(log)
    shares = list(series.values) if series is not None and series.is_share else []
    given = sizes.num_val or (sizes.num_test if log.is_val_test else None)
    size = held_out_size(log, shares, given=given, logged=logged)
    num = None if size.problem else size.num
    result = None if series is None else series.values[series.best]
    is_share = series is not None and series.is_share
    return AuditedRun(
        log=log,
        metric=None if series is None else series.name,
        result=result,
        result_sem=None if series is None or result is None else series.sem(result, num),
        one_example=1 / num if num and is_share else None,
        num_val=num,
        num_val_from=size.source,
        best_epoch=None if series is None else series.rows[series.best].epoch,
        findings=tuple(_findings(log, series, size, num)),
    )


def _findings(
    log: RunLog, series: Series | None, size: HeldOutSize, num: int | None
) -> list[Finding]:
    not_finite = _finite(log)
    found: list[Finding | None] = [not_finite]
    if series is None:
        found.append(_held_out(log))
    else:
        found += [
            _size(series, size),
            judge_length(log, series, num),
            judge_early_stopping(series, num),
            judge_noise(series, num),
            judge_calibration(log, series),
            judge_selection(log, series, num),
        ]
    if any(row.train_loss is not None for row in log.rows) or len(log.rows) > 1:
        fit = judge_fit(_curves(log, num))
        # a loss that is no number has one cause, and one fix
        found += [_learning_rate(fit) if not_finite is None else None, _fit(fit)]
    found.append(_data_wait(log))
    silent = Outcome.NOT_APPLICABLE
    return [f for f in found if f is not None and (f.outcome is not silent or f.evidence)]


def _curves(log: RunLog, num: int | None) -> Curves:
    """Return the curves that fit is judged by: of a run folder the same as `diagnose` reads."""
    path = Path(log.path)
    folder = path.parent if path.name == EVENTS_FILE else path
    if log.format is LogFormat.STEPLADDER and (folder / EVENTS_FILE).is_file():
        return curves_of_run(read_run(folder), num_val=num)
    return curves_of(log, num)


def _held_out(log: RunLog) -> Finding:
    """Say what there is where no evaluation of new examples was logged during training."""
    read_once = None
    if log.test_accuracy is not None:
        read_once = f"accuracy {percent(log.test_accuracy)}"
    elif log.test_loss is not None:
        read_once = f"loss {log.test_loss:.4g}"
    if read_once is None:
        return Finding(
            check="held_out",
            outcome=Outcome.FAILED,
            evidence="the log has no held-out number: nothing can be said of new examples",
            fix="Log validation, or name its column with --metric.",
        )
    return Finding(
        check="held_out",
        outcome=Outcome.COULD_NOT_RUN,
        evidence=f"a test result, {read_once}, is the only held-out number: there is no course",
        fix="Log validation at every epoch.",
    )


def _size(series: Series, size: HeldOutSize) -> Finding:
    """Say on how many examples the metric stands, and what one of them is worth."""
    check = "evaluation_size"
    if not series.is_share:
        return Finding(
            check=check,
            outcome=Outcome.NOT_APPLICABLE,
            evidence=f"{series.name} is no share of examples: its noise is read from its curve",
        )
    if size.problem:
        return Finding(
            check=check,
            outcome=Outcome.FAILED,
            fault="metric_wrong",
            evidence=size.problem,
            fix=_correct(size.source),
        )
    if size.num is None:
        return Finding(
            check=check,
            outcome=Outcome.COULD_NOT_RUN,
            evidence="on how many examples it stands is not logged, and its decimals do not tell",
            fix="Give --num-val N.",
        )
    sem = series.sem(series.values[series.best], size.num)
    source = {
        SizeSource.GIVEN: "as given",
        SizeSource.LOGGED: "as logged",
        SizeSource.INFERRED: "inferred from the decimals; or a multiple of it",
    }[size.source or SizeSource.LOGGED]
    return Finding(
        check=check,
        outcome=Outcome.PASSED,
        evidence=f"{size.num:,} held-out examples ({source}): one of them is "
        f"{100 / size.num:.2g} points, one standard error {100 * (sem or 0):.2g}",
        numbers={"num_val": size.num, "one_example": 1 / size.num, "sem": sem},
    )


def _correct(source: SizeSource | None) -> str:
    """Say what may be wrong where n examples cannot give an accuracy."""
    other = "accuracy may be a mean over uneven batches, or stand on other examples"
    return f"Correct --num-val; or {other}." if source is SizeSource.GIVEN else f"{other}."


def _finite(log: RunLog) -> Finding | None:
    bad = [
        row
        for row in log.rows
        for value in (row.train_loss, row.val_loss, row.val_accuracy, row.train_accuracy)
        if value is not None and not math.isfinite(value)
    ]
    if not bad:
        return None
    first = bad[0]
    place = f"epoch {first.epoch:g}" if first.epoch is not None else "a row without an epoch"
    return Finding(
        check="finite",
        outcome=Outcome.FAILED,
        evidence=f"a loss is not a finite number from {place} on: what follows means nothing",
        fix="Lower the learning rate, clip the gradient, and look for broken inputs.",
        numbers={"num_bad": len(bad)},
    )


def _learning_rate(fit: Fit) -> Finding | None:
    if not fit.is_learning_rate_too_high:
        return None
    return Finding(
        check="learning_rate",
        outcome=Outcome.WARNED,
        fault="learning_rate_too_high",
        evidence=fit.evidence[0] if fit.evidence else "training stays poor and jumps",
        fix="Train again with a tenth of the learning rate.",
    )


def _fit(fit: Fit) -> Finding:
    is_bad = fit.kind in _FIT_FIXES and not fit.is_learning_rate_too_high
    outcomes = {FitKind.GOOD_FIT: Outcome.PASSED, FitKind.NOT_YET_KNOWN: Outcome.COULD_NOT_RUN}
    said = "; ".join((_FIT_WORDS[fit.kind], *fit.evidence))
    if fit.is_overconfident:
        said += "; over-confident: its loss rose while accuracy did not fall"
    return Finding(
        check="fit",
        outcome=Outcome.WARNED if is_bad else outcomes.get(fit.kind, Outcome.PASSED),
        evidence=said,
        fix=_FIT_FIXES[fit.kind] if is_bad else "",
        numbers={"kind": fit.kind.value, "confidence": fit.confidence.value},
    )


def _data_wait(log: RunLog) -> Finding | None:
    waits = [row.data_wait_frac for row in log.rows if row.data_wait_frac is not None]
    share = log.data_wait_frac
    if share is None and waits:
        share = sum(waits) / len(waits)
    if share is None:
        return None
    is_much = share > _WAIT
    return Finding(
        check="data_wait",
        outcome=Outcome.WARNED if is_much else Outcome.PASSED,
        evidence=f"{percent(share)} of the time was spent waiting for data",
        fix="Read with more threads, or decode once: `stepladder advise` says what it would give."
        if is_much
        else "",
        numbers={"data_wait_frac": share},
    )


def _named_apart(logs: Sequence[RunLog]) -> list[RunLog]:
    """Return logs of one name their paths instead."""
    names = [log.name for log in logs]
    return [
        replace(log, name=log.path) if names.count(log.name) > 1 and log.path else log
        for log in logs
    ]
