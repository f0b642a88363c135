"""Compute the features of a frozen trunk on all ranks, each its part of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.data.order.hosts import rank_slice
from stepladder.data.reading.reader import Source
from stepladder.errors import ResourceError
from stepladder.machine.activity import on_its_own
from stepladder.models.features import evaluating
from stepladder.parallel.world import World
from stepladder.training.features.feature_pass import TrunkPass, batch_size_on, read_batch
from stepladder.training.setup.build import Sources

_BATCHES_AT_ONCE: Final = 2  # of each rank, between two gatherings


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What rank 0 asks the others to compute: rows of a split.

    Attributes:
        fingerprint: of the split, to verify that all ranks read the same data.
    """

    split: Split
    rows: np.ndarray
    num_views: int
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class RankEngine:
    """Computes features on rank 0 together with the ranks that call `serve_features`.

    Attributes:
        sources: the splits of the examples.
    """

    world: World
    sources: Sources

    def compute(
        self,
        recipe: Recipe,
        way: TrunkPass,
        split: Split,
        rows: np.ndarray,
        *,
        fingerprint: str,
        num_views: int,
        num_done: int,
        folder: Path,
        append: Callable[[Tensor, Tensor | None], None],
        check: Callable[[], None],
    ) -> None:
        """Compute the features of rows, and append them in order; see `FeatureEngine.compute`."""
        del recipe, folder
        work = _Work(
            split=split, rows=rows[num_done:], num_views=num_views, fingerprint=fingerprint
        )
        self.world.from_main(work)
        for features, targets in _parts(way, self.sources, work, self.world):
            check()
            with on_its_own("writing features"):
                append(features, targets)

    def end(self) -> None:
        """Let the other ranks continue: all features are computed."""
        self.world.from_main(None)


def serve_features(way: TrunkPass, sources: Sources, world: World) -> None:
    """Compute this rank's parts of the features that rank 0 asks for, until it needs no more.

    Raises:
        ResourceError: if this rank reads other data than rank 0.
    """
    while True:
        work: _Work | None = world.from_main(None)
        if work is None:
            return
        own: Source | None = getattr(sources, work.split.value)
        if own is None or own.fingerprint != work.fingerprint:
            raise ResourceError(
                f"the process of rank {world.rank} reads other examples of the split "
                f"{work.split} than "
                "that of rank 0, but the processes of a run divide the same examples among them",
                fix="Let the Task read the same files in the same order in every process: sort "
                "lists of files, and seed random splits.",
            )
        for _ in _parts(way, sources, work, world):
            pass


def _parts(
    way: TrunkPass, sources: Sources, work: _Work, world: World
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the features and the targets of the rows in order, a gathering at a time."""
    source: Source = getattr(sources, work.split.value)
    at_once = batch_size_on(way.device) * _BATCHES_AT_ONCE * world.size
    with evaluating(way.model):
        for first in range(0, len(work.rows), at_once):
            rows = work.rows[first : first + at_once]
            start, stop = rank_slice(len(rows), world.rank, world.size)
            mine = _computed(way, source, rows[start:stop], work.num_views)
            gathered = [part for part in world.gather(mine) if part is not None]
            targets = [part[1] for part in gathered if part[1] is not None]
            features = torch.cat([part[0] for part in gathered])
            yield features, torch.cat(targets) if targets else None


def _computed(
    way: TrunkPass, source: Source, rows: np.ndarray, num_views: int
) -> tuple[Tensor, Tensor | None] | None:
    """Return the features and targets of this rank's rows; None: it has none."""
    size = batch_size_on(way.device)
    made: list[Tensor] = []
    targets: list[Tensor] = []
    for first in range(0, len(rows), size):
        with on_its_own("reading examples for their features"):
            batch = read_batch(source, rows[first : first + size])
        made.append(way.features(batch, num_views=num_views).cpu())
        if batch.targets is not None:
            targets.append(batch.targets)
    if not made:
        return None
    return torch.cat(made), torch.cat(targets) if targets else None
