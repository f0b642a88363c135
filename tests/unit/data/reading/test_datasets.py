"""A user's own Dataset as a Source."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from stepladder.data.reading.datasets import DatasetSource, as_source, is_stochastic
from stepladder.data.reading.reader import Reader
from stepladder.errors import DataError, UsageError


class Squares(Dataset[tuple[Tensor, int]]):
    """x and x squared, with noise from a given generator."""

    def __init__(self, n: int, noise: str | None = None, broken: int | None = None) -> None:
        self.n, self.noise, self.broken = n, noise, broken
        self.targets = [i * i for i in range(n)]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, idx: int) -> tuple[Tensor, int]:
        if idx == self.broken:
            raise KeyError("label")
        draws = {
            "torch": torch.rand,
            "numpy": np.random.random_sample,
            "python": lambda _: random.random(),
        }
        extra = np.asarray(draws[self.noise](1)).item() if self.noise else 0.0
        return torch.tensor([idx + extra]), idx * idx


class Arriving(IterableDataset[dict[str, int]]):
    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[dict[str, int]]:
        return iter({"x": 100 + i} for i in range(10))


def test_items_are_collated_in_the_order() -> None:
    made = Reader(as_source(Squares(30)), seed=0, global_batch_size=8)
    batches = list(made.epoch(0))
    ids = torch.cat([batch.ids for batch in batches])
    assert ids.tolist() == made.order.samples(0, 0, 30).tolist()
    assert torch.cat([batch.inputs for batch in batches]).flatten().tolist() == ids.tolist()
    assert torch.cat([batch.targets for batch in batches]).tolist() == (ids**2).tolist()


def test_a_source_is_given_back_as_it_is() -> None:
    source = as_source(Squares(3))
    assert as_source(source) is source


def test_labels_come_from_targets() -> None:
    labels = as_source(Squares(4)).labels
    assert labels is not None
    assert labels.tolist() == [0, 1, 4, 9]
    assert as_source(TensorDataset(torch.zeros(3, 2))).labels is None


def test_a_rank_with_an_empty_part_gets_an_empty_batch_of_the_same_form() -> None:
    made = Reader(as_source(Squares(5)), seed=0, global_batch_size=4, rank=3, world_size=4)
    full, empty = made.epoch(0)
    assert full.inputs.shape == (1, 1)
    assert empty.inputs.shape == (0, 1)
    assert empty.targets.shape == (0,)
    assert empty.ids.shape == (0,)


@pytest.mark.parametrize("noise", ["torch", "numpy", "python"])
def test_a_random_getitem_is_found_and_its_generators_left_alone(noise: str) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    expected = Squares(20, noise)[3][0]
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    source = as_source(Squares(20, noise))
    assert is_stochastic(source)
    assert "read in the main thread" in str(source.warning)
    assert torch.equal(Squares(20, noise)[3][0], expected)


def test_a_plain_getitem_is_not_random() -> None:
    assert not is_stochastic(as_source(Squares(20)))
    assert as_source(Squares(20)).warning is None


def test_a_random_dataset_gives_the_same_epoch_from_the_same_random_state() -> None:
    made = Reader(as_source(Squares(30, "torch")), seed=0, global_batch_size=8, threads=4)
    epochs = []
    for _ in range(2):
        torch.manual_seed(5)
        epochs.append(torch.cat([batch.inputs for batch in made.epoch(0)]))
    assert torch.equal(*epochs)


def test_a_fault_of_the_dataset_names_the_row() -> None:
    source = as_source(Squares(100, broken=34))
    with pytest.raises(DataError, match=r"Squares: row 34: .*KeyError: 'label'") as caught:
        list(Reader(source, seed=0, global_batch_size=8).epoch(0))
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_iterable_dataset_comes_as_it_comes_and_says_so() -> None:
    source = as_source(Arriving())
    assert "has its own order" in str(source.warning)
    made = Reader(source, seed=0, global_batch_size=4)
    batches = list(made.epoch(0))
    assert next(batch.inputs["x"].tolist() for batch in batches) == [100, 101, 102, 103]
    assert torch.cat([batch.ids for batch in batches]).tolist() == list(range(10))
    assert all(batch.targets is None for batch in batches)
    later = next(iter(made.epoch(0, start=4)))
    assert later.ids.tolist() == [4, 5, 6, 7]
    ranks = [Reader(source, seed=0, global_batch_size=4, rank=r, world_size=3) for r in range(3)]
    ends = [list(rank.epoch(0))[-1] for rank in ranks]
    assert [end.inputs["x"].tolist() for end in ends] == [[108], [109], []]


def test_what_cannot_be_read_is_refused() -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(UsageError, match="has no __len__"):
        as_source(Endless())
    with pytest.raises(UsageError, match="is not a dataset"):
        as_source(5)
    with pytest.raises(UsageError, match="the data are None instead of a dataset"):
        as_source(None)
    with pytest.raises(UsageError, match="an IterableDataset cannot read single examples"):
        Reader(as_source(Arriving()), seed=0, global_batch_size=2, fraction=0.5)


def test_another_fingerprint_is_another_order() -> None:
    class Named(Squares):
        fingerprint = "mine"

    own: Any = as_source(Named(10))
    assert own.fingerprint == "mine"
    assert as_source(Squares(10)).fingerprint != as_source(Squares(11)).fingerprint


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(2, dtype=torch.cfloat).conj(),
        torch.tensor(True),
        torch.empty(0),
        "words",
        {"a": 1},
    ],
    ids=["conjugate", "a truth", "empty", "words", "a mapping"],
)
def test_examples_of_any_kind_have_a_fingerprint(value: object) -> None:
    one, again = (DatasetSource([(value, idx) for idx in range(3)]) for _ in range(2))
    other = DatasetSource([(value, idx + 1) for idx in range(3)])
    assert one.some_examples == again.some_examples != other.some_examples
    assert not one.is_stochastic


@pytest.mark.parametrize("place", ["rows.parquet", Path("store"), b"store"], ids=str)
def test_a_path_is_not_a_dataset_of_letters(place: Any) -> None:
    with pytest.raises(UsageError, match=r"is a path.*\n.*open_table.*Store\.open"):
        as_source(place)
