"""A TransformSpec's function receives the nulls of a table; nulls in its result are an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from stepladder.compat.petastorm import (
    SparkDatasetConverter,
    TransformSpec,
    make_spark_converter,
)
from stepladder.errors import DataError, UsageError

pandas = pytest.importorskip("pandas")

COLUMNS = {
    "i": pa.array([0, 1, 2, 3, 4, 5]),
    "count": pa.array([0, None, 2, 3, 4, 5]),
    "half": pa.array([0.0, None, 1.0, float("nan"), 2.0, 2.5]),
    "flag": pa.array([True, None, False, True, True, True]),
    "text": pa.array(["a", None, "c", "d", "e", "f"]),
    "tokens": pa.array([[1], None, [], [4, 4], [5], [6]]),
    "nan": pa.array([float("nan")] * 6),
}


@pytest.fixture
def converter(tmp_path: Path) -> SparkDatasetConverter:
    """Nulls in row 1, and NaN stored in row 3 and in a column without nulls."""
    pq.write_table(pa.table(COLUMNS), tmp_path / "part.parquet", row_group_size=4)
    return make_spark_converter(f"file://{tmp_path}")


def batches(converter: SparkDatasetConverter, spec: Any, **options: Any) -> list[dict[str, Any]]:
    given = {"num_epochs": 1, "batch_size": 2, "shuffle_row_groups": False, **options}
    with converter.make_torch_dataloader(transform_spec=spec, **given) as loader:
        return list(loader)


def test_a_function_sees_nulls_as_pandas_has_them(converter: SparkDatasetConverter) -> None:
    frames = []

    def seen(frame: Any) -> Any:
        frames.append(frame.copy())
        return frame[["i"]]

    for batch_size, shuffle in ((6, False), (2, False), (4, True)):
        frames.clear()
        batches(converter, TransformSpec(seen), batch_size=batch_size, shuffle_row_groups=shuffle)
        frame = pandas.concat(frames).sort_values("i").reset_index(drop=True)
        assert frame["count"].isna().tolist() == [False, True, False, False, False, False]
        assert frame["count"].drop(1).tolist() == [0, 2, 3, 4, 5]
        assert frame["half"].isna().tolist() == [False, True, False, True, False, False]
        assert frame["flag"].tolist() == [True, None, False, True, True, True]
        assert frame["text"].isna().tolist() == frame["count"].isna().tolist()
        assert frame["tokens"][1] is None
        assert [cell.tolist() for cell in frame["tokens"].drop(1)] == [[1], [], [4, 4], [5], [6]]


def test_what_a_function_fills_has_one_type_in_all_batches(
    converter: SparkDatasetConverter,
) -> None:
    def filled(frame: Any) -> Any:
        frame["text"] = frame["text"].fillna("?")
        frame["flag"] = [bool(cell) for cell in frame["flag"]]
        return frame.fillna({"count": -1, "half": 0.5}).drop(columns="tokens")

    found = batches(converter, TransformSpec(filled))
    assert len(found) == 3
    assert {batch["count"].dtype for batch in found} == {torch.float64}
    assert torch.cat([batch["count"] for batch in found]).tolist() == [0, -1, 2, 3, 4, 5]
    assert torch.cat([batch["half"] for batch in found]).nan_to_num(9).tolist() == [
        *(0, 0.5, 1, 0.5, 2, 2.5)
    ]
    assert torch.cat([batch["flag"] for batch in found]).tolist() == [
        *(True, False, False, True, True, True)
    ]
    assert [text for batch in found for text in batch["text"]] == ["a", "?", "c", "d", "e", "f"]
    assert all(batch["nan"].isnan().all() for batch in found)  # these were not nulls


LEFT = [
    (lambda frame: frame[["i", "count"]], "count"),
    (lambda frame: frame[["half"]], "half"),
    (lambda frame: frame[["flag"]], "flag"),
    (lambda frame: frame[["text"]], "text"),
    (lambda frame: frame[["tokens"]], "tokens"),
    (lambda frame: frame.assign(y=frame["count"] * 2)[["y"]], "y"),
    (lambda frame: frame.sort_values("i", ascending=False)[["count"]], "count"),
]


@pytest.mark.parametrize(
    ("function", "name"), LEFT, ids=[f"{i} {name}" for i, (_, name) in enumerate(LEFT)]
)
def test_what_is_null_after_the_function_is_reported(
    function: Any, name: str, converter: SparkDatasetConverter
) -> None:
    said = rf"row 1: column {name} is null after the function of the TransformSpec"
    with pytest.raises(DataError, match=said) as caught:
        batches(converter, TransformSpec(function))
    assert f"df['{name}'].fillna(0)" in str(caught.value.fix)
    assert "open_table" not in str(caught.value)


def test_nulls_without_a_function_are_reported_in_the_words_of_petastorm(
    converter: SparkDatasetConverter,
) -> None:
    for spec in (TransformSpec(removed_fields=["tokens", "text", "flag", "half"]), None):
        with pytest.raises(DataError, match=r"row 1: column \w+ is null\n") as caught:
            batches(converter, spec)
        assert "open_table" not in str(caught.value)
        assert "fill" in str(caught.value.fix)
    names = ["tokens", "text", "flag", "half", "count"]
    [first, *_] = batches(converter, TransformSpec(removed_fields=names))
    assert first["i"].tolist() == [0, 1]
    [first, *_] = batches(converter, None, schema_fields=["i", "nan"])
    assert first["i"].tolist() == [0, 1]


def test_a_function_may_write_into_what_it_gets(converter: SparkDatasetConverter) -> None:
    def doubled(frame: Any) -> Any:
        frame.loc[frame["i"] == 1, "half"] = 0.0
        frame["half"] = frame["half"].fillna(9)
        for cell in frame["tokens"].dropna():
            cell *= 2
        frame["sum"] = [0 if cell is None else cell.sum() for cell in frame["tokens"]]
        return frame[["half", "sum"]]

    for _ in range(2):  # the buffer is not what is returned
        [batch] = batches(converter, TransformSpec(doubled), batch_size=6)
        assert batch["sum"].tolist() == [2, 0, 0, 16, 10, 12]
        assert batch["half"].tolist() == [0, 0, 1, 9, 2, 2.5]


def test_a_function_that_drops_rows_is_refused_with_a_reason(
    converter: SparkDatasetConverter,
) -> None:
    said = r"returned 1 row instead of 2\n.*must have the same number of batches(.|\n)*df.dropna"
    with pytest.raises(DataError, match=said):
        batches(converter, TransformSpec(lambda frame: frame.dropna(subset=["count"])))


def test_cells_are_the_numbers_that_batches_without_a_function_have(tmp_path: Path) -> None:
    columns = {
        "small": pa.array([1, 2, 65535], pa.uint16()),
        "f": pa.array([1.5, 2, 3], pa.float32()),
        "time": pa.array([1, 2, 3], pa.timestamp("us")),
        "raw": pa.array([b"a", b"b", b"c"]),
        "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int16(), 2)),
    }
    pq.write_table(pa.table(columns), tmp_path / "part.parquet")
    converter = make_spark_converter(str(tmp_path))
    [plain], [cells] = (
        batches(converter, spec, batch_size=3) for spec in (None, TransformSpec(lambda f: f))
    )
    assert list(plain) == list(cells) == list(columns)
    for name, values in plain.items():
        if isinstance(values, list):
            assert cells[name] == values
        else:
            assert cells[name].dtype == values.dtype
            assert torch.equal(cells[name], values)


def test_a_folder_of_files_is_read_in_place_and_never_removed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(5)}), tmp_path / "part.parquet")
    converter = make_spark_converter(f"file://{tmp_path}")
    assert len(converter) == converter.dataset_size == 5
    assert converter.file_urls == [(tmp_path / "part.parquet").as_uri()]
    [batch] = batches(converter, None, batch_size=5)
    assert batch["x"].tolist() == list(range(5))
    converter.delete()
    assert (tmp_path / "part.parquet").is_file()
    with pytest.raises(DataError, match="no Parquet files"):
        make_spark_converter(str(tmp_path / "none"))
    with pytest.raises(UsageError, match="a folder that is mounted on every machine"):
        make_spark_converter("hdfs://host/rows")
