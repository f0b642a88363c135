"""Engines of prepare: the interface and the local implementation."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.plan import Plan, check_space
from stepladder.data.prepare.quarantine import Bad
from stepladder.data.prepare.shard_work import Finished, ShardMaker
from stepladder.data.prepare.shard_workers import Helpers, num_helpers
from stepladder.data.prepare.work_folder import WorkFolder
from stepladder.data.reading.threads import Inline, one_torch_thread
from stepladder.data.sources.pictures import HashedListing, Pictures, Workers
from stepladder.machine.allocator import keep_freed_memory
from stepladder.machine.limits import num_cores

_AHEAD_PER_WORKER = 4


class Engine(ABC):
    """Two passes over the pictures of a source. All engines produce the same bytes."""

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Keep resources of the passes, such as threads, open while the block runs."""
        yield

    @abstractmethod
    def hash(
        self, work: WorkFolder, *, earlier: Path, on_done: Callable[[int, int], None]
    ) -> HashedListing:
        """List the pictures and hash each; see `Pictures.hash`."""

    @abstractmethod
    def make(
        self,
        plan: Plan,
        work: WorkFolder,
        *,
        on_found: Callable[[Finished], None],
        on_row: Callable[[Bad | None], None],
    ) -> list[Finished]:
        """Write the files of a plan, and the record of each when it is complete.

        Args:
            plan: what to write.
            work: where to write. Valid files that an earlier run finished are kept.
            on_found: called with each such file before anything is written.
            on_row: called for each finished picture, with a Bad if it cannot be used.

        Returns:
            The record of each file, in the order of the plan.
        """


class LocalEngine(Engine):
    """Engine that uses threads and processes of this machine."""

    def __init__(self, config: PrepareConfig, pictures: Pictures) -> None:
        self._config = config
        self._pictures = pictures
        self._num_workers = config.workers or num_cores()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Limit torch to one thread, as pictures are decoded in parallel."""
        keep_freed_memory()  # else each picture's buffers would page-fault again
        with one_torch_thread():
            yield

    def hash(
        self, work: WorkFolder, *, earlier: Path, on_done: Callable[[int, int], None]
    ) -> HashedListing:
        """Hash in threads."""
        with self._threads() as workers:
            return self._pictures.hash(work, workers, earlier=earlier, on_done=on_done)

    def make(
        self,
        plan: Plan,
        work: WorkFolder,
        *,
        on_found: Callable[[Finished], None],
        on_row: Callable[[Bad | None], None],
    ) -> list[Finished]:
        """Decode and write in threads, and for large stores in processes."""
        maker = ShardMaker(
            read=self._pictures.reader(),
            folder=work.store,
            records=work.records,
            config=self._config,
            pool=Inline(),
            ahead=1,
        )
        found = [maker.find(shard) for shard in plan.shards]
        pairs = list(zip(plan.shards, found, strict=True))
        check_space([shard for shard, done in pairs if done is None], work.root)
        for done in found:
            if done is not None:
                on_found(done)
        pending = [shard for shard, done in pairs if done is None]
        finished = {done.key: done for done in found if done is not None}
        # this process has no other thread now, so that it can fork
        if num := num_helpers(pending, workers=self._num_workers):
            with Helpers(work, maker, num) as helpers:
                finished |= {done.key: done for done in helpers.make(pending, on_row=on_row)}
        left = [shard for shard in pending if shard.key not in finished]
        with self._threads() as workers:
            maker = replace(maker, pool=workers.pool, ahead=workers.ahead)
            finished |= {done.key: done for done in maker.make(left, on_row=on_row)}
        return [finished[shard.key] for shard in plan.shards]

    @contextlib.contextmanager
    def _threads(self) -> Iterator[Workers]:
        num = self._num_workers
        with ThreadPoolExecutor(num, thread_name_prefix="prepare") as pool:
            yield Workers(pool, num * _AHEAD_PER_WORKER)
