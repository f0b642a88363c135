"""Spark tasks on the files of a store: hash a chunk, check a shard, write a shard."""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.hashing import Hashed, hash_file
from stepladder.data.prepare.plan import Row, ShardPlan
from stepladder.data.prepare.shard_work import Finished, ShardMaker
from stepladder.data.prepare.work_folder import WorkFolder
from stepladder.data.reading.threads import Inline, one_torch_thread
from stepladder.data.sources.pictures import CHANGED, FileReader, ReadRow, Workers
from stepladder.data.spark.site import Site
from stepladder.data.store.index import index_path
from stepladder.machine.allocator import keep_freed_memory
from stepladder.machine.limits import num_cores
from stepladder.records import read_json

TO_HASH, HASHED, TO_MAKE, ATTEMPTS = "to_hash", "hashed", "to_make", "attempts"
_AHEAD_PER_THREAD = 4


def write_listed(path: Path, files: Iterable[tuple[str, Hashed | None]]) -> None:
    """Write file names, and their hashes from an earlier run."""
    rows = [[name, known and _hashed_to_json(known)] for name, known in files]
    _write(path, {"files": rows})


def read_listed(path: Path) -> list[tuple[str, Hashed | None]]:
    """Read what `write_listed` wrote."""
    return [(name, known and _hashed_from_json(known)) for name, known in read_json(path)["files"]]


def write_shard_plan(path: Path, plan: ShardPlan) -> None:
    """Write the list of pictures in a shard."""
    rows = [[row.path, row.label, _hashed_to_json(row.hashed)] for row in plan.rows]
    value = {"name": plan.name, "split": plan.split.value, "key": plan.key, "rows": rows}
    _write(path, {**value, "forecast_bytes": plan.forecast_bytes})


def read_shard_plan(path: Path) -> ShardPlan:
    """Read what `write_shard_plan` wrote."""
    value = read_json(path)
    rows = tuple(
        Row(name, label, _hashed_from_json(hashed)) for name, label, hashed in value["rows"]
    )
    return ShardPlan(
        name=value["name"],
        split=Split(value["split"]),
        rows=rows,
        key=value["key"],
        forecast_bytes=value["forecast_bytes"],
    )


def _hashed_to_json(hashed: Hashed) -> list[Any]:
    """Convert the hash of a file to JSON."""
    return [hashed.sha256.hex(), *hashed.stamp, hashed.changed_ns, hashed.reason]


def _hashed_from_json(value: Sequence[Any]) -> Hashed:
    """Convert the hash of a file from JSON."""
    digest, size, mtime, inode, changed_ns, reason = value
    return Hashed(bytes.fromhex(digest), (size, mtime, inode), reason, changed_ns)


def _write(path: Path, value: object) -> None:
    """Write a file atomically but without fsync: after a power loss it is written again."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(value), encoding="ascii")
    temporary.replace(path)


@dataclass(frozen=True, kw_only=True)
class ShardTasks:
    """The tasks of one prepare.

    Attributes:
        site: the shared folder.
        config: options of prepare.
        source: folder on the executors that rows' paths are relative to; None: their bytes come
            from Spark.
        threads: number of decoding threads per task.
    """

    site: Site
    config: PrepareConfig
    source: Path | None
    threads: int = 1

    def hash(self, task: int) -> None:
        """Hash the files of a chunk."""
        assert self.source is not None
        listed = read_listed(task_file(self.site, TO_HASH, task))
        hashed = [
            (name, hash_file(f"{self.source}/{name}", known, self.config.max_pixels))
            for name, known in listed
        ]
        self.site.require_current()
        write_listed(task_file(self.site, HASHED, task), hashed)

    def find(self, task: int) -> str | None:
        """Return the name of a shard if it is finished and its hash is correct."""
        plan = read_shard_plan(task_file(self.site, TO_MAKE, task))
        maker = shard_maker(
            self.site, self.config, read=self._reader(), workers=Workers(Inline(), 1)
        )
        with one_torch_thread():
            finished = maker.find(plan, rereads_bad=self.source is not None)
        if finished is None or any(bad.reason == CHANGED for bad in finished.bad):
            return None  # a missing file may reappear
        return plan.name

    def make(self, task: int) -> None:
        """Write a shard from files that this executor can open."""
        plan = read_shard_plan(task_file(self.site, TO_MAKE, task))
        with decoding(self.threads) as workers:
            make_shard(self.site, self.config, plan, read=self._reader(), workers=workers)

    def _reader(self) -> ReadRow:
        return FileReader(self.source, self.config.max_pixels) if self.source else unread


def task_file(site: Site, folder: str, task: int) -> Path:
    """Return the path of a task's file."""
    return site.root / folder / f"{task:06d}.json"


def shard_maker(
    site: Site,
    config: PrepareConfig,
    *,
    read: ReadRow,
    workers: Workers,
    attempt: Path | None = None,
) -> ShardMaker:
    """Return a shard maker that checks finished shards, or writes to an attempt's folder."""
    work = WorkFolder(site.root)
    return ShardMaker(
        read=read,
        folder=attempt or work.store,
        records=attempt or work.records,
        config=config,
        pool=workers.pool,
        ahead=workers.ahead,
    )


def make_shard(
    site: Site,
    config: PrepareConfig,
    plan: ShardPlan,
    *,
    read: ReadRow,
    workers: Workers,
    on_made: Callable[[], None] = lambda: None,
) -> Finished:
    """Write a shard to the folder of this attempt, then move it to its final path.

    An executor that Spark considers lost may still be writing the same shard: it cannot affect
    this attempt, and the file that it moves has the same bytes.

    Args:
        on_made: called before the shard is moved; if it raises, nothing is changed.
    """
    site.require_current()
    work = WorkFolder(site.root)
    attempt = site.folder(ATTEMPTS) / f"{plan.name}.{uuid.uuid4().hex}"
    attempt.mkdir()
    try:
        maker = shard_maker(site, config, read=read, workers=workers, attempt=attempt)
        [finished] = maker.make([plan], on_row=lambda _: None)
        on_made()
        if finished.info is not None:
            site.publish(index_path(attempt / plan.name), index_path(work.store / plan.name))
            site.publish(attempt / plan.name, work.store / plan.name)
        record = f"{plan.name}.json"
        site.publish(attempt / record, work.records / record)
    finally:
        shutil.rmtree(attempt, ignore_errors=True)
    return finished


@contextlib.contextmanager
def decoding(threads: int) -> Iterator[Workers]:
    """Yield threads for decoding; with one, the task's own thread is used."""
    keep_freed_memory()
    with one_torch_thread(), contextlib.ExitStack() as stack:
        num = min(threads, num_cores())
        if num == 1:
            yield Workers(Inline(), 1)
        else:
            pool = ThreadPoolExecutor(num, thread_name_prefix="prepare")
            yield Workers(stack.enter_context(pool), num * _AHEAD_PER_THREAD)


def unread(row: Row) -> bytes:
    """Raise an error: a placeholder for tasks that read no pictures."""
    raise AssertionError(f"{row.path} must not be read here")
