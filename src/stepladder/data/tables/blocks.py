"""Decoded row groups in memory: a bounded cache that all tables of a process share."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from stepladder.machine import available_memory_bytes

MEMORY_FRAC = 0.25
_NUM_AHEAD = 2  # threads that decode ahead: readers decode too


class Block(NamedTuple):
    """A decoded row group, column by column."""

    values: tuple[Any, ...]
    num_bytes: int


class _Entry(NamedTuple):
    decoded: Future[Block]
    num_bytes: int  # a forecast until it is decoded


_caches: weakref.WeakSet[BlockCache] = weakref.WeakSet()


class BlockCache:
    """Keep blocks up to a limit, the least recently used dropped first.

    A block is decoded once, however many threads want it. One that is in use stays alive although
    it was dropped.

    Args:
        max_bytes: that blocks may take; None: a quarter of the memory that is free now.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        free = MEMORY_FRAC * available_memory_bytes()
        self.max_bytes = int(free) if max_bytes is None else max_bytes
        self._reserved: dict[int, int] = {}
        self.begin()
        _caches.add(self)

    def begin(self) -> None:
        """Hold nothing; after a fork too: what was under way ended with the parent's threads."""
        self._lock = threading.RLock()  # a finalizer may run in a thread that holds it
        self._entries: OrderedDict[tuple[int, int], _Entry] = OrderedDict()
        self._num_bytes = 0
        self._pool: ThreadPoolExecutor | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes that are held."""
        return self._num_bytes

    def reserve(self, blocks: Blocks, num_bytes: int) -> bool:
        """Take room for a whole table that is held elsewhere, if there is as much."""
        with self._lock:
            has_room = num_bytes <= self.limit
            if has_room:
                self._reserved[blocks.number] = num_bytes
                self._make_room()
            return has_room

    def get(self, blocks: Blocks, idx: int) -> Block:
        """Return a block, decoded now or before."""
        key = (blocks.number, idx)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                future: Future[Block] = Future()
                self._insert(key, future, blocks.forecast_bytes(idx))
            else:
                self._entries.move_to_end(key)
                future = entry.decoded
        if entry is None:
            self._decode(blocks, idx, future)
        return future.result()

    def expect(self, blocks: Blocks, indices: Iterable[int]) -> None:
        """Decode ahead what is wanted next, as far as half of the limit goes."""
        room = self.limit // 2
        for idx in indices:
            room -= blocks.forecast_bytes(idx)
            if room < 0:
                return
            key = (blocks.number, idx)
            with self._lock:
                if key in self._entries:
                    self._entries.move_to_end(key)
                    continue
                future: Future[Block] = Future()
                self._insert(key, future, blocks.forecast_bytes(idx))
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(_NUM_AHEAD, "stepladder-table")
                self._pool.submit(self._decode, blocks, idx, future)

    def forget(self, number: int) -> None:
        """Drop the blocks of a table, and its reservation."""
        with self._lock:
            self._reserved.pop(number, None)
            for key in [key for key in self._entries if key[0] == number]:
                self._num_bytes -= self._entries.pop(key).num_bytes

    @property
    def limit(self) -> int:
        """Bytes that blocks may take."""
        return self.max_bytes - sum(self._reserved.values())

    def _insert(self, key: tuple[int, int], future: Future[Block], num_bytes: int) -> None:
        self._entries[key] = _Entry(future, num_bytes)
        self._num_bytes += num_bytes
        self._make_room()

    def _make_room(self) -> None:
        """Drop what was used longest ago; the newest stays, however large, and what is begun."""
        for oldest in list(self._entries)[:-1]:
            if self._num_bytes <= self.limit:
                return
            if self._entries[oldest].decoded.done():
                self._num_bytes -= self._entries.pop(oldest).num_bytes

    def _decode(self, blocks: Blocks, idx: int, future: Future[Block]) -> None:
        key = (blocks.number, idx)
        try:
            block = blocks.decode(idx)
        except BaseException as error:
            with self._lock:  # asked for again, it is tried again
                entry = self._entries.pop(key, None)
                self._num_bytes -= entry.num_bytes if entry is not None else 0
            future.set_exception(error)
            return
        future.set_result(block)
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._num_bytes -= entry.num_bytes
                self._insert(key, future, block.num_bytes)


class Blocks:
    """The row groups of one table, as the cache knows them.

    Args:
        decode: gives a row group by its number.
        forecast_bytes: about the bytes that it will take.
    """

    _numbers = itertools.count()

    def __init__(
        self,
        decode: Callable[[int], Block],
        forecast_bytes: Callable[[int], int],
        cache: BlockCache | None = None,
    ) -> None:
        self.decode = decode
        self.forecast_bytes = forecast_bytes
        self.number = next(self._numbers)
        self._cache = shared_cache() if cache is None else cache
        weakref.finalize(self, self._cache.forget, self.number)

    @property
    def limit(self) -> int:
        """Bytes that blocks may take in the cache, those of other tables among them."""
        return self._cache.limit

    def reserve(self, num_bytes: int) -> bool:
        """Take room for the whole table, if there is as much."""
        return self._cache.reserve(self, num_bytes)

    def get(self, idx: int) -> Block:
        """Return a block."""
        return self._cache.get(self, idx)

    def expect(self, indices: Iterable[int]) -> None:
        """Decode ahead what is wanted next."""
        self._cache.expect(self, indices)


def _begin_after_fork() -> None:
    for cache in list(_caches):
        cache.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_after_fork)

_shared: BlockCache | None = None
_making = threading.Lock()


def shared_cache() -> BlockCache:
    """Return the cache of this process; its limit is set when the first table is opened."""
    global _shared  # memory is one: two caches would each take a quarter
    with _making:
        if _shared is None:
            _shared = BlockCache()
        return _shared
