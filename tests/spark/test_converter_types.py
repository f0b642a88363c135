"""Times of any year and nulls survive the round trip from a DataFrame."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepladder.data import from_spark, open_table

pytest.importorskip("pyspark")

from pyspark.ml.linalg import Vectors

INT96 = "spark.sql.parquet.outputTimestampType"
ZONE = "spark.sql.session.timeZone"
YEARS = (1, 1582, 1677, 1970, 2026, 2262, 9999)
BEGIN = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def counted(time: dt.datetime) -> int:
    return (time - BEGIN) // dt.timedelta(microseconds=1)


@pytest.fixture
def times(spark: Any) -> Any:
    """A DataFrame with times of many years, scalar and in lists, in a time zone other than UTC."""
    before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, "America/New_York")
    counts = [counted(dt.datetime(year, 12, 31, 1, 2, 3, 4, dt.UTC)) for year in YEARS]
    rows = spark.createDataFrame([(count,) for count in counts], "count long")
    yield rows.selectExpr(
        "count",
        "timestamp_micros(count) as t",
        "array(timestamp_micros(count), null) as l",
        "if(count > 0, timestamp_micros(count), null) as null",
    )
    spark.conf.set(ZONE, before)


def test_times_of_any_year_are_counted_in_microseconds(
    spark: Any, times: Any, tmp_path: Path
) -> None:
    kind = spark.conf.get(INT96)
    converter = from_spark(times, tmp_path)
    assert spark.conf.get(INT96) == kind
    fill = {"l": 7, "null": dt.datetime(1970, 1, 1)}
    [batch] = converter.loader(len(YEARS), num_epochs=1, fill=fill)
    count = batch["count"].tolist()
    assert batch["t"].tolist() == count
    assert batch["l"].tolist() == [[each, 7] for each in count]
    assert batch["null"].tolist() == [max(each, 0) for each in count]


def test_times_that_spark_wrote_by_itself_are_counted_alike(times: Any, tmp_path: Path) -> None:
    times.write.parquet(str(tmp_path / "t"))
    source = open_table(tmp_path / "t", columns=["count", "t"])
    got = source.read(np.arange(len(YEARS))).inputs
    assert got["t"].tolist() == got["count"].tolist()


def test_nulls_in_columns_of_vectors_are_filled(spark: Any, tmp_path: Path) -> None:
    rows = [
        (0, Vectors.dense([1.0, 2.0]), [1, 2]),
        (1, None, None),
        (2, Vectors.sparse(2, [1], [5.0]), [3, 4]),
    ]
    converter = from_spark(spark.createDataFrame(rows, ["i", "v", "list"]), tmp_path)
    [batch] = converter.loader(3, num_epochs=1, fill={"v": 0.5, "list": 9})
    by_row = dict(zip(batch["i"].tolist(), batch["v"].tolist(), strict=True))
    assert by_row == {0: [1, 2], 1: [0.5, 0.5], 2: [0, 5]}
    assert sorted(batch["list"].tolist()) == [[1, 2], [3, 4], [9, 9]]
