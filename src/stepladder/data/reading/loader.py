"""The reader in the shape of torch's DataLoader, for a training loop that is not ours."""

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
    """Where a loader is.

    Attributes:
        epoch: that it is in.
        position: examples of the epoch that were given, over all ranks.
        epochs_done: of the iteration.
    """

    epoch: int = 0
    position: int = 0
    epochs_done: int = 0


def facts_of(order: Order) -> dict[str, int | str]:
    """Say of what loader a state is."""
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
    """Return a loader's order, with what was left to `auto` as a state has it.

    Raises:
        UsageError: if the state is of other data or of another order.
    """
    if not isinstance(state, Mapping):
        raise _of_another(f"it is {type(state).__name__}, and no dictionary")
    order = _as_before(state, order, wanted)
    here = facts_of(order)
    odd = [key for key in here if state.get(key) != here[key]]
    if odd or not {"epoch", "position", "epochs_done"} <= state.keys():
        named = ", ".join(f"{key} {state.get(key)!r}, here {here[key]!r}" for key in odd)
        raise _of_another(named or "it names no place")
    return order


def place_in(state: Mapping[str, Any], *, num_examples: int) -> Place:
    """Return the place that a state names.

    Raises:
        UsageError: if an epoch of so many examples has no such place.
    """
    names = ("epoch", "position", "epochs_done")
    odd = [name for name in names if type(state[name]) is not int or state[name] < 0]
    if not odd and state["position"] >= num_examples:
        odd = ["position"]
    if odd:
        named = ", ".join(f"{name} {state[name]!r}" for name in odd)
        raise UsageError(
            f"this state names no place in an epoch of {num_examples} examples ({named})",
            why="Examples would be left out, or come twice.",
            fix="Give the state as state_dict gave it.",
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
        f"this state is of another loader ({named})",
        fix="Make the loader with the data, seed and order that it had.",
    )


class Loader:
    """Batches of a split of a store, of a table or of a Dataset: shuffled, sharded, resumable.

    Each rank gets its part of every global batch, so that all ranks take the same number of steps
    whatever the number of examples; a part may be one example smaller than another, or empty. Which
    examples those are depends on the seed and the epoch alone: an interrupted run goes on exactly
    where it was, on any number of ranks and threads. What `auto` chose is part of its state. Where
    it could choose otherwise on another rank, it takes what all ranks know, or asks for an order.

        loader = Loader(store.split(Split.TRAIN), batch_size=64, rank=rank, world_size=world_size)
        for epoch in range(10):
            loader.set_epoch(epoch)
            for images, labels in loader:
                ...

    Args:
        source: a split of a store, `open_table(...)`, or a map-style Dataset.
        batch_size: examples of a batch, summed over ranks.
        shuffle: False gives the examples as they are stored.
        seed: chooses the shuffles.
        rank, world_size: which part of each batch is this process's.
        num_epochs: that one iteration goes through, those before a restored place among them;
            None: it never ends.
        drop_last: leave out the last batch of an epoch if it is smaller.
        min_last: leave it out if it has fewer examples than this: with world_size, no part of it is
            empty.
        threads: that read and decode; 0: one a core.
        prefetch_batches: batches read ahead.
        order: how examples are shuffled; auto suits the source.
        window_rows: of windowed order; 0: those of four files.
        fraction: share of the examples to use, in (0, 1].
        where: memory holds decoded pictures; stream reads them each epoch; auto: memory where
            they take a quarter of it at most.
        transform: called with each `Batch`; what it gives is what the loader gives.

    Raises:
        UsageError: if the options do not go with the source, or there is not one batch.
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
                f"{self._reader.num_examples} examples are fewer than a batch of {self._min_last}, "
                f"and {'drop_last' if drop_last else 'min_last'} leaves it out",
                fix="Give a smaller batch_size, or drop_last=False and min_last=0.",
            )
        self._num_epochs = num_epochs
        self._transform = transform or as_pair
        self._epoch = 0
        self._position = 0  # examples of the epoch that were given, over all ranks
        self._epochs_done = 0  # of the iteration
        self._begin = Place()

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, the same for each rank."""
        return -(-self._stop(0) // self._reader.global_batch_size)

    @property
    def validation_steps(self) -> int:
        """Batches of a validation by this loader: an epoch of it."""
        return self.steps_per_epoch

    @property
    def batch_size(self) -> int:
        """Examples of a batch, summed over ranks."""
        return self._reader.global_batch_size

    @property
    def dataset(self) -> Source:
        """What is read."""
        return self._reader.source

    @property
    def stats(self) -> ReaderStats:
        """What reading took so far."""
        return self._reader.stats

    def __len__(self) -> int:
        """Count the batches of one iteration, from the beginning of an epoch.

        Raises:
            TypeError: if it has no end.
        """
        if self._num_epochs is None:
            raise TypeError("a loader with num_epochs=None has no length")
        return self.steps_per_epoch * self._num_epochs

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration begins with; a restored place in it stays.

        Raises:
            UsageError: if it is not 0 or more.
        """
        require_at_least(0, epoch=epoch)
        epoch = whole("epoch", epoch)
        if epoch != self._epoch:
            self._epoch, self._position, self._epochs_done = epoch, 0, 0
            self._begin = Place()

    def state_dict(self) -> dict[str, int | str]:
        """Say where the loader is: after the last batch that it gave; those read ahead are not.

        After the last batch of an iteration that is the beginning of the next.
        """
        place = {
            "epoch": self._epoch,
            "position": self._position,
            "epochs_done": self._epochs_done,
        }
        return place | facts_of(self._reader.order)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where a loader of the same data was, on any number of ranks and threads.

        What was left to `auto` becomes what it was there.

        Raises:
            UsageError: if it was of other data or of another order, or names no place.
        """
        order = order_in(state, self._reader.order, self._wanted)
        place = place_in(state, num_examples=order.num_samples)
        if order != self._reader.order:
            self._reader.close()  # what it holds is of the other order
            self._reader.order = order
        most = 0 if self._num_epochs is None else self._num_epochs - 1
        self._begin = replace(place, epochs_done=min(place.epochs_done, most))
        self._epoch = place.epoch
        self._position, self._epochs_done = self._begin.position, self._begin.epochs_done

    def __iter__(self) -> Iterator[Any]:
        """Begin the epoch, or go on in it where `load_state_dict` says.

        When an epoch is over the next one begins, whether or not `set_epoch` is called.
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
        """End the threads, and let go of pictures held in memory."""
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
        """Return the position after the last batch that is not left out.

        Args:
            begin: where batches begin; not always a multiple of their size: it may be restored.
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
            f"num_epochs is {num_epochs!r}",
            fix="Give 1 or more, or None for batches without end.",
        )
    return num


def _ended_early(position: int, stop: int) -> DataError:
    return DataError(
        f"there are no more batches after example {position} of {stop}",
        where="Loader",
        why="It was closed meanwhile, or the dataset gave fewer examples than its __len__ says.",
        fix="Take all batches before close(), or mend the __len__.",
    )


def as_pair(batch: Batch) -> Any:
    """Return (inputs, targets) as torch's loaders do; inputs alone where there are no targets."""
    return batch.inputs if batch.targets is None else (batch.inputs, batch.targets)
