"""Identify a Spark DataFrame, so that files written from it can be reused.

The plan describes the computation but not its input: files are identified by size and time, rows in
memory have to be hashed, and the code of user functions cannot be compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_FORMAT = 2
_USER_CODE = re.compile(
    r"Python|UDF|UserDefined|Pandas|Arrow|MapElements|MapPartitions|MapGroups|AppendColumns"
    r"|TypedFilter|FlatMap|Transform|Invoke|ExternalObject|Aggregator"
)
_ID = re.compile(r"#-?\d+L?")
_SETTINGS = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.caseSensitive")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a DataFrame, known without computing it.

    Attributes:
        text: description of the computation, the same in every session.
        files: address, size and modification time of each input file.
        is_of_files: whether files are the only input.
        is_known: whether the text describes everything: no user code, nothing random.
        is_fixed: whether computing it again in this session would return the same rows.
    """

    text: str
    files: tuple[tuple[str, int, int], ...]
    is_of_files: bool
    is_known: bool
    is_fixed: bool


def plan_of(frame: DataFrame) -> Plan:
    """Return the plan of a DataFrame."""
    session = frame.sparkSession
    optimized = frame._jdf.queryExecution().optimizedPlan()
    tree = json.loads(optimized.toJSON())
    leaves = list(_leaves(optimized))
    kinds = [leaf.getClass().getSimpleName() for leaf in leaves]
    relations = [_file_relation(leaf) for leaf in leaves]
    has_files = [relation is not None for relation in relations]
    settings = [session.conf.get(name, None) for name in _SETTINGS]
    text = [_FORMAT, session.version, settings, frame.schema.jsonValue(), _renumbered(tree, {})]
    classes = set(_classes(tree))
    # the input of a subquery is not in the lists of leaves and files
    is_open = not any("Subquery" in name for name in classes)
    return Plan(
        text=json.dumps([text, _without_ids(optimized.toString()), relations], sort_keys=True),
        files=tuple(_identity(session, name) for name in sorted(frame.inputFiles())),
        is_of_files=is_open
        and all(is_file or kind == "Range" for is_file, kind in zip(has_files, kinds, strict=True)),
        is_known=bool(optimized.deterministic())
        and not any(_USER_CODE.search(name) for name in classes),
        is_fixed=is_open
        and all(
            is_file or _is_in_memory(kind, leaf)
            for is_file, kind, leaf in zip(has_files, kinds, leaves, strict=True)
        ),
    )


def content_of(frame: DataFrame) -> tuple[str, int]:
    """Compute a DataFrame to hash its rows, independent of their order.

    Returns:
        The hash, and the estimated size of the rows in bytes.
    """
    from pyspark.sql import functions as fn

    first, second = row_hash(frame, 0), row_hash(frame, _FORMAT)
    row = frame.select(
        fn.count(fn.lit(1)).alias("rows"),
        fn.sum(first.cast("decimal(38,0)")).alias("sum"),
        fn.bit_xor(second).alias("xor"),
        fn.sum(row_bytes(frame)).alias("bytes"),
    ).first()
    assert row is not None
    return f"{row['rows']} {row['sum']} {row['xor']}", int(row["bytes"] or 0)


def row_hash(frame: DataFrame, seed: int) -> Any:
    """Return a column of the hashes of the rows."""
    from pyspark.sql import functions as fn

    fields = frame.schema.fields
    parts = [_hash(frame[f"`{field.name}`"], field.dataType, seed) for field in fields]
    return fn.xxhash64(fn.lit(seed), *parts)


def _hash(value: Any, kind: DataType, seed: int) -> Any:
    """Return a column of the hashes of a column.

    Spark's hash ignores nulls and list boundaries: (null, 5) would equal (5, null), and
    ([1, 2], [3]) would equal ([1], [2, 3]).
    """
    from pyspark.sql import functions as fn
    from pyspark.sql.types import ArrayType, MapType, StructType

    parts = [value]
    if isinstance(kind, ArrayType):
        element = kind.elementType
        parts = [fn.size(value), fn.transform(value, lambda item: _hash(item, element, seed))]
    elif isinstance(kind, MapType):
        keys = _hash(fn.map_keys(value), ArrayType(kind.keyType), seed)
        parts = [keys, _hash(fn.map_values(value), ArrayType(kind.valueType), seed)]
    elif isinstance(kind, StructType):
        parts = [_hash(value.getField(f.name), f.dataType, seed) for f in kind.fields]
    return fn.xxhash64(fn.lit(seed), fn.isnull(value), *parts)


def row_bytes(frame: DataFrame) -> Any:
    """Return a column of the estimated size of each row in bytes."""
    from pyspark.sql import functions as fn
    from pyspark.sql.types import ArrayType, BinaryType, StringType

    total = fn.lit(0).cast("long")
    for field in frame.schema.fields:
        column = frame[f"`{field.name}`"]
        if isinstance(field.dataType, (BinaryType, StringType)):
            size = fn.octet_length(column)
        elif isinstance(field.dataType, ArrayType):
            size = fn.size(column) * 8
        else:
            size = fn.lit(8)
        total = total + fn.coalesce(size.cast("long"), fn.lit(0))
    return total


def key_of(*parts: Any) -> str:
    """Hash JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _leaves(plan: Any) -> Iterator[Any]:
    found = plan.collectLeaves()
    return (found.apply(i) for i in range(found.size()))


def _file_relation(leaf: Any) -> list[str] | None:
    """Return how a leaf reads files; None if it reads none, or a table format may hide rows."""
    if leaf.getClass().getSimpleName() != "LogicalRelation":
        return None
    relation = leaf.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return None
    if relation.location().getClass().getSimpleName() != "InMemoryFileIndex":
        return None
    return [relation.fileFormat().getClass().getName(), relation.options().toString()]


def _is_in_memory(kind: str, leaf: Any) -> bool:
    if kind == "LogicalRDD":
        return "HadoopRDD" not in leaf.rdd().toDebugString()
    return kind in ("LocalRelation", "Range", "OneRowRelation")


def _renumbered(value: Any, ids: dict[tuple[Any, Any], int]) -> Any:
    """Renumber expressions by first appearance: Spark numbers them across a session."""
    if isinstance(value, list):
        return [_renumbered(item, ids) for item in value]
    if not isinstance(value, dict):
        return value
    if str(value.get("product-class", "")).endswith(".ExprId"):
        return ids.setdefault((value["id"], value["jvmId"]), len(ids))
    return {key: _renumbered(item, ids) for key, item in value.items()}


def _without_ids(text: str) -> str:
    seen: dict[str, int] = {}
    return _ID.sub(lambda found: f"#{seen.setdefault(found[0].rstrip('L'), len(seen))}", text)


def _classes(value: Any) -> Iterator[str]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict) and isinstance(value.get("class"), str):
        yield value["class"].rpartition(".")[2]
    for item in items:
        yield from _classes(item)


def _identity(session: Any, address: str) -> tuple[str, int, int]:
    """Return the address, size and modification time of a file on any file system."""
    parts = urlsplit(address)
    if parts.scheme in ("", "file"):
        status = os.stat(unquote(parts.path))  # noqa: PTH116 (a str, for speed)
        return address, status.st_size, status.st_mtime_ns
    java = session._jvm.org.apache.hadoop.fs.Path(session._jvm.java.net.URI(address))
    found = java.getFileSystem(session._jsc.hadoopConfiguration()).getFileStatus(java)
    return address, int(found.getLen()), int(found.getModificationTime())
