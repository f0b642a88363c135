"""A comparison in words, for a terminal and for its page."""

from __future__ import annotations

from stepladder.diagnosis.audit.series import choose_series
from stepladder.records.audit import Difference, LogFormat
from stepladder.records.compare import ComparedRun, Comparison, PairedResult
from stepladder.records.ladder import Interval
from stepladder.reporting.charts.heatmap import short
from stepladder.reporting.pages.audit_text import (
    difference_mark,
    number_words,
    result_words,
    size_words,
    time_words,
)
from stepladder.training.output.wording import clean, percent, stop_words

NAME = 28
MAX_P = 0.05
_DIFFERS, _CHANCE = "a difference", "may be chance"
HEAD = ("training", "accuracy (95 %)", "of", "validation", "epochs", "time", "stopped")


def compare_text(comparison: Comparison) -> str:
    """Write a comparison: a table, options that differ, each run against the first."""
    rows = [HEAD, *(row_words(run) for run in comparison.runs)]
    widths = [max(len(row[idx]) for row in rows) for idx in range(len(HEAD))]
    parts = ["\n".join(_joined(row, widths) for row in rows)]
    if comparison.options:
        lines = [
            f"  {option.key}: {' | '.join(value or 'not said' for value in option.values)}"
            for option in comparison.options
        ]
        parts.append("\n".join(["Options that differ", *lines]))
    parts.append("\n".join(["Each against the first", *against_first(comparison)]))
    notes = [
        f"{run.audited.log.name}: {note}"
        for run in comparison.runs
        for note in run.audited.log.notes
        if note not in run.audited.log.damaged
    ]
    if notes:
        parts.append("\n".join(["Assumed", *(f"  {text}" for text in notes)]))
    if comparison.unreadable:
        parts.append("\n".join(["Not read", *(f"  {text}" for text in comparison.unreadable)]))
    return clean("\n\n".join(parts)) + "\n"


def row_words(run: ComparedRun) -> tuple[str, ...]:
    """Write the cells of a training, in the order of HEAD."""
    log = run.audited.log
    return (
        short(log.name, NAME),
        accuracy_words(run),
        f"{run.num:,} {run.split}" if run.num else size_words(run.audited),
        _validation_words(run),
        number_words(log.epochs),
        time_words(log.total_s),
        "not said" if log.stop_reason is None else _stop(log.stop_reason, log.format),
    )


def accuracy_words(run: ComparedRun) -> str:
    """Write an accuracy with its split and its bounds: `78.5 % test (73.2 to 83.0)`."""
    if run.accuracy is None:
        return "none"
    said = f"{percent(run.accuracy)} {run.split}"
    if run.split == "val":
        said += _best_of(run)
    if run.low is None or run.high is None:
        return said
    return f"{said} ({100 * run.low:.1f} to {100 * run.high:.1f})"


def _validation_words(run: ComparedRun) -> str:
    metric = run.audited.metric
    return f"{metric} {result_words(run.audited)}{_best_of(run)}" if metric else "none"


def _best_of(run: ComparedRun) -> str:
    """Say among how many evaluations a result was chosen; that of kept weights was not."""
    series = choose_series(run.audited.log)
    num = 0 if series is None or run.audited.log.kept is not None else len(series.values)
    return f", best of {num}" if num > 1 else ""


def against_first(comparison: Comparison) -> list[str]:
    """Write each training against the first: by its pairs where there are any, else by the logs."""
    lines = []
    by_name = {difference.second: difference for difference in comparison.differences}
    for pair in comparison.pairs:
        lines.append(f"  {short(pair.first, NAME)} → {short(pair.second, NAME)}")
        lines.append(f"    {pair_words(pair)}")
        difference = by_name.get(pair.second)
        if difference is not None and pair.why_not:
            lines.append(f"    by the logs: {difference_mark(difference)}; {difference.words}")
    return lines


def pair_words(pair: PairedResult) -> str:
    """Say what the same examples tell of two trainings."""
    return "; ".join(pair_sentences(pair))


def pair_mark(pair: PairedResult, difference: Difference | None) -> str:
    """Say in a word what two trainings differ by: by their pairs, else by their logs."""
    if pair.p is not None:
        return _DIFFERS if pair.p < MAX_P else _CHANCE
    return "not paired" if difference is None else f"by the logs: {difference_mark(difference)}"


def pair_sentences(pair: PairedResult) -> list[str]:
    """Say what the same examples tell of two trainings, part by part."""
    if pair.why_not:
        return [f"not paired: {pair.why_not}"]
    said = [f"on the same {pair.num:,} {pair.split} examples"]
    if pair.num_left_out:
        said[0] += f" ({pair.num_left_out:,} are in one of them only)"
    if pair.accuracy is not None and pair.p is not None:
        said.append(f"accuracy {_interval(pair.accuracy, 100, ' points')}")
        said.append(
            f"{pair.only_first} right in the first only, {pair.only_second} in the second only: "
            f"McNemar p = {pair.p:.2g}, {pair_mark(pair, None)}"
        )
    if pair.loss is not None:
        said.append(f"loss {_interval(pair.loss, 1, '')}")
    if pair.split == "val":
        said.append("validation chose their weights, so both look better than they are")
    return said


def _interval(change: Interval, factor: float, unit: str) -> str:
    digits = 1 if factor > 1 else 4
    low, estimate, high = (factor * x for x in (change.low, change.estimate, change.high))
    return f"{estimate:+.{digits}f}{unit} (95 %: {low:+.{digits}f} to {high:+.{digits}f})"


def _stop(reason: str, wrote: LogFormat) -> str:
    return stop_words(reason) if wrote is LogFormat.STEPLADDER else reason.replace("_", " ")


def _joined(cells: tuple[str, ...], widths: list[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()
