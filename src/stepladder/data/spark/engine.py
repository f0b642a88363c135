"""Prepare on Spark: executors run the two passes as tasks and write the files."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.engine import Engine
from stepladder.data.prepare.hashing import Hashed, read_hashes, save_hashes
from stepladder.data.prepare.plan import Plan, ShardPlan, check_space
from stepladder.data.prepare.quarantine import Bad
from stepladder.data.prepare.shard_work import Finished, ShardMaker
from stepladder.data.prepare.work_folder import WorkFolder
from stepladder.data.reading.threads import Inline
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import HashedListing, Workers
from stepladder.data.spark.jobs import collect
from stepladder.data.spark.row_tasks import (
    END_OF_FILE,
    MADE,
    ROUTED,
    ROUTING,
    FileTasks,
    RowTasks,
    write_routing,
)
from stepladder.data.spark.session import quiet_pandas, require_spark, spark_session
from stepladder.data.spark.shard_tasks import (
    ATTEMPTS,
    HASHED,
    TO_HASH,
    TO_MAKE,
    ShardTasks,
    read_listed,
    shard_maker,
    task_file,
    unread,
    write_listed,
    write_shard_plan,
)
from stepladder.data.spark.site import Site, open_site, raise_told, require_shared, run_told
from stepladder.data.spark.slots import num_slots
from stepladder.errors import ResourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
else:
    SparkSession = DataFrame = Any

_TASKS_PER_SLOT = 4  # so that the last tasks are short
_MAX_CHUNK = 2048


class Arrivals:
    """Reports the shards of a plan when their records appear in the shared folder.

    Args:
        pending: the shards.
        records: reads the records.
        folder: folder of the records.
        on_row: called for each picture of a shard, with the reason if it is unusable.
    """

    def __init__(
        self,
        pending: Sequence[ShardPlan],
        records: ShardMaker,
        folder: Path,
        on_row: Callable[[Bad | None], None],
    ) -> None:
        self._pending = pending
        self._waiting = {f"{shard.name}.json": shard for shard in pending}
        self._records, self._folder, self._on_row = records, folder, on_row

    def look(self) -> None:
        """Report the shards that were finished since the last call."""
        with os.scandir(self._folder) as entries:
            new = [entry.name for entry in entries if entry.name in self._waiting]
        for name in new:
            done = self._records.recorded(self._waiting[name])
            if done is None:
                continue
            del self._waiting[name]
            for _ in done.labels:
                self._on_row(None)
            for bad in done.bad:
                self._on_row(bad)

    def finished(self) -> dict[str, Finished]:
        """Return the records of all shards by name, after all tasks have ended.

        All records are read again: Spark may have run a task twice, which replaces the record.

        Raises:
            ResourceError: if records are missing.
        """
        self.look()
        found = {shard.name: self._records.recorded(shard) for shard in self._pending}
        done = {name: one for name, one in found.items() if one is not None}
        missing = sorted(found.keys() - done.keys())
        if missing:
            raise ResourceError(
                f"{len(missing)} files that Spark's executors wrote to this folder cannot be seen "
                f"on the machine of the driver, such as {missing[0]}",
                where=str(self._folder),
                why="Shared storage may take a while to show new files to other machines.",
                fix="Run the same command again in a minute.",
            )
        return done


class SparkEngine(Engine):
    """Runs prepare as Spark tasks, with a folder that driver and executors share.

    Each task writes one file of the store, so that Spark can retry it on another executor, and an
    interrupted prepare resumes from the finished files.
    """

    def __init__(self, config: PrepareConfig) -> None:
        require_spark()
        self.config = config
        self._spark: SparkSession | None = None
        self._site: Site | None = None

    @property
    def spark(self) -> SparkSession:
        """The Spark session."""
        assert self._spark is not None, "called outside working()"
        return self._spark

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Keep a Spark session open during the block."""
        with spark_session() as self._spark:
            yield

    def open_site(self, work: WorkFolder, *, example: Path | None = None) -> Site:
        """Open the work folder, and check that executors can access it and the example."""
        site = open_site(work.root, cleared=(TO_HASH, TO_MAKE, ATTEMPTS))
        require_shared(self.spark, site, example=example)
        self._site = site
        return site

    @abstractmethod
    def tasks(self, site: Site) -> ShardTasks:
        """Return the tasks."""

    @abstractmethod
    def write(
        self, tasks: ShardTasks, pending: Sequence[ShardPlan], *, on_poll: Callable[[], None]
    ) -> None:
        """Write shards whose plans are in numbered files."""

    def make(
        self,
        plan: Plan,
        work: WorkFolder,
        *,
        on_found: Callable[[Finished], None],
        on_row: Callable[[Bad | None], None],
    ) -> list[Finished]:
        """Write the unfinished shards on executors, and report each finished file."""
        assert self._site is not None, "called before hash()"
        tasks = self.tasks(self._site)
        records = shard_maker(tasks.site, self.config, read=unread, workers=Workers(Inline(), 1))
        done = self._find(plan, tasks, records)
        pending = [shard for shard in plan.shards if shard.name not in done]
        check_space(pending, work.root)
        for shard in plan.shards:
            if shard.name in done:
                on_found(done[shard.name])
        pending.sort(key=lambda shard: -shard.forecast_bytes)  # long ones first
        for task, shard in enumerate(pending):
            (work.records / f"{shard.name}.json").unlink(missing_ok=True)
            write_shard_plan(task_file(tasks.site, TO_MAKE, task), shard)
        arrivals = Arrivals(pending, records, work.records, on_row)
        slots = num_slots(self.spark)
        threads = max(1, slots // max(1, len(pending)))  # with few files, several threads per file
        self.write(replace(tasks, threads=threads), pending, on_poll=arrivals.look)
        done |= arrivals.finished()
        return [done[shard.name] for shard in plan.shards]

    def _find(self, plan: Plan, tasks: ShardTasks, records: ShardMaker) -> dict[str, Finished]:
        """Return the shards that an earlier run finished, checked by executors."""
        candidates = {shard.name: records.recorded(shard) for shard in plan.shards}
        there = [shard for shard in plan.shards if candidates[shard.name] is not None]
        for task, shard in enumerate(there):
            write_shard_plan(task_file(tasks.site, TO_MAKE, task), shard)
        answers = run_told(self.spark, tasks.site, len(there), tasks.find)
        sound = {name for name in answers.values() if name is not None}
        return {
            name: done for name, done in candidates.items() if done is not None and name in sound
        }


class FilesOnSpark(SparkEngine):
    """Pictures in files that driver and executors see at the same path.

    Tasks receive names and open the files themselves: no picture is sent through Spark.

    Args:
        config: options of prepare.
        listing: the pictures.
    """

    def __init__(self, config: PrepareConfig, listing: Listing) -> None:
        super().__init__(config)
        self._listing = listing

    def tasks(self, site: Site) -> ShardTasks:
        """Return tasks that know the folder of the files."""
        return ShardTasks(site=site, config=self.config, source=self._listing.root)

    def hash(
        self, work: WorkFolder, *, earlier: Path, on_done: Callable[[int, int], None]
    ) -> HashedListing:
        """Hash the files in chunks; chunks of an earlier run are only checked for changes."""
        pictures = self._listing.pictures
        example = Path(self._listing.file(pictures[0]))
        known = self._known(work, earlier)
        site = self.open_site(work, example=example)
        (work.root / HASHED).mkdir(exist_ok=True)
        num_wanted = _TASKS_PER_SLOT * max(1, num_slots(self.spark))
        size = min(_MAX_CHUNK, -(-len(pictures) // num_wanted))
        starts = range(0, len(pictures), size)
        for task, start in enumerate(starts):
            names = [picture.path for picture in pictures[start : start + size]]
            listed = [(name, known.get(name)) for name in names]
            write_listed(task_file(site, TO_HASH, task), listed)
        folder = work.root / HASHED

        def look() -> None:
            num_done = sum(1 for path in folder.iterdir() if not path.name.startswith("."))
            on_done(min(num_done * size, len(pictures)), len(pictures))

        run_told(self.spark, site, len(starts), self.tasks(site).hash, on_poll=look)
        hashes: list[Hashed] = []
        for task in range(len(starts)):
            found = read_listed(task_file(site, HASHED, task))
            hashes += [hashed for _, hashed in found if hashed is not None]
        save_hashes(work.hashes, zip(pictures, hashes, strict=True))
        return HashedListing(self._listing, hashes)

    def write(
        self, tasks: ShardTasks, pending: Sequence[ShardPlan], *, on_poll: Callable[[], None]
    ) -> None:
        """Write the shards; each task reads the files of one shard."""
        run_told(self.spark, tasks.site, len(pending), tasks.make, on_poll=on_poll)

    def _known(self, work: WorkFolder, earlier: Path) -> dict[str, Hashed]:
        """Return the hashes of earlier runs, and merge the chunks of an interrupted one."""
        known = read_hashes(earlier, work.hashes)
        chunks = sorted((work.root / HASHED).glob("*.json"))
        for chunk in chunks:
            known.update(
                (name, hashed)
                for name, hashed in read_listed(chunk)
                if hashed is not None and hashed.reason is None
            )
        pictures = self._listing.pictures
        save_hashes(work.hashes, ((p, known[p.path]) for p in pictures if p.path in known))
        for chunk in chunks:
            chunk.unlink()
        return known


_ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_NUM_ROWS = "32"  # about 100 kB each; Spark's default of 10,000 would be a gigabyte


class RowsOnSpark(SparkEngine):
    """Pictures whose bytes are sent through Spark, as tasks cannot open them individually."""

    @abstractmethod
    def rows(self, site: Site) -> tuple[RowTasks, DataFrame]:
        """Return a DataFrame of pictures or containers, and the tasks that read its rows."""

    def tasks(self, site: Site) -> ShardTasks:
        """Return tasks that receive bytes from Spark."""
        return ShardTasks(site=site, config=self.config, source=None)

    def write(
        self, tasks: ShardTasks, pending: Sequence[ShardPlan], *, on_poll: Callable[[], None]
    ) -> None:
        """Send each picture to the task that writes its file, in the order of the file."""
        if not pending:
            return
        site = tasks.site
        wanted = ((row.sha256, at) for at, shard in enumerate(pending) for row in shard.rows)
        write_routing(site.root / ROUTING, wanted)
        told, frame = self.rows(site)
        files = FileTasks(site=site, config=self.config)

        def look() -> None:
            raise_told(site)
            on_poll()

        with small_batches(self.spark):
            made = (
                frame.mapInArrow(told.route, ROUTED)
                .union(_ends(self.spark, len(pending)))
                .repartition(len(pending), "shard")
                .sortWithinPartitions("shard", "sha256")
                .mapInArrow(files.make, MADE)
            )
            collect(self.spark, made, on_poll=look)


@contextlib.contextmanager
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Set a small Arrow batch size for pictures during the block."""
    before = spark.conf.get(_ROWS_PER_BATCH)
    spark.conf.set(_ROWS_PER_BATCH, _NUM_ROWS)
    try:
        with quiet_pandas():
            yield
    finally:
        if before is not None:
            spark.conf.set(_ROWS_PER_BATCH, before)


def _ends(spark: SparkSession, num_files: int) -> DataFrame:
    """Return an end marker for each file, so that a task can detect missing rows."""
    sha256 = f"X'{END_OF_FILE.hex()}'"
    columns = ("CAST(id AS INT) shard", f"{sha256} sha256", "CAST('' AS BINARY) picture")
    return spark.range(0, num_files, 1, 1).selectExpr(*columns)
