"""Read and decode batches from a source, prefetched in threads."""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepladder.config.choices import OrderMode, Sampling, Where
from stepladder.config.recipe import DataConfig
from stepladder.data.batch import Batch
from stepladder.data.features.feature_source import FeatureSource
from stepladder.data.order.hosts import part_of_rank, rank_slice
from stepladder.data.order.order_choice import default_window_rows, order_of
from stepladder.data.reading.arguments import (
    choice,
    require_at_least,
    require_rank,
    require_share,
    whole,
)
from stepladder.data.reading.examples import (
    ArrivalSource,
    Examples,
    PictureSource,
    ReadCost,
    Source,
    none_of,
)
from stepladder.data.reading.memory import Buffers, MemoryPictures, decoded_bytes, resolve_where
from stepladder.data.reading.threads import map_in_order, num_reading_threads, reading_threads
from stepladder.data.store.shard_files import ShardFilesStats
from stepladder.errors import ResourceError, UsageError
from stepladder.machine import available_memory_bytes
from stepladder.machine.activity import moved

__all__ = ["PictureSource", "Reader", "ReaderStats", "Source", "resolve_where"]

_ROWS_OF_ONE_COPY = 64  # of features: a smaller copy takes as long as the call itself
_ORDER_BLOCK = 16384  # positions computed per call: the order then takes 0.1 microseconds a row


@dataclass
class ReaderStats:
    """Reading statistics so far, over all epochs.

    Attributes:
        fetch_s, decode_s: seconds to get and check bytes, and to decode them, summed over threads.
            For a source that does both in one call, such as a Dataset, all of it is fetch_s.
        copy_s: seconds to copy pictures from memory into batches, summed over threads.
        wait_s: seconds that the consumer waited for batches.
        num_bytes: stored bytes read; 0 if not known.
        num_read: examples read from storage.
        num_rows: examples yielded, including those from memory.
    """

    fetch_s: float = 0.0
    decode_s: float = 0.0
    copy_s: float = 0.0
    wait_s: float = 0.0
    num_bytes: int = 0
    num_read: int = 0
    num_rows: int = 0

    @property
    def fetch_example_s(self) -> float | None:
        """Seconds of one thread to fetch an example; None if none was read."""
        return self.fetch_s / self.num_read if self.num_read else None

    @property
    def decode_example_s(self) -> float | None:
        """Seconds of one thread to decode an example; None if none was read."""
        return self.decode_s / self.num_read if self.num_read else None

    @property
    def example_bytes(self) -> float | None:
        """Mean stored bytes of an example; None if not known."""
        return self.num_bytes / self.num_read if self.num_bytes and self.num_read else None

    @property
    def fetch_bytes_per_s(self) -> float | None:
        """Bytes per second of one fetching thread; None if not known."""
        return self.num_bytes / self.fetch_s if self.num_bytes and self.fetch_s > 0 else None

    def wait_frac(self, seconds: float) -> float:
        """Return the fraction of a time that the consumer waited, in [0, 1]."""
        return min(1.0, self.wait_s / seconds) if seconds > 0 else 0.0

    def add(self, cost: ReadCost) -> None:
        """Add the cost of reading some rows; their number is counted separately."""
        self.fetch_s += cost.fetch_s
        self.decode_s += cost.decode_s
        self.num_bytes += cost.num_bytes

    def since(self, earlier: ReaderStats) -> ReaderStats:
        """Return the difference to an earlier copy, made with `dataclasses.replace`."""
        return ReaderStats(
            **{
                field.name: getattr(self, field.name) - getattr(earlier, field.name)
                for field in fields(self)
            }
        )


class Reader:
    """Yield the batches of one rank, epoch by epoch. Their content depends only on the order.

    Args:
        source: the source of the examples.
        seed: seed of the shuffles.
        global_batch_size: examples per batch, summed over ranks; the last batch may be smaller.
        mode: shuffled, shuffled within windows, or sequential; auto chooses by source.
        rank, world_size: this rank gets a contiguous part of each global batch, which may be empty.
        threads: threads that read and decode; 0: one per core.
        prefetch_batches: batches read ahead.
        fraction, fraction_seed: use a fixed sample of the data.
        sample: sample single rows or whole blocks.
        window_rows: window of windowed order in rows; 0: the rows of four blocks.
        hosts: hosts among which the blocks of the source are divided; 1: they are not.
        where: memory or stream; `resolve_where` converts auto to one of them.
        pin_memory: yield pinned tensors; None: if CUDA is available.

    Attributes:
        num_threads: number of reading threads; 0 if the consumer's thread reads.
        num_examples: examples of an epoch, over all ranks.
        steps_per_epoch: batches of an epoch, including a smaller last one.

    Raises:
        UsageError: if the choices do not fit the source.
        ResourceError: if where is memory and the pictures do not fit.
    """

    def __init__(
        self,
        source: Source,
        *,
        seed: int,
        global_batch_size: int,
        mode: OrderMode | str = OrderMode.AUTO,
        rank: int = 0,
        world_size: int = 1,
        threads: int = 0,
        prefetch_batches: int = 2,
        fraction: float = 1.0,
        fraction_seed: int = 42,
        sample: Sampling | str = Sampling.AUTO,
        window_rows: int = 0,
        hosts: int = 1,
        where: Where | str = Where.STREAM,
        pin_memory: bool | None = None,
    ) -> None:
        require_rank(rank, world_size)
        require_at_least(1, global_batch_size=global_batch_size, prefetch_batches=prefetch_batches)
        require_at_least(0, threads=threads)
        require_at_least(1, hosts=hosts)
        require_share(fraction=fraction)
        seed, global_batch_size = whole("seed", seed), whole("batch_size", global_batch_size)
        self._where = choice(Where, where, where="where")
        self.source = source
        self.global_batch_size = global_batch_size
        self.rank, self.world_size = whole("rank", rank), whole("world_size", world_size)
        self.stats = ReaderStats()
        self._files_before = source.files_stats()
        data = DataConfig(
            fraction=fraction,
            seed=fraction_seed,
            sample=choice(Sampling, sample, where="sample"),
            order=choice(OrderMode, mode, where="mode"),
            window_rows=window_rows,
            hosts=hosts,
        )
        _check_choices(source, self._where, fraction)
        self.order = order_of(data, source, seed=seed, batch_size=global_batch_size)
        self.num_examples = self.order.num_samples
        self.steps_per_epoch = -(-self.num_examples // global_batch_size)
        self.num_threads = num_reading_threads(threads, source.default_threads)
        self._prefetch = prefetch_batches if self.num_threads else 0
        self._memory: MemoryPictures | None = None
        self._open: weakref.WeakSet[Generator[Batch]] = weakref.WeakSet()
        self._buffers: Buffers | None = None
        if isinstance(source, PictureSource):
            self._buffers = Buffers(
                (-(-global_batch_size // world_size), *source.picture_shape),
                capacity=prefetch_batches + 2,
                is_pinned=torch.cuda.is_available() if pin_memory is None else pin_memory,
            )

    @property
    def is_held(self) -> bool:
        """Whether decoded pictures are kept in memory, so that each is read once."""
        return self._where is Where.MEMORY

    def own_rows(self) -> np.ndarray:
        """Return the rows that this rank may read, in stored order: those of its host, or all."""
        if self._host is None:
            return replace(self.order, num_hosts=1).rows_of_host(0)
        return self.order.rows_of_host(self._host)

    def own_row(self) -> int:
        """Return a row that this rank may read."""
        return 0 if self._host is None else self.order.first_row_of_host(self._host)

    @property
    def _host(self) -> int | None:
        """Number of this rank's host; None if the parts of ranks are not those of hosts."""
        hosts = self.order.num_hosts
        return None if self.world_size % hosts else self.rank * hosts // self.world_size

    def files_stats(self) -> ShardFilesStats | None:
        """Return statistics of fetching files since the reader was created; None if local.

        Includes all splits of a store and all its readers.
        """
        now, before = self.source.files_stats(), self._files_before
        return now if now is None or before is None else now.since(before)

    def epoch(self, epoch: int, start: int = 0) -> Generator[Batch]:
        """Yield this rank's batches of an epoch.

        Closing or deleting the iterator stops its threads. A batch is never overwritten.

        Args:
            epoch: 0 or more.
            start: global position to start at, such as after a restart; at most num_examples.
        """
        if epoch < 0 or not 0 <= start <= self.num_examples:
            raise ValueError(f"epoch {epoch}, position {start}: invalid position")
        if isinstance(self.source, ArrivalSource):
            return self._arrivals(self.source, start)
        is_ahead = self.num_threads > 0 or isinstance(self.source, PictureSource)
        batches = (self._batches if is_ahead else self._batches_at_once)(epoch, start)
        self._open.add(batches)
        return batches

    def endless(self, epoch: int = 0, start: int = 0) -> Generator[Batch]:
        """Yield batches endlessly, epoch after epoch."""
        yield from self.epoch(epoch, start)
        for later in itertools.count(epoch + 1):
            yield from self.epoch(later)

    def close(self) -> None:
        """Close open iterators and free files and pictures that are kept."""
        for batches in list(self._open):
            batches.close()
        self._memory = None
        for _ in range(2):  # files of the previous call are kept for one more
            self.source.expect(np.zeros(0, dtype=np.int64))

    def _batches(self, epoch: int, start: int) -> Generator[Batch]:
        ids_of = self._local_ids(epoch, start)
        with reading_threads(self.num_threads) as pool:
            source = self._load(pool)
            pending = deque(
                self._begin(pool, source, ids) for ids in itertools.islice(ids_of, self._prefetch)
            )
            for ids in ids_of:
                pending.append(self._begin(pool, source, ids))
                yield self._finish(pending.popleft())
            while pending:
                yield self._finish(pending.popleft())

    def _batches_at_once(self, epoch: int, start: int) -> Generator[Batch]:
        """Read in the consumer's thread, several batches per call if that is only a copy."""
        source, all_ids = self.source, self._local_ids(epoch, start)
        num_batches = 1
        if isinstance(source, FeatureSource) and source.is_held:
            num_batches = max(1, _ROWS_OF_ONE_COPY // self.global_batch_size)
        while batches := list(itertools.islice(all_ids, num_batches)):
            ids = torch.from_numpy(np.concatenate(batches))
            inputs, targets = _read(source, ids.numpy())
            self.stats.num_rows += len(ids)
            if len(batches) == 1:
                yield Batch(inputs, targets, ids)
                continue
            sizes = [len(rows) for rows in batches]
            yield from map(
                Batch,
                torch.split(inputs, sizes),
                itertools.repeat(None) if targets is None else torch.split(targets, sizes),
                torch.split(ids, sizes),
            )

    def _local_ids(self, epoch: int, start: int) -> Iterator[np.ndarray]:
        """Yield the rows of this rank's part of each global batch; announce them to the source."""
        size = self.global_batch_size
        most = _ORDER_BLOCK  # rows announced ahead; the source may keep all of their files
        if self.order.mode is OrderMode.WINDOWED:
            most = min(most, self.order.window_rows)
        elif self.order.mode is OrderMode.SEQUENTIAL:
            most = _most_in_sequence(self.source)
        step = max(1, most * self.order.num_hosts // size) * size
        now: list[np.ndarray] = []
        for position in range(start, self.num_examples, step):
            following = self._cut(epoch, position, min(position + step, self.num_examples))
            self.source.expect(np.concatenate([*now, *following]))
            yield from now
            now = following
        yield from now

    def _cut(self, epoch: int, start: int, stop: int) -> list[np.ndarray]:
        """Return the rows of this rank's part of each global batch at positions [start, stop)."""
        rows = self.order.samples(epoch, start, stop)
        batches = []
        for begin in range(0, len(rows), self.global_batch_size):
            batch = rows[begin : begin + self.global_batch_size]
            low, high = part_of_rank(
                len(batch), self.rank, self.world_size, num_hosts=self.order.num_hosts
            )
            batches.append(batch[low:high].copy())
        return batches

    def _load(self, pool: Executor) -> Source:
        """Return the source of batches: the source itself, or its rows in memory (loaded once)."""
        if self._where is not Where.MEMORY or not isinstance(self.source, PictureSource):
            return self.source
        if self._memory is None:
            held = MemoryPictures(self.source, self.own_rows())
            start_s = time.perf_counter()
            size = self.source.rows_per_task
            num_told = max(1, _most_in_sequence(self.source) // size)
            starts = _starts_of_tasks(self.source, held.rows, num_told=num_told)
            ahead = min(4 * max(1, self.num_threads), num_told)
            for cost in map_in_order(pool, held.fill, starts, ahead=ahead):
                self.stats.add(cost)
                moved()
            self.stats.num_read += len(held.rows)
            self.stats.wait_s += time.perf_counter() - start_s
            self._memory = held
        return self._memory

    def _begin(self, pool: Executor, source: Source, ids: np.ndarray) -> _Pending:
        if not isinstance(source, PictureSource) or self._buffers is None:
            return _Pending(ids, None, None, [pool.submit(_timed_read, source, ids)])
        pictures = self._buffers.lend(len(ids))
        out = pictures.numpy()
        ahead_per_thread = len(ids) * max(1, self._prefetch) // max(1, self.num_threads)
        step = max(1, min(source.rows_per_task, ahead_per_thread))  # so that all threads have work
        labels = np.empty(len(ids), dtype=np.int64)
        tasks: list[Future[Any]] = [
            pool.submit(_read_pictures, source, ids, slice(s, s + step), out, labels)
            for s in range(0, len(ids), step)
        ]
        return _Pending(ids, labels, pictures, tasks)

    def _finish(self, pending: _Pending) -> Batch:
        start_s = time.perf_counter()
        results = [task.result() for task in pending.tasks]
        self.stats.wait_s += time.perf_counter() - start_s
        self.stats.num_rows += len(pending.ids)
        ids = torch.from_numpy(pending.ids)
        if pending.pictures is None or pending.labels is None:
            examples, cost = results[0]
            self.stats.add(cost)
            self.stats.num_read += len(ids)
            return Batch(examples.inputs, examples.targets, ids)
        if self.is_held:
            self.stats.copy_s += sum(cost.fetch_s for cost in results)
        else:
            for cost in results:
                self.stats.add(cost)
            self.stats.num_read += len(ids)
        targets = torch.from_numpy(pending.labels)
        return Batch(pending.pictures.permute(0, 3, 1, 2), targets, ids)

    def _arrivals(self, source: ArrivalSource, start: int) -> Generator[Batch]:
        """Batch examples in stream order; ids count the examples."""
        items = itertools.islice(source.arrivals(), start, None)
        for position in itertools.count(start, self.global_batch_size):
            batch = list(itertools.islice(items, self.global_batch_size))
            if not batch:
                return
            low, high = rank_slice(len(batch), self.rank, self.world_size)
            examples = source.collate(batch[low:high] or batch[:1])
            examples = examples if high > low else none_of(examples)
            self.stats.num_rows += high - low
            yield Batch(*examples, torch.arange(position + low, position + high))


@dataclass(frozen=True)
class _Pending:
    """A batch in flight: rows, labels and buffer (only for pictures) and the reading tasks."""

    ids: np.ndarray
    labels: np.ndarray | None
    pictures: Tensor | None  # (n, h, w, c)
    tasks: list[Future[Any]]


def _most_in_sequence(source: Source) -> int:
    """Return how many rows are announced per call in sequential order."""
    if source.is_near or source.block_rows is None:
        return _ORDER_BLOCK
    return min(_ORDER_BLOCK, default_window_rows(source))


def _starts_of_tasks(source: Source, rows: np.ndarray, *, num_told: int) -> Iterator[int]:
    """Yield the start of each reading task; announce num_told tasks ahead to the source."""
    size = source.rows_per_task
    step = num_told * size
    for start in range(0, len(rows), step):
        source.expect(rows[start : start + 2 * step])
        yield from range(start, min(start + step, len(rows)), size)


def _read_pictures(
    source: PictureSource, ids: np.ndarray, part: slice, out: np.ndarray, labels: np.ndarray
) -> ReadCost:
    """Fill a part of a batch's pictures, and with the first part its labels.

    Labels are not a separate task, as submitting one takes longer than looking them up.
    """
    cost = source.read_into(ids[part], out[part])
    if part.start == 0:
        labels[:] = source.labels_of(ids)
    return cost


def _read(source: Source, rows: np.ndarray) -> Examples:
    if len(rows):
        return source.read(rows)
    return none_of(source.read(np.zeros(1, dtype=np.int64)))


def _timed_read(source: Source, rows: np.ndarray) -> tuple[Examples, ReadCost]:
    """Read rows of a source that does not report its cost, and time it."""
    start_s = time.perf_counter()
    examples = _read(source, rows)
    return examples, ReadCost(fetch_s=time.perf_counter() - start_s)


def _check_choices(source: Source, where: Where, fraction: float) -> None:
    if where is Where.AUTO:
        raise ValueError("where is auto: convert it with resolve_where")
    if len(source) < 1:
        raise UsageError(
            "the dataset is empty: its length is 0",
            fix="Pass a dataset with at least one example.",
        )
    if fraction < 1 and isinstance(source, ArrivalSource):
        raise UsageError(
            "data.fraction is below 1, so only a part of the examples is to be read; but an "
            "IterableDataset cannot read single examples",
            where="data.fraction",
            fix="Set data.fraction to 1, or use a Dataset with __getitem__.",
        )
    if where is Where.MEMORY:
        if not isinstance(source, PictureSource):
            raise UsageError(
                "--data.where memory keeps the pictures of a store in memory, but the data here "
                "are not a store",
                where="data.where",
                fix="Use --data.where stream. A Dataset of your own can keep its examples in "
                "memory itself.",
            )
        needed, free = decoded_bytes(source, fraction=fraction), available_memory_bytes()
        if needed > free:
            raise ResourceError(
                f"the decoded pictures need {needed / 1e9:.1f} GB of memory, but only "
                f"{free / 1e9:.1f} GB are free",
                where="data.where",
                fix="Use --data.where stream, or a smaller --data.fraction.",
            )
