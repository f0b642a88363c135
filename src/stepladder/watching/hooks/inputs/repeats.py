"""Compare examples that a dataset returns several times: are they the same in each epoch?"""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from stepladder.machine import available_memory_bytes
from stepladder.watching.hooks.hashes import hashes_of, per_example
from stepladder.watching.hooks.tensors import tensors_in
from stepladder.watching.seen.loaders import RepeatsSeen
from stepladder.watching.watcher import Watcher

_MAX_DATASETS: Final = 8
_MAX_HASHES: Final = 8192  # examples of a dataset
_MAX_LOOKS: Final = 200  # batches of a dataset
_ENOUGH: Final = 256  # examples that were compared
_MIN_VALUES: Final = 4  # of an example: fewer may be equal by chance
_MIN_DISTINCT: Final = 0.5  # of the examples of a batch


class _Fetched:
    """The hashes of examples of a dataset, by index."""

    def __init__(self, dataset: Any) -> None:
        self.ref = weakref.ref(dataset)
        self.seen = RepeatsSeen(num_examples=len(dataset))
        self.hashes: dict[Any, int] = {}
        self.num_looks = 0

    @property
    def is_done(self) -> bool:
        """Return whether nothing more can be learned."""
        seen = self.seen
        is_known = seen.has_drawn or seen.num_equal < seen.num_compared
        return is_known or seen.num_compared >= _ENOUGH or self.num_looks >= _MAX_LOOKS


class RepeatWatch:
    """Wraps what fetches the examples of a batch in this process, in steps that are inspected."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._fetched: dict[int, _Fetched | None] = {}

    def install(self, watcher: Watcher) -> None:
        """Put the wrapper in place."""
        self._watcher = watcher
        watcher.patches.wrap(
            _MapDatasetFetcher, "fetch", before=self._before, after=self._after, is_close_only=True
        )

    def settle(self) -> None:
        """Forget all examples."""
        self._fetched = {}

    def _before(self, args: tuple[Any, ...], _kwargs: Any) -> Any:
        """Return the states of the generators, or None if this batch is not compared."""
        dataset = args[0].dataset
        if id(dataset) not in self._fetched:
            if len(self._fetched) >= _MAX_DATASETS:
                return None
            try:
                self._fetched[id(dataset)] = _Fetched(dataset)
            except (TypeError, NotImplementedError):  # no length, or no weak reference to it
                self._fetched[id(dataset)] = None
        one = self._fetched[id(dataset)]
        if one is None or one.ref() is not dataset or one.is_done:
            return None
        return _states()

    def _after(self, states: Any, args: tuple[Any, ...], _kwargs: Any, batch: Any) -> None:
        one, indices = self._fetched.get(id(args[0].dataset)), args[1]
        if states is None or one is None or not isinstance(indices, Sequence):
            return
        one.num_looks += 1
        if _states() != states:
            one.seen.has_drawn = True
            return
        rows = per_example(list(tensors_in(batch, 3))[:16])
        if not rows or len(rows[0]) != len(indices) or not all(tensor.is_cpu for tensor in rows):
            return
        num_values = sum(tensor.numel() for tensor in rows) // len(indices)
        hashes: list[int] = hashes_of(rows).tolist()
        is_telling = len(set(hashes)) >= max(_MIN_DISTINCT * len(hashes), min(2, len(indices)))
        if num_values >= _MIN_VALUES and is_telling:
            num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in rows)
            one.seen.example_bytes = max(one.seen.example_bytes, num_bytes // len(indices))
            self._compare(one, indices, hashes)

    def _compare(self, one: _Fetched, indices: Sequence[Any], hashes: Sequence[int]) -> None:
        seen = one.seen
        for idx, now in zip(indices, hashes, strict=False):
            before = one.hashes.get(idx)
            if before is not None:
                seen.num_compared += 1
                seen.num_equal += before == now
            elif len(one.hashes) < _MAX_HASHES:
                one.hashes[idx] = now
        if seen.num_compared and not seen.memory_bytes:
            seen.memory_bytes = available_memory_bytes()
        dataset = one.ref()
        for loader in self._watcher.seen.loaders:
            if loader.dataset_id == id(dataset) and loader.repeats is None:
                loader.repeats = seen


def _states() -> tuple[Any, ...]:
    """Return the states of the generators of Python, NumPy and torch."""
    held: Any = np.random.get_state()
    numbers = bytes(torch.get_rng_state().numpy())
    return random.getstate(), held[1].tobytes(), held[2:], numbers
