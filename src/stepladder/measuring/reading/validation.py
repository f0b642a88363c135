"""Time validations as in a run: images held in memory are decoded only once."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from stepladder.config.choices import Where
from stepladder.config.recipe import BatchConfig, LoaderConfig
from stepladder.data.reading.examples import PictureSource, ReadCost
from stepladder.data.reading.reader import Reader, Source
from stepladder.measuring.subject import Subject
from stepladder.parallel.world import ALONE, World
from stepladder.training.evaluate import evaluate
from stepladder.training.setup.build import make_held_out_reader


class KeptPictures(PictureSource):
    """A source that keeps rows in memory once they have been read.

    Args:
        source: the source to read from.
    """

    def __init__(self, source: PictureSource) -> None:
        self.source = source
        self.fingerprint = source.fingerprint
        self.labels = source.labels
        self.picture_shape = source.picture_shape
        self.rows_per_task = source.rows_per_task
        self._pictures = np.empty((len(source), *source.picture_shape), dtype=np.uint8)
        self._is_here = np.zeros(len(source), dtype=bool)

    def __len__(self) -> int:
        return len(self.source)

    def hold(self, rows: NDArray[np.int64]) -> None:
        """Read those of these rows that are not in memory yet."""
        missing = rows[~self._is_here[rows]]
        for start in range(0, len(missing), self.rows_per_task):
            part = missing[start : start + self.rows_per_task]
            read = np.empty((len(part), *self.picture_shape), dtype=np.uint8)
            self.source.read_into(part, read)
            self._pictures[part] = read
            self._is_here[part] = True

    def read_into(self, rows: np.ndarray, out: np.ndarray) -> ReadCost:
        """Copy rows from memory, after reading the missing ones."""
        start_s = time.perf_counter()
        self.hold(rows)
        np.take(self._pictures, rows, axis=0, out=out, mode="clip")
        return ReadCost(fetch_s=time.perf_counter() - start_s, num_bytes=out.nbytes)


def open_validation(
    source: Source | None,
    batch: BatchConfig,
    loader: LoaderConfig,
    where: Where,
    world: World = ALONE,
) -> Reader | None:
    """Return the reader of a held-out split that reads only requested rows.

    None without a split.

    Args:
        where: where a run holds its images.
        world: the ranks that each read a part.
    """
    if where is Where.MEMORY and isinstance(source, PictureSource):
        source = KeptPictures(source)
    return make_held_out_reader(source, batch, loader, Where.STREAM, world)


def hold_batches(reader: Reader, num_batches: int) -> None:
    """Read the first batches of a split if a run holds them in memory; else do nothing."""
    if isinstance(reader.source, KeptPictures):
        num_rows = min(num_batches * reader.global_batch_size, len(reader.source))
        reader.source.hold(np.arange(num_rows, dtype=np.int64))


_ENOUGH_S = 0.3


def measure_validation(subject: Subject, *, budget_s: float) -> float | None:
    """Time a validation, scaled up from its first batches if all of them take too long.

    None without a validation split. Images that a run holds in memory are already loaded, as for
    all of its validations but the first.
    """
    source, recipe = subject.sources.val, subject.recipe
    reader = open_validation(source, recipe.batch, recipe.loader, recipe.data.where)
    if source is None or reader is None:
        return None

    def per_example_s(num_batches: int) -> float:
        hold_batches(reader, num_batches)
        start_s = time.perf_counter()
        result = evaluate(
            subject.task,
            subject.model,
            reader,
            device=subject.device,
            precision=recipe.device.precision,
            memory_format=subject.memory_format,
            max_batches=num_batches,
        )
        return (time.perf_counter() - start_s) / max(1, result.losses.size)

    try:
        example_s = per_example_s(1)  # chooses kernels, too
        batch_s = example_s * min(reader.global_batch_size, len(source))
        num_batches = min(reader.steps_per_epoch, int(min(budget_s, _ENOUGH_S) / batch_s))
        if num_batches:
            example_s = per_example_s(num_batches)
    finally:
        reader.close()
    return example_s * len(source)
