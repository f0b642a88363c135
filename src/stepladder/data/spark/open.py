"""Choose how Spark gets at a source: files that executors open, or bytes that come by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepladder.config.choices import SourceFormat
from stepladder.config.options import PrepareConfig
from stepladder.data.containers.opening import find_format
from stepladder.data.sources import list_pictures
from stepladder.data.spark.engine import FilesOnSpark, SparkEngine
from stepladder.data.spark.frames import FrameOnSpark
from stepladder.data.spark.listing import is_url, spark_address
from stepladder.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
else:
    DataFrame = Any

_OF_FILES = {SourceFormat.AUTO, SourceFormat.FOLDER, SourceFormat.CSV}


def open_spark_engine(config: PrepareConfig, frame: DataFrame | None = None) -> SparkEngine:
    """Give the engine of a source, after a first look at it.

    A folder or a CSV that is seen here is listed here, by the rules of any other prepare, and
    executors open the files. Of an address or a pattern, Spark lists and reads the files.

    Args:
        config: what to make.
        frame: rows of pictures in place of the config's source.

    Raises:
        UsageError: if Spark is missing, or the source is missing or ambiguous.
        DataError: if it holds no pictures.
        ResourceError: if there is no Java.
    """
    if frame is not None:
        return FrameOnSpark(config, frame=frame)
    address = spark_address(config.source)
    kind = config.source_format
    if kind is SourceFormat.AUTO and not is_url(config.source):
        kind = find_format(config.source.expanduser())
    if kind not in _OF_FILES:
        raise UsageError(
            f"the Spark engine does not read {kind} by itself",
            where="prepare.engine",
            fix="Use --engine local, or read it by Spark and give the DataFrame: "
            "stepladder.prepare(spark.read.parquet(…), out=…).",
        )
    if address is not None:
        return FrameOnSpark(config, address=address)
    return FilesOnSpark(config, list_pictures(config))
