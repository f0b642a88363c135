"""Petastorm's loaders on existing files: transforms, arguments, TensorFlow."""

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
from stepladder.data.tables.cache_users import MANIFEST
from stepladder.data.tables.materialise import Written
from stepladder.data.tables.spark_converter import SparkConverter
from stepladder.errors import DataError, UsageError
from stepladder.records import write_json

pytest.importorskip("pandas")

NUM_ROWS = 20


@pytest.fixture
def converter(tmp_path: Path) -> SparkDatasetConverter:
    """The converter of a DataFrame that was written before."""
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
    assert batch["i"].tolist() != list(range(NUM_ROWS))  # shuffled, like Petastorm's row groups
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
    with pytest.raises(UsageError, match="both set"):
        TransformSpec(removed_fields=["a"], selected_fields=["b"])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda frame: frame[1:], "returned 19 rows instead of 20"),
        (lambda frame: frame.assign(pair=frame["tokens"]), "column pair .* cannot be a tensor"),
        (lambda frame: frame["i"].sum(), "returned .*int64, not a DataFrame"),
        (lambda frame: None, "returned NoneType, not a DataFrame"),
        (
            lambda frame: frame["zzz"],
            r"row \d+: the function .* failed .KeyError: 'zzz'.*\n.*Fix the error in this function",
        ),
    ],
)
def test_a_transform_that_goes_wrong_is_reported(
    function: Any, said: str, converter: SparkDatasetConverter
) -> None:
    with pytest.raises(DataError, match=said):
        batches(converter, transform_spec=TransformSpec(function))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"selected_fields": ["i", "q"]}, "missing column: q\n.*: i, half, pair, tokens, raw"),
        ({"edit_fields": [("q", np.int64, (), False)]}, "missing column: q\n"),
        ({"selected_fields": []}, "the TransformSpec removes all columns"),
    ],
    ids=str,
)
def test_a_field_that_is_not_there_is_reported_with_those_that_are(
    spec: dict[str, Any], said: str, converter: SparkDatasetConverter
) -> None:
    with pytest.raises(UsageError, match=said):
        batches(converter, transform_spec=TransformSpec(**spec))


def test_half_a_shard_is_refused(converter: SparkDatasetConverter) -> None:
    """With only one of the two, every rank would read the first shard."""
    with pytest.raises(UsageError, match="shard_count is set without cur_shard"):
        batches(converter, shard_count=2)
    for cur_shard in (0, 1):
        with pytest.raises(UsageError, match="cur_shard is set without shard_count"):
            batches(converter, cur_shard=cur_shard)
    with pytest.raises(UsageError, match="shard_count is 0"):
        batches(converter, cur_shard=0, shard_count=0)


def test_a_seed_of_0_is_a_seed(converter: SparkDatasetConverter) -> None:
    def order(**seeds: Any) -> list[int]:
        [batch] = batches(converter, **seeds)
        return [int(i) for i in batch["i"]]

    assert order(seed=0) == order(shard_seed=0) == order(seed=0, shard_seed=1)
    assert order(seed=0) != order(seed=42)
    assert order(seed=42) == order() == order(seed=None)


@pytest.mark.parametrize(
    ("schema_fields", "said"),
    [
        (["zzz"], "the table has no column that matches zzz\n.*are: i, half, pair, tokens, raw"),
        ([], "the table has no column that matches"),
        (["i", "("], r"'\(' is not a valid regular expression"),
        ("half", r"'half' is not a list\n.*schema_fields=\['half'\]"),
    ],
    ids=str,
)
def test_fields_that_match_nothing_are_reported_with_those_that_are_there(
    schema_fields: Any, said: str, converter: SparkDatasetConverter
) -> None:
    with pytest.raises(UsageError, match=f"schema_fields: {said}"):
        batches(converter, schema_fields=schema_fields)


def test_arguments_are_heeded_named_or_refused(converter: SparkDatasetConverter) -> None:
    [batch] = batches(converter, schema_fields=["i", "ha.*"])
    assert sorted(batch) == ["half", "i"]
    said = "have no effect: hdfs_driver, reader_pool_type"
    with pytest.warns(UserWarning, match=said) as told:
        batches(converter, reader_pool_type="process", hdfs_driver="libhdfs")
    assert told[0].lineno == batches.__code__.co_firstlineno + 1  # the line of the with block
    with pytest.raises(UsageError, match="predicate is not supported"):
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


def test_without_tensorflow_the_command_that_installs_it_is_reported(
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
    lengths = [i % 4 for i in found[0].i]
    assert found[0].tokens_lengths.tolist() == lengths
    assert found[0].tokens.shape == (6, max(lengths))


def test_tensorflow_takes_lists_that_a_transform_pads_and_may_be_left_while_it_reads_ahead(
    converter: SparkDatasetConverter,
) -> None:
    pytest.importorskip("tensorflow")

    def padded(frame: Any) -> Any:
        longest = max(map(len, frame["tokens"]))
        frame["tokens"] = [np.pad(cell, (0, longest - len(cell))) for cell in frame["tokens"]]
        frame["text"] = [f"row {i}" for i in frame["i"]]
        return frame

    fields = [("tokens", np.int32, (None,), False), ("text", np.str_, (), False)]
    spec = TransformSpec(padded, edit_fields=fields, selected_fields=["tokens", "text", "i"])
    with converter.make_tf_dataset(batch_size=4, prefetch=8, transform_spec=spec) as data:
        row = next(data.as_numpy_iterator())  # infinite epochs
    assert row.tokens.tolist() == [
        [*range(i % 4), *[0] * (row.tokens.shape[1] - i % 4)] for i in row.i
    ]
    assert row.text.tolist() == [f"row {i}".encode() for i in row.i]
