"""A bounded in-memory cache of decoded row groups, shared by all tables of a process."""

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
_NUM_AHEAD = 2  # prefetch threads; readers decode too


class Block(NamedTuple):
    """A decoded row group, column by column."""

    values: tuple[Any, ...]
    num_bytes: int


class _Entry(NamedTuple):
    decoded: Future[Block]
    num_bytes: int  # an estimate until it is decoded


_caches: weakref.WeakSet[BlockCache] = weakref.WeakSet()


class BlockCache:
    """An LRU cache of blocks with a size limit.

    A block is decoded once even if several threads request it. Evicted blocks stay alive while they
    are in use.

    Args:
        max_bytes: maximum size of all blocks; None: a quarter of the memory that is free now.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        free = MEMORY_FRAC * available_memory_bytes()
        self.max_bytes = int(free) if max_bytes is None else max_bytes
        self._reserved: dict[int, int] = {}
        self.begin()
        _caches.add(self)

    def begin(self) -> None:
        """Reset to an empty cache; also after a fork, which does not copy running threads."""
        self._lock = threading.RLock()  # a finalizer may run in a thread that already holds it
        self._entries: OrderedDict[tuple[int, int], _Entry] = OrderedDict()
        self._num_bytes = 0
        self._pool: ThreadPoolExecutor | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the cached blocks in bytes."""
        return self._num_bytes

    def reserve(self, blocks: Blocks, num_bytes: int) -> bool:
        """Reserve memory for a whole table that is kept elsewhere; False if there is too little."""
        with self._lock:
            has_room = num_bytes <= self.limit
            if has_room:
                self._reserved[blocks.number] = num_bytes
                self._make_room()
            return has_room

    def get(self, blocks: Blocks, idx: int) -> Block:
        """Return a block; decode it if it is not cached."""
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
        """Prefetch the next blocks, up to half of the limit."""
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
        """Maximum size of all blocks in bytes."""
        return self.max_bytes - sum(self._reserved.values())

    def _insert(self, key: tuple[int, int], future: Future[Block], num_bytes: int) -> None:
        self._entries[key] = _Entry(future, num_bytes)
        self._num_bytes += num_bytes
        self._make_room()

    def _make_room(self) -> None:
        """Evict the least recently used blocks, but not the newest or those being decoded."""
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
            with self._lock:  # the next request tries again
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
    """The row groups of one table in the cache.

    Args:
        decode: returns a decoded row group by its number.
        forecast_bytes: returns its estimated size.
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
        """Maximum size of all blocks in the cache, including those of other tables."""
        return self._cache.limit

    def reserve(self, num_bytes: int) -> bool:
        """Reserve memory for the whole table; False if there is too little."""
        return self._cache.reserve(self, num_bytes)

    def get(self, idx: int) -> Block:
        """Return a block."""
        return self._cache.get(self, idx)

    def expect(self, indices: Iterable[int]) -> None:
        """Prefetch the next blocks."""
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
    global _shared  # two caches would each take a quarter of the memory
    with _making:
        if _shared is None:
            _shared = BlockCache()
        return _shared
