"""Convert a Spark DataFrame to loaders: written once as Parquet, read by any number of shards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stepladder.config.choices import OrderMode
from stepladder.data.reading.arguments import require_at_least
from stepladder.data.reading.loader import Loader
from stepladder.data.remote.places import address_shown, is_address
from stepladder.data.spark.session import require_spark
from stepladder.data.tables.cache_users import Hold
from stepladder.data.tables.columns import Scalar
from stepladder.data.tables.materialise import Form, Written, materialise
from stepladder.data.tables.opening import open_chosen, open_table, shard_loader
from stepladder.data.tables.schema import Choices
from stepladder.data.tables.source import TableSource
from stepladder.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CODECS = ("snappy", "zstd", "lz4", "lz4_raw", "gzip", "uncompressed", "none")
_ODD = ("VariantType", "CalendarIntervalType", "GeometryType", "GeographyType")
BLOCK_BYTES = 16 << 20  # row group size: several fit in memory, and few requests are needed


class SparkConverter:
    """A materialised DataFrame, and loaders that read it.

    Used as a context manager, it removes the files at the end unless another converter uses them.

    Attributes:
        folder: folder of the files.
        num_bytes: size of the files.
    """

    def __init__(self, written: Written, hold: Hold | None = None) -> None:
        self.folder = written.folder
        self.num_bytes = written.num_bytes
        self._written = written
        self._hold = hold or Hold(written.folder)

    def __reduce__(self) -> tuple[type[SparkConverter], tuple[Written]]:
        return SparkConverter, (self._written,)  # for the training processes

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._written.num_rows

    def open(self, **options: Any) -> TableSource:
        """Open the files as a source that a Task's `data` can return; see `open_table`."""
        vectors = {*self._written.vectors, *options.pop("vectors", ())}
        columns = options.get("columns")
        if columns is not None:
            vectors &= {*columns, options.get("target")}
        return open_table(self.folder, vectors=vectors, **options)

    def open_chosen(self, choices: Choices) -> TableSource:
        """Open the files as a source with the options of another interface."""
        vectors = {*self._written.vectors, *choices.vectors}
        if choices.columns is not None:
            vectors &= {*choices.columns, choices.target}
        return open_chosen(self.folder, replace(choices, vectors=frozenset(vectors)))

    def loader(
        self,
        batch_size: int = 32,
        *,
        cur_shard: int = 0,
        shard_count: int = 1,
        num_epochs: int | None = None,
        seed: int = 42,
        shuffle: bool = True,
        threads: int = 0,
        columns: Sequence[str] | None = None,
        fill: Mapping[str, Scalar] | None = None,
        order: OrderMode | str = OrderMode.AUTO,
        window_rows: int = 0,
    ) -> Loader:
        """Return batches of one shard, as dictionaries of tensors.

        Args:
            batch_size: rows per batch on each shard.
            cur_shard, shard_count: index of this shard, from 0, and the number of shards.
            num_epochs: number of epochs; None: no limit.
            seed: seed of the shuffles; must be the same on all shards.
            shuffle: whether to shuffle again each epoch; False: file order.
            threads: number of reader threads; 0: one per core.
            columns, fill: see `open_table`.
            order, window_rows: see `Loader`.
        """
        return shard_loader(
            self.open(columns=columns, fill=fill),
            batch_size=batch_size,
            cur_shard=cur_shard,
            shard_count=shard_count,
            num_epochs=num_epochs,
            seed=seed,
            shuffle=shuffle,
            threads=threads,
            order=order,
            window_rows=window_rows,
        )

    def close(self) -> None:
        """Release the files without removing them."""
        self._hold.release(is_removed=False)

    def delete(self) -> None:
        """Remove the files, unless another converter still uses them."""
        self._hold.release(is_removed=True)

    def __enter__(self) -> SparkConverter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.delete()


def from_spark(
    frame: DataFrame,
    cache_dir: str | Path,
    *,
    dtype: str | None = "float32",
    compression: str = "snappy",
    block_bytes: int = BLOCK_BYTES,
    max_bytes: int | None = None,
) -> SparkConverter:
    """Write a Spark DataFrame as Parquet once, and return a converter with loaders for it.

    Files of the same DataFrame are reused: in any session, by its plan and the files that it reads;
    if it reads anything else, by a hash of its rows, which are computed for that; if it uses Python
    or Java code of yours, only in the same session. ML vectors become arrays.

    Args:
        frame: the DataFrame.
        cache_dir: folder that the driver, the executors and the trainers share; a path, or
            `file:///...`, such as `file:///dbfs/...`.
        dtype: type of floating-point columns and lists, float32 or float64; None: unchanged.
        compression: compression codec: snappy, zstd, lz4, gzip or uncompressed.
        block_bytes: size of a row group.
        max_bytes: maximum size of the files; None: the free space. The size is estimated before
            writing, from the number of rows and the first rows, and checked about once a second
            while Spark writes. Files that exceed it are removed.

    Raises:
        UsageError: if PySpark is missing, the folder is not a local path, or the DataFrame or an
            option is not supported.
        ResourceError: if there is not enough disk space.
    """
    require_spark()
    require_frame(frame)
    require_at_least(1, block_bytes=block_bytes)
    if max_bytes is not None:
        require_at_least(1, max_bytes=max_bytes)
    if dtype not in (None, "float32", "float64"):
        raise UsageError(
            f"{dtype!r} is not supported",
            where="dtype",
            fix="Use 'float32', 'float64' or None.",
        )
    codec = str(compression).lower()
    if codec not in _CODECS:
        raise UsageError(
            f"{compression!r} is not supported",
            where="compression",
            fix=f"Use one of: {', '.join(_CODECS)}.",
        )
    _require_columns(frame)
    _require_types(frame)
    form = Form(dtype=dtype, compression=codec, block_bytes=block_bytes)
    written, hold = materialise(frame, _folder(cache_dir), form, max_bytes=max_bytes)
    return SparkConverter(written, hold)


def require_frame(frame: Any) -> None:
    """Check that an object is a Spark DataFrame.

    Raises:
        UsageError: if it is not.
    """
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame):
        raise UsageError(
            f"{type(frame).__name__} is not a Spark DataFrame",
            why="Spark computes and writes the rows.",
            fix="Pass a DataFrame, such as spark.read.parquet(path). To open existing files, use "
            "stepladder.data.open_table(path).",
        )


def _require_columns(frame: DataFrame) -> None:
    """Check that the column names can be written to Parquet and used in Spark expressions."""
    is_by_case = frame.sparkSession.conf.get("spark.sql.caseSensitive", "false") == "true"
    names = [name if is_by_case else name.lower() for name in frame.columns]
    twice = [name for name, key in zip(frame.columns, names, strict=True) if names.count(key) > 1]
    odd = [name for name in frame.columns if "`" in name]
    if twice or odd or not names:
        faults = {
            "the DataFrame has no columns": not names,
            f"several columns have the same name: {', '.join(twice)}": twice,
            f"column names contain a backtick: {', '.join(odd)}": odd,
        }
        raise UsageError(
            next(said for said, is_so in faults.items() if is_so),
            where="DataFrame",
            fix="Rename the columns: df.select(..., df.x.alias('name')), or "
            "df.toDF('a', 'b', ...).",
        )


def _require_types(frame: DataFrame) -> None:
    """Check that the column types can be hashed, written and converted to tensors or lists."""
    for field in frame.schema.fields:
        odd = next((kind for kind in _types(field.dataType) if type(kind).__name__ in _ODD), None)
        if odd is not None:
            raise UsageError(
                f"column {field.name} has type {odd.simpleString()}, which cannot be converted to "
                "a tensor or a list",
                where="DataFrame",
                fix=f"Drop the column: df.drop('{field.name}'); or extract values, for a variant "
                f"with df.selectExpr(\"variant_get({field.name}, '$.name', 'double') AS name\").",
            )


def _types(kind: Any) -> Iterator[Any]:
    """Yield a Spark type and its nested types."""
    yield kind
    inner = [getattr(kind, name, None) for name in ("elementType", "keyType", "valueType")]
    inner += [field.dataType for field in getattr(kind, "fields", ())]
    for part in inner:
        if part is not None:
            yield from _types(part)


def _folder(cache_dir: str | Path) -> Path:
    """Return the local folder, which may not exist yet."""
    folder = local_folder(cache_dir)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise UsageError(
            "cache_dir is a file, not a folder",
            where=str(there),
            fix="Set cache_dir to a folder, which is created if it does not exist.",
        )
    return folder


def local_folder(cache_dir: str | Path) -> Path:
    """Return the local path of a folder; Databricks mounts `dbfs:/` at `/dbfs`.

    Raises:
        UsageError: if it is not on a local or mounted file system.
    """
    text = re.sub(r"^dbfs:/+", "/dbfs/", str(cache_dir))
    text = re.sub(r"^file:/+", "/", text)
    if is_address(text):
        raise UsageError(
            "cache_dir must be a folder that is mounted on every machine",
            where=address_shown(text),
            why="Batches are read directly from its files.",
            fix="Use a mounted folder, such as file:///dbfs/... on Databricks.",
        )
    return Path(text).absolute()
