"""report.html: one file that opens anywhere, loads nothing and runs nothing."""

from __future__ import annotations

from pathlib import Path

from stepladder.diagnosis.wording import headline as fit_headline
from stepladder.records import write_bytes
from stepladder.reporting.charts.curves import learning_figures, machine_figures
from stepladder.reporting.classes import class_results
from stepladder.reporting.headline import headline, not_measured, time_spent, warnings_of
from stepladder.reporting.html import template
from stepladder.reporting.ladder.section import ladder_page
from stepladder.reporting.ladder.trials import MAX_TRIALS
from stepladder.reporting.reading import reading_rows
from stepladder.reporting.tables import RunRecords, count, number, pretty_json, read_run

REPORT_FILE = "report.html"
MAX_REPORT_BYTES = 300_000
_MAX_TEXT = 12_000  # characters of config and of environment


def write_report(run: Path) -> Path:
    """Write RUN/report.html from what the run folder holds, however the run ended.

    Returns:
        The file, under 300 KB, self-contained and without scripts.

    Raises:
        DataError: if the folder holds nothing of a run.
    """
    path = run / REPORT_FILE
    write_bytes(path, render(read_run(run)).encode("utf-8", "replace"))
    return path


def render(records: RunRecords) -> str:
    """Make the page; while it would weigh too much, photographs and then samples are dropped."""
    num_thumbs, num_details = len(records.thumbs), MAX_TRIALS
    page_of, shown = template("report.html"), _shown(records)
    while True:
        page = page_of.render(shown, thumbs=records.thumbs[:num_thumbs], num_details=num_details)
        fits = len(page.encode("utf-8", "replace")) < MAX_REPORT_BYTES
        if fits or num_thumbs + num_details == 0:
            return page
        num_details -= 0 if num_thumbs else 4
        num_thumbs = max(num_thumbs - 1, 0)


def _shown(records: RunRecords) -> dict[str, object]:
    """Give what the template shows, but for what is cut to fit."""
    head = headline(records)
    ladder = None
    if records.climb is not None:
        train_s = number(records.summary.get("train_s"))
        ladder = ladder_page(records.climb, status=head.status, train_s=train_s)
    return {
        "run": records,
        "head": head,
        "ladder": ladder,
        "has_run": bool(ladder is None or records.summary or records.events),
        "warnings": warnings_of(records),
        "fit": fit_headline(records.diagnosis.fit).capitalize() if records.diagnosis else "",
        "learning": learning_figures(records),
        "times": time_spent(records),
        "reading": reading_rows(records),
        "machine": machine_figures(records),
        "classes": class_results(records),
        "not_measured": not_measured(records),
        "config": _cut(records.config_text),
        "environment": _cut(pretty_json(records.env)) if records.env else "",
        "num_resumes": max(count(records.summary.get("attempts")) - 1, 0),
    }


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}\n… cut; the file has it all."
