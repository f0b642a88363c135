"""Some rows of several sources, read as one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from stepladder.config.choices import Split
from stepladder.data.features.feature_files import Features
from stepladder.data.features.feature_source import FeatureSource, HeldFeatures
from stepladder.data.reading.datasets import as_source
from stepladder.data.reading.examples import Examples, PictureSource, Source
from stepladder.data.reading.rows import rows_of
from stepladder.data.store.store import Store


def source(start: int, n: int) -> Source:
    values = torch.arange(start, start + n)
    return as_source(TensorDataset(values.float(), values))


class Words(Source):
    """Inputs of many kinds, as a user's collate function may return."""

    fingerprint = "words"

    def __len__(self) -> int:
        return 4

    def read(self, rows: np.ndarray) -> Examples:
        ids = rows.tolist()
        inputs = {"words": [f"w{i}" for i in ids], "pair": (torch.tensor(ids), np.array(ids))}
        return Examples(inputs, None)


ROWS = np.array([7, 0, 4, 9, 2])


def test_rows_come_in_the_order_asked_for_from_whichever_part_they_are_in() -> None:
    some = rows_of([source(0, 5), source(100, 5)], ROWS)
    assert len(some) == 5
    inputs, targets = some.read(np.array([3, 0, 4]))
    assert targets.tolist() == [104, 102, 2]
    assert inputs.tolist() == [104.0, 102.0, 2.0]


def test_other_rows_are_other_data() -> None:
    parts = [source(0, 5), source(100, 5)]
    one, same, other = (rows_of(parts, rows) for rows in (ROWS, ROWS.copy(), ROWS[::-1].copy()))
    assert one.fingerprint == same.fingerprint
    assert one.fingerprint != other.fingerprint


def test_dicts_lists_of_words_and_tuples_are_put_together() -> None:
    some = rows_of([Words(), Words()], np.arange(8))
    inputs, targets = some.read(np.array([5, 0, 7]))
    assert targets is None
    assert inputs["words"] == ["w1", "w0", "w3"]
    assert inputs["pair"][0].tolist() == [1, 0, 3]
    assert inputs["pair"][1].tolist() == [1, 0, 3]
    assert some.describe(6) == "row 2"


def test_features_stay_features_with_labels() -> None:
    base = as_source(TensorDataset(torch.zeros(4, 2), torch.arange(4)))
    base.labels = np.arange(4)
    held = HeldFeatures(base, Features(features=torch.eye(4), targets=torch.arange(4), seconds=0.0))
    some = rows_of([held, held], np.array([5, 2]))
    assert isinstance(some, FeatureSource)
    assert some.is_held
    assert some.default_threads == 0
    assert some.labels is not None
    assert some.labels.tolist() == [1, 2]
    assert torch.equal(some.read(np.array([0, 1])).inputs, torch.eye(4)[[1, 2]])


def test_pictures_stay_pictures(tmp_path, build_store) -> None:
    pictures = build_store(tmp_path / "store", num_rows={"train": 6, "val": 4})
    store = Store.open(tmp_path / "store")
    parts = [store.split(Split.TRAIN), store.split(Split.VAL)]
    some = rows_of([part for part in parts if part is not None], np.array([8, 1, 6]))
    assert isinstance(some, PictureSource)
    read, labels = some.read(np.array([0, 1, 2]))
    wanted = [pictures["val"][2], pictures["train"][1], pictures["val"][0]]
    assert np.array_equal(read, np.stack(wanted))
    assert labels.tolist() == some.labels.tolist()


def test_what_cannot_be_put_together_is_refused() -> None:
    class Odd(Words):
        def read(self, rows: np.ndarray) -> Examples:
            return Examples(object(), None)

    with pytest.raises(TypeError, match="object"):
        rows_of([Odd()], np.arange(2)).read(np.array([0]))
