"""Prepare on Spark from container files: one task reads each container."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.work_folder import WorkFolder
from stepladder.data.remote.places import object_place
from stepladder.data.sources.containers.contract import Container
from stepladder.data.sources.containers.pictures import ContainerRows, OpenSource, hash_items
from stepladder.data.sources.containers.spool import ContainerRecords, Kept, Spooled, without_data
from stepladder.data.sources.pictures import HashedListing
from stepladder.data.spark.engine import RowsOnSpark
from stepladder.data.spark.row_tasks import RowTasks
from stepladder.data.spark.site import Site, run_told

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    Batches = Iterator[pa.RecordBatch]
else:
    Batches = DataFrame = Any

_RECORDS = "containers"


class ContainersOnSpark(RowsOnSpark):
    """Pictures in container files that driver and executors open at the same path.

    The driver opens the source as the local engine does. A task reads a container twice: to hash
    its pictures and to send them to the writers. Hashes are kept, so that a prepare can resume.

    Args:
        config: options of prepare.
        open_source: opens the containers; called once without a work folder, so that errors in
            the source are raised before anything is written.
    """

    def __init__(self, config: PrepareConfig, open_source: OpenSource) -> None:
        super().__init__(config)
        self._open_source = open_source
        self._containers = open_source(None).containers

    def hash(
        self, work: WorkFolder, *, earlier: Path, on_done: Callable[[int, int], None]
    ) -> HashedListing:
        """Hash the containers that an earlier run did not record."""
        del earlier
        opened = self._open_source(work.root)
        self._containers = opened.containers
        is_far = object_place(self.config.source) is not None
        names = [container.name for container in opened.containers]  # none without rows
        example = opened.root / names[0] if names and not is_far else None
        site = self.open_site(work, example=example)
        records = ContainerRecords.open(work.root / _RECORDS, key=opened.key)
        records.forget_all_but([container.key for container in opened.containers])
        counter = _Counter(opened.containers, records, on_done)
        counter.look()
        pending = [one for one in opened.containers if records.read(one.key) is None]
        tasks = ContainerTasks(site=site, config=self.config, containers=pending)
        run_told(self.spark, site, len(pending), tasks.hash, on_poll=counter.look)
        rows = ContainerRows(self.config, opened)
        for container in opened.containers:
            kept = records.read(container.key)
            assert kept is not None, f"no task recorded {container.name}"
            rows.add(container, kept)
        counter.finish()
        return rows.listing()

    def rows(self, site: Site) -> tuple[RowTasks, DataFrame]:
        """Return a row for each container."""
        tasks = ContainerTasks(site=site, config=self.config, containers=self._containers)
        num = len(self._containers)
        return tasks, self.spark.range(0, num, 1, num)


@dataclass(frozen=True, kw_only=True)
class ContainerTasks(RowTasks):
    """Tasks that read containers.

    Attributes:
        containers: indexed by task and row number.
    """

    containers: list[Container]

    def hash(self, task: int) -> None:
        """Hash the pictures of a container and record them."""
        container = self.containers[task]
        rows: list[Spooled] = []
        for items in container.items():
            self.site.require_current()
            rows += (
                Spooled(without_data(item), b"" if item.reason else sha256, len(item.data))
                for item, sha256 in hash_items(self.config, items)
            )
        self.site.require_current()
        ContainerRecords(self.site.root / _RECORDS).write(
            container.key, Kept(rows, container.skipped)
        )

    def pictures(self, batches: Batches) -> Iterator[bytes]:
        """Yield the pictures of the containers with these numbers."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for items in self.containers[number].items():
                    yield from (item.data for item in items if item.reason is None)


class _Counter:
    """Reports how many pictures of the recorded containers were hashed."""

    def __init__(
        self,
        containers: list[Container],
        records: ContainerRecords,
        on_done: Callable[[int, int], None],
    ) -> None:
        self._pending = {container.key: container.num_rows or 0 for container in containers}
        self._total = sum(self._pending.values())
        self._records = records
        self._on_done = on_done
        self._done = 0

    def look(self) -> None:
        """Count new records."""
        there = {path.name for path in self._records.folder.iterdir()}
        for key in [key for key in self._pending if self._records.path(key).name in there]:
            num_rows = self._records.num_rows(key)
            if num_rows is not None:
                del self._pending[key]
                self._done += num_rows
        self._on_done(self._done, max(self._total, self._done + 1))

    def finish(self) -> None:
        """Report that all are done."""
        self._on_done(self._done, self._done)
