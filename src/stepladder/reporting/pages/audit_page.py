"""The page and the terminal output of `stepladder audit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

from markupsafe import Markup

from stepladder.checks.wording import finding_lines
from stepladder.diagnosis.audit.series import choose_series, share_words
from stepladder.records.audit import Audit, AuditedRun, Difference, LogRow, RunLog, SizeSource
from stepladder.reporting.charts.bars import interval_line
from stepladder.reporting.charts.curves import Figure
from stepladder.reporting.charts.heatmap import short
from stepladder.reporting.charts.lines import Series, line_chart
from stepladder.reporting.charts.scales import NUMBER, SHARE
from stepladder.reporting.html import template, write_page
from stepladder.reporting.pages.finding_rows import QUIET, FindingRow, finding_row, ordered
from stepladder.reporting.titles import in_words, titled
from stepladder.stats import binomial_sem
from stepladder.stats.shares import wilson_interval
from stepladder.training.output.wording import clean, duration, percent

MAX_DRAWN = 24  # training runs with curves; a page with more would be slow to open
_NAME = 40
_CONFIDENCE = 0.95
_NAMES = {"train": "training, as logged", "val": "validation"}
_Value = Callable[[LogRow], float | None]
_TEXT_NAME = 28
_HEAD = ("training", "result", "examples", "best at epoch", "epochs", "time")
_ONE_EACH = (
    "Each is a single training run: the variation between seeds is not included and comes on top."
)


def audit_text(audit: Audit) -> str:
    """Return an audit as text: a table, the differences, and the findings of each training run."""
    parts = [_table(audit)]
    if audit.differences:
        names = short_names([run.log.name for run in audit.runs], _TEXT_NAME)
        lines = [_difference_text(difference, names) for difference in audit.differences]
        parts.append("\n".join(["Each compared with the previous one", *lines, _ONE_EACH]))
    parts += [_run_text(run) for run in audit.runs]
    if audit.unreadable:
        parts.append("\n".join(["Not read", *(f"  {text}" for text in audit.unreadable)]))
    return clean("\n\n".join(parts)) + "\n"


def short_names(names: Sequence[str], length: int) -> dict[str, str]:
    """Truncate names so that they remain distinct: at the end, else at the beginning, else not."""
    ends = {name: short(name, length) for name in names}
    if len(set(ends.values())) == len(ends):
        return ends
    tails = {name: name if len(name) <= length else f"…{name[1 - length :]}" for name in names}
    return tails if len(set(tails.values())) == len(tails) else {name: name for name in names}


def result_words(run: AuditedRun) -> str:
    """Return the result of a training run with one standard error: `78.5 % ± 2.5`."""
    if run.result is None:
        return "none"
    factor = 100 if is_fraction(run) else 1
    said = share_words(run.result) if is_fraction(run) else f"{run.result:.4g}"
    return said if run.result_sem is None else f"{said} ± {factor * run.result_sem:.2g}"


def size_words(run: AuditedRun) -> str:
    """Return the number of examples of a result."""
    if run.num_val is None:
        return "unknown"
    mark = " (inferred)" if run.num_val_from is SizeSource.INFERRED else ""
    return f"{run.num_val:,}{mark}"


def number_words(value: float | None) -> str:
    """Return a number of epochs as text."""
    return "unknown" if value is None else f"{value:g}"


def epochs_words(log: RunLog) -> str:
    """Return the number of epochs; of a log that begins later, with its first and last one."""
    if log.first_epoch is None:
        return number_words(log.epochs)
    return f"{log.num_logged} ({log.first_epoch:g} to {log.epochs:g})"


def best_words(run: AuditedRun) -> str:
    """Return the epoch of the best evaluation, or its step if epochs are not logged."""
    if len(run.log.rows) < 2:
        return "not logged"
    if run.best_epoch is None and run.best_step is not None:
        return f"step {run.best_step:,}"
    if run.best_epoch is not None and run.best_step is not None and run.best_epoch % 1:
        return f"{number_words(run.best_epoch)} (step {run.best_step:,})"
    return number_words(run.best_epoch)


def time_words(seconds: float | None) -> str:
    """Return a time span as text; unknown if it was not logged."""
    return duration(seconds)


def difference_mark(difference: Difference) -> str:
    """Return in one word if a difference is larger than noise."""
    return {True: "clear", False: "noise", None: "unknown"}[difference.is_clear]


def is_share(run: AuditedRun) -> bool:
    """Return True if the metric of a training run is a fraction of examples."""
    is_score = run.metric is not None and run.metric == run.log.score_name
    return run.metric == "val_accuracy" or (is_score and run.log.is_score_share)


def is_fraction(run: AuditedRun) -> bool:
    """Return True if the metric of a training run lies in [0, 1] and is printed in percent."""
    is_score = run.metric is not None and run.metric == run.log.score_name
    return is_share(run) or (is_score and run.log.is_score_fraction)


def metric_words(run: AuditedRun) -> str:
    """Return the name of the metric, with that of its column in the log if it differs."""
    column = run.log.accuracy_column
    if run.metric != "val_accuracy" or column is None or column.strip() == run.metric:
        return run.metric or "none"
    return f"{run.metric}, from the column {column.strip()}"


def _table(audit: Audit) -> str:
    names = short_names([run.log.name for run in audit.runs], _TEXT_NAME)
    rows = [
        (
            names[run.log.name],
            result_words(run),
            size_words(run),
            best_words(run),
            epochs_words(run.log),
            time_words(run.log.total_s),
        )
        for run in audit.runs
    ]
    widths = [max(len(row[idx]) for row in (_HEAD, *rows)) for idx in range(len(_HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (_HEAD, *rows)
    )


def _difference_text(difference: Difference, short_of: Mapping[str, str]) -> str:
    names = f"{short_of[difference.first]} → {short_of[difference.second]}"
    return f"  {difference_mark(difference):<9}  {names}\n{' ' * 13}{difference.words}"


def _run_text(run: AuditedRun) -> str:
    lines = [f"{run.log.name} ({run.log.format.value}, metric: {metric_words(run)})"]
    lines += [f"  note: {note}" for note in run.log.notes]
    for finding in run.findings:
        lines += [f"  {line}" for line in finding_lines(finding).splitlines()]
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """A training run in the table of results.

    Attributes:
        bounds: confidence interval of the result; picture: the same as a chart.
        test: result on a test set, with its interval; empty if not logged.
    """

    name: str
    result: str
    bounds: str
    picture: Markup | None
    of: str
    best: str
    epochs: str
    time: str
    test: str


@dataclass(frozen=True, kw_only=True)
class DifferenceRow:
    """A training run compared with the previous one.

    Attributes:
        mark: clear, noise or unknown; style: its CSS class.
        change: with its interval, as for independent examples; empty if unknown.
    """

    names: str
    mark: str
    style: str
    change: str
    words: str


@dataclass(frozen=True, kw_only=True)
class AuditedView:
    """One training run: its curves and findings.

    Attributes:
        alarms: failed, warned or could not run; quiet: the rest.
    """

    name: str
    about: str
    notes: tuple[str, ...]
    figures: tuple[Figure, ...]
    alarms: tuple[FindingRow, ...]
    quiet: tuple[FindingRow, ...]


def write_audit_page(audit: Audit, path: Path) -> Path:
    """Write the page of an audit, which is self-contained.

    Raises:
        ResourceError: if the file cannot be written.
    """
    return write_page(path, audit_page(audit), option="--page")


def audit_page(audit: Audit) -> str:
    """Return the page as HTML."""
    figure, caption = _head(audit)
    return template("audit.html").render(
        title=", ".join(short(run.log.name, _NAME) for run in audit.runs[:3]),
        figure=figure,
        caption=caption,
        rows=_rows(audit.runs),
        differences=[_difference(difference, audit.runs) for difference in audit.differences],
        runs=[_view(run, is_drawn=idx < MAX_DRAWN) for idx, run in enumerate(audit.runs)],
        unreadable=audit.unreadable,
    )


def audit_figures(run: AuditedRun) -> tuple[Figure, ...]:
    """Draw the curves of a training run, with one standard error for held-out metrics.

    The best evaluation of the metric is marked in each chart.
    """
    log = run.log
    label, place = _axis(log.rows)
    series = choose_series(log)
    best = None if series is None else place(series.rows[series.best])
    wanted: list[tuple[str, _Value | None, _Value, bool]] = [
        ("Loss", lambda row: row.train_loss, lambda row: row.val_loss, False),
        ("Accuracy", lambda row: row.train_accuracy, lambda row: row.val_accuracy, True),
    ]
    if log.score_name is not None:
        wanted.append((log.score_name, None, lambda row: row.score, log.is_score_fraction))
    figures = []
    for title, of_train, of_val, is_of_share in wanted:
        noise = _noise(
            run,
            is_of_share=is_of_share and (of_train is not None or log.is_score_share),
            is_loss=title == "Loss",
        )
        drawn = [
            *_curve(log.rows, "train", place=place, value=of_train),
            *_curve(log.rows, "val", place=place, value=of_val, noise=noise),
        ]
        if not any(len(item.xs) > 1 for item in drawn):
            continue
        svg = line_chart(
            drawn,
            title=f"{title} over {label}, the best evaluation marked",
            x_label=label,
            may_be_log=title == "Loss",
            y_unit=SHARE if is_of_share else NUMBER,
            mark=None if best is None else (best, "best"),
            y_limits=(0.0, 1.0) if is_of_share else None,
        )
        keys = [(item.style, item.name) for item in drawn]
        keys += [("band", "± one standard error")] * any(item.noise for item in drawn)
        figures.append(Figure(title=title, svg=svg, keys=tuple(keys)))
    return tuple(figures)


def bounds_of(run: AuditedRun) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of a result, over the choice of held-out examples.

    Returns:
        None if neither their number nor the noise of the result is known.
    """
    if run.result is None:
        return None
    if is_share(run) and run.num_val:
        return wilson_interval(round(run.result * run.num_val), run.num_val, confidence=_CONFIDENCE)
    return None if run.result_sem is None else _around(run.result, run.result_sem)


def _around(value: float, sem: float) -> tuple[float, float]:
    half = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2) * sem
    return value - half, value + half


def _head(audit: Audit) -> tuple[str, str]:
    if len(audit.runs) > 1:
        return f"{len(audit.runs)} training runs", "Read from their logs; nothing was trained."
    (run,) = audit.runs
    if run.result is None:
        return "No result", "The log has no held-out metric."
    num = "" if run.num_val is None else f" over {size_words(run)} held-out examples"
    best = ""
    if run.best_epoch is not None:
        best = f", at epoch {run.best_epoch:g}"
    elif run.best_step is not None:
        best = f", at step {run.best_step:,}"
    return result_words(run), f"The best {_metric(run)} in the log{num}{best}."


def _rows(runs: Sequence[AuditedRun]) -> list[AuditRow]:
    """Return the rows of the table; results of the same metric share one scale."""
    bounds = [bounds_of(run) for run in runs]
    known = [pair for pair in bounds if pair is not None]
    is_drawn = len(known) > 1 and len({run.metric for run in runs}) == 1
    scale = (min(low for low, _ in known), max(high for _, high in known)) if known else (0.0, 1.0)
    names = short_names([run.log.name for run in runs], _NAME)
    rows = []
    for run, pair in zip(runs, bounds, strict=True):
        words = "unknown" if pair is None else _bound_words(pair, is_of_share=is_fraction(run))
        picture = None
        if pair is not None and run.result is not None and is_drawn:
            picture = interval_line(run.result, *pair, scale=scale, title=words)
        rows.append(
            AuditRow(
                name=names[run.log.name],
                result=result_words(run),
                bounds=words,
                picture=picture,
                of=size_words(run),
                best=best_words(run),
                epochs=epochs_words(run.log),
                time=time_words(run.log.total_s),
                test=_test_words(run),
            )
        )
    return rows


def _test_words(run: AuditedRun) -> str:
    share, num = run.log.test_accuracy, run.log.num_test
    if share is None:
        return ""
    if not num:
        return percent(share)
    return f"{percent(share)} ({_bound_words(wilson_interval(round(share * num), num))})"


def _bound_words(pair: tuple[float, float], *, is_of_share: bool = True) -> str:
    low, high = pair
    return f"{100 * low:.1f} to {100 * high:.1f}" if is_of_share else f"{low:.4g} to {high:.4g}"


def change_words(difference: Difference, runs: Sequence[AuditedRun]) -> str:
    """Return the change of a result with its interval: `+2.1 points (95 %: +0.3 to +3.9)`.

    The interval is that of independent examples; without a standard error, the result is empty.
    """
    if difference.sem is None:
        return ""
    is_of_share = any(run.metric == difference.metric and is_fraction(run) for run in runs)
    factor, digits, unit = (100, 1, " points") if is_of_share else (1, 4, "")
    low, high = _around(difference.change, difference.sem)
    values = (round(factor * x, digits) + 0.0 for x in (difference.change, low, high))
    said = [f"{value:+.{digits}f}" for value in values]  # + 0.0: there is no -0.0
    return f"{said[0]}{unit} (95 %: {said[1]} to {said[2]})"


def _difference(difference: Difference, runs: Sequence[AuditedRun]) -> DifferenceRow:
    names = short_names([run.log.name for run in runs], _NAME)
    return DifferenceRow(
        names=f"{names[difference.first]} → {names[difference.second]}",
        mark=difference_mark(difference),
        style={True: "clear", False: "could_not_run", None: ""}[difference.is_clear],
        change=change_words(difference, runs),
        words=difference.words,
    )


def _view(run: AuditedRun, *, is_drawn: bool) -> AuditedView:
    notes = list(run.log.notes)
    figures = audit_figures(run) if is_drawn else ()
    if not is_drawn:
        notes.append(f"Curves are only shown for the first {MAX_DRAWN} training runs.")
    elif not figures:
        notes.append("The log has too few evaluations to draw a curve.")
    groups = ordered(run.findings)
    return AuditedView(
        name=run.log.name,
        about=_about(run),
        notes=tuple(notes),
        figures=figures,
        alarms=tuple(finding_row(group) for group in groups if group[0].outcome not in QUIET),
        quiet=tuple(finding_row(group) for group in groups if group[0].outcome in QUIET),
    )


def _about(run: AuditedRun) -> str:
    metric = f"judged by {_metric(run)}" if run.metric else "without a held-out metric"
    return f"Format of the log: {titled(run.log.format.value)}; {metric}."


def _metric(run: AuditedRun) -> str:
    """Return the metric as words, with its column in the log if that has another name."""
    if run.metric == run.log.score_name:  # given by the user, and not changed
        return run.metric or ""
    name, comma, column = metric_words(run).partition(",")
    return f"{in_words(name)}{comma}{column}"


def _axis(rows: Sequence[LogRow]) -> tuple[str, _Value]:
    """Return the x axis of curves: epochs if all are logged, else steps, else the order."""
    if all(row.epoch is not None for row in rows):
        return "epochs", lambda row: row.epoch
    if all(row.step is not None for row in rows):
        return "steps", lambda row: row.step
    places = {id(row): float(idx + 1) for idx, row in enumerate(rows)}
    return "evaluations", lambda row: places[id(row)]


def _noise(run: AuditedRun, *, is_of_share: bool, is_loss: bool) -> _Value:
    """Return a function from a row to one standard error of its held-out metric."""
    if is_loss:
        return lambda row: row.val_loss_sem
    num = run.num_val
    if not is_of_share or not num:
        return lambda _: None
    asks_score = run.log.score_name is not None and run.metric == run.log.score_name

    def share_of(row: LogRow) -> float | None:
        share = row.score if asks_score else row.val_accuracy
        return None if share is None or not 0 <= share <= 1 else binomial_sem(share, num)

    return share_of


def _curve(
    rows: Sequence[LogRow],
    style: str,
    *,
    place: _Value,
    value: _Value | None,
    noise: _Value = lambda _: None,
) -> list[Series]:
    """Return a curve; empty if the log does not have it."""
    if value is None:
        return []
    points = [
        (x, y, noise(row))
        for row in rows
        if (x := place(row)) is not None and (y := value(row)) is not None
    ]
    if not points:
        return []
    xs, ys, noises = zip(*points, strict=True)
    band = [sem or 0.0 for sem in noises] if any(noises) else None
    return [Series(name=_NAMES[style], style=style, xs=xs, ys=ys, noise=band)]
