"""The reader with the interface of a DataLoader: lengths, epochs, ranks, exact resumption."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, TensorDataset

from stepladder.config.choices import OrderMode, Split, Where
from stepladder.data.reading.examples import Examples, Source
from stepladder.data.reading.loader import Loader
from stepladder.data.store.shard_files import ShardFilesStats
from stepladder.data.store.store import Store
from stepladder.errors import DataError, UsageError


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


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory, build_store: Any) -> Source:
    folder = tmp_path_factory.mktemp("loader") / "s"
    build_store(folder, num_rows={"train": 50}, shards=4)
    source = Store.open(folder).split(Split.TRAIN)
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


@settings(deadline=None, max_examples=12)
@given(
    n=st.integers(1, 60),
    batch_size=st.integers(1, 16),
    stops=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    worlds=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    mode=st.sampled_from([OrderMode.GLOBAL, OrderMode.SEQUENTIAL]),
)
def test_stopped_anywhere_and_resumed_on_other_ranks_each_example_comes_once(
    n: int, batch_size: int, stops: list[int], worlds: list[int], mode: OrderMode
) -> None:
    """The joined batches of all ranks are those of a single rank, in the same order."""
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
    with pytest.raises(UsageError, match="saved by a Loader with other data or settings"):
        made.load_state_dict(state)


class Blocks(Source):
    """Rows in files of a hundred, for machines with more or less memory."""

    fingerprint = "blocks"
    block_rows = (100,) * 20

    def __init__(self, *, is_near: bool = True, max_window_rows: int | None = None) -> None:
        self.is_near, self.max_window_rows = is_near, max_window_rows

    def __len__(self) -> int:
        return 2000

    def read(self, rows: np.ndarray) -> Examples:
        return Examples(torch.from_numpy(rows), None)


@pytest.mark.parametrize("is_near", [True, False])
def test_what_auto_chose_goes_with_the_state_to_a_machine_of_other_memory(is_near: bool) -> None:
    sources = Blocks(), Blocks(is_near=False, max_window_rows=300)
    ours, theirs = sources if is_near else sources[::-1]
    made = Loader(ours, batch_size=64, fraction=0.5, threads=1)
    whole = numbers(made)
    made.set_epoch(0)
    numbers(itertools.islice(made, 3))
    for order in (OrderMode.AUTO, OrderMode.GLOBAL if is_near else OrderMode.WINDOWED):
        other = Loader(theirs, batch_size=64, fraction=0.5, threads=1, order=order)
        other.load_state_dict(made.state_dict())
        assert numbers(other) == whole[192:]
    named = OrderMode.WINDOWED if is_near else OrderMode.GLOBAL
    other = Loader(theirs, batch_size=64, fraction=0.5, threads=1, order=named)
    with pytest.raises(UsageError, match="saved by a Loader with other data or settings"):
        other.load_state_dict(made.state_dict())


def test_ranks_of_other_memory_read_the_same_epoch() -> None:
    sources = Blocks(max_window_rows=9000), Blocks(is_near=False, max_window_rows=1700)
    ranks = [
        Loader(source, batch_size=64, fraction=0.5, threads=1, rank=rank, world_size=2)
        for rank, source in enumerate(sources)
    ]
    assert len(set(itertools.chain(*map(numbers, ranks)))) == 1000
    assert ranks[0].state_dict() == ranks[1].state_dict()


def test_a_rank_without_the_memory_for_the_window_of_all_asks_for_a_smaller_one() -> None:
    small = Blocks(is_near=False, max_window_rows=300)
    with pytest.raises(UsageError, match="Set window_rows=300 or less"):
        Loader(small, batch_size=64, rank=1, world_size=2)
    made = Loader(small, batch_size=64, rank=1, world_size=2, window_rows=300)
    assert made.state_dict()["window_rows"] == 300


def test_ranks_do_not_choose_by_their_own_disk() -> None:
    two: dict[str, Any] = {"batch_size": 64, "rank": 1, "world_size": 2}
    assert Loader(Blocks(), **two).state_dict()["mode"] == "global"
    slow = Blocks(is_near=False)
    with pytest.raises(UsageError, match="Set order"):
        Loader(slow, **two)
    for mode in (OrderMode.GLOBAL, OrderMode.WINDOWED):
        named = [Loader(s, order=mode, fraction=0.5, **two) for s in (Blocks(), slow)]
        assert named[0].state_dict() == named[1].state_dict()
    slow.files_stats = ShardFilesStats  # type: ignore[method-assign]  # of an object store: for all
    assert Loader(slow, **two).state_dict()["mode"] == "windowed"


def test_a_place_that_leaves_no_whole_batch_ends_its_epoch() -> None:
    small = loader(97)
    numbers(itertools.islice(small, 12))
    assert small.state_dict()["position"] == 96
    large = loader(97, 32, drop_last=True, num_epochs=2)
    large.load_state_dict(small.state_dict())
    assert [len(batch) for batch in large] == [32] * 3
    assert large.state_dict()["epoch"] == 2


def test_without_the_last_batch_all_are_full_wherever_an_epoch_is_resumed() -> None:
    small = loader(97)
    numbers(itertools.islice(small, 1))
    large = loader(97, 32, drop_last=True)
    large.load_state_dict(small.state_dict())
    assert [len(batch) for batch in large] == [32, 32]


@pytest.mark.parametrize("num_steps", [1, 3, 4, 8, 9])
def test_a_resumed_iteration_ends_with_the_same_epoch(num_steps: int) -> None:
    made = loader(20, num_epochs=3)  # of three batches each
    whole = [batch.tolist() for batch in made]
    following = [batch.tolist() for batch in made]
    first, other = loader(20, num_epochs=3), loader(20, num_epochs=3)
    numbers(itertools.islice(first, num_steps))
    other.load_state_dict(first.state_dict())
    assert [batch.tolist() for batch in other] == (whole[num_steps:] or following)


@pytest.mark.parametrize("mode", list(OrderMode), ids=str)
def test_an_order_may_be_given_by_its_name(mode: OrderMode) -> None:
    made, named = (Loader(Blocks(), batch_size=64, threads=1, order=o) for o in (mode, mode.value))
    assert made.state_dict() == named.state_dict()
    assert numbers(made) == numbers(named)
    assert (numbers(named) == list(range(2000))) is (mode is OrderMode.SEQUENTIAL)


def test_a_place_may_be_given_by_its_name(split: Source) -> None:
    for where in ("memory", "stream", "auto"):
        made = Loader(split, batch_size=16, where=where)
        assert (made._reader.is_held) is (where != "stream")
        assert len(list(made)) == 4
    assert not Loader(Blocks(), batch_size=16, where=Where.AUTO)._reader.is_held


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"order": "bogus"},
            r"order: 'bogus' is not one of the possible values\n.*auto, global, windowed",
        ),
        (
            {"where": "disk"},
            r"where: 'disk' is not one of the possible values\n.*auto, memory, stream",
        ),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"rank": 2, "world_size": 2}, "rank is 2, but with world_size=2"),
        ({"prefetch_batches": 0}, "prefetch_batches is 0"),
        ({"threads": -1}, "threads is -1"),
        ({"min_last": -1}, "min_last is -1"),
        (
            {"min_last": 5, "n": 4},
            "only 4 examples, but min_last drops every batch with fewer than 5",
        ),
        (
            {"n": 7, "drop_last": True},
            "only 7 examples, but drop_last drops every batch with fewer than 8",
        ),
        ({"n": 0}, "the dataset is empty"),
        ({"num_epochs": 0}, "num_epochs is 0"),
        ({"num_epochs": 1.5}, "num_epochs is 1.5"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"fraction": "0.5"}, "fraction is '0.5'"),
        ({"fraction": 0.0}, "fraction is 0.0"),
    ],
    ids=str,
)
def test_invalid_arguments_are_reported(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Loader(Numbers(options.pop("n", 40)), **{"batch_size": 8, **options})


def test_an_epoch_below_0_is_refused() -> None:
    with pytest.raises(UsageError, match="epoch is -1"):
        loader(40).set_epoch(-1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (None, "it is a NoneType, not a dict"),
        (
            {"position": 10**9},
            "it does not contain a position in an epoch of 40 examples .position 1000000000",
        ),
        ({"position": 40}, "position 40"),
        ({"position": -1}, "position -1"),
        ({"position": "8"}, "position '8'"),
        ({"epoch": -1, "epochs_done": -2}, "epoch -1, epochs_done -2"),
        ({"mode": ["global"]}, "saved by a Loader with other data or settings"),
    ],
    ids=str,
)
def test_a_state_that_names_no_place_is_refused(wrong: dict[str, Any] | None, said: str) -> None:
    made = loader(40)
    state = None if wrong is None else made.state_dict() | wrong
    with pytest.raises(UsageError, match=said):
        made.load_state_dict(state)  # type: ignore[arg-type]
    assert sorted(numbers(made)) == list(range(40))


@pytest.mark.parametrize(("min_last", "sizes"), [(0, [8, 8, 3]), (3, [8, 8, 3]), (4, [8, 8])])
def test_a_last_batch_below_a_size_is_left_out(min_last: int, sizes: list[int]) -> None:
    made = loader(19, min_last=min_last)
    assert [len(batch) for batch in made] == sizes
    assert len(made) == made.steps_per_epoch == len(sizes)
    assert len(loader(19, min_last=1000)) == len(loader(19, drop_last=True)) == 2


class Short(IterableDataset[int]):
    """Claims twenty, yields ten."""

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Any:
        return iter(range(10))


def test_batches_that_end_too_early_are_reported() -> None:
    with pytest.raises(DataError, match="the dataset ended early, after example 12 of 20"):
        list(Loader(Short(), batch_size=4))
    made = loader(40)
    batches = iter(made)
    next(batches)
    made.close()
    with pytest.raises(DataError, match="after example 8 of 40"):
        next(batches)


def test_numbers_of_numpy_are_numbers() -> None:
    made = Loader(Blocks(), batch_size=np.int64(8), seed=np.int32(3), world_size=np.int8(1))
    made.set_epoch(np.int64(2))
    next(iter(made))
    state = json.loads(json.dumps(made.state_dict()))
    other = Loader(Blocks(), batch_size=8, seed=3)
    other.load_state_dict(state)
    assert other.state_dict() == state
