"""Watch which examples of a dataset loaders read, by its identity and their indices."""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import thread_time
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import dataset as dataset_module

from stepladder.watching.hooks.inputs.worker_seeds import ignores_index
from stepladder.watching.hooks.names import Root
from stepladder.watching.seen.loaders import SharedSeen
from stepladder.watching.watcher import Watcher

_MAX_EXAMPLES: Final = 1 << 20  # of a dataset: one bit each
_MAX_PARTS: Final = 32
_MAX_LOADERS: Final = 256
_MAX_PAIRS: Final = 64
_MAX_HALVES: Final = 128
_MAX_SETS: Final = 64  # of a concatenation
_CLEAN: Final = 0.02  # share of common examples
_NEAR: Final = 2  # innermost lines that name what is evaluated
_MIN_CLEAN: Final = 8  # examples of a clean evaluation
_Indices = NDArray[np.int64]


class _Part:
    """The examples that a loader may return.

    Attributes:
        marks: by dataset, one bit per example.
        sizes: by dataset, how many that are, and the length of the dataset.
        is_trained: a model has learned from it.
        is_within: a model learned during an evaluation of it.
    """

    def __init__(self, marks: Mapping[int, NDArray[np.bool_]], name: str) -> None:
        self.marks = {key: np.packbits(one) for key, one in marks.items()}
        self.sizes = {key: (int(one.sum()), len(one)) for key, one in marks.items()}
        self.name = name
        self.where: str | None = None
        self.is_trained = self.is_within = False

    def is_same(self, other: _Part) -> bool:
        """Return whether it has the same examples."""
        return self.sizes == other.sizes and all(
            bool((one == other.marks[key]).all()) for key, one in self.marks.items()
        )

    @property
    def num(self) -> int:
        """Return the number of examples."""
        return sum(num for num, _ in self.sizes.values())

    @property
    def is_chosen(self) -> bool:
        """Return whether indices choose some examples of each of its datasets."""
        return all(num < length for num, length in self.sizes.values())

    def num_common(self, other: _Part) -> int:
        """Return the number of examples that are in both.

        A dataset that has another length by now does not have the same examples.
        """
        return sum(
            int(np.unpackbits(one & other.marks[key]).sum(dtype=np.int64))
            for key, one in self.marks.items()
            if key in other.marks and self.sizes[key][1] == other.sizes[key][1]
        )


class _Pair:
    """An evaluation of a part by a model that last learned from another one."""

    def __init__(self, trained: _Part, evaluated: _Part, lines: tuple[tuple[str, int], ...]):
        self.trained, self.evaluated, self.lines = trained, evaluated, lines
        self.num_common = evaluated.num_common(trained)

    @property
    def is_named_after_training(self) -> bool:
        """Return whether the lines of the evaluation name training, as for its accuracy there."""
        near = list(dict.fromkeys(self.lines))[:_NEAR]
        return any("train" in linecache.getline(*line).lower() for line in near)

    @property
    def is_clean(self) -> bool:
        """Return whether hardly any of the evaluated examples was trained on."""
        num = self.evaluated.num
        return num >= _MIN_CLEAN and self.num_common <= _CLEAN * num


@dataclass
class _Half:
    """A part of a split.

    Attributes:
        num: its examples.
        is_read: by a loader.
        is_kept: it existed when another part was evaluated.
    """

    ref: weakref.ref[Any]
    num: int
    is_read: bool = False
    is_kept: bool = False


class SplitWatch:
    """Compares what a model last learned from with what it is evaluated on."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._datasets: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._num_datasets = 0
        self._parts: list[_Part] = []
        self._of_loader: dict[int, _Part] = {}
        self._roots: dict[int, Root] = {}
        self._last: dict[int, _Part] = {}
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._halves: list[_Half] = []
        self._splits: list[list[_Half]] = []
        self._others: dict[int, list[_Half]] = {}

    def install(self, watcher: Watcher) -> None:
        """Subscribe to calls of models and what is learned, and wrap what splits datasets."""
        self._watcher = watcher
        watcher.on_call.append(self._called)
        watcher.on_learnt.append(self._learnt)
        watcher.on_loaded.append(self._loaded)
        watcher.patches.wrap(Subset, "__init__", after=self._made)
        for owner in (torch.utils.data, dataset_module):
            watcher.patches.wrap(owner, "random_split", after=self._split)

    def settle(self) -> None:
        """Store the evaluations of examples that were trained on as plain data."""
        pairs = [
            one
            for one in self._pairs.values()
            if not (one.evaluated.is_trained or one.evaluated.is_within)
        ]
        own = self._watcher.own
        self._watcher.seen.shared = [
            SharedSeen(
                where=own.innermost(one.lines[::-1]),
                trained_at=one.trained.where,
                dataset=one.evaluated.name,
                num_evaluated=one.evaluated.num,
                num_common=one.num_common,
                num_trained=one.trained.num,
                is_named=own.named_data.is_held_out(one.lines),
                is_instead=self._is_instead(one.evaluated) and not one.is_named_after_training,
                has_new=any(other.is_clean for other in pairs if other.trained is one.trained),
                was_new=any(other.is_clean for other in pairs if other.evaluated is one.evaluated),
            )
            for one in pairs
            if one.num_common and one.evaluated.is_chosen
        ]

    def describe(self, loader: Any, sampler: Any, idx: int, where: str | None) -> None:
        """Note the examples of a loader, at its first pass.

        Args:
            idx: of the loader.
            where: the line that iterates it.
        """
        others = self._others_of(loader.dataset)
        if len(self._parts) >= _MAX_PARTS or len(self._of_loader) >= _MAX_LOADERS:
            return
        began = thread_time()
        part = self._part_of(loader, sampler)
        switch = self._watcher.switch
        switch.apart_s += (thread_time() - began) * switch.counts_for
        if part is None:
            return
        known = next((one for one in self._parts if one.is_same(part)), None)
        if known is None:
            known, part.where = part, where
            self._parts.append(part)
            self._others[id(part)] = others
        self._of_loader[idx] = known

    def _part_of(self, loader: Any, sampler: Any) -> _Part | None:
        """Return the examples of a loader; None if they are unknown."""
        found: dict[int, NDArray[np.bool_]] = {}
        try:
            for dataset, indices in _stored(loader.dataset, _chosen(loader, sampler)):
                marks = found.setdefault(
                    self._key(dataset, loader), np.zeros(len(dataset), dtype=np.bool_)
                )
                marks[slice(None) if indices is None else indices] = True
        except (TypeError, ValueError, IndexError, AttributeError, NotImplementedError):
            return None  # without length, or of another order
        dataset = loader.dataset
        while isinstance(dataset, Subset):
            dataset = dataset.dataset
        return _Part(found, type(dataset).__name__) if found else None

    def _key(self, dataset: Any, loader: Any) -> int:
        """Return the number of a dataset."""
        key, ref = self._datasets.get(id(dataset), (0, None))
        if ref is None or ref() is None:
            key = self._num_datasets = self._num_datasets + 1
            try:
                ref = weakref.ref(dataset)
            except TypeError:
                ref = weakref.ref(loader)  # which holds it
            self._datasets[id(dataset)] = (key, ref)
        return key

    def _made(self, _note: Any, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        indices: Any = getattr(args[0], "indices", None)
        if len(self._halves) < _MAX_HALVES and hasattr(indices, "__len__"):
            self._halves.append(_Half(weakref.ref(args[0]), len(indices)))

    def _split(self, _note: Any, _args: Any, _kwargs: Any, result: Any) -> None:
        halves = [half for half in self._halves if any(half.ref() is one for one in result)]
        if len(halves) == len(result) >= 2:
            self._splits.append(halves)

    def _others_of(self, dataset: Any) -> list[_Half]:
        """Note which parts of a split a dataset reads, and return the others of its own."""
        left, num = [dataset], 0
        while left and num < _MAX_SETS:
            one, num = left.pop(), num + 1
            if isinstance(one, ConcatDataset):
                left += one.datasets[:_MAX_SETS]
            elif isinstance(one, Subset):
                for half in self._halves:
                    half.is_read = half.is_read or half.ref() is one
                left.append(one.dataset)
        split = next((s for s in self._splits if any(h.ref() is dataset for h in s)), None)
        if split is not None:
            return [half for half in split if half.ref() is not dataset]
        if not isinstance(dataset, Subset):
            return []
        return [half for half in self._halves if _are_halves(dataset, half.ref())][:1]

    def _is_instead(self, part: _Part) -> bool:
        """Return whether it is of a split whose largest part exists, but is never read."""
        others = self._others.get(id(part), [])
        largest = max(others, key=lambda half: half.num, default=None)
        if largest is None or largest.num <= part.num or not all(half.is_kept for half in others):
            return False
        return not largest.is_read

    def _learnt(self, learnt: Mapping[int, bool]) -> None:
        current = self._watcher.current
        part = None
        if current is not None and not current.is_whole:
            part = self._of_loader.get(current.loader)
        if part is not None:
            part.is_trained = True
        for key in learnt:
            if part is None:
                self._last.pop(key, None)
            else:
                self._last[key] = part

    def _loaded(self, module: nn.Module) -> None:
        """Forget what a model learned from when it gets other weights."""
        first = next(module.parameters(), None)
        for key in list(self._last):
            root = self._roots.get(key)
            if root is None or id(first) in root.ids:
                del self._last[key]

    def _called(self, root: Root, module: nn.Module, _args: Any, _kwargs: Any) -> None:
        self._roots[id(root)] = root
        current = self._watcher.current
        is_evaluation = not module.training or not torch.is_grad_enabled()
        if not is_evaluation or current is None or current.is_whole:
            return
        trained = self._last.get(id(root))
        evaluated = self._of_loader.get(current.loader)
        if trained is None or evaluated is None or trained is evaluated:
            return
        if self._watcher.step > current.began_at_step:
            evaluated.is_within = True
        key = (id(trained), id(evaluated))
        if key not in self._pairs and len(self._pairs) < _MAX_PAIRS:
            self._pairs[key] = _Pair(trained, evaluated, self._watcher.own.lines())
            for half in self._others.get(id(evaluated), []):
                half.is_kept = half.is_kept or half.ref() is not None


def _chosen(loader: Any, sampler: Any) -> _Indices | None:
    """Return the indices that a sampler may return; None if these are all.

    Raises:
        TypeError: if that is unknown.
    """
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        raise TypeError
    num = len(loader.dataset)
    if isinstance(sampler, WeightedRandomSampler):
        return np.flatnonzero(sampler.weights.numpy())
    if isinstance(sampler, SubsetRandomSampler):
        return _as_indices(sampler.indices)
    if isinstance(sampler, (list, tuple, range)):
        return _as_indices(sampler)
    is_whole = isinstance(sampler, (SequentialSampler, DistributedSampler)) or (
        isinstance(sampler, RandomSampler) and sampler.num_samples >= num
    )
    if not is_whole:
        raise TypeError
    return None


def _as_indices(indices: Any) -> _Indices:
    """Return indices as an array.

    Raises:
        TypeError: if they are no whole numbers, or too many.
    """
    if len(indices) > _MAX_EXAMPLES:
        raise TypeError
    found = np.asarray(indices)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise TypeError
    return found.astype(np.int64)


def _stored(dataset: Any, chosen: _Indices | None) -> Iterator[tuple[Any, _Indices | None]]:
    """Yield the datasets that store examples, and the indices that are read of each.

    Raises:
        TypeError: if that is unknown.
    """
    if isinstance(dataset, Subset) and _is_by_indices(dataset):
        own = _as_indices(dataset.indices)
        yield from _stored(dataset.dataset, own if chosen is None else own[chosen])
        return
    if type(dataset) is ConcatDataset and len(dataset.datasets) <= _MAX_SETS:
        first = 0
        for one, end in zip(dataset.datasets, dataset.cumulative_sizes, strict=True):
            inside = None if chosen is None else chosen[(first <= chosen) & (chosen < end)] - first
            yield from _stored(one, inside)
            first = end
        return
    if isinstance(dataset, (Subset, IterableDataset)) or ignores_index(dataset):
        raise TypeError
    if not 0 < len(dataset) <= _MAX_EXAMPLES:
        raise TypeError
    yield dataset, chosen


def _are_halves(one: Any, other: Any) -> bool:
    """Return whether two subsets divide a dataset between them."""
    if other is None or other is one or other.dataset is not one.dataset:
        return False
    try:
        whole = np.sort(np.concatenate([_as_indices(one.indices), _as_indices(other.indices)]))
        return len(whole) == len(one.dataset) and bool((whole == np.arange(len(whole))).all())
    except (TypeError, NotImplementedError):
        return False


def _is_by_indices(dataset: Any) -> bool:
    """Return whether a subset reads the examples at its indices, also if it transforms them."""
    getter = type(dataset).__getitem__
    if getter is Subset.__getitem__:
        return True
    return "indices" in getattr(getattr(getter, "__code__", None), "co_names", ())
