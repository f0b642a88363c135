"""What reading took, as a small table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepladder.records.reading import Reading, reading_of
from stepladder.reporting.tables import RunRecords, fraction, number
from stepladder.training.output.wording import byte_rate, duration, percent, rough_time


@dataclass(frozen=True, kw_only=True)
class ReadingRow:
    """A number of the reader, and what stands beside it."""

    name: str
    value: str
    note: str


def reading_rows(records: RunRecords) -> list[ReadingRow]:
    """Give what a run's reader counted; of one that read nothing, why, or nothing."""
    reading = reading_of(records.of("reader"))
    if reading is None:
        return _of_features(records)
    wait = fraction(records.summary.get("data_wait_frac"))
    found = [
        ("examples read", f"{reading.num_read:,.0f}", _stored(reading)),
        ("fetching one, in a thread", *_of_one(reading, reading.fetch_s)),
        ("decoding one, in a thread", *_of_one(reading, reading.decode_s)),
        ("a thread gets, while it fetches", *_rate(reading)),
        ("waiting for batches", rough_time(reading.wait_s), _of_steps(wait)),
        *_of_files(reading),
    ]
    return [ReadingRow(name=name, value=value, note=note) for name, value, note in found if value]


def _of_features(records: RunRecords) -> list[ReadingRow]:
    """Say that steps learnt from features, which are read by nobody."""
    phases = records.summary.get("phases_s")
    seconds = number(phases.get("features")) if isinstance(phases, Mapping) else None
    if seconds is None:
        return []
    note = f"steps learn from features in memory; to compute or load them took {duration(seconds)}"
    return [ReadingRow(name="examples read while training", value="none", note=note)]


def _stored(reading: Reading) -> str:
    return f"{_bytes(reading.read_bytes)} as they are stored" if reading.read_bytes else ""


def _of_one(reading: Reading, seconds: float) -> tuple[str, str]:
    if not seconds:
        return "", ""
    threads = f"{reading.num_threads:.0f} thread{'s' if reading.num_threads != 1 else ''}"
    return rough_time(seconds / reading.num_read), f"{rough_time(seconds)} in all, on {threads}"


def _rate(reading: Reading) -> tuple[str, str]:
    rate = reading.fetch_bytes_per_s
    return (byte_rate(rate), "") if rate is not None else ("", "")


def _of_steps(wait: float | None) -> str:
    return f"data was waited for in {percent(wait)} of the steps' time" if wait is not None else ""


def _of_files(reading: Reading) -> list[tuple[str, str, str]]:
    """Give what the files of a store in an object store took."""
    if not reading.num_requests:
        return []
    again = f", {reading.num_retries:,.0f} sent again" if reading.num_retries else ""
    noun = "request" if reading.num_requests == 1 else "requests"
    requests = f"{reading.num_requests:,.0f} {noun}{again}"
    rows = [("from the object store", _bytes(reading.received_bytes), requests)]
    if reading.hit_frac is not None:
        num_asked = reading.cache_hits + reading.cache_misses
        counts = f"{reading.cache_hits:,.0f} of {num_asked:,.0f} times that one was asked for"
        rows.append(("files that the cache had", percent(reading.hit_frac), counts))
    return rows


def _bytes(value: float) -> str:
    size, unit = next(((s, u) for s, u in ((1e9, "GB"), (1e6, "MB")) if value >= s), (1e3, "kB"))
    return f"{value / size:,.3g} {unit}" if value < 999.5e9 else f"{value / 1e9:,.0f} GB"
