"""From a Spark DataFrame to loaders: written once as Parquet, and read by any number of shards."""

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
BLOCK_BYTES = 16 << 20  # of a row group: small enough for several in memory, large for few requests


class SparkConverter:
    """What was written of a DataFrame, and loaders that read it.

    As a context manager it removes the files at the end, unless another converter still uses them.

    Attributes:
        folder: that holds the files.
        num_bytes: that they take.
    """

    def __init__(self, written: Written, hold: Hold | None = None) -> None:
        self.folder = written.folder
        self.num_bytes = written.num_bytes
        self._written = written
        self._hold = hold or Hold(written.folder)

    def __reduce__(self) -> tuple[type[SparkConverter], tuple[Written]]:
        return SparkConverter, (self._written,)  # to the processes that train

    def __len__(self) -> int:
        """Count the rows."""
        return self._written.num_rows

    def open(self, **options: Any) -> TableSource:
        """Open the files as a source, such as a Task's `data` gives; see `open_table`."""
        vectors = {*self._written.vectors, *options.pop("vectors", ())}
        columns = options.get("columns")
        if columns is not None:
            vectors &= {*columns, options.get("target")}
        return open_table(self.folder, vectors=vectors, **options)

    def open_chosen(self, choices: Choices) -> TableSource:
        """Open the files as a source, for another interface than ours."""
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
            batch_size: rows of a batch on each shard.
            cur_shard, shard_count: which part this is, from 0, of how many.
            num_epochs: None: without end.
            seed: chooses the shuffles: the same on all shards.
            shuffle: in an order of its own each epoch; False: as stored.
            threads: that read; 0: one a core.
            columns, fill: as of `open_table`.
            order, window_rows: as of `Loader`.
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
        """Let go of the files and leave them for the next time."""
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
    """Write a Spark DataFrame as Parquet, once, and give loaders that read it.

    The same DataFrame is found again: by its plan and the files that it reads, in any session;
    where it reads other things, by a hash of its rows, which are computed for it; and where code of
    yours takes part, in the same session only. ML vectors become arrays.

    Args:
        frame: what is written.
        cache_dir: folder that the driver, the executors and the trainers share; a path, or
            `file:///...`, such as `file:///dbfs/...`.
        dtype: of floating-point columns and lists, float32 or float64; None: as they are.
        compression: of the pages: snappy, zstd, lz4, gzip or uncompressed.
        block_bytes: of a row group.
        max_bytes: that the files may take; None: what is free. About how large the rows are is
            compared with it before, by the first ones and how many there are; the files are while
            Spark writes them, about each second, and at the end. What is too large is removed.

    Raises:
        UsageError: if PySpark is missing, the folder is not one of this machine, or the DataFrame
            or an option cannot be written.
        ResourceError: if there is no room.
    """
    require_spark()
    require_frame(frame)
    require_at_least(1, block_bytes=block_bytes)
    if max_bytes is not None:
        require_at_least(1, max_bytes=max_bytes)
    if dtype not in (None, "float32", "float64"):
        raise UsageError(
            f"{dtype} is no type of floating-point columns",
            where="dtype",
            fix="Give 'float32', 'float64' or None.",
        )
    codec = str(compression).lower()
    if codec not in _CODECS:
        raise UsageError(
            f"{compression!r} is no compression of Parquet that Spark and its readers have",
            where="compression",
            fix=f"Give one of: {', '.join(_CODECS)}.",
        )
    _require_columns(frame)
    _require_types(frame)
    form = Form(dtype=dtype, compression=codec, block_bytes=block_bytes)
    written, hold = materialise(frame, _folder(cache_dir), form, max_bytes=max_bytes)
    return SparkConverter(written, hold)


def require_frame(frame: Any) -> None:
    """Refuse what is no Spark DataFrame, such as a path.

    Raises:
        UsageError: if it is none.
    """
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame):
        raise UsageError(
            f"{type(frame).__name__} is no Spark DataFrame",
            why="What is written is computed by Spark.",
            fix="Give a DataFrame, such as spark.read.parquet(path); files that are there already "
            "are opened by stepladder.data.open_table(path).",
        )


def _require_columns(frame: DataFrame) -> None:
    """Refuse columns that Parquet, or Spark's own names of columns, have no place for."""
    is_by_case = frame.sparkSession.conf.get("spark.sql.caseSensitive", "false") == "true"
    names = [name if is_by_case else name.lower() for name in frame.columns]
    twice = [name for name, key in zip(frame.columns, names, strict=True) if names.count(key) > 1]
    odd = [name for name in frame.columns if "`" in name]
    if twice or odd or not names:
        faults = {
            "there is no column": not names,
            f"several columns have one name: {', '.join(twice)}": twice,
            f"a backtick is in the name of a column: {', '.join(odd)}": odd,
        }
        raise UsageError(
            next(said for said, is_so in faults.items() if is_so),
            where="DataFrame",
            fix="Select the columns, each under a name of its own: df.select(..., "
            "df.x.alias('name')), or df.toDF('a', 'b', ...).",
        )


def _require_types(frame: DataFrame) -> None:
    """Refuse columns of types that Spark cannot hash or write, or whose cells are no values."""
    for field in frame.schema.fields:
        odd = next((kind for kind in _types(field.dataType) if type(kind).__name__ in _ODD), None)
        if odd is not None:
            raise UsageError(
                f"column {field.name} is of type {odd.simpleString()}, which cannot be a tensor or "
                "a list",
                where="DataFrame",
                fix=f"Leave it out: df.drop('{field.name}'); or take what is wanted out of it, as "
                f"by variant_get({field.name}, '$.name', 'double') of a variant.",
            )


def _types(kind: Any) -> Iterator[Any]:
    """Yield a type of Spark and those that it is made of."""
    yield kind
    inner = [getattr(kind, name, None) for name in ("elementType", "keyType", "valueType")]
    inner += [field.dataType for field in getattr(kind, "fields", ())]
    for part in inner:
        if part is not None:
            yield from _types(part)


def _folder(cache_dir: str | Path) -> Path:
    """Return the folder of this machine, which may be yet to be made."""
    folder = local_folder(cache_dir)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise UsageError(
            "this is a file, and no folder that could hold what is written",
            where=str(there),
            fix="Give another cache_dir.",
        )
    return folder


def local_folder(cache_dir: str | Path) -> Path:
    """Return the folder of this machine that is meant; Databricks mounts `dbfs:/` at `/dbfs`.

    Raises:
        UsageError: if it is on no file system of this machine.
    """
    text = re.sub(r"^dbfs:/+", "/dbfs/", str(cache_dir))
    text = re.sub(r"^file:/+", "/", text)
    if is_address(text):
        raise UsageError(
            "the cache is a folder that every machine sees as its own",
            where=address_shown(text),
            why="Batches are read from its files in place.",
            fix="Give a mounted folder, such as file:///dbfs/... on Databricks.",
        )
    return Path(text).absolute()
