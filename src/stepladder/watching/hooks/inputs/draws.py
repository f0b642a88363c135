"""Watch which indices the samplers of a dataset return."""

from __future__ import annotations

import weakref
from typing import Any, Final

from torch import Tensor
from torch.utils.data import IterableDataset, WeightedRandomSampler
from torch.utils.data import dataloader as dataloader_module

from stepladder.watching.hooks.hashes import hashes_of
from stepladder.watching.seen.loaders import DrawsSeen, LoaderSeen
from stepladder.watching.watcher import Watcher

_MAX_STORED: Final = 1 << 22  # examples: one byte each
_MAX_DATASETS: Final = 16
_MAX_COMPARED: Final = 1024  # stored examples


class _Drawn:
    """The indices that were drawn from a dataset, as one byte per example."""

    def __init__(self, dataset: Any, num: int) -> None:
        self.ref = weakref.ref(dataset)
        self.seen: DrawsSeen | None = DrawsSeen(num_stored=num)
        self.marks = bytearray(num)

    def add(self, indices: Any) -> None:
        """Mark the indices of a batch."""
        assert self.seen is not None
        marks = self.marks
        for idx in indices if isinstance(indices, (list, tuple)) else (indices,):
            marks[idx] = 1
        self.seen.num_drawn += len(indices) if isinstance(indices, (list, tuple)) else 1


class DrawWatch:
    """Wraps what asks a sampler for the next indices."""

    def __init__(self) -> None:
        self._drawn: dict[int, _Drawn] = {}

    def install(self, watcher: Watcher) -> None:
        """Wrap the method of the loader's iterators."""
        iterator = dataloader_module._BaseDataLoaderIter
        watcher.patches.wrap(iterator, "_next_index", after=self._next)

    def settle(self) -> None:
        """Count the distinct indices."""
        for one in self._drawn.values():
            if one.seen is not None:
                one.seen.num_distinct = one.marks.count(1)

    def describe(self, loader: Any, sampler: Any, seen: LoaderSeen, stored: Tensor | None) -> None:
        """Note a loader's sampler, and count the indices of its dataset from now on.

        Args:
            stored: the array of its dataset with one row per example; None if it has none.
        """
        seen.sampler_kind = type(sampler).__name__
        weights = getattr(sampler, "weights", None)
        if isinstance(sampler, WeightedRandomSampler) and weights is not None:
            seen.num_weights = len(weights)
            seen.num_zero = seen.num_weights - int(weights.count_nonzero())
        dataset = loader.dataset
        held = self._drawn.get(id(dataset))
        if held is None or held.ref() is not dataset:
            held = self._begin(dataset)
            if held is not None and held.seen is not None and stored is not None:
                some = stored[:: -(-len(stored) // _MAX_COMPARED)]
                held.seen.num_compared, held.seen.width = len(some), some[0].numel()
                held.seen.num_apart = len(set(hashes_of([some]).tolist()))
        seen.draws = None if held is None else held.seen

    def _begin(self, dataset: Any) -> _Drawn | None:
        if isinstance(dataset, IterableDataset) or len(self._drawn) >= _MAX_DATASETS:
            return None
        try:
            num = len(dataset)
            if not 0 < num <= _MAX_STORED:
                return None
            held = self._drawn[id(dataset)] = _Drawn(dataset, num)
        except (TypeError, NotImplementedError):
            return None  # without length, or a list
        return held

    def _next(self, _note: Any, args: tuple[Any, ...], _kwargs: Any, indices: Any) -> None:
        held = self._drawn.get(id(getattr(args[0], "_dataset", None)))
        if held is None or held.seen is None:
            return
        try:
            held.add(indices)
        except (TypeError, IndexError, ValueError):
            held.seen.num_stored = 0  # its keys are no positions
            held.seen = None
