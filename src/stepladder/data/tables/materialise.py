"""Write a Spark DataFrame as Parquet files atomically, and reuse files written before.

A cache entry is `CACHE/KEY/`: the files that Spark wrote, its `_SUCCESS`, and `converter.json`,
which is written last, before the folder is renamed to its final name. If folders cannot be renamed,
or an existing entry is damaged and in use, the entry is `CACHE/KEY.NUMBER/`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.data.tables.cache_users import MANIFEST, Hold, is_written, leave_mark
from stepladder.data.tables.disk_space import Room, find_room, remove_written
from stepladder.data.tables.spark_plan import Plan, content_of, key_of, plan_of, row_bytes
from stepladder.errors import DataError
from stepladder.machine.filesystem import find_abilities
from stepladder.records import read_json, write_json
from stepladder.records.files import fsync_dir

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

_NUM_SAMPLED = 64
_GLOB = re.compile(r"[\\*?\[\]{}]")  # characters with a special meaning in Spark paths
_MICROSECONDS = "timestamp_ntz'1970-01-01 00:00:00' + unix_micros({}) * interval '0.000001' second"
_made: dict[Path, tuple[DataFrame, Plan, Mapping[str, Any]]] = {}  # in this session, by folder


@dataclass(frozen=True, kw_only=True)
class Written:
    """A materialised DataFrame.

    Attributes:
        folder: folder of the files.
        num_rows: number of rows.
        num_bytes: size of the files.
        vectors: columns of lists that all have the same length.
    """

    folder: Path
    num_rows: int
    num_bytes: int
    vectors: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a DataFrame is written.

    Attributes:
        dtype: type of the floating-point columns, float32 or float64; None: unchanged.
        compression: compression codec, by its name in Spark.
        block_bytes: size of a row group.
    """

    dtype: str | None
    compression: str
    block_bytes: int


def materialise(
    frame: DataFrame, cache: Path, form: Form, *, max_bytes: int | None
) -> tuple[Written, Hold]:
    """Write a DataFrame, or reuse files written from the same one, and hold a reference to them.

    Raises:
        ResourceError: if there is not enough disk space.
        DataError: if the files that Spark wrote are not visible to this process.
    """
    plan = plan_of(frame)
    options = asdict(form)
    key, content_bytes = _key(frame, plan, options, cache)
    while True:
        found = _find(cache, key)
        if found is None:
            room = find_room(cache, max_bytes)
            room.require(_sampled_bytes(frame) if content_bytes is None else content_bytes)
            found = _write(frame, cache / key, form, room)
        try:
            hold = Hold(found.folder)
        except FileNotFoundError:  # removed in the meantime by its last holder
            continue
        _made[found.folder] = (frame, plan, options)
        if not plan.is_known:  # it cannot be found again
            atexit.register(hold.release, is_removed=True)
        return found, hold


def _key(
    frame: DataFrame, plan: Plan, options: Mapping[str, Any], cache: Path
) -> tuple[str, int | None]:
    """Return the folder name: a hash of plan and files, a hash of the rows, or a unique name.

    Returns:
        The key, and the estimated size of the rows if they were computed.
    """
    if plan.is_known and plan.is_of_files:
        return key_of("plan", plan.text, plan.files, options), None
    for folder in [folder for folder in _made if not is_written(folder)]:
        del _made[folder]  # removed in the meantime
    for folder, (other, its_plan, its_options) in _made.items():
        is_same = its_options == options and its_plan.files == plan.files and plan.is_fixed
        is_same = is_same and folder.parent == cache and frame.sparkSession is other.sparkSession
        if is_same and frame.sameSemantics(other):
            return folder.name, None
    if plan.is_known:
        content, num_bytes = content_of(frame)
        return key_of("content", frame.schema.jsonValue(), content, options), num_bytes
    return key_of("session", uuid.uuid4().hex), None


def _find(cache: Path, key: str) -> Written | None:
    """Find an entry by its key; entries that could not be renamed have a suffix."""
    places = [cache / key, *sorted(cache.glob(f"{key}.*"))]
    return next((found for place in places if (found := _read(place)) is not None), None)


def _read(folder: Path) -> Written | None:
    """Return a complete entry, or None; damaged entries are removed unless they are in use."""
    if not (folder / MANIFEST).is_file():
        return None
    found = _recorded(folder)
    if found is None:
        with contextlib.suppress(OSError):  # removed in the meantime, or no permission
            Hold(folder).release(is_removed=True)
    return found


def _recorded(folder: Path) -> Written | None:
    """Return an entry from its manifest; None if the manifest is damaged or files are missing."""
    try:
        known = read_json(folder / MANIFEST)
    except (DataError, OSError, RecursionError):
        return None
    if not isinstance(known, dict) or not is_written(folder):
        return None
    files, num_rows, vectors = (known.get(name) for name in ("files", "num_rows", "vectors"))
    if not isinstance(files, dict) or not isinstance(num_rows, int):
        return None
    if not isinstance(vectors, list) or not all(isinstance(name, str) for name in vectors):
        return None
    if not all(_has_size(folder / name, num_bytes) for name, num_bytes in files.items()):
        return None
    num_bytes = sum(files.values())
    return Written(folder=folder, num_rows=num_rows, num_bytes=num_bytes, vectors=tuple(vectors))


def _has_size(file: Path, num_bytes: Any) -> bool:
    return file.is_file() and file.stat().st_size == num_bytes


def _sampled_bytes(frame: DataFrame) -> int:
    """Estimate the size of all rows from their number and the mean size of the first rows.

    A sample from all partitions would have to compute all rows before it. A wrong estimate is
    detected while the rows are written.
    """
    from pyspark.sql import functions as fn

    mean = frame.limit(_NUM_SAMPLED).select(fn.avg(row_bytes(frame)).alias("mean")).first()
    return int(frame.count() * (mean["mean"] or 0)) if mean is not None else 0


def _write(frame: DataFrame, folder: Path, form: Form, room: Room) -> Written:
    """Write to a hidden folder and rename it when it is complete.

    If folders cannot be renamed, the folder has a unique name from the start; the manifest, which
    is written last, marks it as complete.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    abilities = find_abilities(folder.parent)
    is_renamed = abilities is None or abilities.has_folder_rename
    partial, mark = folder.with_name(f".{folder.name}.{os.getpid()}.tmp"), None
    if is_renamed:
        shutil.rmtree(partial, ignore_errors=True)
    else:
        partial = folder = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}")
        partial.mkdir()
        mark = leave_mark(partial)
    found = None
    try:
        writer = in_form(frame, form.dtype).write.option("compression", form.compression)
        writer.option("parquet.block.size", form.block_bytes).mode("append")
        with room.kept(frame, partial):
            writer.parquet(f"file://{partial}")
        if not (partial / "_SUCCESS").is_file():
            raise _not_seen(folder)
        found = _described(frame, partial)
        if mark is not None:
            mark.unlink(missing_ok=True)
        if is_renamed:
            found = _put(found, folder)
    finally:
        if found is None:
            remove_written(partial)
        elif is_renamed:
            shutil.rmtree(partial, ignore_errors=True)
    fsync_dir(folder.parent)
    return found


def _put(found: Written, folder: Path) -> Written:
    """Rename a finished folder; use a name with a suffix if the target is in use."""
    fsync_dir(found.folder)
    try:
        found.folder.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        sooner = _recorded(folder)  # written by another process
        if sooner is not None:
            return sooner
        folder = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}")
        found.folder.rename(folder)
    return replace(found, folder=folder)


def _not_seen(folder: Path) -> DataError:
    return DataError(
        "Spark wrote the DataFrame to files in this folder, but on this machine the folder has "
        "no such files",
        where=str(folder),
        why="Spark's executors wrote them to their own disks, because the folder is not shared.",
        fix="Set cache_dir to a folder that all machines share, such as file:///dbfs/... on "
        "Databricks.",
    )


def _described(frame: DataFrame, partial: Path) -> Written:
    """Write the manifest with the number of rows and the sizes of the files."""
    import pyarrow.parquet as pq

    files = sorted(path for path in partial.iterdir() if path.suffix == ".parquet")
    num_rows = sum(pq.read_metadata(path).num_rows for path in files)
    vectors = _vectors(frame, partial)
    sizes = {path.name: path.stat().st_size for path in files}
    write_json(partial / MANIFEST, {"num_rows": num_rows, "vectors": vectors, "files": sizes})
    num_bytes = sum(sizes.values())
    return Written(folder=partial, num_rows=num_rows, num_bytes=num_bytes, vectors=tuple(vectors))


def _vectors(frame: DataFrame, partial: Path) -> list[str]:
    """Return the columns whose lists all have the same length, other than 0."""
    from pyspark.sql import functions as fn
    from pyspark.sql.types import ArrayType

    place = _GLOB.sub(r"\\\g<0>", str(partial))
    written = frame.sparkSession.read.parquet(f"file://{place}")
    names = [f.name for f in written.schema.fields if isinstance(f.dataType, ArrayType)]
    if not names:
        return []
    lists = [written[f"`{name}`"] for name in names]
    # without this check the size of a null may be -1
    sizes = [fn.when(column.isNotNull(), fn.size(column)) for column in lists]
    bounds = written.select(
        *(
            bound(size).alias(f"{bound.__name__}{i}")
            for i, size in enumerate(sizes)
            for bound in (fn.min, fn.max)
        )
    ).first()
    assert bounds is not None
    return [
        name
        for i, name in enumerate(names)
        if bounds[f"min{i}"] == bounds[f"max{i}"] and (bounds[f"min{i}"] or 0) > 0
    ]


def in_form(frame: DataFrame, dtype: str | None) -> DataFrame:
    """Convert ML vectors to arrays, floats to one type, and times to microseconds in UTC.

    By default Spark writes times as INT96.
    """
    columns = [_in_form(frame, field, dtype).alias(field.name) for field in frame.schema.fields]
    return frame.select(*columns)


def _in_form(frame: DataFrame, field: StructField, dtype: str | None) -> Column:
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT
    from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
    from pyspark.sql import functions as fn
    from pyspark.sql.types import ArrayType, DoubleType, FloatType, TimestampType

    name, kind = f"`{field.name}`", field.dataType
    column = frame[name]
    if isinstance(kind, (VectorUDT, OldVectorUDT)):
        return fn.when(column.isNotNull(), vector_to_array(column, dtype or "float64"))
    of_lists = isinstance(kind, ArrayType)
    cell = kind.elementType if isinstance(kind, ArrayType) else kind
    if isinstance(cell, TimestampType):
        counted = _MICROSECONDS.format("item" if of_lists else name)
        return fn.expr(f"transform({name}, item -> {counted})" if of_lists else counted)
    target = {"float32": FloatType(), "float64": DoubleType()}.get(dtype or "")
    if target is None or not isinstance(cell, (FloatType, DoubleType)):
        return column
    if isinstance(kind, ArrayType):
        return column.cast(ArrayType(target, kind.containsNull))
    return column.cast(target)
