"""Text of a climb: formatted numbers, and the table for the terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stepladder.machine import MAX_CORES_MISSING
from stepladder.records import to_json
from stepladder.records.climb import Baseline, JointChange
from stepladder.records.from_json import from_json
from stepladder.records.ladder import Decision, Interval, Prediction, Trial, Verdict
from stepladder.records.profile import EpochRange, Provenance
from stepladder.training.output.wording import clean, percent, rough_time

HEADINGS: Final = ("rung", "predicted", "measured", "accuracy (paired)", "verdict")
WIDTH: Final = 100

_COLUMNS: Final = (25, 11, 20, 19)  # widths with the gap; the verdict gets what is left
LABEL_WIDTH: Final = sum(_COLUMNS[:2])
_MIN_VERDICT: Final = 24
_MOST_DECIMALS: Final = 2
_DASH: Final = "–"
_DECISIONS: Final = {Decision.NOT_HERE: "not here"}


def header(width: int = WIDTH) -> str:
    """Return the line of column titles."""
    return _line(HEADINGS, width)


def baseline_row(baseline: Mapping[str, Any], width: int = WIDTH) -> str:
    """Return the first row, the original job and its time, from `baseline` of climb.json.

    Raises:
        DataError: if a value is not a number.
    """
    found = from_json(Baseline, baseline)
    accuracy = found.val_accuracy
    shown = f"val {percent(accuracy)}" if accuracy is not None else ""
    cells = ("0 original", _DASH, baseline_time(found), shown, baseline_words(found))
    return _line(cells, width)


def row(trial: Trial, width: int = WIDTH) -> str:
    """Return a rung's row; text that does not fit into its column is wrapped between words."""
    cells = (
        f"{trial.level} {trial.rung}",
        predicted_words(trial.prediction),
        measured_words(trial.verdict),
        accuracy_words(trial.verdict),
        verdict_words(trial),
    )
    return _line(cells, width)


def not_here_row(trials: Sequence[Trial], width: int = WIDTH) -> str:
    """Return one line for all rungs that do not apply to the job; empty if all apply."""
    names = [trial.rung for trial in trials if trial.verdict.decision is Decision.NOT_HERE]
    if not names:
        return ""
    rungs = f"{len(names)} rung{'' if len(names) == 1 else 's'}"
    said = f" not here: {rungs} ({', '.join(names)}); the page has the reasons"
    return wrapped(said, width, indent=3)


def together_row(change: JointChange, width: int = WIDTH) -> str:
    """Return the row that compares all kept rungs together with the original job."""
    accuracy = ""
    if change.accuracy is not None:
        accuracy = points_interval(change.accuracy)
    elif change.loss is not None:
        accuracy = f"loss {loss_interval(change.loss)}"
    return _line(("all kept rungs", "", "", accuracy, together_words(change)), width)


def together_words(change: JointChange) -> str:
    """Return the result of the comparison with the original job, and what was undone."""
    parts = ["compared with the original job"]
    if change.why_not is not None:
        why_not = change.why_not.removeprefix("not compared: ")
        parts = [f"not compared with the original job: {why_not}"]
    if change.undone:
        parts.append(f"undone: {', '.join(change.undone)}")
    if change.unsure is not None:
        parts.append(change.unsure)
    return "; ".join(parts)


def row_json(trial: Trial) -> dict[str, Any]:
    """Return a rung's row as plain JSON, with numbers instead of text."""
    prediction, verdict = trial.prediction, trial.verdict
    found: dict[str, Any] = to_json(
        {
            "rung": trial.rung,
            "level": trial.level,
            "decision": verdict.decision,
            "reason": verdict.reason,
            "predicted": prediction.gain if prediction else None,
            "predicted_low": prediction.gain_low if prediction else None,
            "predicted_high": prediction.gain_high if prediction else None,
            "measured": verdict.speed,
            "accuracy": verdict.accuracy,
            "loss": verdict.loss,
            "exactness": verdict.exactness,
            "num_epochs": verdict.num_epochs,
            "epoch_range": trial.after_range,
            "is_replayed": verdict.is_replayed,
            "num_trainings": verdict.num_trainings,
            "change": trial.change,
            "took_s": trial.took_s,
        }
    )
    return found


def gain(value: float, decimals: int | None = None) -> str:
    """Format a ratio of times: `0.62×`, `1.04×`, `5.2×`, `240×`."""
    if not math.isfinite(value):
        return "unknown"
    return f"{value:,.{_gain_decimals(value) if decimals is None else decimals}f}×"


def gain_range(prediction: Prediction) -> str:
    """Format a predicted gain; as a range if it depends on when early stopping ends training.

    `5.2×`, `12 to 21×`.
    """
    low, high = prediction.gain_low, prediction.gain_high
    if low is None or high is None:
        return gain(prediction.gain)
    return gain_bounds(low, high)


def gain_bounds(low: float, high: float) -> str:
    """Format a range of ratios of times: `12 to 21×`; `5.2×` if both ends read the same."""
    first, second = gain(low), gain(high)
    return second if first == second else f"{first.removesuffix('×')} to {second}"


def time_range(low_s: float, high_s: float) -> str:
    """Format a range of times: `9.1 to 16 min`, `48 s to 2.8 min`; one time if they read alike."""
    first, second = rough_time(low_s), rough_time(high_s)
    if first == second:
        return second
    number, _, unit = first.rpartition(" ")
    return f"{number} to {second}" if second.endswith(f" {unit}") else f"{first} to {second}"


def epoch_range_words(found: EpochRange) -> str:
    """Format a number of epochs over seeds: `12 to 21 epochs`, `1 epoch`."""
    words = epoch_bounds(found)
    return f"{words} epoch{'' if words == '1' else 's'}"


def epoch_bounds(found: EpochRange) -> str:
    """Format a range of epochs as numbers: `12 to 21`, or `12` if both ends are the same."""
    low, high = _count(found.low), _count(found.high)
    return high if low == high else f"{low} to {high}"


def range_source(found: EpochRange) -> str:
    """Return what a range of epochs comes from: `10th to 90th percentile of 20 replays`."""
    if not found.num_seeds:
        return "not replayed; early stopping may end it at any of these"
    what = "replays" if found.provenance is Provenance.REPLAYED else "trainings"
    return f"10th to 90th percentile of {found.num_seeds} {what}"


def baseline_time(baseline: Baseline) -> str:
    """Return the time of the original job: `24 min`, or `9.1 to 16 min` if it stops early."""
    if baseline.low_s is None or baseline.high_s is None:
        return rough_time(baseline.total_s)
    return time_range(baseline.low_s, baseline.high_s)


def baseline_epochs(baseline: Baseline) -> str:
    """Return the epochs of the original job as a number or a range: `60`, `12 to 21`."""
    if baseline.epoch_range is not None:
        return epoch_bounds(baseline.epoch_range)
    return "" if baseline.epochs is None else _count(baseline.epochs)


def gain_interval(speed: Interval) -> str:
    """Format a measured ratio with its bounds: `5.2× [4.8, 5.5]`, `1.22× [1.20, 1.24]`."""
    values = (speed.estimate, speed.low, speed.high)
    decimals = max(_gain_decimals(value) for value in values[:2])
    while decimals < _MOST_DECIMALS and len({round(value, decimals) for value in values}) < 3:
        decimals += 1  # bounds equal to the estimate would suggest that there is no noise
    low, high = (_bound(value, decimals) for value in (speed.low, speed.high))
    return f"{gain(speed.estimate, decimals)} [{low}, {high}]"


def points(change: float, decimals: int = 1) -> str:
    """Format a change in percentage points, with its sign: `+0.4`, `−0.1`, `0.0`."""
    return signed(100 * change, decimals)


def points_interval(change: Interval) -> str:
    """Format a change in percentage points with its bounds: `−0.1 [−0.6, +0.4]`."""
    return f"{points(change.estimate)} [{points(change.low)}, {points(change.high)}]"


def loss_interval(change: Interval, loss: float | None = None) -> str:
    """Format a change of the loss with its bounds: `−0.012 [−0.020, −0.004]`.

    With three decimals, or more for four digits of a small loss. Without a loss, with two digits of
    the largest of the three values.
    """
    values = (change.estimate, change.low, change.high)
    decimals = loss_decimals(loss)
    if loss is None:
        largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
        decimals = loss_decimals(largest, num_digits=2)
    estimate, low, high = (signed(value, decimals) for value in values)
    return f"{estimate} [{low}, {high}]"


def loss_decimals(loss: float | None, num_digits: int = 4) -> int:
    """Return the decimals that show `num_digits` digits of a loss, at least three."""
    if loss is None or loss == 0 or not math.isfinite(loss):
        return 3
    return min(12, max(3, num_digits - 1 - math.floor(math.log10(abs(loss)))))


def plus_minus(change: Interval) -> str:
    """Format a change with its noise, `+0.3 ± 0.9`, or with both bounds if they are asymmetric."""
    above, below = change.high - change.estimate, change.estimate - change.low
    if abs(above - below) > 0.0005 or not above >= 0:
        return points_interval(change)
    return f"{points(change.estimate)} ± {100 * (above + below) / 2:.1f}"


def signed(value: float, decimals: int) -> str:
    """Format a number with its sign; a value that rounds to zero has none."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "+∞" if value > 0 else "−∞"
    if round(value, decimals) == 0:
        return f"{0:.{decimals}f}"
    return f"{value:+.{decimals}f}".replace("-", "−")


def predicted_words(prediction: Prediction | None) -> str:
    """Return the predicted gain, then the predicted accuracy or memory, one per line."""
    if prediction is None:
        return _DASH
    words = [gain_range(prediction)]
    if prediction.accuracy_gain is not None:
        words.append(f"{points(prediction.accuracy_gain)} pts")
    if prediction.memory_frac is not None:
        words.append(f"memory {gain(prediction.memory_frac)}")
    return "\n".join(words)


def measured_words(verdict: Verdict) -> str:
    """Return the measured gain with its bounds."""
    if verdict.speed is not None:
        return gain_interval(verdict.speed)
    return _DASH if verdict.decision is Decision.NOT_HERE else ""


def accuracy_words(verdict: Verdict) -> str:
    """Return the change of the accuracy or the loss, or how exactly the results agree."""
    if verdict.accuracy is not None:
        return points_interval(verdict.accuracy)
    if verdict.exactness:
        return verdict.exactness
    return f"loss {loss_interval(verdict.loss)}" if verdict.loss is not None else ""


def others_words(cores_missing: float) -> str:
    """Return a warning that other processes used cores while a trial was timed."""
    return (
        f"other processes used {cores_missing:.1f} of this machine's cores, so times may be far "
        "off. Use --fresh on an idle machine to try everything again."
    )


def decision_words(decision: Decision) -> str:
    """Return a decision as text: `kept`, `not here`."""
    return _DECISIONS.get(decision, decision.value)


def verdict_words(trial: Trial) -> str:
    """Return a verdict with its reason: `kept: 9 to 14 epochs (by replay, 20 seeds)`."""
    word, reason = decision_words(trial.verdict.decision), reason_words(trial)
    return f"{word}: {reason}" if reason else word


def reason_words(trial: Trial) -> str:
    """Return the reason: `9 to 14 epochs (by replay, 20 seeds)`; empty if it has none."""
    reason, word = trial.verdict.reason.strip(), decision_words(trial.verdict.decision)
    if reason.lower() == word or reason.lower().startswith(f"{word}:"):
        reason = reason[len(word) + 1 :].strip()
    epochs = epochs_words(trial) if "epoch" not in reason else ""
    others = ""
    if trial.cores_missing > MAX_CORES_MISSING:
        others = f"other processes used {trial.cores_missing:.1f} cores"
    changed = changed_words(trial.change) if trial.verdict.decision is Decision.KEPT else ""
    return "; ".join(part for part in (changed, epochs, reason, others) if part)


_CHOSEN: Final = {
    "batch.global_batch_size": "batch {}",
    "batch.lr": "learning rate {:.3g}",
    "stopping.patience": "patience {}",
    "stopping.validate_every_epochs": "validation every {} epochs",
    "loader.threads": "{} threads",
    "model.name": "{}",
    "train": "trained weights: {}",
    "head.hidden": "hidden layer of {}",
    "head.dropout": "dropout {:g}",
    "optimizer.weight_decay": "weight decay {:g}",
    "loss.label_smoothing": "label smoothing {:g}",
    "augment.crop": "crops of at least {:g} of the area",
    "augment.randaugment_ops": "RandAugment with {} operations",
    "stopping.monitor": "monitor {}",
}


def changed_words(change: Mapping[str, Any]) -> str:
    """Return the values that a rung chose: `batch 8, learning rate 0.008`; empty if none."""
    values = {key: after for key, (_, after) in change.items() if after is not None}
    chosen = [words.format(values[key]) for key, words in _CHOSEN.items() if key in values]
    chosen += ["best weights"] if values.get("stopping.restore_best") else []
    return ", ".join(chosen)


def epochs_words(trial: Trial) -> str:
    """Return the number of epochs and how it was found; empty if it was not measured."""
    epochs = trial.verdict.num_epochs
    if epochs is None or not math.isfinite(epochs):
        return ""
    over_seeds = trial.after_range
    words = _epochs(epochs) if over_seeds is None else epoch_range_words(over_seeds)
    num_seeds = len(trial.after_epochs)
    found = ["by replay"] if trial.verdict.is_replayed else []
    found += [f"{num_seeds} seeds"] if num_seeds > 1 else []
    said = [", ".join(found)] if found else []
    said += _trainings_words(trial.verdict, num_seeds)
    return f"{words} ({'; '.join(said)})" if said else words


def _trainings_words(verdict: Verdict, num_seeds: int) -> list[str]:
    """Return the number of trainings behind the accuracy, if it differs from the epochs' seeds."""
    if verdict.num_trainings in {0, num_seeds}:
        return []
    what = "accuracy" if verdict.accuracy is not None else "loss"
    plural = "" if verdict.num_trainings == 1 else "s"
    return [f"{what} over {verdict.num_trainings} training{plural}"]


_EPOCHS_ARE: Final = {Provenance.REPLAYED: " (by replay)", Provenance.ASSUMED: " (assumed)"}


def baseline_words(baseline: Baseline) -> str:
    """Describe the baseline: `baseline: 60 epochs, batch 2 (extrapolated from 0.4 measured)`.

    With early stopping, the epochs are a range: `12 to 21 epochs (by replay)`.
    """
    parts = []
    if baseline.epoch_range is not None:
        how = _EPOCHS_ARE.get(baseline.epoch_range.provenance, "")
        parts.append(f"{epoch_range_words(baseline.epoch_range)}{how}")
    elif baseline.epochs is not None:
        how = _EPOCHS_ARE.get(baseline.epochs_are, "") if baseline.epochs_are else ""
        parts.append(f"{_epochs(baseline.epochs)}{how}")
    if baseline.global_batch_size is not None:
        parts.append(f"batch {baseline.global_batch_size}")
    said = f"baseline: {', '.join(parts)}" if parts else "baseline"
    if not baseline.is_extrapolated:
        return said
    measured = baseline.measured_epochs
    source = f" from {_count(measured)} measured" if measured is not None else ""
    return f"{said} (extrapolated{source})"


def _gain_decimals(value: float) -> int:
    """Return the decimals that distinguish a gain from 1 and from its neighbours."""
    if abs(value) >= 9.95:
        return 0
    return 1 if abs(value) >= 1.195 else 2


def _bound(value: float, decimals: int) -> str:
    return signed(value, decimals).lstrip("+") if math.isfinite(value) else "unknown"


def _count(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def _epochs(num: float) -> str:
    number = _count(num)
    return f"{number} epoch{'' if number == '1' else 's'}"


def _line(cells: Sequence[str], width: int) -> str:
    """Lay out cells in columns; in a narrow terminal the verdict gets lines of its own."""
    *firsts, verdict = (clean(cell) for cell in cells)
    room = width - 1 - sum(_COLUMNS)
    columns = [_fold(cell, size - 1) for cell, size in zip(firsts, _COLUMNS, strict=True)]
    if room >= _MIN_VERDICT - 1:
        columns.append(_fold(verdict, room))
    height = max(len(column) for column in columns)
    lines = []
    for idx in range(height):
        parts = [column[idx] if idx < len(column) else "" for column in columns]
        padded = [part.ljust(size) for part, size in zip(parts, (*_COLUMNS, 0), strict=False)]
        lines.append(f" {''.join(padded)}".rstrip())
    if room < _MIN_VERDICT - 1 and verdict:
        lines.append(wrapped(f"   {verdict}", width, indent=3))
    return "\n".join(lines)


def _fold(text: str, width: int) -> list[str]:
    lines = []
    for part in text.split("\n"):
        lines += textwrap.wrap(part, width, break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def wrapped(text: str, width: int, *, indent: int) -> str:
    """Wrap a line between words; the following lines are indented."""
    return textwrap.fill(
        text,
        max(width, indent + _MIN_VERDICT),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
