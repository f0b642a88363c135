"""Compare examples that a dataset returns several times: are they the same in each epoch?"""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence
from time import thread_time
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from stepladder.machine import available_memory_bytes
from stepladder.watching.hooks.hashes import per_example
from stepladder.watching.hooks.patches import DONE
from stepladder.watching.hooks.tensors import tensors_in
from stepladder.watching.seen.loaders import RepeatsSeen
from stepladder.watching.watcher import Watcher

_MAX_DATASETS: Final = 8
_MAX_HASHES: Final = 8192  # examples of a dataset
_MAX_LOOKS: Final = 400  # batches of a dataset
_STATES: Final = 4  # batches for which the states of generators are compared
_STATES_EVERY: Final = 8  # then for every eighth
_FIRST: Final = 64  # steps whose batches are all compared, then every fourth
_EVERY: Final = 4
_FIRST_S: Final = 0.025  # time for the first steps, enough to compare some on a slow machine
_PER_STEP_S: Final = 4e-6  # and for each step
_ENOUGH: Final = 256  # examples that were compared
_MIN_VALUES: Final = 4  # of an example: fewer may be equal by chance
_MIN_DISTINCT: Final = 0.5  # of the examples of a batch
_MAX_VALUES: Final = 256  # of each tensor of an example that are hashed


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
    """Wraps what fetches the examples of a batch in this process, and hashes some of them.

    That takes 25 ms and 4 µs per step at most.
    """

    def __init__(self) -> None:
        self._watcher: Watcher
        self._fetched: dict[int, _Fetched | None] = {}
        self._spent_s = 0.0

    def install(self, watcher: Watcher) -> None:
        """Put the wrapper in place."""
        self._watcher = watcher
        watcher.patches.wrap(_MapDatasetFetcher, "fetch", before=self._before, after=self._after)

    def settle(self) -> None:
        """Forget all examples, and note whether there would be memory for them."""
        for one in self._fetched.values():
            if one is not None and one.seen.num_compared:
                one.seen.memory_bytes = available_memory_bytes()
        self._fetched = {}

    def _before(self, args: tuple[Any, ...], _kwargs: Any) -> Any:
        """Return the states of the generators, if these are read for this batch.

        Returns:
            DONE if its examples are not compared.
        """
        step, dataset = self._watcher.step, args[0].dataset
        is_due = step < _FIRST or step % _EVERY == 0
        if not is_due or self._spent_s > _FIRST_S + _PER_STEP_S * step:
            return DONE
        if id(dataset) not in self._fetched:
            if len(self._fetched) >= _MAX_DATASETS:
                return DONE
            try:
                self._fetched[id(dataset)] = _Fetched(dataset)
            except Exception:  # no length, or no weak reference to it
                self._fetched[id(dataset)] = None
        one = self._fetched[id(dataset)]
        if one is None or one.ref() is not dataset or one.is_done:
            return DONE
        is_read = one.num_looks < _STATES or one.num_looks % _STATES_EVERY == 0
        return _states() if is_read else None

    def _after(self, states: Any, args: tuple[Any, ...], _kwargs: Any, batch: Any) -> None:
        began = thread_time()
        self._inspect(states, args, batch)
        spent_s = thread_time() - began
        self._spent_s += spent_s
        self._watcher.switch.apart_s += spent_s * self._watcher.switch.counts_for

    def _inspect(self, states: Any, args: tuple[Any, ...], batch: Any) -> None:
        one, indices = self._fetched.get(id(args[0].dataset)), args[1]
        if one is None or not isinstance(indices, Sequence):
            return
        one.num_looks += 1
        if states is not None and _states() != states:
            one.seen.has_drawn = True
            return
        rows = per_example(list(tensors_in(batch, 3))[:16])
        is_known = all(isinstance(idx, (int, np.integer, str)) for idx in indices)
        if not is_known or not rows or len(rows[0]) != len(indices):
            return
        num_values = sum(tensor.numel() for tensor in rows) // len(indices)
        try:
            hashes = _hashes_of(rows)
        except (TypeError, RuntimeError):  # types that NumPy does not have, or other devices
            one.num_looks = _MAX_LOOKS
            return
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
        dataset = one.ref()
        for loader in self._watcher.seen.loaders:
            if loader.dataset_id == id(dataset) and loader.repeats is None:
                loader.repeats = seen


def _states() -> tuple[Any, ...]:
    """Return the states of the generators of Python, NumPy and torch."""
    held: Any = np.random.get_state()
    numbers = bytes(torch.get_rng_state().numpy())
    return random.getstate(), held[1].tobytes(), held[2:], numbers


def _hashes_of(tensors: Sequence[Tensor]) -> list[int]:
    """Return a hash of each example: of few values, NumPy is faster than operations of torch."""
    found = [0] * len(tensors[0])
    for tensor in tensors:
        held = tensor.detach()
        held = held.view(torch.int16) if held.dtype is torch.bfloat16 else held
        rows: Any = held.numpy().reshape(len(held), -1)
        rows = rows[:, :: max(1, rows.shape[1] // _MAX_VALUES)]
        found = [hash((before, row.tobytes())) for before, row in zip(found, rows, strict=True)]
    return found
