"""Loaders with shards: no shard waits forever, and an epoch is complete however it is resumed."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepladder.data.reading.examples import Examples, Source
from stepladder.data.tables.opening import shard_loader
from stepladder.errors import UsageError


class Rows(Source):
    """Each row is its own number."""

    default_threads = 1
    block_rows = None

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.fingerprint = f"rows {num_rows}"

    def __len__(self) -> int:
        return self.num_rows

    def read(self, rows: np.ndarray) -> Examples:
        return Examples(torch.from_numpy(rows), None)


Parts = list[list[list[int]]]  # by shard, by batch


def taken(
    num_rows: int, size: tuple[int, int], state: dict[str, Any] | None, num_steps: int | None
) -> tuple[Parts, dict[str, Any]]:
    """Return the batches of all shards from a state on, and their common state after these."""
    batch_size, shard_count = size
    parts, states = [], []
    for shard in range(shard_count):
        loader = shard_loader(
            Rows(num_rows),
            batch_size=batch_size,
            cur_shard=shard,
            shard_count=shard_count,
            num_epochs=1,
        )
        if state is not None:
            loader.load_state_dict(state)
        parts.append([batch.tolist() for batch in itertools.islice(loader, num_steps)])
        states.append(loader.state_dict())
    assert all(other == states[0] for other in states)
    return parts, states[0]


Ways = list[tuple[int, int, int]]  # batch_size, shard_count, steps


@settings(deadline=None, max_examples=40)
@given(
    num_rows=st.integers(7, 130),
    ways=st.lists(
        st.tuples(st.integers(1, 20), st.integers(1, 7), st.integers(1, 6)), min_size=1, max_size=3
    ),
    last=st.tuples(st.integers(1, 20), st.integers(1, 7)),
)
@example(num_rows=103, ways=[(4, 5, 1)], last=(17, 6))
@example(num_rows=103, ways=[(8, 2, 3)], last=(17, 6))
@example(num_rows=103, ways=[(11, 2, 1)], last=(8, 5))
def test_each_row_comes_once_however_shards_and_batches_change_within_an_epoch(
    num_rows: int, ways: Ways, last: tuple[int, int]
) -> None:
    """Only a last batch with fewer rows than shards is dropped; no batch is empty."""
    state, seen = None, []
    for batch_size, shard_count, num_steps in [*ways, (*last, None)]:
        begin = state["position"] if state else 0
        parts, state = taken(num_rows, (batch_size, shard_count), state, num_steps)
        assert len({len(batches) for batches in parts}) == 1
        assert all(batch for batches in parts for batch in batches)
        seen += [row for batches in parts for batch in batches for row in batch]
        if state["epoch"] == 1:
            break
    rest = (num_rows - begin) % (batch_size * shard_count)
    left_out = rest if rest < shard_count else 0
    assert len(seen) == len(set(seen)) == num_rows - left_out


def test_what_is_left_out_comes_in_the_next_epoch() -> None:
    _, state = taken(103, (11, 2), None, 1)
    parts, state = taken(103, (8, 5), state, None)
    assert [[len(batch) for batch in batches] for batches in parts] == [[8, 8]] * 5
    assert (state["epoch"], state["position"]) == (1, 0)
    parts, _ = taken(103, (8, 5), state, None)
    assert [sum(map(len, batches)) for batches in parts] == [21, 21, 21, 20, 20]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"shard_count": 0}, "shard_count is 0"),
        ({"cur_shard": -1, "shard_count": 2}, "cur_shard is -1"),
        ({"cur_shard": 2, "shard_count": 2}, "the 20 rows of the table cannot be divided"),
        ({"shard_count": 21}, "the 20 rows of the table cannot be divided"),
        ({"order": "bogus"}, "order: 'bogus' is not one of the possible values"),
    ],
    ids=str,
)
def test_an_impossible_shard_is_reported(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        shard_loader(Rows(20), **{"batch_size": 4, **options})
