"""Prepare from sources that Spark reads: DataFrames, tables, files on HDFS or object stores."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.work_folder import WorkFolder
from stepladder.data.remote.places import object_place
from stepladder.data.sources.containers.batch_pictures import BatchPictures
from stepladder.data.sources.containers.columns import LABEL_NAMES, Columns, choose_columns
from stepladder.data.sources.containers.labels import checked_label
from stepladder.data.sources.containers.pictures import refuse_pixels
from stepladder.data.sources.folders.reading import folder_options
from stepladder.data.sources.pictures import HashedListing
from stepladder.data.sources.safe_arrow import first_line
from stepladder.data.sources.splits.split_names import split_of_cell
from stepladder.data.spark.engine import RowsOnSpark, small_batches
from stepladder.data.spark.frame_listing import empty_files, facts_of, list_facts
from stepladder.data.spark.jobs import collect, explain
from stepladder.data.spark.listing import FRAME, split_pattern
from stepladder.data.spark.row_tasks import RowTasks, handed
from stepladder.data.spark.session import is_of_spark
from stepladder.data.spark.site import Site, raise_told, telling
from stepladder.errors import ResourceError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    Batches = Iterator[pa.RecordBatch]
else:
    DataFrame = SparkSession = Batches = Any

_OF_OBJECTS = (
    "Set --source-format, such as parquet or webdataset, which executors open themselves. To read "
    "single picture files with Spark, use s3a:// instead of s3://."
)

FACTS = (
    "sha256 binary, size long, reason string, path string, label string, number long, "
    "split string, picture_group string"
)


@dataclass(frozen=True, kw_only=True)
class FrameTasks(RowTasks):
    """Tasks that read rows of a DataFrame.

    Attributes:
        columns: the columns that are read.
        has_labels: whether there is a label column; if not, the folders of paths are classes.
    """

    columns: Columns
    has_labels: bool

    def facts(self, batches: Batches) -> Batches:
        """Hash each picture, and yield the facts about its row that a plan needs."""
        with telling(self.site):
            yield from self._facts(handed(batches))

    def pictures(self, batches: Batches) -> Iterator[bytes]:
        """Yield the pictures of a DataFrame's rows."""
        for batch in batches:
            yield from (data for _, data, reason in self._read(batch) if reason is None)

    def _facts(self, batches: Batches) -> Batches:
        import pyarrow as pa

        for batch in batches:
            rows = [self._fact(batch, at, data, reason) for at, data, reason in self._read(batch)]
            names = [part.split()[0] for part in FACTS.split(", ")]
            kinds = [pa.binary(), pa.int64(), *[pa.string()] * 3, pa.int64(), *[pa.string()] * 2]
            columns = zip(*rows, strict=True) if rows else [[] for _ in names]
            arrays = [pa.array(list(c), kind) for c, kind in zip(columns, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names)

    def _fact(self, batch: pa.RecordBatch, at: int, data: bytes, reason: str | None) -> tuple:  # type: ignore[type-arg]
        columns = self.columns
        refuse_pixels(self.config, data, where=FRAME)
        path = _cell(batch, columns.path, at)
        where = "DataFrame" if path is None else f"DataFrame: {path}"
        label: str | int | None = None
        if self.has_labels:
            label = checked_label(batch.column(columns.label)[at].as_py(), columns.label, where)
        split = None
        if columns.split is not None:
            split = split_of_cell(_cell(batch, columns.split, at), where).value
        group = _cell(batch, columns.group, at)
        is_number = isinstance(label, int)
        return (
            b"" if reason else hashlib.sha256(data).digest(),
            len(data),
            reason,
            path,
            None if is_number else label,
            label if is_number else None,
            split,
            None if group is None else str(group),
        )

    def _read(self, batch: pa.RecordBatch) -> Iterator[tuple[int, bytes, str | None]]:
        pictures = BatchPictures(batch, self.columns, self.config)
        for at in range(batch.num_rows):
            yield at, *pictures.read(at, "DataFrame")


def _cell(batch: pa.RecordBatch, name: str | None, at: int) -> Any:
    return None if name is None else batch.column(name)[at].as_py()


class FrameOnSpark(RowsOnSpark):
    """Rows of pictures. Spark sends their bytes to the task that writes their file.

    Args:
        config: options of prepare.
        frame: the rows; None: read a table or an address.
        table: name of a table in Spark's catalogue.
        address: address, folder or pattern for Spark's `binaryFile`.
    """

    def __init__(
        self,
        config: PrepareConfig,
        *,
        frame: DataFrame | None = None,
        table: str | None = None,
        address: str | None = None,
    ) -> None:
        super().__init__(config)
        self._given, self._table, self._address = frame, table, address
        self._opened: _Frame | None = None

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Use the Spark session of the DataFrame during the block."""
        if self._given is None:
            with super().working():
                yield
            return
        self._spark = self._given.sparkSession
        yield

    def hash(
        self, work: WorkFolder, *, earlier: Path, on_done: Callable[[int, int], None]
    ) -> HashedListing:
        """Hash the rows' pictures; only hashes, names and labels are sent to the driver."""
        del earlier
        site = self.open_site(work)
        opened = self._open()
        tasks = opened.tasks(site, self.config)
        with small_batches(self.spark):
            facts = opened.frame.mapInArrow(tasks.facts, FACTS)
            table = collect(self.spark, facts, on_poll=lambda: raise_told(site))
        on_done(table.num_rows, table.num_rows)
        found = facts_of(row for batch in table.to_batches() for row in batch.to_pylist())
        if self._address is not None:
            found += empty_files(found, opened.frame.inputFiles(), self._address)
        return list_facts(
            found,
            source=self._address or self._table or FRAME,
            address=self._address,
            class_names=opened.columns.class_names,
            has_labels=opened.has_labels,
            has_group=opened.columns.group is not None,
            folders=folder_options(self.config),
        )

    def rows(self, site: Site) -> tuple[RowTasks, DataFrame]:
        """Return the DataFrame, and the tasks that read it."""
        opened = self._open()
        return opened.tasks(site, self.config), opened.frame

    def _open(self) -> _Frame:
        if self._opened is None:
            frame = self._given
            if frame is None:
                frame = self._files() if self._table is None else self._rows_of(self._table)
            self._opened = _Frame.open(frame, self.config)
        return self._opened

    def _rows_of(self, table: str) -> DataFrame:
        from pyspark.errors import AnalysisException, ParseException

        try:
            return self.spark.table(table)
        except (AnalysisException, ParseException) as error:
            raise UsageError(
                "Spark's catalog has no table of this name",
                where=table,
                why=first_line(error),
                fix="Write the full name, CATALOG.SCHEMA.TABLE, and configure the catalog in "
                "spark-defaults.conf.",
            ) from None

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
                "Spark finds no files at this address",
                where=self._address,
                why=first_line(error),
                fix="Use an address that executors can open, such as hdfs://host/photos.",
            ) from None
        except Exception as error:  # host unreachable, or unknown scheme
            if not is_of_spark(error):
                raise
            raise ResourceError(
                "Spark cannot access this address",
                where=self._address,
                why=explain(error).why,
                fix=_OF_OBJECTS
                if object_place(self._address)
                else "Check that the host is reachable and that Spark has the JAR for the scheme; "
                "for s3a: spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION.",
            ) from error


@dataclass(frozen=True)
class _Frame:
    """A DataFrame with only the columns that are read.

    Attributes:
        has_labels: whether there is a label column; if not, the folders of paths are classes.
    """

    frame: DataFrame
    columns: Columns
    has_labels: bool

    @classmethod
    def open(cls, frame: DataFrame, config: PrepareConfig) -> _Frame:
        """Choose the columns.

        Raises:
            UsageError: if a column is missing or ambiguous.
        """
        frame = _with_origin(frame, config)
        schema = _arrow_schema(frame)
        constants: dict[str, str] = {}
        has_labels = True
        is_of_files = config.path_column in schema.names
        if is_of_files and not {config.label_column, *LABEL_NAMES} & set(schema.names):
            constants[config.label_column] = ""
            has_labels = False
        columns = choose_columns(schema, config, constants=constants, where=FRAME)
        return cls(frame.select(*map(_quoted, columns.names)), columns, has_labels)

    def tasks(self, site: Site, config: PrepareConfig) -> FrameTasks:
        """Return the tasks that read the rows."""
        return FrameTasks(
            site=site, config=config, columns=self.columns, has_labels=self.has_labels
        )


def _with_origin(frame: DataFrame, config: PrepareConfig) -> DataFrame:
    """Add the path column of rows from Spark's image source."""
    from pyspark.sql.functions import col, regexp_replace, url_decode
    from pyspark.sql.types import StructType

    if config.path_column in frame.columns:
        return frame
    for field in frame.schema.fields:
        kind = field.dataType
        if isinstance(kind, StructType) and {"origin", "nChannels"} <= set(kind.names):
            origin = col(_quoted(field.name)).getField("origin")  # a URL
            path = url_decode(regexp_replace(origin, "[+]", "%2B"))
            return frame.withColumn(config.path_column, path)
    return frame


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    """Return the Arrow schema of all columns except user-defined types."""
    from pyspark.sql.types import UserDefinedType

    plain = [
        _quoted(field.name)
        for field in frame.schema.fields
        if not isinstance(field.dataType, UserDefinedType)
    ]
    return frame.select(*plain).limit(0).toArrow().schema


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
