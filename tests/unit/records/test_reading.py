"""Reader totals over the attempts of a run, with invalid events."""

from __future__ import annotations

from stepladder.records.reading import reading_of


def test_the_last_totals_of_each_attempt_add_up() -> None:
    events = [
        {"attempt": 1, "num_read": 10, "fetch_s": 1.0, "decode_s": 2.0, "num_threads": 4},
        {"attempt": 1, "num_read": 20, "fetch_s": 2.0, "decode_s": 4.0, "num_threads": 4},
        {"attempt": 2, "num_read": 5, "fetch_s": 1.0, "decode_s": 5.0, "num_threads": 2},
    ]
    found = reading_of(events)
    assert found is not None
    assert (found.num_read, found.fetch_s, found.num_threads) == (25, 3.0, 2)
    assert found.decode_frac == 0.75
    assert found.fetch_bytes_per_s is None
    assert found.hit_frac is None


def test_rates_of_a_remote_store() -> None:
    event = {"attempt": 1, "num_read": 8, "read_bytes": 800, "fetch_s": 4.0}
    found = reading_of([event | {"cache_hits": 3, "cache_misses": 1}])
    assert found is not None
    assert (found.fetch_bytes_per_s, found.hit_frac) == (200, 0.75)


def test_what_is_not_a_number_counts_as_nothing() -> None:
    assert reading_of([]) is None
    assert reading_of([{"attempt": 1, "num_read": "<b>"}, {"attempt": [1], "num_read": 5}]) is None
    found = reading_of(
        [{"attempt": 1, "num_read": 3, "fetch_s": "nan", "decode_s": -1, "wait_s": 1e300}]
    )
    assert found is not None
    assert (found.fetch_s, found.decode_s, found.wait_s) == (0, 0, 0)
