"""The reader in the shape of a DataLoader: lengths, epochs, ranks, exact resumption."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from stepladder.config.choices import OrderMode, Split
from stepladder.data.examples import Source
from stepladder.data.loader import Loader
from stepladder.data.store import Store
from stepladder.errors import UsageError


class Numbers(TensorDataset):
    """Each example is its own number."""

    def __init__(self, n: int) -> None:
        super().__init__(torch.arange(n))
        self.n = n

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.tensors[0][row]


def numbers(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch]


def loader(n: int, batch_size: int = 8, **options: Any) -> Loader:
    return Loader(Numbers(n), batch_size=batch_size, seed=1, threads=1, **options)


@pytest.fixture
def split(tmp_path: Path, build_store: Any) -> Source:
    build_store(tmp_path / "s", num_rows={"train": 50}, shards=4)
    source = Store.open(tmp_path / "s").split(Split.TRAIN)
    assert source is not None
    return source


def test_it_is_iterated_like_a_data_loader(split: Source) -> None:
    made = Loader(split, batch_size=16)
    assert (len(made), made.steps_per_epoch, made.validation_steps) == (4, 4, 4)
    assert (made.batch_size, made.dataset) == (16, split)
    sizes = [len(labels) for images, labels in made if images.dtype is torch.uint8]
    assert sizes == [16, 16, 16, 2]
    assert made.stats.num_rows == 50
    assert len(Loader(split, batch_size=16, drop_last=True)) == 3
    assert len(list(Loader(split, batch_size=16, drop_last=True))) == 3
    assert len(Loader(split, batch_size=16, num_epochs=3)) == 12
    assert len(list(Loader(split, batch_size=16, num_epochs=3))) == 12


def test_epochs_differ_and_set_epoch_gives_one_back() -> None:
    made = loader(40)
    first, second = numbers(made), numbers(made)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(40))
    made.set_epoch(0)
    assert numbers(made) == first
    assert numbers(loader(40, shuffle=False)) == list(range(40))


def test_an_iteration_that_was_left_begins_its_epoch_again() -> None:
    made = loader(40)
    some = numbers(itertools.islice(made, 2))
    assert numbers(made)[:16] == some


def test_without_end_epoch_follows_epoch() -> None:
    made = loader(20, num_epochs=None)
    seen = numbers(itertools.islice(made, 9))  # three epochs of three batches
    assert [sorted(seen[at : at + 20]) for at in (0, 20, 40)] == [list(range(20))] * 3
    with pytest.raises(TypeError, match="no length"):
        len(made)


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(1, 60),
    batch_size=st.integers(1, 16),
    stops=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    worlds=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    mode=st.sampled_from([OrderMode.GLOBAL, OrderMode.SEQUENTIAL]),
)
def test_stopped_anywhere_and_gone_on_with_on_other_ranks_each_example_comes_once(
    n: int, batch_size: int, stops: list[int], worlds: list[int], mode: OrderMode
) -> None:
    """Order and batches too: what ranks get, put together, is what one rank would have got."""
    whole = [batch.tolist() for batch in itertools.islice(forever(n, batch_size, mode), 60)]
    seen: list[list[int]] = []
    state = None
    for num_steps, world_size in zip([*stops, 60 - sum(stops)], worlds, strict=False):
        ranks = [
            forever(n, batch_size, mode, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        if state is not None:
            for rank in ranks:
                rank.load_state_dict(json.loads(state))
        parts = [[b.tolist() for b in itertools.islice(rank, num_steps)] for rank in ranks]
        seen += [list(itertools.chain(*batch)) for batch in zip(*parts, strict=True)]
        states = {json.dumps(rank.state_dict()) for rank in ranks}
        (state,) = states
    assert seen == whole


def forever(n: int, batch_size: int, mode: OrderMode, **options: Any) -> Loader:
    return loader(n, batch_size, num_epochs=None, order=mode, **options)


def test_a_restored_place_stays_where_set_epoch_names_its_epoch() -> None:
    whole, following = (numbers(made) for made in [loader(40)] * 2)
    made = loader(40)
    numbers(itertools.islice(made, 3))
    state = made.state_dict()
    for epoch, expected in ((0, whole[24:]), (1, following)):
        other = loader(40)
        other.load_state_dict(state)
        other.set_epoch(epoch)
        assert numbers(other) == expected


def test_the_state_is_a_few_plain_values() -> None:
    made = loader(40)
    next(iter(made))
    state = made.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert len(state) < 12
    assert (state["epoch"], state["position"]) == (0, 8)


@pytest.mark.parametrize("other", [{"seed": 2}, {"n": 41}, {"shuffle": False}], ids=str)
def test_a_state_of_another_loader_is_refused(other: dict[str, Any]) -> None:
    state = loader(40).state_dict()
    options: dict[str, Any] = {"n": 40, "seed": 1, **other}
    made = Loader(Numbers(options.pop("n")), batch_size=8, threads=1, **options)
    with pytest.raises(UsageError, match="another loader"):
        made.load_state_dict(state)


def test_a_number_of_epochs_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match="num_epochs is 0"):
        loader(40, num_epochs=0)
