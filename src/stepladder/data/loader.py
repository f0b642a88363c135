"""The reader in the shape of torch's DataLoader, for a training loop that is not ours."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from stepladder.config.choices import OrderMode, Sampling, Where
from stepladder.config.recipe import DataConfig
from stepladder.data.batch import Batch
from stepladder.data.datasets import as_source
from stepladder.data.examples import Source
from stepladder.data.order import ORDER_VERSION, Order
from stepladder.data.order_choice import resolve_for_ranks
from stepladder.data.reader import Reader, ReaderStats
from stepladder.errors import UsageError

_VERSION: Final = 1
_SHUFFLED: Final = {OrderMode.GLOBAL.value, OrderMode.WINDOWED.value}


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
        threads: that read and decode; 0: one a core.
        prefetch_batches: batches read ahead.
        order: how examples are shuffled; auto suits the source.
        window_rows: of windowed order; 0: those of four files.
        fraction: share of the examples to use, in (0, 1].
        where: memory holds decoded pictures; stream reads them each epoch.
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
        threads: int = 0,
        prefetch_batches: int = 2,
        order: OrderMode = OrderMode.AUTO,
        window_rows: int = 0,
        fraction: float = 1.0,
        where: Where = Where.STREAM,
        transform: Callable[[Batch], Any] | None = None,
    ) -> None:
        wanted = DataConfig(
            order=order if shuffle else OrderMode.SEQUENTIAL, window_rows=window_rows
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
            where=where,
        )
        if drop_last and self._reader.num_examples < batch_size:
            raise UsageError(
                f"{self._reader.num_examples} examples are fewer than a batch of {batch_size}, "
                "and drop_last leaves it out",
                fix="Give a smaller batch_size, or drop_last=False.",
            )
        if num_epochs is not None and num_epochs < 1:
            raise UsageError(
                f"num_epochs is {num_epochs}",
                fix="Give 1 or more, or None for batches without end.",
            )
        self._num_epochs = num_epochs
        self._drop_last = drop_last
        self._transform = transform or as_pair
        self._epoch = 0
        self._position = 0  # examples of the epoch that were given, over all ranks
        self._epochs_done = 0  # of the iteration
        self._begin = _Begin()

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, the same for each rank."""
        whole = self._reader.num_examples // self._reader.global_batch_size
        return whole if self._drop_last else self._reader.steps_per_epoch

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
        """Choose the epoch that the next iteration begins with; a restored place in it stays."""
        if epoch != self._epoch:
            self._epoch, self._position, self._epochs_done = epoch, 0, 0
            self._begin = _Begin()

    def state_dict(self) -> dict[str, int | str]:
        """Say where the loader is: after the last batch that it gave; those read ahead are not.

        After the last batch of an iteration that is the beginning of the next.
        """
        place = {
            "epoch": self._epoch,
            "position": self._position,
            "epochs_done": self._epochs_done,
        }
        return place | _facts(self._reader.order)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where a loader of the same data was, on any number of ranks and threads.

        What was left to `auto` becomes what it was there.

        Raises:
            UsageError: if it was of other data or of another order.
        """
        order = self._order_of(state)
        here = _facts(order)
        odd = [key for key in here if state.get(key) != here[key]]
        if odd or not {"epoch", "position", "epochs_done"} <= state.keys():
            named = ", ".join(f"{key} {state.get(key)!r}, here {here[key]!r}" for key in odd)
            raise UsageError(
                f"this state is of another loader ({named or 'it names no place'})",
                fix="Make the loader with the data, seed and order that it had.",
            )
        if order != self._reader.order:
            self._reader.close()  # what it holds is of the other order
            self._reader.order = order
        most = 0 if self._num_epochs is None else self._num_epochs - 1
        self._begin = _Begin(int(state["position"]), min(int(state["epochs_done"]), most))
        self._epoch = int(state["epoch"])
        self._position, self._epochs_done = self._begin.position, self._begin.epochs_done

    def __iter__(self) -> Iterator[Any]:
        """Begin the epoch, or go on in it where `load_state_dict` says.

        When an epoch is over the next one begins, whether or not `set_epoch` is called.
        """
        begin, self._begin = self._begin, _Begin()
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
        size, total = self._reader.global_batch_size, self._reader.num_examples
        begin = min(self._position, total)  # not always a multiple of size: it may be restored
        stop = total - (total - begin) % size if self._drop_last else total
        if begin >= stop:
            self._end_epoch()
            return
        batches = self._reader.epoch(self._epoch, begin)
        try:
            for position in range(begin, stop, size):
                batch = next(batches)
                self._position = position + size
                is_last = self._position >= stop
                if is_last:
                    self._end_epoch()
                yield self._transform(batch)
                if is_last:
                    return
        finally:
            batches.close()

    def _end_epoch(self) -> None:
        self._epoch, self._position = self._epoch + 1, 0
        if self._num_epochs is not None:
            self._epochs_done = (self._epochs_done + 1) % self._num_epochs

    def _order_of(self, state: dict[str, Any]) -> Order:
        """Give our order, with what was left to `auto` as a state has it."""
        order, wanted = self._reader.order, self._wanted
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


@dataclass(frozen=True)
class _Begin:
    """Where the next iteration begins in the epoch: after a restored batch."""

    position: int = 0
    epochs_done: int = 0


def _facts(order: Order) -> dict[str, int | str]:
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


def as_pair(batch: Batch) -> Any:
    """Give (inputs, targets) as torch's loaders do; inputs alone where there are no targets."""
    return batch.inputs if batch.targets is None else (batch.inputs, batch.targets)
