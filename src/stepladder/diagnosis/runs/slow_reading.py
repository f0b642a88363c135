"""What slow reading spends its time on, by the reader's own numbers, and what helps."""

from __future__ import annotations

from typing import Final

from stepladder.diagnosis.runs.run_curves import RunFiles
from stepladder.records.reading import Reading, reading_of
from stepladder.training.output.wording import byte_rate, percent

FEW_HITS: Final = 0.9
MOSTLY: Final = 0.5
_ANY: Final = (
    "more reading threads (--loader.threads), a store of pixels or features computed once help"
)


def what_helps_reading(files: RunFiles) -> str:
    """Say what shortens the wait for data: what the reading threads spend their time on."""
    reading = reading_of(files.of("reader"))
    if reading is None:
        return _ANY
    return _of_cache(reading) or _of_threads(reading) or _ANY


def _of_cache(reading: Reading) -> str | None:
    """Name a cache that has few of the files; each of them is missing once, in the first epoch."""
    hit_frac = reading.hit_frac
    if hit_frac is None or hit_frac >= FEW_HITS:
        return None
    return (
        f"the cache had {percent(hit_frac)} of the store's files when they were asked for, and the "
        "others came over the network: a cache that holds the whole store "
        "(--data.max-cache-bytes) spares that from the second epoch on, features computed once "
        "(--features.cached) after one pass"
    )


def _of_threads(reading: Reading) -> str | None:
    rate = reading.fetch_bytes_per_s
    if rate is None:
        return None
    if reading.decode_frac > MOSTLY:
        return (
            f"decoding is {percent(reading.decode_frac)} of the reading threads' work: a store of "
            "pixels (--data.decode-once), features computed once (--features.cached) or more "
            "reading threads (--loader.threads) help"
        )
    return (
        f"fetching is {percent(1 - reading.decode_frac)} of the reading threads' work, at "
        f"{byte_rate(rate)} a thread: memory (--data.where memory), features computed once "
        "(--features.cached) or a faster disk help"
    )
