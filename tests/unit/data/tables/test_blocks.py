"""Row groups are decoded once, ahead if requested, within a memory limit."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from stepladder.data.tables.blocks import Block, BlockCache, Blocks

BLOCK_BYTES = 100


class Table:
    """Blocks of one array each, which count how often they are decoded."""

    def __init__(self, cache: BlockCache) -> None:
        self.counts: Counter[int] = Counter()
        self.threads: set[str] = set()
        self.failing: set[int] = set()
        counts, threads, failing = self.counts, self.threads, self.failing

        def decode(idx: int) -> Block:
            counts[idx] += 1
            threads.add(threading.current_thread().name)
            if idx in failing:
                raise OSError("cut")
            return Block((np.full(3, idx),), BLOCK_BYTES)

        self.blocks = Blocks(decode, lambda idx: BLOCK_BYTES, cache)


def test_threads_that_want_one_block_decode_it_once() -> None:
    table = Table(BlockCache(10 * BLOCK_BYTES))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(table.blocks.get, [0, 1, 2, 3] * 25))
    assert [int(block.values[0][0]) for block in found] == [0, 1, 2, 3] * 25
    assert table.counts == dict.fromkeys(range(4), 1)


def test_the_least_recently_used_goes_first() -> None:
    cache = BlockCache(3 * BLOCK_BYTES)
    table = Table(cache)
    for idx in (0, 1, 2, 0, 3, 0, 1):
        table.blocks.get(idx)
        assert cache.num_bytes <= 3 * BLOCK_BYTES
    assert table.counts == {0: 1, 1: 2, 2: 1, 3: 1}


def test_what_is_expected_is_decoded_by_other_threads_within_half_of_the_limit() -> None:
    cache = BlockCache(8 * BLOCK_BYTES)
    table = Table(cache)
    table.blocks.expect(range(100))
    for idx in range(4):
        table.blocks.get(idx)
    assert set(table.counts) == {0, 1, 2, 3}
    assert all(name.startswith("stepladder-table") for name in table.threads)


def test_a_block_that_failed_is_tried_again() -> None:
    table = Table(BlockCache(8 * BLOCK_BYTES))
    table.failing.add(5)
    with pytest.raises(OSError, match="cut"):
        table.blocks.get(5)
    table.failing.clear()
    assert int(table.blocks.get(5).values[0][0]) == 5


def test_a_table_that_is_gone_leaves_nothing() -> None:
    cache = BlockCache(8 * BLOCK_BYTES)
    table, other = Table(cache), Table(cache)
    table.blocks.get(0)
    other.blocks.get(0)
    assert cache.num_bytes == 2 * BLOCK_BYTES
    del table
    gc.collect()
    assert cache.num_bytes == BLOCK_BYTES


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_decodes_for_itself() -> None:
    table = Table(BlockCache(8 * BLOCK_BYTES))
    table.blocks.expect([0])  # starts threads, which a fork does not copy
    table.blocks.get(0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            table.blocks.expect([0, 1])
            os.write(writing, bytes(int(table.blocks.get(idx).values[0][0]) for idx in (0, 1)))
        finally:
            os._exit(0)
    os.close(writing)
    assert os.read(reading, 3) == bytes([0, 1])
    os.close(reading)
    os.waitpid(child, 0)
