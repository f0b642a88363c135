"""The page and the terminal output of `stepladder compare`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from stepladder.diagnosis.audit.series import choose_series
from stepladder.diagnosis.runs.compare import with_samples
from stepladder.records.audit import Difference, LogFormat, LogRow, RunLog
from stepladder.records.compare import ComparedRun, Comparison, PairedResult
from stepladder.records.ladder import Interval
from stepladder.reporting.charts.bars import interval_line
from stepladder.reporting.charts.curves import Figure
from stepladder.reporting.charts.heatmap import short
from stepladder.reporting.charts.lines import Series, line_chart
from stepladder.reporting.charts.scales import NUMBER, SHARE
from stepladder.reporting.html import template, write_page
from stepladder.reporting.links import REPORT_FILE
from stepladder.reporting.pages.audit_page import (
    difference_mark,
    epochs_words,
    result_words,
    size_words,
    time_words,
)
from stepladder.reporting.pages.checks_page import checks_view
from stepladder.reporting.pages.compare_verdict import (
    MAX_P,
    Standing,
    compared_runs,
    verdict,
)
from stepladder.reporting.pages.finding_rows import FindingRow, finding_row, ordered
from stepladder.reporting.titles import in_words
from stepladder.stats import binomial_sem
from stepladder.training.output.wording import clean, percent, stop_words

_MAX_BANDS = 3  # more bands would overlap
_MINUTES_FROM_S = 180.0
_Value = Callable[[LogRow], float | None]
NAME = 28
_DIFFERS, _CHANCE = "significant", "not significant"
HEAD = ("training", "accuracy (95 %)", "examples", "validation", "epochs", "time", "stopped")


def compare_text(comparison: Comparison) -> str:
    """Return a comparison as text: a table, options that differ, each run compared to the first."""
    rows = [HEAD, *(row_words(run) for run in comparison.runs)]
    widths = [max(len(row[idx]) for row in rows) for idx in range(len(HEAD))]
    parts = ["\n".join(_joined(row, widths) for row in rows)]
    if comparison.options:
        lines = [
            f"  {option.key}: {' | '.join(value or 'unknown' for value in option.values)}"
            for option in comparison.options
        ]
        parts.append("\n".join(["Options that differ", *lines]))
    parts.append("\n".join(["Each compared with the first", *against_first(comparison)]))
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


def row_words(run: ComparedRun, *, say: Callable[[str], str] = str) -> tuple[str, ...]:
    """Return the cells of a training run, in the order of HEAD.

    Args:
        say: returns the metric of validation as it is shown.
    """
    log = run.audited.log
    return (
        short(log.name, NAME),
        accuracy_words(run),
        f"{run.num:,} {run.split}" if run.num else size_words(run.audited),
        _validation_words(run, say),
        epochs_words(log),
        time_words(log.total_s),
        "unknown" if log.stop_reason is None else _stop(log.stop_reason, log.format),
    )


def accuracy_words(run: ComparedRun) -> str:
    """Return an accuracy with its split and its interval: `78.5 % test (73.2 to 83.0)`."""
    if run.accuracy is None:
        return "none"
    said = f"{percent(run.accuracy)} {run.split}"
    if run.split == "val":
        said += _best_of(run)
    if run.low is None or run.high is None:
        return said
    return f"{said} ({100 * run.low:.1f} to {100 * run.high:.1f})"


def _validation_words(run: ComparedRun, say: Callable[[str], str]) -> str:
    metric = run.audited.metric
    return f"{say(metric)} {result_words(run.audited)}{_best_of(run)}" if metric else "none"


def _best_of(run: ComparedRun) -> str:
    """Return of how many evaluations a result is the best; empty for that of saved weights."""
    series = choose_series(run.audited.log)
    num = 0 if series is None or run.audited.log.kept is not None else len(series.values)
    return f", best of {num}" if num > 1 else ""


def against_first(comparison: Comparison) -> list[str]:
    """Return each run compared with the first: by paired examples if possible, else by the logs."""
    lines = []
    by_name = {difference.second: difference for difference in comparison.differences}
    for pair in comparison.pairs:
        lines.append(f"  {short(pair.first, NAME)} → {short(pair.second, NAME)}")
        lines.append(f"    {pair_words(pair)}")
        difference = by_name.get(pair.second)
        if difference is not None and pair.why_not:
            lines.append(f"    from the logs: {difference_mark(difference)}; {difference.words}")
    return lines


def pair_words(pair: PairedResult) -> str:
    """Return the paired comparison of two training runs as text."""
    return "; ".join(pair_sentences(pair))


def pair_mark(pair: PairedResult, difference: Difference | None) -> str:
    """Return the result of a comparison in a few words, by paired examples or from the logs."""
    if pair.p is not None:
        return _DIFFERS if pair.p < MAX_P else _CHANCE
    return "not paired" if difference is None else f"from the logs: {difference_mark(difference)}"


def pair_sentences(pair: PairedResult) -> list[str]:
    """Return the paired comparison of two training runs as clauses."""
    if pair.why_not:
        return [f"not paired: {pair.why_not}"]
    said = [f"on the same {pair.num:,} {pair.split} examples"]
    if pair.num_left_out:
        said[0] += f" ({pair.num_left_out:,} others are in only one run)"
    if pair.accuracy is not None and pair.p is not None:
        said.append(f"accuracy {_interval(pair.accuracy, 100, ' points')}")
        said.append(
            f"{pair.only_first} correct only in the first, {pair.only_second} only in the second: "
            f"McNemar p = {pair.p:.2g}, {pair_mark(pair, None)}"
        )
    if pair.loss is not None:
        said.append(f"loss {_interval(pair.loss, 1, '')}")
    if pair.split == "val":
        said.append("both are optimistic, because the weights were chosen by validation")
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


@dataclass(frozen=True)
class _Axis:
    """The x axis of curves."""

    label: str
    title: str
    value: _Value


@dataclass(frozen=True, kw_only=True)
class AgainstRow:
    """A training run compared with the first.

    Attributes:
        mark: the result in a few words; is_clear: the difference is significant.
        is_worse: the other run is significantly worse than the first.
    """

    names: str
    mark: str
    is_clear: bool
    is_worse: bool
    words: tuple[str, ...]


def write_compare_page(comparison: Comparison, path: Path) -> Path:
    """Write the page of a comparison, which is self-contained.

    Raises:
        ResourceError: if the file cannot be written.
    """
    return write_page(path, compare_page(comparison, path.parent), option="--out")


def compare_page(comparison: Comparison, folder: Path | None = None) -> str:
    """Return the page as HTML.

    Args:
        folder: where the page will be written, for links to the reports of the runs.
    """
    in_short, in_full = verdict(comparison)
    is_known = any(one.standing is not Standing.UNKNOWN for one in compared_runs(comparison))
    return template("compare.html").render(
        verdict=in_short,
        caption=in_full,
        is_known=is_known,
        reports=[None if folder is None else report_link(run, folder) for run in comparison.runs],
        findings=[_findings(run) for run in comparison.runs],
        names=[short(run.audited.log.name, NAME) for run in comparison.runs],
        head=HEAD,
        rows=[row_words(run, say=in_words) for run in comparison.runs],
        pictures=_pictures(comparison.runs),
        options=comparison.options,
        against=_against(comparison),
        figures=compare_figures([run.audited.log for run in comparison.runs]),
        notes=[
            f"{run.audited.log.name}: {note}"
            for run in comparison.runs
            for note in run.audited.log.notes
            if note not in run.audited.log.damaged
        ]
        + list(comparison.unreadable),
    )


@dataclass(frozen=True, kw_only=True)
class RunFindings:
    """What was found about a training run.

    Attributes:
        alarms: findings in its log.
        checks: checks of its job that failed or warned, as (name, outcome).
    """

    name: str
    alarms: tuple[FindingRow, ...]
    checks: tuple[tuple[str, str], ...]


def _findings(run: ComparedRun) -> RunFindings:
    log = run.audited.log
    view = checks_view(Path(log.path)) if log.format is LogFormat.STEPLADDER else None
    groups = ordered([finding for finding in run.audited.findings if finding.is_alarm])
    return RunFindings(
        name=short(log.name, NAME),
        alarms=tuple(finding_row(group) for group in groups),
        checks=tuple((row.name, row.outcome) for row in view.alarms) if view else (),
    )


def report_link(run: ComparedRun, folder: Path) -> str | None:
    """Return the address of a run's report from a folder; None if it has none nearby.

    Nearby are the folder of the page, the folder above it, and all folders in them.
    """
    report = Path(run.audited.log.path).resolve() / REPORT_FILE
    here = folder.resolve()
    if not (report.is_relative_to(here.parent) and report.is_file()):
        return None
    if report.is_relative_to(here):
        return quote(report.relative_to(here).as_posix())
    return quote(f"../{report.relative_to(here.parent).as_posix()}")


def _against(comparison: Comparison) -> list[AgainstRow]:
    by_name = {difference.second: difference for difference in comparison.differences}
    rows = []
    for pair, compared in zip(comparison.pairs, compared_runs(comparison), strict=True):
        difference = by_name.get(pair.second)
        words = pair_sentences(pair)
        if difference is not None and pair.why_not:
            words.append(f"from the logs: {difference.words}")
        is_clear = difference is not None and difference.is_clear
        rows.append(
            AgainstRow(
                names=f"{short(pair.first, NAME)} → {short(pair.second, NAME)}",
                mark=pair_mark(pair, difference),
                is_clear=bool(is_clear) if pair.p is None else pair.p < MAX_P,
                is_worse=compared.standing is Standing.WORSE,
                words=tuple(words),
            )
        )
    return rows


def _pictures(runs: Sequence[ComparedRun]) -> list[Markup | None]:
    """Draw the interval of each accuracy on a common scale."""
    known = [(run.low, run.high) for run in runs if run.low is not None and run.high is not None]
    scale = (min(low for low, _ in known), max(high for _, high in known)) if known else (0.0, 1.0)
    return [
        None
        if run.accuracy is None or run.low is None or run.high is None
        else interval_line(run.accuracy, run.low, run.high, scale=scale, title=accuracy_words(run))
        for run in runs
    ]


def compare_figures(logs: Sequence[RunLog]) -> list[Figure]:
    """Draw held-out loss and accuracy of all training runs over samples seen and over time.

    If a log does not have the number of samples, epochs are used for all.
    """
    seen = [with_samples(log) for log in logs]
    counted = [log for log in seen if log is not None]
    by_samples = len(counted) == len(logs)
    place = (
        _Axis("training samples seen", "over samples seen", lambda row: row.samples_seen)
        if by_samples
        else _Axis("epochs", "over epochs", lambda row: row.epoch)
    )
    longest = max((row.elapsed_s or 0.0 for log in logs for row in log.rows), default=0.0)
    unit, word = (60.0, "minutes") if longest > _MINUTES_FROM_S else (1.0, "seconds")
    clock = _Axis(
        word,
        "over wall time",
        lambda row: None if row.elapsed_s is None else row.elapsed_s / unit,
    )
    shown = counted if by_samples else logs
    return [_figure(shown, axis, name) for axis in (place, clock) for name in ("loss", "accuracy")]


def _figure(logs: Sequence[RunLog], axis: _Axis, name: str) -> Figure:
    series, missing = [], []
    for idx, log in enumerate(logs):
        one = _series(log, axis, name, style=f"run{idx + 1}", has_band=len(logs) <= _MAX_BANDS)
        if one is None:
            missing.append(short(log.name, NAME))
        else:
            series.append(one)
    is_share = name == "accuracy"
    title = f"Validation {name} {axis.title}"
    svg = line_chart(
        series,
        title=title,
        x_label=axis.label,
        may_be_log=not is_share,
        y_unit=SHARE if is_share else NUMBER,
        y_limits=(0.0, 1.0) if is_share else None,
    )
    note = ""
    if svg is None:
        note = "No log has these values."
    elif missing:
        note = f"Not logged by: {', '.join(missing)}."
    keys = [(item.style, item.name) for item in series]
    keys += [("band", "± one standard error")] * any(item.noise for item in series)
    return Figure(title=title, svg=svg, keys=tuple(keys), note=note)


def _series(log: RunLog, axis: _Axis, name: str, *, style: str, has_band: bool) -> Series | None:
    points = []
    for row in log.rows:
        x, y = axis.value(row), row.val_loss if name == "loss" else row.val_accuracy
        if x is not None and y is not None:
            points.append((x, y, row.val_loss_sem if name == "loss" else _share_sem(y, log)))
    if not points:
        return None
    xs, ys, noise = zip(*points, strict=True)
    band = [value or 0.0 for value in noise] if has_band and any(noise) else None
    return Series(name=short(log.name, NAME), style=style, xs=xs, ys=ys, noise=band)


def _share_sem(share: float, log: RunLog) -> float | None:
    return binomial_sem(share, log.num_val) if log.num_val and 0 <= share <= 1 else None
