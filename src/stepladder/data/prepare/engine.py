"""How prepare works through pictures: the contract of engines, and the local one."""

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
    """Two passes over the pictures of a source. Whatever the engine, the bytes are the same."""

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Hold what the passes need, such as threads, while the block runs."""
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
        """Write the files of a plan, and the record of each when it is whole.

        Args:
            plan: what to write.
            work: where. Files that an earlier run finished, and that are still right, stay.
            on_found: told of each such file before anything is written.
            on_row: told of each picture that is done, and what is wrong with a bad one.

        Returns:
            What is known of each file, in the order of the plan.
        """


class LocalEngine(Engine):
    """Threads of this process, and other processes of this machine."""

    def __init__(self, config: PrepareConfig, pictures: Pictures) -> None:
        self._config = config
        self._pictures = pictures
        self._num_workers = config.workers or num_cores()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Let each thread decode alone."""
        keep_freed_memory()  # each picture's buffers would fault in anew
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
        """Decode in threads and write in others; where there is much to do, in processes."""
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
        # no thread of ours is left: processes can be forked from this one
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
