"""Choose how Spark reads a source: executors open files, or Spark reads rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepladder.config.choices import SourceFormat
from stepladder.config.options import PrepareConfig
from stepladder.data.remote.places import object_place
from stepladder.data.sources.containers.opening import (
    find_format,
    kind_of_name,
    opener,
    refuse_store,
    require_delta,
)
from stepladder.data.sources.pictures import list_pictures
from stepladder.data.spark.containers import ContainersOnSpark
from stepladder.data.spark.engine import FilesOnSpark, SparkEngine
from stepladder.data.spark.frames import FrameOnSpark
from stepladder.data.spark.listing import is_url, spark_address
from stepladder.data.spark.session import require_spark
from stepladder.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
else:
    DataFrame = Any

_OF_FILES = {SourceFormat.FOLDER, SourceFormat.CSV}


def open_spark_engine(config: PrepareConfig, frame: DataFrame | None = None) -> SparkEngine:
    """Return the engine for a source, after validating it.

    Sources that the driver can access are listed on the driver as in the local engine, and
    executors open the files. Tables by name, and files at an address or a pattern, are listed and
    read by Spark.

    Args:
        config: options of prepare.
        frame: rows of pictures, used instead of the config's source.

    Raises:
        UsageError: if Spark is not installed, or the source is missing or ambiguous.
        DataError: if it contains no pictures.
        ResourceError: if Java is missing.
    """
    require_spark()
    if frame is not None:
        return FrameOnSpark(config, frame=frame)
    source, kind = config.source, config.source_format
    if kind is not SourceFormat.TABLE:
        refuse_store(source)
    if kind is SourceFormat.AUTO:
        found = kind_of_name(str(source)) if is_url(source) else find_format(source.expanduser())
        kind = found or SourceFormat.FOLDER
    require_delta(config, kind)
    if kind is SourceFormat.TABLE:
        return FrameOnSpark(config, table=str(source))
    is_of_spark = is_url(source) and object_place(source) is None
    if kind in _OF_FILES:
        address = spark_address(source)
        if address is not None:
            return FrameOnSpark(config, address=address)
        return FilesOnSpark(config, list_pictures(config))
    if is_of_spark:
        raise UsageError(
            f"Spark's executors, on other machines, cannot open {kind} at this address",
            where=str(spark_address(source)),
            fix="Use a folder that all machines mount, or s3://BUCKET/PREFIX, or pass a DataFrame: "
            "stepladder.prepare(spark.read.parquet(…), out=…).",
        )
    return ContainersOnSpark(config, opener(config, kind))
