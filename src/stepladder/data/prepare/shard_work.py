"""Write the files of a store, and a record of each finished file."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.traits import NAMED, SHAPES, Trait
from stepladder.data.prepare.counted import NUM_NAMES
from stepladder.data.prepare.encode import Looks, ReadyPicture, Seen, Sums, ready_pictures
from stepladder.data.prepare.near_duplicates import LOOK_LENGTH
from stepladder.data.prepare.plan import Row, ShardPlan
from stepladder.data.prepare.quarantine import Bad
from stepladder.data.prepare.ranges import Range, Ranges, merge_ranges
from stepladder.data.prepare.writer import MAX_GROUP_ROWS, ShardWriter
from stepladder.data.reading.memory import Buffers
from stepladder.data.reading.threads import Inline, map_in_order
from stepladder.data.sources.pictures import ReadRow
from stepladder.data.sources.walk import printable
from stepladder.records import ShardInfo, read_json, write_json

_AHEAD_PER_WRITER = 16  # chunks of four workers: writing takes a fifth of decoding's time
_MIN_WRITERS = 2  # one writes while another waits for the disk

_CHUNK = 16  # pictures decoded per task: one picture per task would cost a tenth more
_CHUNK_BYTES = 4 << 20  # fewer if they are large, as memory depends on what is in flight
_MAX_WAITING = 4  # chunks queued for a writer

Chunk = Sequence[ReadyPicture | Bad]
"""Pictures that were decoded together, in the order of the plan."""


@dataclass(frozen=True)
class Finished:
    """Record of a finished shard.

    Attributes:
        info: None if none of its pictures could be used, so that there is no file.
        labels: labels of its rows, in order.
        channel_sum, channel_sq_sum: over sampled pixels of each picture, (3,), int64.
        looks: looks of its rows, (num_rows, LOOK_LENGTH), uint8.
        bad: quarantined pictures.
        traits: number of pictures with each trait.
        named: of the traits whose pictures are named, the first ones.
        ranges: range of the samples, by kind of picture.
    """

    key: str
    info: ShardInfo | None
    labels: tuple[int, ...]
    channel_sum: Sums
    channel_sq_sum: Sums
    looks: Looks
    bad: tuple[Bad, ...]
    traits: Mapping[Trait, int]
    named: Mapping[Trait, tuple[str, ...]]
    ranges: Ranges

    @classmethod
    def of(
        cls, key: str, info: ShardInfo | None, seen: Sequence[Seen], bad: Sequence[Bad]
    ) -> Finished:
        """Return the record of a shard's pictures."""
        zeros = np.zeros(3, dtype=np.int64)
        no_looks = np.zeros((0, LOOK_LENGTH), dtype=np.uint8)
        return cls(
            key=key,
            info=info,
            labels=tuple(item.row.label for item in seen),
            channel_sum=sum((item.channel_sum for item in seen), zeros),
            channel_sq_sum=sum((item.channel_sq_sum for item in seen), zeros),
            looks=np.stack([item.look for item in seen]) if seen else no_looks,
            bad=tuple(bad),
            traits=Counter(trait for item in seen for trait in item.traits),
            named={
                trait: tuple(itertools.islice(_names(trait, seen), NUM_NAMES))
                for trait in NAMED
                if any(trait in item.traits for item in seen)
            },
            ranges=merge_ranges(item.ranges for item in seen),
        )

    @classmethod
    def from_json(cls, value: Any) -> Finished:
        """Parse what `to_json` returned.

        Raises:
            KeyError, TypeError, ValueError: if it has another form.
        """
        looks = np.frombuffer(base64.b64decode(value["looks"]), dtype=np.uint8)
        if len(looks) != LOOK_LENGTH * len(value["labels"]):
            raise ValueError("looks of another version")
        return cls(
            key=str(value["key"]),
            info=None if value["info"] is None else ShardInfo(**value["info"]),
            labels=tuple(value["labels"]),
            channel_sum=np.array(value["channel_sum"], dtype=np.int64),
            channel_sq_sum=np.array(value["channel_sq_sum"], dtype=np.int64),
            looks=looks.reshape(-1, LOOK_LENGTH),
            bad=tuple(Bad(path, reason) for path, reason in value["bad"]),
            traits={Trait(name): int(count) for name, count in value["traits"].items()},
            named={Trait(name): tuple(names) for name, names in value["named"].items()},
            ranges={str(name): Range(*found) for name, found in value["ranges"].items()},
        )

    def to_json(self) -> dict[str, Any]:
        """Return a dict for `write_json`."""
        return {
            "key": self.key,
            "info": self.info,
            "labels": self.labels,
            "channel_sum": self.channel_sum.tolist(),
            "channel_sq_sum": self.channel_sq_sum.tolist(),
            "looks": base64.b64encode(self.looks.tobytes()).decode(),
            "bad": self.bad,
            "traits": {trait.value: count for trait, count in sorted(self.traits.items())},
            "named": {trait.value: list(names) for trait, names in sorted(self.named.items())},
            "ranges": {name: list(found) for name, found in sorted(self.ranges.items())},
        }


def _names(trait: Trait, seen: Iterable[Seen]) -> Iterator[str]:
    """Yield the paths of the pictures with a trait, with the size of those of an odd shape."""
    for item in seen:
        if trait in item.traits:
            size = f" ({item.sides[1]}x{item.sides[0]})" if trait in SHAPES else ""
            yield f"{printable(item.row.path)!r}{size}"


class StoppedError(Exception):
    """The pictures of a file ended early; the sender raises the cause."""


class ShardFile:
    """A file that is being written; it is removed after an error.

    Args:
        plan: the pictures.
        folder: folder of the file.
        record: path of the record that marks it as finished.
        config: how pictures are stored.
    """

    def __init__(
        self, plan: ShardPlan, *, folder: Path, record: Path, config: PrepareConfig
    ) -> None:
        self._plan, self._record, self._config = plan, record, config
        self._path = folder / plan.name
        self._writer: ShardWriter | None = None  # None until the first good picture
        self._seen: list[Seen] = []
        self._bad: list[Bad] = []

    def add(self, chunk: Chunk) -> None:
        """Write the next pictures."""
        for item in chunk:
            if isinstance(item, Bad):
                self._bad.append(item)
                continue
            if self._writer is None:
                self._writer = self._open()
            row = item.seen.row
            self._writer.add_page(sha256=row.sha256, path=row.path, label=row.label, page=item.page)
            self._seen.append(item.seen)

    def seal(self) -> None:
        """Write the rest of the file, without waiting for the disk.

        Raises:
            StoppedError: if not all pictures of the plan were added.
        """
        if len(self._seen) + len(self._bad) < len(self._plan.rows):
            raise StoppedError
        if self._writer is not None:
            self._writer.seal()

    def finish(self) -> Finished:
        """Sync the file, rename it to its final name and write its record."""
        with self:
            info = None if self._writer is None else self._writer.close()
            finished = Finished.of(self._plan.key, info, self._seen, self._bad)
            write_json(self._record, finished.to_json())
        return finished

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self._writer is not None:
            self._writer.abort()

    def _open(self) -> ShardWriter:
        config = self._config
        return ShardWriter(
            self._path, encoding=config.encoding, size=config.size, compression=config.compression
        )


class _Chunks:
    """Bounded queue of a file's chunks between the decoding and the writing thread."""

    def __init__(self) -> None:
        self._chunks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        self._places = threading.Semaphore(_MAX_WAITING)

    def put(self, chunk: Chunk) -> None:
        """Add a chunk; block while the queue is full."""
        self._places.acquire()
        self._chunks.put(chunk)

    def end(self) -> None:
        """Mark the end. Never blocks, as it may be called during an interrupt."""
        self._chunks.put(None)

    def taken(self) -> Iterator[Chunk]:
        """Yield the chunks until the end."""
        for chunk in iter(self._chunks.get, None):
            self._places.release()
            yield chunk


@dataclass(frozen=True)
class ShardMaker:
    """Write shards.

    Attributes:
        read: returns a row's bytes.
        folder: folder of the shards.
        records: folder of their records.
        config: how pictures are stored.
        pool: threads to decode in.
        ahead: maximum number of chunks in flight.
    """

    read: ReadRow
    folder: Path
    records: Path
    config: PrepareConfig
    pool: Executor
    ahead: int

    def find(self, plan: ShardPlan, *, rereads_bad: bool = True) -> Finished | None:
        """Return the record of a shard that an earlier run finished, if the file is intact.

        Args:
            plan: the shard.
            rereads_bad: check whether its bad pictures are still bad, as the cause may have been
                a disk error or a missing permission.
        """
        finished = self.recorded(plan)
        if finished is None or (rereads_bad and not self._are_still_bad(plan, finished.bad)):
            return None
        if finished.info is None:
            return finished
        try:
            with (self.folder / plan.name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return None
        return finished if digest == finished.info.sha256 else None

    def recorded(self, plan: ShardPlan) -> Finished | None:
        """Return the record of a shard, if there is one and it matches the plan."""
        record = self._record(plan)
        if not record.exists():
            return None
        try:
            finished = Finished.from_json(read_json(record))
        except (KeyError, TypeError, ValueError):
            return None
        return finished if finished.key == plan.key else None

    def make(
        self,
        plans: Iterable[ShardPlan],
        *,
        on_row: Callable[[Bad | None], None],
        on_done: Callable[[Future[Finished]], None] | None = None,
    ) -> list[Finished]:
        """Decode the pictures of shards and write them; the record of each is written last.

        Pictures are decoded in the order of the plans without a pause between files, while other
        threads hash, write and sync the previous files. With an `Inline` pool this thread decodes
        and writes, and others only sync.

        Args:
            plans: the shards; each plan is taken when those before it have been decoded.
            on_row: called after each picture is decoded, with a Bad if it cannot be used.
            on_done: called with each file that is finished or has failed, in the thread that wrote
                it.
        """
        num_writers = max(_MIN_WRITERS, self.ahead // _AHEAD_PER_WRITER)
        num_chunks = self.ahead + (num_writers + 1) * _MAX_WAITING
        num_grouped = num_writers * MAX_GROUP_ROWS[self.config.encoding]
        squares = self._squares(num_chunks * _CHUNK + num_grouped)

        def prepare(rows: Sequence[Row]) -> Chunk:
            return self._prepare(rows, squares)

        to_decode, to_write = itertools.tee(plans)
        chunks = (chunk for plan in to_decode for chunk in _chunks(plan))
        ready = map_in_order(self.pool, prepare, chunks, ahead=self.ahead)
        files: deque[Future[Finished]] = deque()
        finished: list[Finished] = []
        # next to a single decoding thread, a writing thread costs more than it saves: both compete
        # for the interpreter's lock, and decoded pixels are written from another core's cache
        feed = self._fill if isinstance(self.pool, Inline) else self._feed
        with (
            ThreadPoolExecutor(num_writers, thread_name_prefix="write") as writers,
            contextlib.closing(ready),
        ):
            for plan in to_write:
                self._record(plan).unlink(missing_ok=True)
                some = itertools.islice(ready, len(_chunks(plan)))
                files.append(feed(writers, plan, some, on_row))
                if on_done is not None:
                    files[-1].add_done_callback(on_done)
                while len(files) > num_writers or (files and files[0].done()):
                    finished.append(files.popleft().result())
            finished += [file.result() for file in files]
        return finished

    def _fill(
        self,
        writers: Executor,
        plan: ShardPlan,
        ready: Iterator[Chunk],
        on_row: Callable[[Bad | None], None],
    ) -> Future[Finished]:
        """Write a file in this thread and sync it in another."""
        with self._open(plan) as file:
            for chunk in ready:
                file.add(chunk)
                _tell(chunk, on_row)
            file.seal()
        return writers.submit(file.finish)

    def _feed(
        self,
        writers: Executor,
        plan: ShardPlan,
        ready: Iterator[Chunk],
        on_row: Callable[[Bad | None], None],
    ) -> Future[Finished]:
        """Start writing a file in another thread and send it the decoded pictures."""
        chunks = _Chunks()
        try:
            file = writers.submit(self._write, plan, chunks)
            for chunk in ready:
                chunks.put(chunk)
                _tell(chunk, on_row)
        finally:
            chunks.end()
        return file

    def _write(self, plan: ShardPlan, chunks: _Chunks) -> Finished:
        """Write a file from a queue, and its record if it is complete."""
        taken = chunks.taken()
        try:
            with self._open(plan) as file:
                for chunk in taken:
                    file.add(chunk)
                file.seal()
            return file.finish()
        finally:
            for _ in taken:  # the sender must not block after a failure
                pass

    def _open(self, plan: ShardPlan) -> ShardFile:
        return ShardFile(plan, folder=self.folder, record=self._record(plan), config=self.config)

    def _are_still_bad(self, plan: ShardPlan, bad: tuple[Bad, ...]) -> bool:
        rows = {row.path: row for row in plan.rows}
        squares = self._squares(1)
        return all(self._prepare([rows[item.path]], squares) == [item] for item in bad)

    def _squares(self, capacity: int) -> Buffers:
        shape = (self.config.size, self.config.size, 3)
        return Buffers(shape, capacity=capacity, is_pinned=False)

    def _record(self, plan: ShardPlan) -> Path:
        return self.records / f"{plan.name}.json"

    def _prepare(self, rows: Sequence[Row], squares: Buffers) -> Chunk:
        return ready_pictures(rows, self.read, config=self.config, squares=squares)


def _tell(chunk: Chunk, on_row: Callable[[Bad | None], None]) -> None:
    for item in chunk:
        on_row(item if isinstance(item, Bad) else None)


def _chunks(plan: ShardPlan) -> list[Sequence[Row]]:
    num_rows = len(plan.rows)
    fitting = _CHUNK_BYTES * num_rows // max(1, plan.forecast_bytes)
    step = max(1, min(_CHUNK, fitting))
    return [plan.rows[start : start + step] for start in range(0, num_rows, step)]
