"""A loader with the interface of torch's DataLoader, for any training loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from stepladder.config.choices import OrderMode, Sampling, Where
from stepladder.config.recipe import DataConfig
from stepladder.data.batch import Batch
from stepladder.data.order.order import ORDER_VERSION, Order
from stepladder.data.order.order_choice import resolve_for_ranks
from stepladder.data.reading.arguments import choice, require_at_least, require_rank, whole
from stepladder.data.reading.datasets import as_source
from stepladder.data.reading.examples import Source
from stepladder.data.reading.memory import resolve_where
from stepladder.data.reading.reader import Reader, ReaderStats
from stepladder.errors import DataError, UsageError

_VERSION: Final = 1
_SHUFFLED: Final = (OrderMode.GLOBAL.value, OrderMode.WINDOWED.value)


@dataclass(frozen=True)
class Place:
    """Position of a loader.

    Attributes:
        epoch: current epoch.
        position: examples of the epoch that were yielded, over all ranks.
        epochs_done: finished epochs of the iteration.
    """

    epoch: int = 0
    position: int = 0
    epochs_done: int = 0


def facts_of(order: Order) -> dict[str, int | str]:
    """Return the properties that a state must share with its loader."""
    return {
        "version": _VERSION,
        "order_version": ORDER_VERSION,
        "seed": order.seed,
        "mode": order.mode.value,
        "window_rows": order.window_rows,
        "sample": (Sampling.FILES if order.is_sample_of_blocks else Sampling.ROWS).value,
        "num_examples": order.num_samples,
        "fingerprint": order.fingerprint,
    }


def order_in(state: Mapping[str, Any], order: Order, wanted: DataConfig) -> Order:
    """Return a loader's order, with the choices of `auto` taken from a state.

    Raises:
        UsageError: if the state is from other data or another order.
    """
    if not isinstance(state, Mapping):
        raise _of_another(f"it is a {type(state).__name__}, not a dict")
    order = _as_before(state, order, wanted)
    here = facts_of(order)
    odd = [key for key in here if state.get(key) != here[key]]
    if odd or not {"epoch", "position", "epochs_done"} <= state.keys():
        named = ", ".join(f"{key}: {state.get(key)!r}, expected {here[key]!r}" for key in odd)
        raise _of_another(named or "it has no position")
    return order


def place_in(state: Mapping[str, Any], *, num_examples: int) -> Place:
    """Return the position in a state.

    Raises:
        UsageError: if it is not a valid position in an epoch of num_examples.
    """
    names = ("epoch", "position", "epochs_done")
    odd = [name for name in names if type(state[name]) is not int or state[name] < 0]
    if not odd and state["position"] >= num_examples:
        odd = ["position"]
    if odd:
        named = ", ".join(f"{name} {state[name]!r}" for name in odd)
        raise UsageError(
            "the state from which the Loader is to resume is not valid: it does not contain a "
            f"position in an epoch of {num_examples} examples ({named})",
            why="Examples would be skipped or repeated.",
            fix="Pass the unmodified result of the Loader's state_dict() to load_state_dict().",
        )
    return Place(*(state[name] for name in names))


def _as_before(state: Mapping[str, Any], order: Order, wanted: DataConfig) -> Order:
    if not order.block_rows:
        return order
    mode, window_rows = order.mode, order.window_rows
    if wanted.order is OrderMode.AUTO and state.get("mode") in _SHUFFLED:
        mode = OrderMode(state["mode"])
    if not wanted.window_rows and isinstance(state.get("window_rows"), int):
        window_rows = max(state["window_rows"], 1 if mode is OrderMode.WINDOWED else 0)
    return replace(
        order,
        mode=mode,
        window_rows=window_rows,
        is_sample_of_blocks=state.get("sample") == Sampling.FILES,
    )


def _of_another(named: str) -> UsageError:
    return UsageError(
        f"the state was saved by a Loader with other data or settings ({named})",
        why="The batches would not continue where that loader stopped.",
        fix="Create this Loader with the same data, seed and order as that one.",
    )


class Loader:
    """Iterate over batches of a store, a table or a Dataset: shuffled, sharded and resumable.

    Each rank gets its part of every global batch, so that all ranks take the same number of steps
    for any number of examples; parts may differ by one example or be empty. The examples of a batch
    depend only on the seed and the epoch: an interrupted run resumes exactly, on any number of
    ranks and threads. The choices of `auto` are part of the state. If they could differ between
    ranks, `auto` uses only what all ranks know, or raises an error that asks for an order.

        loader = Loader(store.split(Split.TRAIN), batch_size=64, rank=rank, world_size=world_size)
        for epoch in range(10):
            loader.set_epoch(epoch)
            for images, labels in loader:
                ...

    Args:
        source: a split of a store, `open_table(...)`, or a map-style Dataset.
        batch_size: examples of a batch, summed over ranks.
        shuffle: False for the examples in stored order.
        seed: seed of the shuffles.
        rank, world_size: rank of this process and number of processes.
        num_epochs: epochs of one iteration, including those before a restored position; None:
            endless.
        drop_last: drop the last batch of an epoch if it is smaller.
        min_last: drop the last batch if it has fewer examples than this; set it to world_size so
            that no rank's part is empty.
        threads: threads that read and decode; 0: one per core.
        prefetch_batches: batches read ahead.
        order: how examples are shuffled; auto chooses by source.
        window_rows: window of windowed order in rows; 0: the rows of four files.
        fraction: fraction of the examples to use, in (0, 1].
        where: memory keeps decoded pictures; stream reads them each epoch; auto: memory if they
            take at most a quarter of the free memory.
        transform: called with each `Batch`; the loader yields its result.

    Raises:
        UsageError: if the options do not fit the source, or there is no batch.
    """

    def __init__(
        self,
        source: Source | Any,
        *,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_epochs: int | None = 1,
        drop_last: bool = False,
        min_last: int = 0,
        threads: int = 0,
        prefetch_batches: int = 2,
        order: OrderMode | str = OrderMode.AUTO,
        window_rows: int = 0,
        fraction: float = 1.0,
        where: Where | str = Where.STREAM,
        transform: Callable[[Batch], Any] | None = None,
    ) -> None:
        require_at_least(1, batch_size=batch_size, prefetch_batches=prefetch_batches)
        require_at_least(0, threads=threads, min_last=min_last)
        require_rank(rank, world_size)
        if num_epochs is not None:
            num_epochs = _counted(num_epochs)
        mode = choice(OrderMode, order, where="order")
        wanted = DataConfig(
            order=mode if shuffle else OrderMode.SEQUENTIAL, window_rows=window_rows
        )
        read = as_source(source)
        chosen = resolve_for_ranks(wanted, read) if world_size > 1 else wanted
        self._wanted = wanted
        self._reader = Reader(
            read,
            seed=seed,
            global_batch_size=batch_size,
            mode=chosen.order,
            rank=rank,
            world_size=world_size,
            threads=threads,
            prefetch_batches=prefetch_batches,
            fraction=fraction,
            sample=chosen.sample,
            window_rows=chosen.window_rows,
            where=resolve_where(read, choice(Where, where, where="where"), fraction=fraction),
        )
        batch_size = self._reader.global_batch_size
        self._min_last = batch_size if drop_last else min(min_last, batch_size)
        if self._reader.num_examples < self._min_last:
            raise UsageError(
                f"the data have only {self._reader.num_examples} examples, but "
                f"{'drop_last' if drop_last else 'min_last'} drops every batch with fewer than "
                f"{self._min_last}, so there would be no batches",
                fix="Use a smaller batch_size, or drop_last=False and min_last=0.",
            )
        self._num_epochs = num_epochs
        self._transform = transform or as_pair
        self._epoch = 0
        self._position = 0  # examples of the epoch that were yielded, over all ranks
        self._epochs_done = 0  # in this iteration
        self._begin = Place()

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches of an epoch, the same on each rank."""
        return -(-self._stop(0) // self._reader.global_batch_size)

    @property
    def validation_steps(self) -> int:
        """Number of batches of a validation with this loader: one epoch."""
        return self.steps_per_epoch

    @property
    def batch_size(self) -> int:
        """Examples of a batch, summed over ranks."""
        return self._reader.global_batch_size

    @property
    def dataset(self) -> Source:
        """The source of the examples."""
        return self._reader.source

    @property
    def stats(self) -> ReaderStats:
        """Reading statistics so far."""
        return self._reader.stats

    def __len__(self) -> int:
        """Return the number of batches of one iteration, from the beginning of an epoch.

        Raises:
            TypeError: if it is endless.
        """
        if self._num_epochs is None:
            raise TypeError("a loader with num_epochs=None has no length")
        return self.steps_per_epoch * self._num_epochs

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; a restored position in the same epoch is kept.

        Raises:
            UsageError: if it is negative.
        """
        require_at_least(0, epoch=epoch)
        epoch = whole("epoch", epoch)
        if epoch != self._epoch:
            self._epoch, self._position, self._epochs_done = epoch, 0, 0
            self._begin = Place()

    def state_dict(self) -> dict[str, int | str]:
        """Return the position after the last batch yielded; prefetched batches do not count.

        After the last batch of an iteration, it is the beginning of the next.
        """
        place = {
            "epoch": self._epoch,
            "position": self._position,
            "epochs_done": self._epochs_done,
        }
        return place | facts_of(self._reader.order)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a loader of the same data, on any number of ranks and threads.

        The choices of `auto` are restored too.

        Raises:
            UsageError: if the state is from other data or another order, or is invalid.
        """
        order = order_in(state, self._reader.order, self._wanted)
        place = place_in(state, num_examples=order.num_samples)
        if order != self._reader.order:
            self._reader.close()  # what it keeps is in the other order
            self._reader.order = order
        most = 0 if self._num_epochs is None else self._num_epochs - 1
        self._begin = replace(place, epochs_done=min(place.epochs_done, most))
        self._epoch = place.epoch
        self._position, self._epochs_done = self._begin.position, self._begin.epochs_done

    def __iter__(self) -> Iterator[Any]:
        """Start the epoch, or resume at the position of `load_state_dict`.

        After an epoch the next one starts, whether or not `set_epoch` is called.
        """
        begin, self._begin = self._begin, Place()
        self._position, self._epochs_done = begin.position, begin.epochs_done
        if self._num_epochs is None:
            epochs: Iterable[int] = itertools.count()
        else:
            epochs = range(begin.epochs_done, self._num_epochs)
        for _ in epochs:
            yield from self._rest_of_epoch()

    def close(self) -> None:
        """Stop the threads and free pictures kept in memory."""
        self._reader.close()

    def _rest_of_epoch(self) -> Iterator[Any]:
        begin, size = self._position, self._reader.global_batch_size
        stop = self._stop(begin)
        if begin >= stop:
            self._end_epoch()
            return
        batches = self._reader.epoch(self._epoch, begin)
        try:
            for position in range(begin, stop, size):
                batch = next(batches, None)
                if batch is None:
                    raise _ended_early(position, stop)
                self._position = position + size
                is_last = self._position >= stop
                if is_last:
                    self._end_epoch()
                yield self._transform(batch)
                if is_last:
                    return
        finally:
            batches.close()

    def _stop(self, begin: int) -> int:
        """Return the position after the last batch that is not dropped.

        Args:
            begin: start position; after a restore it may not be a multiple of the batch size.
        """
        total = self._reader.num_examples
        num_last = (total - begin) % self._reader.global_batch_size
        return total - num_last if num_last < self._min_last else total

    def _end_epoch(self) -> None:
        self._epoch, self._position = self._epoch + 1, 0
        if self._num_epochs is not None:
            self._epochs_done = (self._epochs_done + 1) % self._num_epochs


def _counted(num_epochs: int) -> int:
    try:
        num = whole("num_epochs", num_epochs)
    except UsageError:
        num = 0
    if num < 1:
        raise UsageError(
            f"num_epochs is {num_epochs!r}, but must be an integer of at least 1, or None",
            fix="Set num_epochs to 1 or more, or to None to iterate without end.",
        )
    return num


def _ended_early(position: int, stop: int) -> DataError:
    return DataError(
        f"the dataset ended early, after example {position} of {stop}",
        where="Loader",
        why="The loader was closed, or the dataset has fewer examples than its __len__ returns.",
        fix="Call close() after the last batch, or fix the dataset's __len__.",
    )


def as_pair(batch: Batch) -> Any:
    """Return (inputs, targets) like torch's DataLoader; only inputs if there are no targets."""
    return batch.inputs if batch.targets is None else (batch.inputs, batch.targets)
