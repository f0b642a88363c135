"""Audit logs: judge trainings run elsewhere by the numbers that they logged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from stepladder.diagnosis.audit.differences import compare_results
from stepladder.diagnosis.audit.divergence import judge_collapse, judge_divergence, judge_finite
from stepladder.diagnosis.audit.ending import judge_ending
from stepladder.diagnosis.audit.fit_words import (
    fit_at_chance,
    fit_finding,
    fit_if_unstable,
    high_rate,
    no_curve,
    no_epoch_is_best,
    unfit_after,
    unfit_beside,
    with_guess,
    with_losses,
)
from stepladder.diagnosis.audit.length import (
    is_contradiction,
    is_improving,
    judge_calibration,
    judge_early_stopping,
    judge_length,
    judge_noise,
    judge_resumption,
    judge_stuck_loss,
)
from stepladder.diagnosis.audit.low_learning_rate import LowRate, low_rate
from stepladder.diagnosis.audit.series import ACCURACY, LOSS, Series, choose_series, curves_of
from stepladder.diagnosis.audit.size import HeldOutSize, Sizes, held_out_size, with_sizes
from stepladder.diagnosis.audit.stability import judge_stability
from stepladder.diagnosis.fit.chance import at_chance
from stepladder.diagnosis.fit.curves import Curves
from stepladder.diagnosis.fit.fit import judge_fit
from stepladder.diagnosis.logs.reader import logs_in, one_of_each_run, read_logs
from stepladder.diagnosis.runs.run_curves import curves_of_run, read_run
from stepladder.errors import DataError
from stepladder.records.audit import Audit, AuditedRun, LogFormat, RunLog, SizeSource
from stepladder.records.files import Json
from stepladder.records.findings import Finding, Outcome
from stepladder.stats.maxima import expected_max
from stepladder.training.output.events import EVENTS_FILE
from stepladder.training.output.wording import percent

_WORTH_SAYING = 1e-3  # a tenth of a point
_WAIT = 0.1  # share of the time from which waiting for data is a finding
_TESTED_AFTER_DIVERGENCE = Finding(
    check="selection",
    outcome=Outcome.COULD_NOT_RUN,
    evidence="the test result is of the end, after the training diverged, so it says nothing about "
    "the best epoch",
    fix="Evaluate the checkpoint of the best epoch on the test set, once.",
)
_ALIKE = 1e-6  # relative difference between readings of one set, at most: float32 rounding


def judge_selection(log: RunLog, series: Series, num: int | None) -> Finding:
    """Check whether the set that selected the epoch is also the reported one, and the bias of that.

    The expected maximum of k equally good evaluations is E[max of k] standard deviations above
    their mean. That deviation is between the jumps of the curve (the examples are the same each
    time) and the binomial error (as if each evaluation had its own examples): the bias is bounded,
    not known exactly. If all readings are equal, selecting one had no effect.

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
            evidence="the log does not say how often the model was evaluated, so it is unknown "
            "from how many results the best one was chosen",
        )
    if series.is_constant:
        return Finding(
            check=check,
            outcome=Outcome.PASSED,
            evidence=f"{series.name} is the same at all {k} evaluations, so choosing the best of "
            "them did not make the result too optimistic",
        )
    price, numbers = _price(series, k, num)
    is_by_epoch = k > len(series.values) or any(row.epoch is not None for row in series.rows)
    looks = "epochs" if is_by_epoch else "evaluations"
    said = (
        f"there is no test result besides {series.name}: if the best of {k} {looks} was chosen by "
        f"it and its value there is "
    )
    fix = "Report the result on a separate test set, evaluated once."
    if log.is_val_test:
        said = (
            f"the test set was evaluated {k} times: if the best epoch was chosen by these results "
            "and the best of them is "
        )
        fix = "Select the epoch on a validation split of the training data; evaluate on test once."
    return Finding(
        check=check,
        outcome=Outcome.WARNED,
        fault="stopping_on_noise",
        evidence=f"{said}reported as the result, that is too optimistic by {price}",
        fix=fix,
        numbers=numbers,
    )


def _price(series: Series, k: int, num: int | None) -> tuple[str, dict[str, Json]]:
    """Return by how much the best of k readings is too optimistic, with its numbers."""
    most = series.sem(series.values[series.best], num)
    least = series.jitter()
    numbers: dict[str, Json] = {
        "num_looks": k,
        "expected_max": expected_max(k),
        "sem": most,
        "jitter": least,
    }
    if not most and not least:
        return "an amount that cannot be computed from the log", numbers
    if least is not None and most is not None and least < most:
        low, high = (series.say_change(expected_max(k) * part) for part in (least, most))
        if series.is_fraction and expected_max(k) * least < _WORTH_SAYING:
            return f"up to {high} (by the number of examples)", numbers
        return (
            f"{low} (by its jumps between evaluations) to {high} (by the number of examples)",
            numbers,
        )
    part = max(value for value in (most, least) if value is not None)
    if series.is_fraction and expected_max(k) * part < _WORTH_SAYING:
        return "less than 0.1 points", numbers
    price = series.say_change(expected_max(k) * part)
    return f"up to {price}, because the best of {k} noisy results is partly luck", numbers


def _beside_a_test(log: RunLog, series: Series) -> Finding:
    """Check that the test result is from another set than the one that selected the epoch."""
    shown = (series.values[series.best], series.values[-1])
    test = {ACCURACY: log.test_accuracy, LOSS: log.test_loss}.get(series.name)
    if test is not None and any(math.isclose(test, value, rel_tol=_ALIKE) for value in shown):
        return Finding(
            check="selection",
            outcome=Outcome.COULD_NOT_RUN,
            evidence=f"the test result and the validation result are both {series.say(test)}: "
            "either by chance, or because both are of the same examples, and then there is no "
            "independent test",
            fix="Check whether the test set and the validation set share examples. If they do not, "
            "the two results are equal by chance.",
        )
    return Finding(
        check="selection",
        outcome=Outcome.PASSED,
        evidence="the log has a test result besides the validation results by which the best "
        f"epoch was chosen{_of_test(log, series)}",
    )


def _is_tested_at_end(log: RunLog, series: Series) -> bool:
    """Return True if the test result equals the last validation result, but not the best one."""
    test = {ACCURACY: log.test_accuracy, LOSS: log.test_loss}.get(series.name)
    best, last = (series.values[idx] for idx in (series.best, -1))
    return test is not None and math.isclose(test, last, rel_tol=_ALIKE) and last != best


def _of_test(log: RunLog, series: Series) -> str:
    """Return a test result, and by how much the best validation result is above it, as a clause."""
    test, best = log.test_accuracy, series.values[series.best]
    if test is None:
        return "" if log.test_loss is None else f": loss {log.test_loss:.4g}"
    if series.name != ACCURACY or test >= best:
        return f": accuracy {percent(test)}"
    less = f"{100 * (best - test):.2g} points below the best {series.name}"
    return f": accuracy {percent(test)}, {less}; report this one"


def _num_looks(log: RunLog, series: Series) -> int:
    """Return the number of evaluations to select from; one per epoch if they are not logged.

    If only the final result was logged, the completed epochs are counted.
    """
    logged = len(series.values)
    return max(logged, int(log.num_epochs)) if logged == 1 and log.num_epochs else logged


def audit(
    logs: Sequence[str],
    *,
    sizes: Sizes | None = None,
    metric: str | None = None,
    is_each_one_folder: bool = False,
) -> Audit:
    """Read logs and judge what their numbers support, without running anything.

    Args:
        logs: files, folders or MLflow addresses; each may contain several trainings. Of a folder of
            runs, such as Lightning's `lightning_logs`, all runs are read.
        sizes: of the sets, if the logs don't have them.
        metric: the column to judge; None: validation accuracy, else validation loss.
        is_each_one_folder: refuse a folder of several runs.

    Raises:
        DataError: if no training can be read from any of them.
    """
    logs = one_of_each_run(logs)
    words = logs if is_each_one_folder else [part for word in logs for part in logs_in(word)]
    found: list[RunLog] = []
    unreadable: list[DataError] = []
    for word in words:
        try:
            found += _continued(found, read_logs(word, metric=metric))
        except DataError as error:
            unreadable.append(error)
    if not found:
        raise unreadable[0]
    runs = tuple(audit_run(log, sizes or Sizes()) for log in _named_apart(found))
    judged = [run for run in runs if run.result is not None]
    differences = [
        compare_results(first, second)
        for first, second in pairwise(judged)
        if not _continues(first.log, second.log)
    ]
    return Audit(
        runs=runs,
        differences=tuple(difference for difference in differences if difference is not None),
        unreadable=tuple(str(error).splitlines()[0] for error in unreadable),
    )


def _continued(found: Sequence[RunLog], logs: Sequence[RunLog]) -> list[RunLog]:
    """Return the trainings of a log, with a note if they begin where the last one ended."""
    if not found or not logs or not _continues(found[-1], logs[0]):
        return list(logs)
    note = (
        f"it begins at epoch {logs[0].first_epoch:g}, after the last epoch of {found[-1].name}: "
        "probably the same training, resumed from a checkpoint; the two are not compared"
    )
    return [replace(logs[0], notes=(note, *logs[0].notes)), *logs[1:]]


def _continues(first: RunLog, second: RunLog) -> bool:
    """Return True if a log of the same folder of runs begins with the epoch after the last one."""
    if first.epochs is None or second.first_epoch is None:
        return False
    return _runs_folder(first) == _runs_folder(second) and second.first_epoch == first.epochs + 1


def _runs_folder(log: RunLog) -> Path:
    """Return the folder that the folder of a training is in; MMEngine's log is one deeper."""
    folder = Path(log.path).parent
    return (folder.parent if folder.name == "vis_data" else folder).parent


def audit_run(log: RunLog, sizes: Sizes) -> AuditedRun:
    """Audit one training by its log."""
    logged = log.num_val
    log = with_sizes(log, sizes)
    series = choose_series(log)
    shares = list(series.values) if series is not None and series.is_share else []
    given = sizes.num_val or (sizes.num_test if log.is_val_test else None)
    size = held_out_size(log, shares, given=given, logged=logged)
    num = None if size.problem else size.num
    result = None if series is None else series.values[series.best]
    is_share = series is not None and series.is_share
    is_best = series is not None and at_chance(_curves(log, num)) is None
    best = series.rows[series.best] if series is not None and is_best else None
    return AuditedRun(
        log=log,
        metric=None if series is None else series.name,
        result=result,
        result_sem=None if series is None or result is None else series.sem(result, num),
        one_example=1 / num if num and is_share else None,
        num_val=num,
        num_val_from=size.source,
        best_epoch=None if best is None else best.epoch,
        findings=tuple(_findings(log, series, size, num)),
        best_step=None if best is None else best.step,
    )


def _findings(
    log: RunLog, series: Series | None, size: HeldOutSize, num: int | None
) -> list[Finding]:
    not_finite = judge_finite(log)
    is_unfinished = series is None and log.stop_reason is not None  # then `held_out` says so
    found: list[Finding | None] = [not_finite, None if is_unfinished else judge_ending(log)]
    length = None if series is None else judge_length(log, series, num)
    if series is not None and (fallen := judge_resumption(log, series)) is not None:
        # what follows would judge two trainings as one
        found += [_size(series, size), fallen, judge_selection(log, series, num), _data_wait(log)]
        return [f for f in found if f is not None]
    curves = _curves(log, num)
    chance = at_chance(curves)
    low = None if series is None else low_rate(log, series)
    stability = None if series is None else judge_stability(log, series, num)
    stuck = None if series is None else judge_stuck_loss(log, series)
    diverged = None
    if series is not None and not_finite is None and low is None:
        diverged = judge_divergence(log, series) or judge_collapse(log, series)
    if low is not None:
        curves = replace(curves, num_classes=low.num_classes)
        length = _not_longer(length, low)
    if series is None:
        found.append(_held_out(log))
    elif chance is not None:
        if not series.is_constant:
            length = no_epoch_is_best(series, chance)
        found += [_size(series, size), length, judge_selection(log, series, num)]
    else:
        found += [
            _size(series, size),
            length,
            judge_early_stopping(series, num),
            judge_noise(series, num),
            stability,
            stuck,
            judge_calibration(log, series),
            judge_selection(log, series, num)
            if diverged is None or not _is_tested_at_end(log, series)
            else _TESTED_AFTER_DIVERGENCE,
        ]
    if series is not None and not curves.values():
        found += [no_curve(log, series)] if diverged is None else [diverged, unfit_after(diverged)]
    elif len(log.rows) > 1 or (
        series is not None and any(row.train_loss is not None for row in log.rows)
    ):  # a single training loss may be of a part of the first epoch
        fit = judge_fit(curves)
        # a non-finite loss has a single cause and a single fix
        rate = low.finding if low is not None else diverged or high_rate(log, fit)
        found.append(rate if not_finite is None else None)
        judged = fit_finding(fit, length) if chance is None else fit_at_chance(fit, log)
        judged = judged if low is None else replace(judged, fix="")
        judged = with_guess(judged, curves)
        if stuck is not None and is_contradiction(stuck) and chance is None:
            judged = unfit_beside(stuck)
        judged = judged if diverged is None else unfit_after(diverged)
        found.append(with_losses(fit_if_unstable(judged, stability), log))
    found.append(_data_wait(log))
    silent = Outcome.NOT_APPLICABLE
    return [f for f in found if f is not None and (f.outcome is not silent or f.evidence)]


def _not_longer(length: Finding | None, low: LowRate) -> Finding | None:
    """Return the finding on length without the advice to continue with a rate that is too low."""
    if length is None or not is_improving(length):
        return length
    return replace(
        length,
        fix=f"Raise the learning rate first: at {low.rate:.4g}, more epochs would help little.",
    )


def _curves(log: RunLog, num: int | None) -> Curves:
    """Return the curves for judging fit; for a run folder the same as `diagnose` reads."""
    path = Path(log.path)
    folder = path.parent if path.name == EVENTS_FILE else path
    if log.format is LogFormat.STEPLADDER and (folder / EVENTS_FILE).is_file():
        return curves_of_run(read_run(folder), num_val=num)
    return curves_of(log, num)


def _held_out(log: RunLog) -> Finding:
    """Return the finding for a log without held-out evaluations during training."""
    read_once = None
    if log.test_accuracy is not None:
        read_once = f"accuracy {percent(log.test_accuracy)}"
    elif log.test_loss is not None:
        read_once = f"loss {log.test_loss:.4g}"
    if read_once is None and log.stop_reason and log.format is LogFormat.CSV:
        return Finding(
            check="held_out",
            outcome=Outcome.COULD_NOT_RUN,
            evidence=f"this run has no result, because it has not finished ({log.stop_reason}); "
            "it is not compared",
        )
    if read_once is None:
        return Finding(
            check="held_out",
            outcome=Outcome.FAILED,
            evidence="the log has no validation or test metric, so nothing is known about how well "
            "the model does on examples that it was not trained on",
            fix="Log the loss or accuracy on a validation set. If a column of the log has it: "
            "--metric COLUMN",
        )
    return Finding(
        check="held_out",
        outcome=Outcome.COULD_NOT_RUN,
        evidence=f"the log has a single test result, {read_once}, and no validation results: "
        "it is unknown how the model improved during training",
        fix="Log the validation loss or accuracy after every epoch.",
    )


def _size(series: Series, size: HeldOutSize) -> Finding:
    """Return on how many examples the metric was computed, and what one of them is worth."""
    check = "evaluation_size"
    if not series.is_share:
        return Finding(
            check=check,
            outcome=Outcome.NOT_APPLICABLE,
            evidence=f"{series.name} is not a proportion of examples, as accuracy is, so its noise "
            "cannot be computed from the number of examples; it is estimated from the changes "
            "between evaluations instead",
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
            evidence="it is unknown on how many examples the model was evaluated: the log does not "
            f"say so, and the decimals of {series.name} {_shown(size)}",
            fix="Pass the number of validation examples: --num-val N",
        )
    sem = series.sem(series.values[series.best], size.num)
    source = {
        SizeSource.GIVEN: "the number that you passed",
        SizeSource.LOGGED: "as logged",
        SizeSource.INFERRED: "inferred from the decimals of the metric; it may be a multiple",
    }[size.source or SizeSource.LOGGED]
    return Finding(
        check=check,
        outcome=Outcome.PASSED,
        evidence=f"{series.name} was measured on {size.num:,} examples ({source}): one example "
        f"more or less changes it by {100 / size.num:.2g} percentage points, and its standard "
        f"error is {100 * (sem or 0):.2g} points",
        numbers={"num_val": size.num, "one_example": 1 / size.num, "sem": sem},
    )


def _shown(size: HeldOutSize) -> str:
    if size.multiple_of is None:
        return "do not show it"
    return f"only show that it is a multiple of {size.multiple_of:,}"


def _correct(source: SizeSource | None) -> str:
    """Return what may be wrong if n examples cannot give an accuracy."""
    other = "the accuracy may be averaged over uneven batches, or be of other examples"
    return f"Correct --num-val, or {other}." if source is SizeSource.GIVEN else f"{other}."


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
        evidence=f"{percent(share)} of the training time was spent waiting for data",
        fix="Load data with more threads or processes, or decode pictures only once; `stepladder "
        "advise` estimates what each would gain."
        if is_much
        else "",
        numbers={"data_wait_frac": share},
    )


def _named_apart(logs: Sequence[RunLog]) -> list[RunLog]:
    """Replace equal names of logs by the ends of their paths that differ, else number them."""
    names = [log.name for log in logs]
    alike = {name for name in names if names.count(name) > 1}
    taken = set(names) - alike
    named = []
    for log in logs:
        if log.name not in alike:
            named.append(log)
            continue
        end = _end_of_path(log, [other.path for other in logs if other.name == log.name])
        name, again = end, 2
        while name in taken:
            name, again = f"{end} ({again})", again + 1
        taken.add(name)
        named.append(replace(log, name=name))
    return named


def _end_of_path(log: RunLog, paths: Sequence[str]) -> str:
    """Return the shortest end of a log's path that no other path has, with its number in a file."""
    parts = Path(log.path).parts
    if not parts:
        return log.name
    others = {Path(path).parts for path in paths} - {parts}
    num = next((k for k in range(1, len(parts)) if parts[-k:] not in {o[-k:] for o in others}), 0)
    end = "/".join(parts[-num:]) if num and others else str(Path(log.path))
    _, sign, number = log.name.rpartition("#")
    return f"{end}#{number}" if sign and number.isdigit() else end
