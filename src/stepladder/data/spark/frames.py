"""Prepare from rows that only Spark can read: frames, tables, files on HDFS or object stores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.config.options import PrepareConfig
from stepladder.data.containers.columns import Columns, choose_columns
from stepladder.data.pictures import HashedListing
from stepladder.data.plan import ShardPlan
from stepladder.data.spark.engine import SparkEngine
from stepladder.data.spark.frame_listing import empty_files, facts_of, list_facts
from stepladder.data.spark.frame_tasks import (
    END_OF_FILE,
    FACTS,
    MADE,
    ROUTED,
    ROUTING,
    FrameTasks,
)
from stepladder.data.spark.jobs import collect, explain
from stepladder.data.spark.listing import FRAME, split_pattern
from stepladder.data.spark.routing import write_routing
from stepladder.data.spark.session import is_of_spark, quiet_pandas
from stepladder.data.spark.shard_tasks import ShardTasks
from stepladder.data.spark.site import Site, raise_told
from stepladder.data.work_folder import WorkFolder
from stepladder.errors import ResourceError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
else:
    DataFrame = SparkSession = Any

_LABELS = ("labels", "class", "class_name", "category", "target")  # as `choose_columns`
_ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_NUM_ROWS = "32"  # of some 100 kB each; Spark's 10,000 would be a gigabyte


class FrameOnSpark(SparkEngine):
    """Rows of pictures. Their bytes go once through Spark to the task that writes their file.

    Args:
        config: what to make.
        frame: the rows; None: files at an address.
        address: what Spark's `binaryFile` opens: an address, a folder or a pattern.
    """

    def __init__(
        self,
        config: PrepareConfig,
        *,
        frame: DataFrame | None = None,
        address: str | None = None,
    ) -> None:
        super().__init__(config)
        self._given, self._address = frame, address
        self._opened: _Frame | None = None

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Hold a session: that of the frame."""
        if self._given is None:
            with super().working():
                yield
            return
        self._spark = self._given.sparkSession
        yield

    def tasks(self, site: Site) -> ShardTasks:
        """Tell tasks that bytes come by Spark."""
        return ShardTasks(site=site, config=self.config, source=None)

    def hash(
        self, work: WorkFolder, *, earlier: Path, on_done: Callable[[int, int], None]
    ) -> HashedListing:
        """Hash the rows' pictures; only hashes, names and labels come here."""
        del earlier
        site = self.open_site(work)
        opened = self._open()
        tasks = opened.tasks(site, self.config)
        with quiet_pandas(), _small_batches(self.spark):
            facts = opened.frame.mapInArrow(tasks.facts, FACTS)
            table = collect(self.spark, facts, on_poll=lambda: raise_told(site))
        on_done(table.num_rows, table.num_rows)
        found = facts_of(row for batch in table.to_batches() for row in batch.to_pylist())
        if self._address is not None:
            found += empty_files(found, opened.frame.inputFiles(), self._address)
        return list_facts(
            found,
            source=self._address or FRAME,
            address=self._address,
            class_names=opened.columns.class_names,
            has_labels=opened.has_labels,
            has_group=opened.columns.group is not None,
        )

    def write(
        self, tasks: ShardTasks, pending: Sequence[ShardPlan], *, on_poll: Callable[[], None]
    ) -> None:
        """Send each picture to the task that writes its file, sorted as the file is."""
        if not pending:
            return
        site = tasks.site
        wanted = ((row.sha256, at) for at, shard in enumerate(pending) for row in shard.rows)
        write_routing(site.root / ROUTING, wanted)
        opened = self._open()
        told = opened.tasks(site, self.config)

        def look() -> None:
            raise_told(site)
            on_poll()

        with quiet_pandas(), _small_batches(self.spark):
            made = (
                opened.frame.mapInArrow(told.route, ROUTED)
                .union(_ends(self.spark, len(pending)))
                .repartition(len(pending), "shard")
                .sortWithinPartitions("shard", "sha256")
                .mapInArrow(told.make, MADE)
            )
            collect(self.spark, made, on_poll=look)

    def _open(self) -> _Frame:
        if self._opened is None:
            frame = self._given if self._given is not None else self._files()
            self._opened = _Frame.open(frame, self.config)
        return self._opened

    def _files(self) -> DataFrame:
        assert self._address is not None
        from pyspark.errors import AnalysisException

        folder, pattern = split_pattern(self._address)
        reader = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        if pattern is not None:
            reader = reader.option("pathGlobFilter", pattern)
        try:
            return reader.load(folder)
        except AnalysisException as error:
            raise UsageError(
                "Spark finds nothing there",
                where=self._address,
                why=str(error).partition("\n")[0][:200],
                fix="Give an address that executors can open, such as hdfs://host/photos.",
            ) from None
        except Exception as error:  # of a host that is away, or a scheme that Spark does not know
            if not is_of_spark(error):
                raise
            raise ResourceError(
                "Spark cannot look there",
                where=self._address,
                why=explain(error).why,
                fix="Look whether its host answers, and whether Spark has what the scheme needs: "
                "for s3a, spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION.",
            ) from error


@dataclass(frozen=True)
class _Frame:
    """A frame, cut to the columns that are read.

    Attributes:
        has_labels: whether there is a column of labels; else folders of paths are the classes.
    """

    frame: DataFrame
    columns: Columns
    has_labels: bool

    @classmethod
    def open(cls, frame: DataFrame, config: PrepareConfig) -> _Frame:
        """Choose the columns.

        Raises:
            UsageError: if a column is missing, or cannot be told.
        """
        frame = _with_origin(frame, config)
        schema = _arrow_schema(frame)
        constants: dict[str, str] = {}
        has_labels = True
        is_of_files = config.path_column in schema.names
        if is_of_files and not {config.label_column, *_LABELS} & set(schema.names):
            constants[config.label_column] = ""
            has_labels = False
        columns = choose_columns(schema, config, constants=constants, where=FRAME)
        return cls(frame.select(*map(_quoted, columns.names)), columns, has_labels)

    def tasks(self, site: Site, config: PrepareConfig) -> FrameTasks:
        """Give what tasks are told."""
        return FrameTasks(
            site=site, config=config, columns=self.columns, has_labels=self.has_labels
        )


def _with_origin(frame: DataFrame, config: PrepareConfig) -> DataFrame:
    """Give the rows of Spark's image source the path that they came from, as a column."""
    from pyspark.sql.functions import col, regexp_replace, url_decode
    from pyspark.sql.types import StructType

    if config.path_column in frame.columns:
        return frame
    for field in frame.schema.fields:
        kind = field.dataType
        if isinstance(kind, StructType) and {"origin", "nChannels"} <= set(kind.names):
            origin = col(_quoted(field.name)).getField("origin")  # as a URL
            path = url_decode(regexp_replace(origin, "[+]", "%2B"))
            return frame.withColumn(config.path_column, path)
    return frame


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    """Give the columns that Arrow can hold: all but types of users' own."""
    from pyspark.sql.types import UserDefinedType

    plain = [
        _quoted(field.name)
        for field in frame.schema.fields
        if not isinstance(field.dataType, UserDefinedType)
    ]
    return frame.select(*plain).limit(0).toArrow().schema


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@contextlib.contextmanager
def _small_batches(spark: SparkSession) -> Iterator[None]:
    """Let Spark hand over few pictures at a time, while the block runs."""
    before = spark.conf.get(_ROWS_PER_BATCH)
    spark.conf.set(_ROWS_PER_BATCH, _NUM_ROWS)
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(_ROWS_PER_BATCH, before)


def _ends(spark: SparkSession, num_files: int) -> DataFrame:
    """Give the last row of each file, so that a task knows that it was given all of them."""
    sha256 = f"X'{END_OF_FILE.hex()}'"
    columns = ("CAST(id AS INT) shard", f"{sha256} sha256", "CAST('' AS BINARY) picture")
    return spark.range(0, num_files, 1, 1).selectExpr(*columns)
