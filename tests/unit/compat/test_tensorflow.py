"""Calls to TensorFlow, recorded by a mock; the real one is in test_petastorm.

The mock checks each batch against the signature as TensorFlow does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepladder.compat.petastorm import SparkDatasetConverter, TransformSpec
from stepladder.data.tables.cache_users import MANIFEST
from stepladder.data.tables.materialise import Written
from stepladder.data.tables.spark_converter import SparkConverter
from stepladder.errors import DataError, UsageError
from stepladder.records import write_json

pytest.importorskip("pandas")

AUTOTUNE = -1


@dataclass(frozen=True)
class Spec:
    shape: tuple[int | None, ...]
    dtype: Any

    def fits(self, value: Any) -> bool:
        if self.dtype == "string":
            return isinstance(value, list) and all(isinstance(v, str | bytes) for v in value)
        dims = zip(value.shape, self.shape, strict=True)
        return value.dtype == self.dtype and all(want in (None, dim) for dim, want in dims)


@dataclass(frozen=True)
class FakeDataset:
    generator: Callable[[], Iterator[Any]]
    element_spec: Any
    num_ahead: int | None = None

    def prefetch(self, num_ahead: int) -> FakeDataset:
        return replace(self, num_ahead=num_ahead)

    def __iter__(self) -> Iterator[Any]:
        for row in self.generator():
            assert type(row) is type(self.element_spec)
            assert all(spec.fits(value) for spec, value in zip(self.element_spec, row, strict=True))
            yield row


def from_generator(generator: Callable[[], Iterator[Any]], *, output_signature: Any) -> FakeDataset:
    return FakeDataset(generator, output_signature)


@pytest.fixture(autouse=True)
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(
        TensorSpec=Spec,
        as_dtype=np.dtype,
        string="string",
        data=SimpleNamespace(
            AUTOTUNE=AUTOTUNE, Dataset=SimpleNamespace(from_generator=from_generator)
        ),
    )
    monkeypatch.setitem(sys.modules, "tensorflow", made)


def converter_of(folder: Path, **columns: Any) -> SparkDatasetConverter:
    table = pa.table(columns)
    pq.write_table(table, folder / "part.parquet", row_group_size=7)
    write_json(folder / MANIFEST, {})
    vectors = ("pair",) if "pair" in columns else ()
    written = Written(folder=folder, num_rows=len(table), num_bytes=1, vectors=vectors)
    return SparkDatasetConverter(SparkConverter(written))


@pytest.fixture
def converter(tmp_path: Path) -> SparkDatasetConverter:
    return converter_of(
        tmp_path,
        i=np.arange(10),
        text=[f"añ{i}" for i in range(10)],
        raw=[bytes([i, 0]) for i in range(10)],
        tokens=[list(range(i % 4)) for i in range(10)],
        pair=[[float(i), 2.0] for i in range(10)],
        flag=[i % 2 == 0 for i in range(10)],
    )


STORED: dict[str, Any] = {"batch_size": 4, "num_epochs": 1, "shuffle_row_groups": False}


def test_columns_have_their_types_and_what_varies_is_left_open(
    converter: SparkDatasetConverter,
) -> None:
    with converter.make_tf_dataset(**STORED) as data:
        assert data.element_spec._asdict() == {
            "i": Spec((None,), np.dtype("int64")),
            "text": Spec((None,), "string"),
            "raw": Spec((None,), "string"),
            "tokens": Spec((None, None), np.dtype("int64")),
            "tokens_lengths": Spec((None,), np.dtype("int64")),
            "pair": Spec((None, 2), np.dtype("float64")),
            "flag": Spec((None,), np.dtype("bool")),
        }
        found = list(data)
    assert [row.i.tolist() for row in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert found[0].text == ["añ0", "añ1", "añ2", "añ3"]
    assert found[2].raw == [b"\x08\x00", b"\x09\x00"]
    assert found[0].tokens.tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 2]]
    assert found[2].tokens.shape == (2, 1)


@pytest.mark.parametrize(("prefetch", "told"), [(None, AUTOTUNE), (0, 0), (3, 3)])
def test_as_many_batches_are_read_ahead_as_are_asked_for(
    prefetch: int | None, told: int, converter: SparkDatasetConverter
) -> None:
    with converter.make_tf_dataset(prefetch=prefetch, **STORED) as data:
        assert data.num_ahead == told


def padded(frame: Any) -> Any:
    longest = max(map(len, frame["tokens"]))
    frame["tokens"] = [np.pad(cell, (0, longest - len(cell))) for cell in frame["tokens"]]
    return frame


@pytest.mark.parametrize("fields", [(), [("tokens", np.int32, (None,), False)]], ids=len)
def test_a_transform_may_pad_each_batch_to_its_longest(
    fields: Any, converter: SparkDatasetConverter
) -> None:
    spec = TransformSpec(padded, edit_fields=fields, selected_fields=["tokens", "i"])
    with converter.make_tf_dataset(transform_spec=spec, **STORED) as data:
        assert data.element_spec.tokens.shape == (None, None)
        assert data.element_spec.tokens.dtype == ("int32" if fields else "int64")
        assert [row.tokens.shape for row in data] == [(4, 3), (4, 3), (2, 1)]


def test_a_transform_gives_the_shapes_that_it_names(converter: SparkDatasetConverter) -> None:
    def shaped(frame: Any) -> Any:
        return frame.assign(image=[np.full(6, i) for i in frame["i"]], total=frame["i"] * 2)

    fields = [("image", np.float32, (2, 3), False), ("total", np.int64, (), False)]
    spec = TransformSpec(shaped, edit_fields=fields, removed_fields=["tokens", "raw", "pair"])
    with converter.make_tf_dataset(transform_spec=spec, **STORED) as data:
        assert data.element_spec._fields == ("i", "text", "flag", "image", "total")
        assert data.element_spec.image == Spec((None, 2, 3), np.dtype("float32"))
        assert data.element_spec.total == Spec((None,), np.dtype("int64"))
        assert [row.image[:, 1, 2].tolist() for row in data][2] == [8, 9]


def test_a_block_may_be_left_while_a_batch_is_on_its_way(converter: SparkDatasetConverter) -> None:
    """TensorFlow's threads read ahead after the last step."""
    is_reading, may_go_on = threading.Event(), threading.Event()

    def slow(frame: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            is_reading.set()
            assert may_go_on.wait(10)
        return frame[["i"]]

    found: list[Any] = []
    with converter.make_tf_dataset(transform_spec=TransformSpec(slow), **STORED) as data:
        rows = data.generator()
        reading = threading.Thread(target=lambda: found.append(next(rows)))
        reading.start()
        assert is_reading.wait(10)
        threading.Timer(0.1, may_go_on.set).start()
    reading.join(10)
    assert found[0].i.tolist() == [0, 1, 2, 3]
    with pytest.raises(UsageError, match="only inside the with block that created it"):
        next(rows)
    with pytest.raises(UsageError, match="only inside the with block that created it"):
        next(data.generator())


def test_each_iteration_is_an_epoch_of_its_own(converter: SparkDatasetConverter) -> None:
    with converter.make_tf_dataset(batch_size=4, num_epochs=1) as data:
        first, second = ([i for row in data for i in row.i.tolist()] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


@pytest.mark.parametrize("name", ["a b", "class", "_hidden"])
def test_a_column_that_python_has_no_name_for_is_reported(name: str, tmp_path: Path) -> None:
    made = converter_of(tmp_path, **{name: [1, 2], "i": [3, 4]})
    with (
        pytest.raises(UsageError, match=f"is not a valid field .*'{name}'.*\n.*schema_fields"),
        made.make_tf_dataset(**STORED),
    ):
        pass
    with made.make_tf_dataset(schema_fields=["i"], **STORED) as data:
        assert [row.i.tolist() for row in data] == [[3, 4]]


def test_a_transform_that_fails_is_reported_in_the_first_row(
    converter: SparkDatasetConverter,
) -> None:
    spec = TransformSpec(lambda frame: frame["nothing"])
    with (
        pytest.raises(DataError, match=r"row 0: the function .* failed \(KeyError: 'nothing'\)"),
        converter.make_tf_dataset(transform_spec=spec, **STORED),
    ):
        pass


def test_a_batch_of_no_rows_is_refused_and_none_named_is_32(
    converter: SparkDatasetConverter,
) -> None:
    with (
        pytest.raises(UsageError, match="batch_size is 0"),
        converter.make_tf_dataset(batch_size=0),
    ):
        pass
    with converter.make_tf_dataset(num_epochs=None) as data:
        rows = data.generator()
        assert [len(next(rows).i) for _ in range(2)] == [10, 10]
