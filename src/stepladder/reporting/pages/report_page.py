"""report.html: a self-contained page without external resources."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from stepladder.errors import DataError
from stepladder.records.reading import Reading, reading_of
from stepladder.reporting.charts.curves import learning_figures, machine_figures
from stepladder.reporting.classes import class_results
from stepladder.reporting.headline import headline, not_measured, time_spent, warnings_of
from stepladder.reporting.html import template
from stepladder.reporting.ladder.section import ladder_page
from stepladder.reporting.ladder.trials import MAX_TRIALS
from stepladder.reporting.links import REPORT_FILE, save_page
from stepladder.reporting.pages.diagnosis_page import headline as fit_headline
from stepladder.reporting.tables import RunRecords, count, fraction, number, pretty_json, read_run
from stepladder.training.output.wording import byte_rate, duration, percent, rough_time

MAX_REPORT_BYTES = 300_000
_LINKS_BYTES = 4_000  # left for links to other pages
_MAX_TEXT = 12_000  # characters of config and of environment


def write_report(run: Path) -> Path:
    """Write RUN/report.html from the files in a run folder, however the run ended.

    Returns:
        Path of the file: below 300 KB, and self-contained.

    Raises:
        DataError: if the folder does not contain a run.
    """
    path = run / REPORT_FILE
    save_page(path, render(read_run(run)))
    return path


def refresh_report(run: Path) -> None:
    """Write report.html again if it exists, for example after a diagnosis, which it shows."""
    if (run / REPORT_FILE).is_file():
        with suppress(DataError):
            write_report(run)


def render(records: RunRecords) -> str:
    """Return the page as HTML.

    If it is too large, pictures of the checks are dropped, then other pictures, and then samples.
    """
    num_thumbs, num_details = len(records.thumbs), MAX_TRIALS
    page_of, shown = template("report.html"), _shown(records)
    while True:
        page = page_of.render(shown, thumbs=records.thumbs[:num_thumbs], num_details=num_details)
        fits = len(page.encode("utf-8", "replace")) < MAX_REPORT_BYTES - _LINKS_BYTES
        if fits or num_thumbs + num_details == 0:
            return page
        if records.checks is not None and records.checks.has_pairs:
            records = replace(records, checks=records.checks.without_pairs())
            shown = _shown(records)
            continue
        num_details -= 0 if num_thumbs else 4
        num_thumbs = max(num_thumbs - 1, 0)


def _shown(records: RunRecords) -> dict[str, object]:
    """Return the variables of the template, except those that depend on the size."""
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
        "has_devices": bool(records.of("devices")),
        "classes": class_results(records),
        "not_measured": not_measured(records),
        "config": _cut(records.config_text),
        "environment": _cut(pretty_json(records.env)) if records.env else "",
        "num_resumes": max(count(records.summary.get("attempts")) - 1, 0),
    }


def _cut(text: str) -> str:
    return (
        text
        if len(text) <= _MAX_TEXT
        else f"{text[:_MAX_TEXT]}\n… truncated; see the file in the run folder."
    )


@dataclass(frozen=True, kw_only=True)
class ReadingRow:
    """A statistic of reading, with a note."""

    name: str
    value: str
    note: str


def reading_rows(records: RunRecords) -> list[ReadingRow]:
    """Return the statistics of reading; if nothing was read, the reason, or empty."""
    reading = reading_of(records.of("reader"))
    if reading is None:
        return _of_features(records)
    wait = fraction(records.summary.get("data_wait_frac"))
    found = [
        ("examples read", f"{reading.num_read:,.0f}", _stored(reading)),
        ("time to read one, per thread", *_of_one(reading, reading.fetch_s)),
        ("time to decode one, per thread", *_of_one(reading, reading.decode_s)),
        ("read bandwidth per thread", *_rate(reading)),
        ("waiting for batches", rough_time(reading.wait_s), _of_steps(wait)),
        *_of_files(reading),
        *_of_hosts(records),
    ]
    return [ReadingRow(name=name, value=value, note=note) for name, value, note in found if value]


def _of_features(records: RunRecords) -> list[ReadingRow]:
    """Return a row for training on cached features, without reading."""
    phases = records.summary.get("phases_s")
    seconds = number(phases.get("features")) if isinstance(phases, Mapping) else None
    if seconds is None:
        return []
    note = f"trained on cached features; computing or loading them took {duration(seconds)}"
    return [ReadingRow(name="examples read during training", value="none", note=note)]


def _stored(reading: Reading) -> str:
    return f"{_bytes(reading.read_bytes)} in the store" if reading.read_bytes else ""


def _of_one(reading: Reading, seconds: float) -> tuple[str, str]:
    if not seconds:
        return "", ""
    threads = f"{reading.num_threads:.0f} thread{'s' if reading.num_threads != 1 else ''}"
    return rough_time(seconds / reading.num_read), f"{rough_time(seconds)} in total, on {threads}"


def _rate(reading: Reading) -> tuple[str, str]:
    rate = reading.fetch_bytes_per_s
    return (byte_rate(rate), "") if rate is not None else ("", "")


def _of_steps(wait: float | None) -> str:
    return f"{percent(wait)} of the time of the steps" if wait is not None else ""


def _of_files(reading: Reading) -> list[tuple[str, str, str]]:
    """Return the statistics of downloads from an object store."""
    if not reading.num_requests:
        return []
    again = f", {reading.num_retries:,.0f} retries" if reading.num_retries else ""
    noun = "request" if reading.num_requests == 1 else "requests"
    requests = f"{reading.num_requests:,.0f} {noun}{again}"
    rows = [("downloaded from the object store", _bytes(reading.received_bytes), requests)]
    if reading.hit_frac is not None:
        num_asked = reading.cache_hits + reading.cache_misses
        counts = f"{reading.cache_hits:,.0f} of {num_asked:,.0f} files"
        rows.append(("hit rate of the file cache", percent(reading.hit_frac), counts))
    return rows


def _of_hosts(records: RunRecords) -> list[tuple[str, str, str]]:
    """Return what each host has downloaded in the last attempt."""
    by_host = records.summary.get("received_bytes_by_host")
    if not isinstance(by_host, Mapping):
        return []
    sizes = ((str(host), number(value)) for host, value in by_host.items())
    return [(f"downloaded by {host}", _bytes(n), "") for host, n in sizes if n is not None]


def _bytes(value: float) -> str:
    size, unit = next(((s, u) for s, u in ((1e9, "GB"), (1e6, "MB")) if value >= s), (1e3, "kB"))
    return f"{value / size:,.3g} {unit}" if value < 999.5e9 else f"{value / 1e9:,.0f} GB"


@dataclass(frozen=True)
class ReportView:
    """The report of a run; notebooks show it in a frame.

    Args:
        run: run folder.
        height_px: height of the frame in pixels.
    """

    run: Path
    height_px: int = 900

    def _repr_html_(self) -> str:
        """Return the page in a frame, isolated from the notebook; it may run its own script."""
        return str(
            Markup(
                '<iframe srcdoc="{}" width="100%" height="{}" sandbox="allow-scripts" '
                'style="border:0;color-scheme:normal" title="stepladder report"></iframe>'
            ).format(render(read_run(self.run)), self.height_px)
        )
