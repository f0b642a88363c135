"""Invalid DataFrames and cache options are reported; an epoch is complete with other shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepladder.compat.petastorm import make_spark_converter
from stepladder.data import from_spark
from stepladder.errors import UsageError

pytest.importorskip("pyspark")

from pyspark.sql import functions as fn


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compression": "bogus"}, "compression: 'bogus' is not supported.*\n.*snappy, zstd"),
        ({"block_bytes": 0}, "block_bytes is 0"),
        ({"max_bytes": "10"}, "max_bytes is '10', but must be an integer of at least 1"),
        ({"max_bytes": 0}, "max_bytes is 0"),
    ],
    ids=str,
)
def test_invalid_options_are_reported_before_anything_is_created(
    options: dict[str, Any], said: str, spark: Any, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        from_spark(spark.range(3), tmp_path / "cache", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("codec", ["SNAPPY", "lz4", "none"])
def test_every_compression_that_is_named_is_read_again(
    codec: str, spark: Any, tmp_path: Path
) -> None:
    [batch] = from_spark(spark.range(30), tmp_path, compression=codec).loader(30, num_epochs=1)
    assert sorted(batch["id"].tolist()) == list(range(30))


def test_columns_that_cannot_be_written_are_reported(spark: Any, tmp_path: Path) -> None:
    rows = spark.range(3)
    for names, said in (
        (["id", "id"], "several columns have the same name: id, id"),
        (["id", "ID"], "several columns have the same name: id, ID"),
        (["a`b"], "column names contain a backtick: a`b"),
        ([], "the DataFrame has no columns"),
    ):
        frame = rows.select(*(fn.col("id").alias(name) for name in names))
        with pytest.raises(UsageError, match=f"DataFrame: {said}"):
            from_spark(frame, tmp_path)
    odd = from_spark(rows.select(fn.col("id").alias("a b;.{}")), tmp_path)
    assert sorted(next(iter(odd.loader(3)))["a b;.{}"].tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("parse_json('{}')", "column v has type variant, .*\n.*df.drop.'v'.*variant_get.v"),
        ("array(parse_json('1'))", "column v has type variant"),
        ("named_struct('a', map('b', parse_json('1')))", "column v has type variant"),
        ("make_interval(1, 2)", "column v has type interval"),
    ],
)
def test_types_that_cannot_be_written_are_reported(
    sql: str, said: str, spark: Any, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"DataFrame: {said}"):
        from_spark(spark.sql(f"select {sql} as v"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_is_named_as_it_is_written(spark: Any, tmp_path: Path) -> None:
    name = "c[1]*x?{a,b}\\b"
    frame = spark.range(3).select("id", fn.array("id", "id").alias("pair"))
    with from_spark(frame, tmp_path / name) as converter:
        [batch] = converter.loader(3, num_epochs=1)
        assert list(batch) == ["id", "pair"]  # lists that were all of one length
        assert converter.folder.parent == tmp_path / name


def test_a_file_is_not_a_cache_and_no_dataframe(spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below"):
        with pytest.raises(UsageError, match=f"{file}: cache_dir is a file"):
            from_spark(spark.range(1), place)
    for make in (make_spark_converter, lambda frame: from_spark(frame, tmp_path)):
        with pytest.raises(UsageError, match=r"Path.* is not a Spark DataFrame\n.*\n.*open_table"):
            make(file)
    with pytest.raises(UsageError, match="str is not a Spark DataFrame"):
        from_spark(str(file), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'lzo' is not supported"):
        make_spark_converter(spark.range(1), str(tmp_path), compression_codec="lzo")


def test_an_epoch_is_resumed_by_other_shards(spark: Any, tmp_path: Path) -> None:
    """Of 103 rows, five shards take 20; the other 83 are one batch of six shards."""
    converter = from_spark(spark.range(103), tmp_path)

    def shards(batch_size: int, shard_count: int) -> list[Any]:
        return [
            converter.loader(batch_size, cur_shard=k, shard_count=shard_count, num_epochs=1)
            for k in range(shard_count)
        ]

    first = shards(4, 5)
    seen = [int(i) for loader in first for i in next(iter(loader))["id"]]
    later = shards(17, 6)
    for loader in later:
        loader.load_state_dict(first[0].state_dict())
    given = [[batch["id"].tolist() for batch in loader] for loader in later]
    assert [[len(batch) for batch in batches] for batches in given] == [[14]] * 5 + [[13]]
    seen += [i for batches in given for batch in batches for i in batch]
    assert sorted(seen) == list(range(103))
    with pytest.raises(UsageError, match="batch_size is 0"):
        converter.loader(0)
    with pytest.raises(UsageError, match="order: 'bogus' is not one of the possible values"):
        converter.loader(8, order="bogus")
