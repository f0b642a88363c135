"""Watch datasets while they return examples: do they change what they store, or seed generators?"""

from __future__ import annotations

import itertools
import random
import sys
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from stepladder.watching.hooks.tensors import is_plain
from stepladder.watching.script.own_code import OwnCode
from stepladder.watching.seen.inputs import SeedingSeen, StoredSeen
from stepladder.watching.watcher import Watcher

_MAX_DATASETS: Final = 8
_MAX_LOOKS: Final = 24  # batches of a dataset after its first whole pass
_ROWS: Final = 4  # of a batch
_MIN_VALUES: Final = 16  # of an example: not counters or scores
_MAX_VALUES: Final = 4096
_MAX_ATTRIBUTES: Final = 32
_MAX_STORES: Final = 3  # arrays or lists of a dataset
_MAX_DEPTH: Final = 3  # datasets within datasets
_ALIKE: Final = 0.5  # correlation of an example with what it was
_MAX_SEEDINGS: Final = 16  # lines
_MAX_SEED_VALUES: Final = 4
_USES: Final = 16  # calls after which the generator is compared
_MAX_FRAMES: Final = 24
_MAX_CALLS: Final = 4096


class _Held:
    """The attributes in which a dataset stores examples, and what was found of each."""

    def __init__(
        self, dataset: Any, attributes: Sequence[str], where: str | None, loader: int
    ) -> None:
        self.ref = weakref.ref(dataset)
        self.loader = loader  # the first one of it: earlier ones may be of a dataset that is gone
        kind = type(dataset).__name__
        self.seen = {
            name: StoredSeen(dataset=kind, attribute=name, where=where) for name in attributes
        }
        self.num_looks = 0


_Rows = dict[tuple[str, Any], np.ndarray[Any, Any]]  # by attribute and index


class StoredWatch:
    """Wraps what fetches the examples of a batch in this process, and the functions that seed."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._held: dict[int, _Held | None] = {}
        self._seedings: dict[tuple[str, str | None, int], SeedingSeen] = {}
        self._num_seedings = 0
        self._fresh: dict[str, Any] = {}

    def install(self, watcher: Watcher) -> None:
        """Put wrappers in place."""
        self._watcher = watcher
        watcher.patches.wrap(
            _MapDatasetFetcher, "fetch", before=self._before, after=self._after, is_close_only=True
        )
        for owner, name, function in (
            (np.random, "seed", "np.random.seed"),
            (random, "seed", "random.seed"),
            (torch, "manual_seed", "torch.manual_seed"),
        ):
            watcher.patches.wrap(
                owner, name, before=self._seeding(function), after=self._seeded(function)
            )

    def settle(self) -> None:
        """Store what was found."""
        for held in self._held.values():
            self._watcher.seen.stored += held.seen.values() if held is not None else ()
        self._watcher.seen.seedings += self._seedings.values()
        self._held, self._seedings = {}, {}

    def _before(self, args: tuple[Any, ...], _kwargs: Any) -> _Rows | None:
        dataset, indices = args[0].dataset, args[1]
        if id(dataset) not in self._held:
            if len(self._held) >= _MAX_DATASETS:
                return None
            self._held[id(dataset)] = self._describe(dataset)
        held = self._held[id(dataset)]
        if held is None or held.ref() is not dataset or held.num_looks >= _MAX_LOOKS:
            return None
        if not self._was_read(dataset, held.loader):
            return None
        if not isinstance(indices, (list, tuple)):
            indices = [indices]
        return _rows_of(dataset, indices[:: max(1, len(indices) // _ROWS)][:_ROWS])

    def _after(self, rows: Any, args: tuple[Any, ...], _kwargs: Any, _batch: Any) -> None:
        held = self._held.get(id(args[0].dataset))
        if not rows or held is None:
            return
        held.num_looks += 1
        now = _rows_of(args[0].dataset, list({idx: None for _, idx in rows}))
        for key, before in rows.items():
            after, seen = now.get(key), held.seen.get(key[0])
            if seen is None or after is None or after.shape != before.shape:
                continue
            seen.last_std = float(before.std())
            seen.first_std = seen.first_std or seen.last_std
            seen.num_looked += 1
            seen.num_changed += _has_drifted(before, after)

    def _describe(self, dataset: Any) -> _Held | None:
        names = [name for name, _, _ in _stores(dataset)][:_MAX_STORES]
        if not names:
            return None
        where = reading_line(self._watcher.own, without_subsets(dataset))
        return _Held(dataset, names, where, self._loader_of(dataset))

    def _loader_of(self, dataset: Any) -> int:
        """Return the last loader of a dataset: earlier ones may be of one that had its id."""
        loaders = self._watcher.seen.loaders
        found = (at for at, one in enumerate(loaders) if one.dataset_id == id(dataset))
        return max(found, default=-1)

    def _was_read(self, dataset: Any, first: int) -> bool:
        """Return whether there was a whole pass, so that what is computed once was computed."""
        return any(
            one.is_whole
            for loader in self._watcher.seen.loaders[first:]
            if loader.dataset_id == id(dataset)
            for one in loader.passes[:_MAX_LOOKS]
        )

    def _seeding(self, function: str) -> Any:
        """Note whether random numbers were drawn since the last seed, before the next."""

        def before(args: tuple[Any, ...], _kwargs: Any) -> Any:
            fresh = self._fresh.pop(function, None)
            if fresh is not None:
                fresh[0].num_used += _state_of(function) != fresh[1]
            is_number = len(args) == 1 and isinstance(args[0], (int, np.integer))
            if not is_number or self._num_seedings >= _MAX_CALLS:
                return None
            self._num_seedings += 1
            fetcher = _fetcher()
            if fetcher is None:
                return None
            return self._note(function, int(args[0]), self._loader_of(fetcher.dataset))

        return before

    def _seeded(self, function: str) -> Any:
        def after(seen: Any, _args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
            if seen is not None and seen.num_calls <= _USES:
                self._fresh[function] = seen, _state_of(function)

        return after

    def _note(self, function: str, value: int, loader: int) -> SeedingSeen | None:
        key = function, self._watcher.own.here(), loader
        seen = self._seedings.get(key)
        if seen is None:
            if len(self._seedings) >= _MAX_SEEDINGS:
                return None
            seen = SeedingSeen(function=function, where=key[1], loader=loader)
            self._seedings[key] = seen
        seen.num_calls += 1
        if value not in seen.values and len(seen.values) < _MAX_SEED_VALUES:
            seen.values.append(value)
        return seen


def without_subsets(dataset: Any) -> Any:
    """Return the dataset of which it is a subset, or the dataset itself."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def reading_line(own: OwnCode, dataset: Any) -> str | None:
    """Return where the script defines how examples are read; None: a library does."""
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    if code is None or not own.is_own(code.co_filename):
        return None
    return f"{own.shown(code.co_filename)}:{code.co_firstlineno}"


def _fetcher() -> Any:
    """Return what is fetching examples of a batch in the call stack; None if nothing is."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        if frame.f_code is _FETCH:
            return frame.f_locals.get("self")
        frame = frame.f_back
    return None


_FETCH: Final = _MapDatasetFetcher.fetch.__code__


def _state_of(function: str) -> Any:
    """Return some of the state of a generator, which changes with what is drawn."""
    if function == "random.seed":
        state = random.getstate()
        return state[1][-1], state[1][0], state[2]
    if function == "np.random.seed":
        got: Any = np.random.get_state()
        return int(got[2]), int(got[1][0]), got[3:]
    return bytes(torch.get_rng_state().numpy())


def _stores(dataset: Any, depth: int = 0) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield where a dataset stores examples: names, arrays or lists, and subsets on the way."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(dataset, Subset):
        for name, held, path in _stores(dataset.dataset, depth + 1):
            yield name, held, [dataset, *path]
        return
    num = _length(dataset)
    attributes = list(vars(dataset).items()) if num and hasattr(dataset, "__dict__") else []
    for name, value in attributes[:_MAX_ATTRIBUTES]:
        if isinstance(value, Dataset) and _length(value) == num:
            yield from _stores(value, depth + 1)
        elif _is_store(value) and len(value) == num and _values_of(value[0]) is not None:
            yield f"self.{name}", value, []


def _is_store(value: Any) -> bool:
    """Return whether it may have one array per example."""
    if isinstance(value, (np.ndarray, Tensor)):
        return value.ndim >= 2 and not isinstance(value, np.memmap)
    return isinstance(value, (list, tuple))


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None


def _values_of(item: Any) -> np.ndarray[Any, Any] | None:
    """Return the first values of an example; None if it is not an array of several numbers."""
    if isinstance(item, (list, tuple)) and item:
        item = item[0]
    if isinstance(item, Tensor):
        if not is_plain(item) or not item.is_cpu or item.dtype is torch.bfloat16:
            return None
        item = item.detach().numpy()
    is_array = isinstance(item, np.ndarray) and item.dtype.kind in "fiu"
    if not is_array or item.size < _MIN_VALUES:
        return None
    values: np.ndarray[Any, Any] = item.flat[:_MAX_VALUES].astype(np.float64)
    return values


def _rows_of(dataset: Any, indices: Sequence[Any]) -> _Rows:
    """Return copies of stored examples, by attribute and index."""
    rows: _Rows = {}
    for name, held, path in itertools.islice(_stores(dataset), _MAX_STORES):
        for idx in indices:
            try:
                at = idx
                for subset in path:
                    at = subset.indices[at]
                values = _values_of(held[int(at)])
            except (TypeError, IndexError, ValueError):
                continue
            if values is not None:
                rows[name, idx] = values
    return rows


def _has_drifted(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> bool:
    """Return whether an example is another one, but resembles what it was.

    An example that was computed again does not resemble it, and one that was flipped, or rolled,
    has the same values in another order.
    """
    if np.array_equal(before, after):
        return False
    if not np.isfinite(before).all() or not np.ptp(before):
        return False  # it was not there yet
    if np.array_equal(np.sort(before), np.sort(after)):
        return False
    if not np.isfinite(after).all() or not np.ptp(after):
        return True
    return abs(float(np.corrcoef(before, after)[0, 1])) >= _ALIKE
