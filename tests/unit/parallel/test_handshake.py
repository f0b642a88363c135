"""Ranks that differ are named with both sides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from stepladder.errors import DataError, UsageError
from stepladder.parallel.handshake import (
    differences_of_hosts,
    require_same_config,
    require_same_data,
    require_same_programs,
)
from stepladder.parallel.world import ALONE, World


@dataclass(frozen=True, kw_only=True)
class Pretended(World):
    """Rank 0 of two, whose gathering returns what the other rank would have sent."""

    size: int = 2
    others: Iterator[Any]

    def gather(self, value: Any) -> list[Any]:
        """Return this rank's value, and the other one's."""
        other = next(self.others)
        return [value, other(value)]

    def barrier(self) -> None:
        """Do nothing."""


def two(*others: Any) -> World:
    return Pretended(others=iter(others))


def test_a_different_option_is_named_with_both_values() -> None:
    def other(value: Any) -> Any:
        facts, _ = value
        return {**facts, "batch.lr": "0.1"}, "host-b"

    with pytest.raises(UsageError) as caught:
        require_same_config(two(other), {"batch.lr": 0.05, "seed": 1})
    assert "batch.lr: 0.05 on rank 0, 0.1 on rank 1 (host-b)" in str(caught.value)
    assert "seed" not in str(caught.value)


def test_a_missing_split_is_a_difference() -> None:
    with pytest.raises(DataError, match="data val: abc on rank 0, none on rank 1"):
        require_same_data(
            two(lambda _: ({"data train": "xyz"}, "b")), {"train": "xyz", "val": "abc"}
        )


def test_a_different_version_is_refused() -> None:
    with pytest.raises(UsageError, match=r"torch: .* on rank 0, 2\.0 on rank 1"):
        require_same_programs(two(lambda value: ({**value[0], "torch": "2.0"}, "b")))


def test_equal_ranks_pass() -> None:
    same = two(*(lambda value: value for _ in range(3)))
    require_same_programs(same)
    require_same_config(same, {"seed": 1})
    require_same_data(same, {"train": "abc"})
    require_same_config(ALONE, {"seed": 1})


def test_another_device_and_a_wrong_clock_are_warnings() -> None:
    found = differences_of_hosts(
        two(lambda value: {**value, "device": "T4", "host": "b"}, lambda now: now + 90),
        device="L4",
    )
    assert found[0].startswith(
        "the machines of this run differ in device: L4 for rank 0, T4 for rank 1 on b"
    )
    assert found[1].startswith(
        "the clock of the machine of rank 1 differs from that of rank 0 by +90 s, "
    )
    assert differences_of_hosts(two(*(lambda one: one for _ in range(2))), device="L4") == []
