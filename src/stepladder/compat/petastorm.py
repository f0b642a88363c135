"""Drop-in replacement of Petastorm's Spark converter: change the import, keep the code.

    from stepladder.compat.petastorm import SparkDatasetConverter, make_spark_converter
    from stepladder.compat.petastorm import TransformSpec

Batches are shuffled over all rows, and all shards have the same number of batches. Options that
tune Petastorm's reader are accepted, but have no effect.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stepladder.compat.transform import TransformedSource, TransformSpec
from stepladder.data.reading.loader import Loader
from stepladder.data.spark.session import require_spark
from stepladder.data.tables.opening import open_chosen, shard_loader
from stepladder.data.tables.schema import Choices
from stepladder.data.tables.source import TableSource
from stepladder.data.tables.spark_converter import (
    SparkConverter,
    from_spark,
    local_folder,
    require_frame,
)
from stepladder.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SparkDatasetConverter", "TransformSpec", "make_spark_converter"]

_NULL_CURE = (
    "fill the nulls in the DataFrame, for example with df.fillna(0), or in the function of a "
    "TransformSpec; or leave the column out with schema_fields"
)
_SHUFFLES = ("shuffle_row_groups", "shuffle_rows")
_HONOURED = {"schema_fields", "seed", "shard_seed", *_SHUFFLES}
_CHOOSE_ROWS = {"predicate", "rowgroup_selector", "filters"}
_WITHOUT_EFFECT = {
    *("reader_pool_type", "results_queue_size", "shuffle_row_drop_partitions", "hdfs_driver"),
    *("cache_type", "cache_location", "cache_size_limit", "cache_row_size_estimate"),
    *("cache_extra_settings", "inmemory_cache_all", "storage_options", "filesystem"),
    *("zmq_copy_buffers", "convert_early_to_numpy", "pyarrow_serialize", "is_batched_reader"),
}


class SparkDatasetConverter:
    """A DataFrame saved as files; returned by `make_spark_converter`.

    Attributes:
        cache_dir_url: URL of the folder.
        file_urls: URLs of the files.
        dataset_size: number of rows.
    """

    PARENT_CACHE_DIR_URL_CONF: ClassVar[str] = "petastorm.spark.converter.parentCacheDirUrl"

    def __init__(self, converter: SparkConverter | _Folder) -> None:
        self._converter = converter
        self.cache_dir_url = converter.folder.as_uri()
        self.file_urls = [path.as_uri() for path in sorted(converter.folder.glob("*.parquet"))]
        self.dataset_size = len(converter)

    def __len__(self) -> int:
        return self.dataset_size

    @contextmanager
    def make_torch_dataloader(  # noqa: PLR0917  (the arguments are Petastorm's)
        self,
        batch_size: int = 32,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        cur_shard: int | None = None,
        shard_count: int | None = None,
        transform_spec: TransformSpec | None = None,
        shuffling_queue_capacity: int = 0,
        data_loader_fn: Any = None,
        **petastorm_reader_kwargs: Any,
    ) -> Iterator[Loader]:
        """Yield an iterable of dictionaries of tensors, for a `with` block.

        Args:
            batch_size: rows per batch on each shard.
            num_epochs: number of epochs; None: infinite.
            workers_count: number of reading threads; None: one per core.
            cur_shard, shard_count: index of this shard, from 0, and number of shards; both or
                neither.
            transform_spec: applied to each batch as a pandas DataFrame.
            shuffling_queue_capacity: above 0: shuffle; shuffle_row_groups, on by default, does too.
            data_loader_fn: has no effect.
            petastorm_reader_kwargs: schema_fields, seed and the shuffle options are used.
        """
        without_effect = {"data_loader_fn"} if data_loader_fn is not None else set()
        loader = self._loader(
            petastorm_reader_kwargs,
            without_effect,
            batch_size=batch_size,
            num_epochs=num_epochs,
            workers_count=workers_count,
            shard=(cur_shard, shard_count),
            transform_spec=transform_spec,
            capacity=shuffling_queue_capacity,
        )
        with closing(loader):
            yield loader

    @contextmanager
    def make_tf_dataset(
        self,
        batch_size: int | None = None,
        prefetch: int | None = None,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int | None = None,
        **petastorm_reader_kwargs: Any,
    ) -> Iterator[Any]:
        """Yield a tf.data.Dataset of named tuples, for a `with` block.

        Raises:
            UsageError: if TensorFlow is not installed, or a column name is not a valid identifier.
        """
        from stepladder.compat.tensorflow import dataset_of

        kwargs = dict(petastorm_reader_kwargs)
        loader = self._loader(
            kwargs,
            set(),
            batch_size=32 if batch_size is None else batch_size,
            num_epochs=num_epochs,
            workers_count=workers_count,
            shard=(kwargs.pop("cur_shard", None), kwargs.pop("shard_count", None)),
            transform_spec=kwargs.pop("transform_spec", None),
            capacity=shuffling_queue_capacity or 0,
        )
        with closing(loader), dataset_of(loader, prefetch=prefetch) as dataset:
            yield dataset

    def delete(self) -> None:
        """Remove the saved files, unless another converter still uses them."""
        if isinstance(self._converter, SparkConverter):
            self._converter.delete()

    def _loader(
        self,
        kwargs: Mapping[str, Any],
        without_effect: set[str],
        *,
        batch_size: int,
        num_epochs: int | None,
        workers_count: int | None,
        shard: tuple[int | None, int | None],
        transform_spec: TransformSpec | None,
        capacity: int,
    ) -> Loader:
        _look_at(kwargs, without_effect)
        cur_shard, shard_count = _shard(*shard)
        columns = self._columns(kwargs.get("schema_fields"))
        choices = Choices(
            columns=None if columns is None else tuple(columns),
            as_cells=transform_spec is not None,
            null_cure=_NULL_CURE,
        )
        table = self._converter.open_chosen(choices)
        source = table if transform_spec is None else TransformedSource(table, transform_spec)
        is_shuffled = capacity > 0 or kwargs.get("shuffle_row_groups", True)
        return shard_loader(
            source,
            batch_size=batch_size,
            cur_shard=cur_shard,
            shard_count=shard_count,
            num_epochs=num_epochs,
            seed=_seed(kwargs),
            shuffle=bool(is_shuffled or kwargs.get("shuffle_rows")),
            threads=workers_count or 0,
        )

    def _columns(self, schema_fields: Sequence[Any] | None) -> list[str] | None:
        """Return the columns that match Petastorm's schema_fields."""
        if schema_fields is None:
            return None
        names = self._converter.open_chosen(Choices(as_cells=True)).columns
        patterns = _patterns(schema_fields)
        found = [name for name in names if any(pattern.fullmatch(name) for pattern in patterns)]
        if not found:
            raise UsageError(
                "the table has no column that matches "
                f"{', '.join(pattern.pattern for pattern in patterns)}",
                where="schema_fields",
                fix=f"The columns are: {', '.join(names)}.",
            )
        return found


@dataclass(frozen=True)
class _Folder:
    """Existing files, which are not removed."""

    folder: Path

    def __len__(self) -> int:
        return len(self.open_chosen(Choices(as_cells=True)))

    def open_chosen(self, choices: Choices) -> TableSource:
        return open_chosen(self.folder, choices)


def make_spark_converter(
    df: DataFrame | str,
    parent_cache_dir_url: str | None = None,
    compression_codec: str | None = None,
    dtype: str | None = "float32",
) -> SparkDatasetConverter:
    """Save a DataFrame once; see `stepladder.data.from_spark`.

    Args:
        df: the DataFrame; or a folder of Parquet files, as `file:///...` or a path, which is read
            directly. Then the other arguments are ignored, and `delete` does not remove the folder.
        parent_cache_dir_url: folder to write to, as `file:///...` or a path; None: the one of the
            Spark setting `petastorm.spark.converter.parentCacheDirUrl`.
        compression_codec: compression of the pages; None: uncompressed.
        dtype: type of floating-point columns and lists, float32 or float64; None: unchanged.

    Raises:
        UsageError: if no folder is set.
        ResourceError: if there is not enough disk space.
        DataError: if the folder to read contains no Parquet files.
    """
    if isinstance(df, str):
        return SparkDatasetConverter(_Folder(local_folder(df)))
    require_spark()
    require_frame(df)
    name = SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF
    folder = parent_cache_dir_url or df.sparkSession.conf.get(name, None)
    if not folder:
        raise UsageError(
            "make_spark_converter writes the DataFrame to a cache folder, but none is set",
            where="make_spark_converter",
            fix=f"Type: spark.conf.set('{name}', 'file:///...')",
        )
    codec = compression_codec or "uncompressed"
    return SparkDatasetConverter(from_spark(df, folder, dtype=dtype, compression=codec))


def _look_at(kwargs: Mapping[str, Any], without_effect: set[str]) -> None:
    """Warn about arguments without effect; reject unknown ones and those that select rows."""
    names = {name for name, value in kwargs.items() if value is not None}
    if refused := sorted(names - _HONOURED - _WITHOUT_EFFECT):
        is_known = set(refused) <= _CHOOSE_ROWS
        raise UsageError(
            f"{', '.join(refused)} {'is not supported' if is_known else 'is unknown'}",
            where="petastorm_reader_kwargs",
            why="In Petastorm it selects rows; stepladder would read all rows."
            if is_known
            else None,
            fix="Filter the DataFrame before make_spark_converter."
            if is_known
            else "Check its spelling, or remove it.",
        )
    if ignored := sorted(without_effect | (names & _WITHOUT_EFFECT)):
        warnings.warn(
            "these arguments exist only for compatibility with Petastorm and have no effect: "
            f"{', '.join(ignored)}",
            UserWarning,
            stacklevel=5,
        )


def _shard(cur_shard: int | None, shard_count: int | None) -> tuple[int, int]:
    """Return the index of the shard and the number of shards; by default, one shard."""
    if cur_shard is None and shard_count is None:
        return 0, 1
    if cur_shard is None or shard_count is None:
        given, missing = ("cur_shard", "shard_count")[:: 1 if shard_count is None else -1]
        raise UsageError(
            f"{given} is set without {missing}",
            where="cur_shard, shard_count",
            why="All processes would read the same rows.",
            fix="Set both, such as cur_shard=rank and shard_count=world_size, or neither.",
        )
    return cur_shard, shard_count


def _seed(kwargs: Mapping[str, Any]) -> int:
    """Return the seed of the shuffles; Petastorm has a separate seed for shards."""
    named = (kwargs.get(name) for name in ("seed", "shard_seed"))
    return next((seed for seed in named if seed is not None), 42)


def _patterns(schema_fields: Sequence[Any]) -> list[re.Pattern[str]]:
    """Parse schema_fields: regular expressions, or fields with a name."""
    if isinstance(schema_fields, str):
        raise UsageError(
            f"{schema_fields!r} is not a list",
            where="schema_fields",
            fix=f"Type: schema_fields=[{schema_fields!r}]",
        )
    texts = [str(getattr(field, "name", field)) for field in schema_fields]
    try:
        return [re.compile(text) for text in texts]
    except re.error as error:
        raise UsageError(
            f"{error.pattern!r} is not a valid regular expression ({error})",
            where="schema_fields",
            fix="Use column names, or regular expressions that match them.",
        ) from None
