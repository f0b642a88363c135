"""An audit as text for a terminal."""

from __future__ import annotations

from stepladder.checks.wording import finding_lines
from stepladder.records.audit import Audit, AuditedRun, Difference, SizeSource
from stepladder.reporting.charts.heatmap import short
from stepladder.training.output.wording import clean, duration, percent

_NAME = 28
_HEAD = ("training", "result", "of", "best at epoch", "epochs", "time")
_ONE_EACH = (
    "Each is one training: what another seed would give is not in these numbers, and comes on top."
)


def audit_text(audit: Audit) -> str:
    """Write what logs support: a table, the differences, and what was found of each training."""
    parts = [_table(audit)]
    if audit.differences:
        lines = [_difference(difference) for difference in audit.differences]
        parts.append("\n".join(["Each against the one before it", *lines, _ONE_EACH]))
    parts += [_run_text(run) for run in audit.runs]
    if audit.unreadable:
        parts.append("\n".join(["Not read", *(f"  {text}" for text in audit.unreadable)]))
    return clean("\n\n".join(parts)) + "\n"


def result_words(run: AuditedRun) -> str:
    """Write a training's result with one standard error: `78.5 % ± 2.5`."""
    if run.result is None:
        return "none"
    factor = 100 if is_share(run) else 1
    said = percent(run.result) if is_share(run) else f"{run.result:.4g}"
    return said if run.result_sem is None else f"{said} ± {factor * run.result_sem:.2g}"


def size_words(run: AuditedRun) -> str:
    """Write how many examples a result stands on."""
    if run.num_val is None:
        return "unknown"
    mark = " (inferred)" if run.num_val_from is SizeSource.INFERRED else ""
    return f"{run.num_val:,}{mark}"


def number_words(value: float | None) -> str:
    """Write a number of epochs."""
    return "unknown" if value is None else f"{value:g}"


def time_words(seconds: float | None) -> str:
    """Write a time span; unknown where it was not logged."""
    return duration(seconds)


def difference_mark(difference: Difference) -> str:
    """Say in one word whether a difference is more than noise."""
    return {True: "clear", False: "noise", None: "not known"}[difference.is_clear]


def is_share(run: AuditedRun) -> bool:
    """Say whether a training is judged by a share of examples."""
    is_score = run.metric is not None and run.metric == run.log.score_name
    return run.metric == "val_accuracy" or (is_score and run.log.is_score_share)


def _table(audit: Audit) -> str:
    rows = [
        (
            short(run.log.name, _NAME),
            result_words(run),
            size_words(run),
            number_words(run.best_epoch) if len(run.log.rows) > 1 else "not logged",
            number_words(run.log.epochs),
            time_words(run.log.total_s),
        )
        for run in audit.runs
    ]
    widths = [max(len(row[idx]) for row in (_HEAD, *rows)) for idx in range(len(_HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (_HEAD, *rows)
    )


def _difference(difference: Difference) -> str:
    names = f"{short(difference.first, _NAME)} → {short(difference.second, _NAME)}"
    return f"  {difference_mark(difference):<9}  {names}\n{' ' * 13}{difference.words}"


def _run_text(run: AuditedRun) -> str:
    lines = [f"{run.log.name} ({run.log.format.value}, judged by {run.metric or 'nothing'})"]
    lines += [f"  note: {note}" for note in run.log.notes]
    for finding in run.findings:
        lines += [f"  {line}" for line in finding_lines(finding).splitlines()]
    return "\n".join(lines)
