"""Prepare where pictures go through Spark: each is sent to the task that writes its file."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stepladder.data.prepare.plan import ShardPlan
from stepladder.data.spark.engine import SparkEngine
from stepladder.data.spark.jobs import collect
from stepladder.data.spark.routing import write_routing
from stepladder.data.spark.row_tasks import (
    END_OF_FILE,
    MADE,
    ROUTED,
    ROUTING,
    FileTasks,
    RowTasks,
)
from stepladder.data.spark.session import quiet_pandas
from stepladder.data.spark.shard_tasks import ShardTasks
from stepladder.data.spark.site import Site, raise_told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
else:
    DataFrame = SparkSession = Any

_ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_NUM_ROWS = "32"  # of some 100 kB each; Spark's 10,000 would be a gigabyte


class RowsOnSpark(SparkEngine):
    """Pictures whose bytes go once through Spark, since no task can open one alone."""

    @abstractmethod
    def rows(self, site: Site) -> tuple[RowTasks, DataFrame]:
        """Give a frame whose rows stand for pictures, and the tasks that read them."""

    def tasks(self, site: Site) -> ShardTasks:
        """Tell tasks that bytes come by Spark."""
        return ShardTasks(site=site, config=self.config, source=None)

    def write(
        self, tasks: ShardTasks, pending: Sequence[ShardPlan], *, on_poll: Callable[[], None]
    ) -> None:
        """Send each picture to the task that writes its file, sorted as the file is."""
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
    """Let Spark hand over few pictures at a time, while the block runs."""
    before = spark.conf.get(_ROWS_PER_BATCH)
    spark.conf.set(_ROWS_PER_BATCH, _NUM_ROWS)
    try:
        with quiet_pandas():
            yield
    finally:
        if before is not None:
            spark.conf.set(_ROWS_PER_BATCH, before)


def _ends(spark: SparkSession, num_files: int) -> DataFrame:
    """Give the last row of each file, so that a task knows that it was given all of them."""
    sha256 = f"X'{END_OF_FILE.hex()}'"
    columns = ("CAST(id AS INT) shard", f"{sha256} sha256", "CAST('' AS BINARY) picture")
    return spark.range(0, num_files, 1, 1).selectExpr(*columns)
