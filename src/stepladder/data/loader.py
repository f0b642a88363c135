"""The reader in the shape of torch's DataLoader, for a training loop that is not ours."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from stepladder.config.choices import OrderMode, Sampling, Where
from stepladder.data.batch import Batch
from stepladder.data.datasets import as_source
from stepladder.data.examples import Source
from stepladder.data.order import ORDER_VERSION
from stepladder.data.reader import Reader, ReaderStats
from stepladder.errors import UsageError

_VERSION = 1


class Loader:
    """Batches of a split of a store, of a table or of a Dataset: shuffled, sharded, resumable.

    Each rank gets its part of every global batch, so that all ranks take the same number of steps
    whatever the number of examples; a part may be one example smaller than another, or empty. Which
    examples those are depends on the seed and the epoch alone: an interrupted run goes on exactly
    where it was, on any number of ranks and threads.

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
        num_epochs: that one iteration goes through; None: it never ends.
        drop_last: leave out the last batch of an epoch if it is smaller.
        threads: that read and decode; 0: one a core.
        prefetch_batches: batches read ahead.
        order: how examples are shuffled; auto suits the source.
        window_rows: of windowed order; 0: those of four files.
        fraction: share of the examples to use, in (0, 1].
        where: memory holds decoded pictures; stream reads them each epoch.
        transform: called with each `Batch`; what it gives is what the loader gives.

    Raises:
        UsageError: if the options do not go with the source.
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
        self._reader = Reader(
            as_source(source),
            seed=seed,
            global_batch_size=batch_size,
            mode=order if shuffle else OrderMode.SEQUENTIAL,
            rank=rank,
            world_size=world_size,
            threads=threads,
            prefetch_batches=prefetch_batches,
            fraction=fraction,
            sample=Sampling.AUTO,
            window_rows=window_rows,
            where=where,
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
        self._begin = 0  # where the next iteration begins: after a restored batch

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
            self._epoch, self._position, self._begin = epoch, 0, 0

    def state_dict(self) -> dict[str, int | str]:
        """Say where the loader is: after the last batch that it gave; those read ahead are not."""
        order = self._reader.order
        return {
            "version": _VERSION,
            "order_version": ORDER_VERSION,
            "epoch": self._epoch,
            "position": self._position,
            "seed": order.seed,
            "mode": order.mode.value,
            "window_rows": order.window_rows,
            "num_examples": self._reader.num_examples,
            "fingerprint": order.fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where a loader of the same data was, on any number of ranks and threads.

        Raises:
            UsageError: if it was of other data or of another order.
        """
        here = self.state_dict()
        moving = {"epoch", "position"}
        odd = [key for key in here if key not in moving and state.get(key) != here[key]]
        if odd or not moving <= state.keys():
            named = ", ".join(f"{key} {state.get(key)!r}, here {here[key]!r}" for key in odd)
            raise UsageError(
                f"this state is of another loader ({named or 'it names no place'})",
                fix="Make the loader with the data, seed and order that it had.",
            )
        self._epoch, self._begin = int(state["epoch"]), int(state["position"])
        self._position = self._begin

    def __iter__(self) -> Iterator[Any]:
        """Begin the epoch, or go on in it where `load_state_dict` says.

        When an epoch is over the next one begins, whether or not `set_epoch` is called.
        """
        self._position, self._begin = self._begin, 0
        epochs = itertools.count() if self._num_epochs is None else range(self._num_epochs)
        for _ in epochs:
            yield from self._rest_of_epoch()

    def close(self) -> None:
        """End the threads, and let go of pictures held in memory."""
        self._reader.close()

    def _rest_of_epoch(self) -> Iterator[Any]:
        size, total = self._reader.global_batch_size, self._reader.num_examples
        stop = total // size * size if self._drop_last else total
        batches = self._reader.epoch(self._epoch, min(self._position, total))
        try:
            while self._position < stop:
                batch = next(batches)
                self._position = min(self._position + size, total)
                if self._position >= stop:
                    self._epoch, self._position = self._epoch + 1, 0
                    yield self._transform(batch)
                    return
                yield self._transform(batch)
        finally:
            batches.close()


def as_pair(batch: Batch) -> Any:
    """Give (inputs, targets) as torch's loaders do; inputs alone where there are no targets."""
    return batch.inputs if batch.targets is None else (batch.inputs, batch.targets)
