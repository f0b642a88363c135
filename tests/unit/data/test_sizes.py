"""Sizes in messages."""

from __future__ import annotations

import pytest

from stepladder.data.sizes import say_size


@pytest.mark.parametrize(
    ("num_bytes", "said"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (8_240_000_000, "8.24 GB"),
        (1_234_567_000_000, "1,235 GB"),
    ],
)
def test_a_size_is_said_in_three_digits_of_the_unit_that_fits(num_bytes: int, said: str) -> None:
    assert say_size(num_bytes) == said
