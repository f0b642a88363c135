"""Petastorm's loaders over files that are there already: transforms, arguments, TensorFlow."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from stepladder.compat.petastorm import SparkDatasetConverter, TransformSpec
from stepladder.data.spark_converter import SparkConverter
from stepladder.data.tables.hold import MANIFEST
from stepladder.data.tables.materialise import Written
from stepladder.errors import DataError, UsageError
from stepladder.records import write_json

pytest.importorskip("pandas")

NUM_ROWS = 20


@pytest.fixture
def converter(tmp_path: Path) -> SparkDatasetConverter:
    """What `make_spark_converter` gives for a DataFrame that was written before."""
    columns = {
        "i": np.arange(NUM_ROWS),
        "half": np.arange(NUM_ROWS, dtype=np.float32) / 2,
        "pair": [[float(i), 2.0] for i in range(NUM_ROWS)],
        "tokens": [list(range(i % 4)) for i in range(NUM_ROWS)],
        "raw": [bytes([i] * 6) for i in range(NUM_ROWS)],
    }
    pq.write_table(pa.table(columns), tmp_path / "part.parquet", row_group_size=7)
    write_json(tmp_path / MANIFEST, {})
    written = Written(folder=tmp_path, num_rows=NUM_ROWS, num_bytes=1, vectors=("pair",))
    return SparkDatasetConverter(SparkConverter(written))


def batches(converter: SparkDatasetConverter, **options: Any) -> list[dict[str, Any]]:
    with converter.make_torch_dataloader(**{"num_epochs": 1, **options}) as loader:
        return list(loader)


def test_batches_are_dictionaries_of_tensors(converter: SparkDatasetConverter) -> None:
    [batch] = batches(converter)
    assert len(converter) == converter.dataset_size == NUM_ROWS
    assert sorted(batch["i"].tolist()) == list(range(NUM_ROWS))
    assert batch["pair"].shape == (NUM_ROWS, 2)
    assert batch["i"].tolist() != list(range(NUM_ROWS))  # shuffled, as Petastorm's row groups are
    [stored] = batches(converter, shuffle_row_groups=False)
    assert stored["i"].tolist() == list(range(NUM_ROWS))


def test_a_transform_gets_cells_and_gives_the_fields_that_it_names(
    converter: SparkDatasetConverter,
) -> None:
    def transform(frame: Any) -> Any:
        assert [len(cell) for cell in frame["tokens"]] == [i % 4 for i in frame["i"]]
        frame["square"] = frame["raw"].map(lambda raw: np.frombuffer(raw, dtype=np.uint8))
        frame["sum"] = frame["pair"].map(sum) + frame["half"]
        return frame

    fields = [("square", np.float32, (2, 3), False), ("sum", np.float64, (), False)]
    spec = TransformSpec(transform, edit_fields=fields, selected_fields=["sum", "square", "i"])
    [batch] = batches(converter, transform_spec=spec)
    i = batch["i"]
    assert list(batch) == ["sum", "square", "i"]
    assert torch.equal(batch["square"], i.float()[:, None, None].expand(-1, 2, 3))
    assert torch.equal(batch["sum"], 1.5 * i.double() + 2)


def test_a_transform_may_only_leave_fields_out(converter: SparkDatasetConverter) -> None:
    spec = TransformSpec(removed_fields=["tokens", "raw"])
    [batch] = batches(converter, transform_spec=spec)
    assert sorted(batch) == ["half", "i", "pair"]
    with pytest.raises(UsageError, match="both given"):
        TransformSpec(removed_fields=["a"], selected_fields=["b"])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda frame: frame[1:], "made 19 rows of 20"),
        (lambda frame: frame.assign(pair=frame["tokens"]), "column pair .* cannot be a tensor"),
    ],
)
def test_a_transform_that_goes_wrong_is_told(
    function: Any, said: str, converter: SparkDatasetConverter
) -> None:
    with pytest.raises(DataError, match=said):
        batches(converter, transform_spec=TransformSpec(function))


def test_arguments_are_heeded_named_or_refused(converter: SparkDatasetConverter) -> None:
    [batch] = batches(converter, schema_fields=["i", "ha.*"])
    assert sorted(batch) == ["half", "i"]
    with pytest.warns(UserWarning, match="without effect here: hdfs_driver, reader_pool_type"):
        batches(converter, reader_pool_type="process", hdfs_driver="libhdfs")
    with pytest.raises(UsageError, match="predicate chooses rows"):
        batches(converter, predicate=print)
    with pytest.raises(UsageError, match="shufle_rows is unknown"):
        batches(converter, shufle_rows=True)


def test_a_converter_goes_to_other_processes(converter: SparkDatasetConverter) -> None:
    copy = pickle.loads(pickle.dumps(converter))
    shards = [
        [
            int(i)
            for batch in batches(each, batch_size=4, cur_shard=k, shard_count=2)
            for i in batch["i"]
        ]
        for k, each in enumerate((converter, copy))
    ]
    assert sorted(shards[0] + shards[1]) == list(range(NUM_ROWS))
    assert [len(shard) for shard in shards] == [10, 10]


def test_without_tensorflow_the_command_that_installs_it_is_told(
    converter: SparkDatasetConverter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with (
        pytest.raises(UsageError, match="pip install tensorflow"),
        converter.make_tf_dataset(batch_size=4, num_epochs=1),
    ):
        pass


def test_tensorflow_gets_the_same_rows(converter: SparkDatasetConverter) -> None:
    pytest.importorskip("tensorflow")
    with converter.make_tf_dataset(batch_size=6, num_epochs=1, cur_shard=0, shard_count=2) as data:
        found = list(data.as_numpy_iterator())
    assert [len(row.i) for row in found] == [6, 4]
    assert found[0].pair.shape == (6, 2)
    assert [raw[0] for row in found for raw in row.raw] == [i for row in found for i in row.i]
