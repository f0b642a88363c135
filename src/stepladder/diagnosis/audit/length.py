"""Check whether a training stopped too early, or continued past its best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from stepladder.diagnosis.audit.series import LOSS, Series, loss_series, why_unended
from stepladder.diagnosis.logs.meaning.column_names import digits_of
from stepladder.records.audit import LogRow, RunLog
from stepladder.records.files import Json
from stepladder.records.findings import Finding, Outcome
from stepladder.training.output.wording import duration

PATIENCE = 3
_CLEAR = 2.0  # standard deviations of the noise
_MIN_EVALUATIONS = 4
_MOVING = ("train_loss", "train_accuracy", "val_loss", "val_accuracy")
_MIN_EQUAL = 5  # evaluations in a row with exactly the same value
_MIN_BEFORE = 2  # evaluations before a training was resumed
_GOOD = 0.9  # of an accuracy: far above guessing
_HIGH_LOSS = math.log(2)  # the right class has half of the probability
_MAX_CLASSES = 100_000
_COARSE = 0.01  # share of a value that its rounding is
_PERFECT = 0.99  # of a metric: what is left is small
_SMALL_GAIN = 1e-3  # a tenth of a point
_AT_THE_END = 2  # evaluations: a best among the last ones may not be the optimum


def judge_length(log: RunLog, series: Series, num: int | None) -> Finding:
    """Check whether a training ended too early, past its best, or in time.

    Too early: the last three evaluations (two if there are fewer than 9) are better than as many
    before by more than twice the noise, both in their mean and in their best, one of the last two
    is the best of all, and the last one is better than all of those before. Past its best: more
    evaluations than a patience of 3 came after the best. A metric that is stuck is neither: its
    last values are exactly equal, at least 5 of them and half of all, while others still move.

    Source: Godbole et al. 2023, "Deep Learning Tuning Playbook", "Deciding how long to train":
    a best in the last 25 % of the steps asks for more of them, one in the first 10 % for fewer.
    """
    check, num_done = "length", len(series.values)
    if why := why_unended(log):
        return Finding(
            check=check,
            outcome=Outcome.NOT_APPLICABLE,
            evidence=f"{why}: it is not judged whether the training was long enough",
        )
    if num_done < _MIN_EVALUATIONS:
        return Finding(
            check=check,
            outcome=Outcome.COULD_NOT_RUN,
            evidence=_too_few(log, num_done),
            fix=_more(log, num_done),
        )
    if (num_equal := _num_stuck(series)) is not None:
        return _stuck(series, num_equal)
    if _is_improving(series, num):
        gain = _late_gain(series)
        return Finding(
            check=check,
            outcome=Outcome.WARNED,
            evidence=f"the training ended while {series.name} was still improving: its last "
            f"evaluations are better than those before by {series.say_change(gain)}, more than "
            "twice the noise between evaluations",
            fix="Train for more epochs, with early stopping.",
            numbers={"late_gain": gain, "noise": series.step_noise(num)},
        )
    wasted = num_done - 1 - series.best
    if wasted > PATIENCE:
        return _past_best(series, num, wasted)
    return Finding(
        check=check,
        outcome=Outcome.PASSED,
        evidence=f"the training was long enough: its best {series.name} was {_after(wasted)} the "
        f"end, and the last one is {series.say(series.values[-1])}"
        if wasted
        else _barely_best(series),
        numbers={"after_best": wasted},
    )


def _barely_best(series: Series) -> str:
    than = "the noise"
    if series.is_fraction and series.values[-1] >= _PERFECT:
        than = "the noise, or by less than 0.1 points"
    return (
        f"the training was long enough: its last {series.name} is the best, but not by more than "
        f"{than}"
    )


def judge_resumption(log: RunLog, series: Series) -> Finding | None:
    """Check whether the metric became worse when the training was resumed; None if it did not.

    It did if the first evaluation after it is worse than all before, and its step down is more
    than twice the largest step before. It also did if that step down is larger than any step
    before, the metric does not come back to its value before, and the last one is the worst of
    all.
    """
    for place in log.resumed_at:
        first = next((idx for idx, row in enumerate(series.rows) if _at_or_after(row, place)), 0)
        before, after = series.values[:first], series.values[first:]
        if len(before) < _MIN_BEFORE:
            continue
        fall = series.gain(after[0], before[-1])
        largest = max(abs(later - value) for value, later in itertools.pairwise(before))
        is_worst = all(series.gain(value, after[0]) < 0 for value in before)
        is_lost = len(after) > 1 and all(series.gain(before[-1], value) < 0 for value in after)
        is_lost &= all(series.gain(value, after[-1]) <= 0 for value in series.values)
        if (is_worst and fall > _CLEAR * largest) or (is_lost and fall > largest):
            return Finding(
                check="resumption",
                outcome=Outcome.WARNED,
                evidence=f"when the training was resumed, {series.name} "
                f"{'rose' if series.is_lower_better else 'fell'} from "
                f"{series.say(before[-1])} to {series.say(after[0])} "
                f"({_at(series.rows, first)}), and the last one is "
                f"{series.say(series.values[-1])}; the best, "
                f"{series.say(series.values[series.best])}, was {_at(series.rows, series.best)}: "
                "the weights of the checkpoint, or the state of the optimizer, were probably not "
                "loaded",
                fix="Check that the script loads the model, the optimizer and the schedule from "
                "the checkpoint. Then resume from the checkpoint of the best evaluation.",
                numbers={"fall": fall, "resumed_at": place},
            )
    return None


def _at_or_after(row: LogRow, place: float) -> bool:
    at = row.step if row.epoch is None else row.epoch
    return at is not None and at >= place


def is_improving(length: Finding) -> bool:
    """Return whether a training ended while it still improved."""
    return "late_gain" in length.numbers


def is_past_best(length: Finding) -> bool:
    """Return whether more evaluations than a patience of 3 came after the best one."""
    return length.outcome is Outcome.WARNED and "after_best" in length.numbers


def judge_early_stopping(series: Series, num: int | None) -> Finding:
    """Return what early stopping with a patience of 3 would have given, on the logged evaluations.

    If that would have lost more than noise, the least patience that would not is named as well.

    Source: `EarlyStopping` of Keras with restore_best_weights: no new best in 3 evaluations.
    """
    check, stop = "early_stopping", _stop_at(series, PATIENCE)
    if len(series.values) < _MIN_EVALUATIONS or _num_stuck(series) is not None:
        return Finding(check=check, outcome=Outcome.NOT_APPLICABLE)
    if stop is None:
        return Finding(
            check=check,
            outcome=Outcome.PASSED,
            evidence=f"early stopping after {PATIENCE} evaluations without a new best "
            f"{series.name} (patience {PATIENCE}) would not have ended the training earlier",
        )
    lost = _lost(series, stop)
    noise = series.step_noise(num)
    best = series.values[_best_until(series, stop)]
    kept = f"the best {series.name} would be {series.say(best)}"
    if lost <= 0:
        kept += ", as without it"
    elif noise is None:
        kept += f" instead of {series.say(series.values[series.best])}"
    else:
        side = "less" if lost <= _CLEAR * noise else "more"
        kept += (
            f" instead of {series.say(series.values[series.best])}: {series.say_change(lost)}, "
            f"{side} than twice the noise of {series.say_change(noise)}"
        )
    saved = len(series.values) - 1 - stop
    return Finding(
        check=check,
        outcome=Outcome.PASSED,
        evidence=f"early stopping after {PATIENCE} evaluations without a new best {series.name} "
        f"(patience {PATIENCE}) would have ended the training {_at(series.rows, stop)}"
        f"{_time_saved(series.rows, stop)}; {kept}{_with_more_patience(series, num)}",
        numbers={"stop": stop, "saved": saved, "lost": lost, "noise": noise},
    )


def _with_more_patience(series: Series, num: int | None) -> str:
    """Return what the least patience gives that loses nothing; empty if it is the usual one."""
    patience = _patience(series, num)
    stop = None if patience is None else _stop_at(series, patience)
    if patience in (None, PATIENCE) or stop is None:
        return ""
    best = series.values[_best_until(series, stop)]
    return (
        f"; with a patience of {patience}, it would have ended {_at(series.rows, stop)}, with a "
        f"best of {series.say(best)}"
    )


def _patience(series: Series, num: int | None) -> int | None:
    """Return the least patience, from 3 on, that saves evaluations and loses no more than noise."""
    noise = series.step_noise(num) or 0.0
    for patience in range(PATIENCE, len(series.values) - 1):
        stop = _stop_at(series, patience)
        if stop is None:
            return None
        if _lost(series, stop) <= _CLEAR * noise:
            return patience
    return None


def _lost(series: Series, stop: int) -> float:
    """Return by how much the best value until an evaluation is worse than that of all."""
    return series.gain(series.values[_best_until(series, stop)], series.values[series.best])


def _best_until(series: Series, stop: int) -> int:
    return replace(series, rows=series.rows[: stop + 1], values=series.values[: stop + 1]).best


def judge_noise(series: Series, num: int | None) -> Finding | None:
    """Count the evaluations that do not differ from the best one by more than noise."""
    noise = series.step_noise(num)
    if len(series.values) < _MIN_EVALUATIONS or not noise:
        return None
    best = series.values[series.best]
    alike = sum(series.gain(value, best) <= _CLEAR * noise for value in series.values) - 1
    if alike == 0:
        return None
    return Finding(
        check="epochs_differ",
        outcome=Outcome.PASSED,
        evidence=f"{alike} of {len(series.values)} evaluations {'are' if alike > 1 else 'is'} as "
        f"good as the best one ({series.name} {series.say(best)}) up to noise: the "
        f"difference is below twice the noise between evaluations, {series.say_change(noise)}",
        numbers={"alike": alike, "noise": noise},
    )


def judge_calibration(log: RunLog, series: Series) -> Finding | None:
    """Check whether the held-out loss has its best at another epoch than the metric."""
    losses = loss_series(log)
    if losses is None or series.name == LOSS or len(losses.values) < _MIN_EVALUATIONS:
        return None
    by_loss, by_metric = losses.rows[losses.best], series.rows[series.best]
    rise = losses.values[-1] - losses.values[losses.best]
    noise = losses.step_noise(None)
    if by_loss is by_metric or not noise or rise <= _CLEAR * noise:
        return None
    return Finding(
        check="loss_and_metric",
        outcome=Outcome.PASSED,
        evidence=f"{LOSS} was best {_place(by_loss, losses.best)}, but {series.name} "
        f"{_place(by_metric, series.best)}: early stopping and the choice of the best weights "
        "should use the one that you report",
        numbers={"loss_rise": rise},
    )


def judge_stuck_loss(log: RunLog, series: Series) -> Finding | None:
    """Check whether the held-out loss is stuck although another metric is judged, which is not.

    It may be stuck as well where the two contradict each other.
    """
    losses = loss_series(log)
    if losses is None or series.name == LOSS or len(losses.values) < _MIN_EVALUATIONS:
        return None
    num_equal, num_judged = _num_stuck(losses), _num_stuck(series)
    is_plain = _contradicts(losses.values[-1], series, series.values[-1])
    if num_equal is None or _is_coarse(losses.values[-1]):
        return None
    if num_judged is not None and not is_plain:
        return None
    return _stuck_beside(losses, num_equal, series)


def _is_coarse(value: float) -> bool:
    """Return True if a value has so few decimals that changes of a hundredth are not seen."""
    return 0.5 * 10.0 ** -digits_of(repr(value)) > _COARSE * abs(value)


def _stuck_beside(losses: Series, num_equal: int, series: Series) -> Finding:
    """Return that a loss is the same at all of the last evaluations, but the metric is not."""
    loss, num_done, tail = losses.values[-1], len(losses.values), losses.rows[-num_equal:]
    moving = [v for row, v in zip(series.rows, series.values, strict=True) if row in tail]
    low, high = (find(moving, default=series.values[-1]) for find in (min, max))
    where = f"exactly {loss:.4g} at the last {num_equal} of"
    said = (
        f"{LOSS} is {where if num_equal < num_done else f'{loss:.4g} at all'} {num_done} "
        f"evaluations, while {series.name} moves between {series.say(low)} and {series.say(high)}"
    )
    if low == high:
        said = said.replace(f"moves between {series.say(low)} and", "is")
    is_good = _contradicts(loss, series, low)
    if is_good:
        said += (
            ": the two contradict each other, because predictions that are nearly always right do "
            "not have such a loss"
        )
        num_classes = round(math.exp(loss + 1) - math.e + 1)
        if num_classes <= _MAX_CLASSES:
            said += (
                f". If softmax is applied twice, {loss:.4g} is about the lowest loss that "
                f"{num_classes:,} classes allow"
            )
    else:
        said += (
            f": {LOSS} is computed incorrectly or on very few examples, or is printed with too few "
            "decimals"
        )
    return Finding(
        check="stuck_loss",
        outcome=Outcome.WARNED,
        evidence=said,
        fix="Check that validation passes logits to the loss, not probabilities, and that loss and "
        f"{series.name} are of the same predictions and labels."
        + (f" Until then, do not select by {LOSS}." if is_good else ""),
        numbers={
            "num_evaluations": num_done,
            "num_equal": num_equal,
            "is_contradiction": is_good,
        },
    )


def _contradicts(loss: float, series: Series, value: float) -> bool:
    """Return True if an accuracy is far too high for a loss."""
    return series.is_share and value > _GOOD and loss > _HIGH_LOSS


def is_contradiction(stuck: Finding) -> bool:
    """Return whether a loss that is stuck contradicts the accuracy."""
    return stuck.numbers.get("is_contradiction") is True


def _num_stuck(series: Series) -> int | None:
    """Return how many evaluations at the end are exactly equal, if they are too many by chance.

    All of them, or many while the training was still moving another logged value.
    """
    if series.is_constant:
        return len(series.values)
    last, num_done = series.values[-1], len(series.values)
    num = sum(1 for _ in itertools.takewhile(last.__eq__, reversed(series.values)))
    if num < _MIN_EQUAL or 2 * num < num_done or (series.is_share and last == 1):
        return None
    tail = series.rows[-num:]
    columns = ([getattr(row, name) for row in tail] for name in _MOVING)
    is_moving = any(len({value for value in some if value is not None}) > 1 for some in columns)
    return num if is_moving else None


def _stuck(series: Series, num_equal: int) -> Finding:
    """Judge a metric that is the same at all evaluations, or at the last ones."""
    value, num_done = series.values[-1], len(series.values)
    if num_equal < num_done:
        return Finding(
            check="length",
            outcome=Outcome.WARNED,
            evidence=f"{series.name} is exactly {series.say(value)} at the last {num_equal} of "
            f"{num_done} evaluations: the model probably predicts a single class, or "
            f"{series.name} is computed incorrectly or on very few examples",
            fix="Count the classes that the model predicts on the validation set. If it is a "
            "single one, try other learning rates, and check the labels and the order in which "
            "the loader returns them.",
            numbers={"num_evaluations": num_done, "num_equal": num_equal},
        )
    said = f"{series.name} is {series.say(value)} at all {num_done} evaluations"
    if series.is_share and value == 1:
        return Finding(
            check="length",
            outcome=Outcome.COULD_NOT_RUN,
            evidence=f"{said}, the best possible value: training after the first evaluation "
            "could improve nothing",
            fix="Train for fewer epochs. If the result is too good to be true, check whether "
            "validation examples are also in the training data.",
        )
    return Finding(
        check="length",
        outcome=Outcome.WARNED,
        evidence=f"{said}: the model learned nothing, or {series.name} is computed incorrectly",
        fix="Compare a few predictions with their labels. If they are as bad as the metric says, "
        "check whether the model can learn a single batch by heart.",
        numbers={"num_evaluations": num_done},
    )


def _past_best(series: Series, num: int | None, wasted: int) -> Finding:
    num_done = len(series.values)
    numbers: dict[str, Json] = {"after_best": wasted, "num_evaluations": num_done}
    seconds = _seconds_after(series.rows, series.best)
    patience = _patience(series, num)
    said = (
        f"{wasted} of {num_done} evaluations came after the best {series.name}, which was "
        f"{_at(series.rows, series.best)}"
    )
    if seconds is not None:
        said += f": {duration(seconds)} without improvement"
        numbers["wasted_s"] = seconds
    fall = series.gain(series.values[-1], series.values[series.best])
    noise = series.step_noise(num)
    if noise and fall > _CLEAR * noise:
        said += f"; the last {series.name} is {series.say_change(fall)} worse than the best"
    return Finding(
        check="length",
        outcome=Outcome.WARNED,
        evidence=said,
        fix="Keep the best weights."
        if patience is None
        else f"Use early stopping with a patience of {patience}, and keep the best weights.",
        numbers=numbers,
    )


def _too_few(log: RunLog, num_done: int) -> str:
    most = max(log.epochs or 0, log.max_epochs or 0)
    epochs = f" of {most:g} epochs" if most > num_done else ""
    if log.first_epoch is not None:
        epochs = f", whose {log.num_epochs} epochs are {log.first_epoch:g} to {log.epochs:g}"
    were = "evaluation is" if num_done == 1 else "evaluations are"
    bad = log.num_unreadable
    lost = f", and {bad} cell{'s' if bad > 1 else ''} could not be read" if bad else ""
    return f"{num_done} {were} in the log{epochs}{lost}: too few to see whether it still improved"


def _more(log: RunLog, num_done: int) -> str:
    if log.num_unreadable:
        return "Correct the cells of the log that the notes list."
    if log.num_epochs is None or num_done < log.num_epochs:
        return (
            "Log the validation after every epoch, with the columns "
            "epoch,loss,val_loss,val_accuracy."
        )
    return "Pass the log of the whole training."


def _is_improving(series: Series, num: int | None) -> bool:
    noise, num_done = series.step_noise(num), len(series.values)
    if noise is None or series.best < num_done - _AT_THE_END:
        return False
    k = _window(series)
    best_before = max(series.values[-2 * k : -k], key=lambda value: series.gain(0, value))
    if series.gain(best_before, series.values[-1]) <= 0:
        return False  # one value that was high by chance
    # one value of a steep start lowers the mean of the earlier ones, not their best
    gain = min(_late_gain(series), series.gain(best_before, series.values[series.best]))
    if series.is_fraction and series.values[-1] >= _PERFECT and gain < _SMALL_GAIN:
        return False  # no more epochs are worth that
    return gain > _CLEAR * noise / math.sqrt(k)


def _late_gain(series: Series) -> float:
    """Return the gain of the last evaluations' mean over that of as many before them."""
    k = _window(series)
    late, before = series.values[-k:], series.values[-2 * k : -k]
    return series.gain(sum(before) / k, sum(late) / k)


def _window(series: Series) -> int:
    # in a short curve three and three would include its steep start
    return min(PATIENCE, max(2, len(series.values) // 3))


def _stop_at(series: Series, patience: int) -> int | None:
    """Return the evaluation after which patience ends; None if it does not before the end."""
    best = 0
    for idx, value in enumerate(series.values):
        if series.gain(series.values[best], value) > 0:
            best = idx
        if idx - best >= patience:
            return idx if idx < len(series.values) - 1 else None
    return None


def _seconds_after(rows: Sequence[LogRow], idx: int) -> float | None:
    end, at = rows[-1].elapsed_s, rows[idx].elapsed_s
    return None if end is None or at is None else end - at


def _time_saved(rows: Sequence[LogRow], idx: int) -> str:
    seconds, saved = _seconds_after(rows, idx), len(rows) - 1 - idx
    said = f", {saved} evaluation{'s' if saved > 1 else ''} earlier"
    return said if seconds is None else f"{said} ({duration(seconds)})"


def _at(rows: Sequence[LogRow], idx: int) -> str:
    return _place(rows[idx], idx)


def _place(row: LogRow, idx: int) -> str:
    """Return the position of a row in a training, in words."""
    if row.epoch is not None:
        return f"after epoch {row.epoch:g}"
    return f"at step {row.step:,}" if row.step is not None else f"in row {idx + 1}"


def _after(wasted: int) -> str:
    return f"{wasted} evaluation{'s' if wasted > 1 else ''} before"
