"""Watch DataLoader: waiting times, the use of its batches, order and random draws."""

from __future__ import annotations

import dis
import itertools
import random
import weakref
from collections.abc import Iterator
from time import perf_counter
from types import CodeType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)
from torch.utils.data import dataloader as dataloader_module

from stepladder.watching.hooks.hashes import hashes_of
from stepladder.watching.hooks.inputs.draws import DrawWatch
from stepladder.watching.hooks.inputs.splits import SplitWatch
from stepladder.watching.hooks.inputs.worker_seeds import ignores_index, restarted_draws
from stepladder.watching.hooks.tensors import checksum, is_finite, is_plain, tensors_in
from stepladder.watching.seen.loaders import LoaderSeen, PassSeen
from stepladder.watching.watcher import Watcher

_MAX_PASSES: Final = 1000
_FIRST_PASSES: Final = 2  # of each loader, at whose start modules are inspected
_MAX_SUMS: Final = 6  # first batches that are compared, per loader
_GENERATORS: Final = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_MIN_STORED: Final = 64
_MAX_STORED: Final = 512
_NUM_BLOCKS: Final = 8
_MIN_FEATURES: Final = 16
_FEW_FEATURES: Final = 16
_MAX_ROWS: Final = 8192  # rows to inspect if some seem to be copies
_MAX_FEATURES: Final = 128
_MIN_VALUES: Final = 16  # distinct values of a measurement: fewer suggest a board or a survey
_MAX_ATTRIBUTES: Final = 32


def count_stored(dataset: Any) -> tuple[int, int]:
    """Count inspected and distinct inputs of a dataset that stores them in one array.

    The dataset itself is not called, as that may draw random numbers: the first tensor of a
    TensorDataset is inspected, or the first array among its attributes with one row per example.
    Blocks of consecutive rows are compared by some of their values, and by more if these match.

    Returns:
        Number of inspected examples, and of distinct ones; (0, 0) if there is no such array, or if
        it is a whole set that was repeated several times, which is intended.
    """
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    held = next(_arrays(dataset), None)
    if held is None or len(held) < _MIN_STORED or held[0].numel() < _MIN_FEATURES:
        return 0, 0
    rows = _blocks(held)
    few = rows[:: max(1, len(rows) // _NUM_BLOCKS)].flatten().tolist()
    if len(set(few)) < _MIN_VALUES or not is_finite(rows):
        return 0, 0
    marks = hashes_of([rows]).tolist()
    if len(set(marks)) >= 0.5 * len(marks):
        return len(marks), len(set(marks))
    # Compare more values: a few may match by chance, like those at the border of an image.
    marks = hashes_of([_thinned(held[:_MAX_ROWS], _MAX_FEATURES)]).tolist()
    num = len(set(marks))
    is_stacked = num < len(marks) and marks[num:] == marks[:-num]
    return (0, 0) if is_stacked else (len(marks), num)


def _arrays(dataset: Any) -> Iterator[Tensor]:
    """Yield the floating-point arrays of a dataset that have one row per example."""
    if isinstance(dataset, TensorDataset):
        found: list[Any] = list(dataset.tensors[:1])
    else:
        found = (
            list(vars(dataset).values())[:_MAX_ATTRIBUTES] if hasattr(dataset, "__dict__") else []
        )
    try:
        num = len(dataset)
    except (TypeError, NotImplementedError):
        return
    for value in found:
        is_array = isinstance(value, np.ndarray) and not isinstance(value, np.memmap)
        if is_array and value.dtype in (np.float32, np.float64) and value.flags.writeable:
            value = torch.from_numpy(value)  # shares its memory
        if not is_plain(value) or value.device.type != "cpu" or not value.is_floating_point():
            continue
        if value.dim() >= 2 and len(value) == num:
            yield value


def _blocks(held: Tensor) -> Tensor:
    """Return some blocks of consecutive rows, with few values of each row."""
    if len(held) <= _MAX_STORED or not held.is_contiguous():
        return _thinned(held[:_MAX_STORED], _FEW_FEATURES)
    size = _MAX_STORED // _NUM_BLOCKS
    starts = [i * (len(held) - size) // (_NUM_BLOCKS - 1) for i in range(_NUM_BLOCKS)]
    return torch.cat([_thinned(held[at : at + size], _FEW_FEATURES) for at in starts])


def _thinned(held: Tensor, most: int) -> Tensor:
    """Return evenly spaced values of each row."""
    rows = held.detach().flatten(1)
    return rows[:, rows.shape[1] // (2 * most) :: max(1, rows.shape[1] // most)].float()


class LoaderWatch:
    """Wraps the iterator of DataLoader; batches are not changed."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._draws = DrawWatch()
        self._splits = SplitWatch()
        self._seen: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._passes: weakref.WeakKeyDictionary[Any, tuple[PassSeen, float]] = (
            weakref.WeakKeyDictionary()
        )
        self._last: weakref.ref[Any] | None = None
        self._found: tuple[PassSeen, float]
        self._epochs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def install(self, watcher: Watcher) -> None:
        """Wrap iteration, and DistributedSampler.set_epoch."""
        self._watcher = watcher
        iterator = dataloader_module._BaseDataLoaderIter
        watcher.patches.wrap(DataLoader, "__iter__", before=self._begin, after=self._begun)
        watcher.patches.wrap(
            iterator,
            "__next__",
            after=self._given,
            failed=self._ended,
            is_timed=True,
        )
        workers = dataloader_module._MultiProcessingDataLoaderIter
        watcher.patches.wrap(workers, "__del__", after=self._dropped, is_timed=True)
        watcher.patches.wrap(DistributedSampler, "set_epoch", after=self._set_epoch)
        self._draws.install(watcher)
        self._splits.install(watcher)

    def settle(self) -> None:
        """Count set_epoch calls and what was drawn, and store the examples of several loaders."""
        self._draws.settle()
        self._splits.settle()
        self._count_epochs()

    def _count_epochs(self) -> None:
        for ref, idx in self._seen.values():
            loader = ref()
            if loader is not None and loader.sampler in self._epochs:
                seen = self._watcher.seen.loaders[idx]
                seen.num_set_epoch = max(seen.num_set_epoch, self._epochs[loader.sampler])

    def _begin(self, args: tuple[Any, ...], _kwargs: Any) -> float:
        self._watcher.rest.wake()
        self._watcher.phases.close_validation()
        if id(args[0]) not in self._seen or self._seen[id(args[0])][0]() is not args[0]:
            self._describe(args[0])
        for begins in self._watcher.on_any_pass:
            begins()
        passes = self._watcher.seen.loaders[self._seen[id(args[0])][1]].passes
        for listener in self._watcher.on_pass if len(passes) < _FIRST_PASSES else ():
            listener()
        return perf_counter()

    def _describe(self, loader: Any) -> None:
        lines = self._watcher.own.lines()
        seen = LoaderSeen(where=self._watcher.own.here(), line=lines[0] if lines else None)
        batches = loader.batch_sampler
        sampler = getattr(batches, "sampler", loader.sampler)
        seen.dataset = type(loader.dataset).__name__
        seen.dataset_id = id(loader.dataset)
        seen.is_iterable = isinstance(loader.dataset, IterableDataset)
        seen.sampler = _order(sampler, batches, is_iterable=seen.is_iterable)
        seen.batch_size = loader.batch_size or getattr(batches, "batch_size", None)
        seen.num_workers = int(loader.num_workers)
        if not seen.is_iterable:
            try:
                seen.num_batches = len(loader)
            except TypeError:
                seen.num_batches = None
            seen.num_examples = _num_examples(loader, sampler)
        stored = next(_arrays(loader.dataset), None)
        self._draws.describe(loader, sampler, seen, stored)
        self._splits.describe(loader, sampler, len(self._watcher.seen.loaders), seen.where)
        seen.is_stacked = loader.collate_fn is default_collate
        seen.keeps_workers = bool(loader.persistent_workers)
        seen.epoch_sampler = isinstance(sampler, DistributedSampler) and bool(sampler.shuffle)
        if isinstance(sampler, DistributedSampler):
            _note_padding(sampler, seen)
        copied = _copied_draws(loader)
        seen.shared_draws = copied if seen.num_workers >= 2 else None
        seen.ignores_index = not seen.is_iterable and ignores_index(loader.dataset)
        restarted = restarted_draws(loader)
        if restarted is not None:
            seen.restarted_draws, code = restarted
            line = (code.co_filename, code.co_firstlineno)
            seen.restarted_at = self._watcher.own.innermost([line])
        elif seen.num_workers == 1 and not seen.keeps_workers:
            seen.restarted_draws = copied
        seen.num_stored, seen.num_distinct = count_stored(loader.dataset)
        self._seen[id(loader)] = (weakref.ref(loader), len(self._watcher.seen.loaders))
        self._watcher.seen.loaders.append(seen)

    def _begun(self, note: Any, args: tuple[Any, ...], _kwargs: Any, iterator: Any) -> None:
        idx = self._seen[id(args[0])][1]
        one = PassSeen(loader=idx, began_at_step=self._watcher.step)
        passes = self._watcher.seen.loaders[idx].passes
        if len(passes) < _MAX_PASSES:
            passes.append(one)
        began = note if note is not None else perf_counter()
        if self._watcher.phases.is_counting:
            one.wait_s += perf_counter() - began
            one.start_s = one.wait_s
        self._passes[iterator] = (one, began)

    def _given(self, began: Any, args: tuple[Any, ...], _kwargs: Any, batch: Any) -> None:
        iterator = args[0]
        if self._last is None or self._last() is not iterator:
            found = self._passes.get(iterator)
            if found is None:
                return
            self._last, self._found = weakref.ref(iterator), found
        one, at = self._found
        watcher = self._watcher
        phases = watcher.phases
        if phases.is_counting:
            now = perf_counter()
            one.wait_s += now - began
            one.span_s = now - max(at, phases.began)
        watcher.current = one
        phases.drop_forward()
        watcher.new_batches += 1
        one.num_batches += 1
        if watcher.is_close:
            watcher.batch_refs = [weakref.ref(t) for t in tensors_in(batch) if _is_numbers(t)]
        if one.num_batches == 1:
            one.start_s = one.wait_s
            self._first(one, batch)

    def _first(self, one: PassSeen, batch: Any) -> None:
        passes = self._watcher.seen.loaders[one.loader].passes
        if sum(other.first_checksum is not None for other in passes) >= _MAX_SUMS:
            return
        tensors = [t for t in tensors_in(batch) if is_plain(t) and t.numel() and not t.is_complex()]
        if tensors:
            one.first_checksum = sum(checksum(t) for t in tensors[:3])

    def _ended(self, began: Any, args: tuple[Any, ...], _kwargs: Any, error: Any) -> None:
        found = self._passes.get(args[0])
        if found is None or not isinstance(error, StopIteration):
            return
        one, at = found
        one.is_whole = True
        for listener in self._watcher.on_pass_end:
            listener(one, getattr(args[0], "_dataset", None))
        now = perf_counter()
        if self._watcher.phases.is_counting:
            one.span_s = now - max(at, self._watcher.phases.began)
            one.wait_s += now - began
            one.start_s += now - began
        self._watcher.phases.touch()

    def _dropped(self, began: Any, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        """Count the time in which the workers of an iterator end that was not used to its end."""
        found = self._passes.get(args[0])
        if found is not None and self._watcher.phases.is_counting:
            took_s = perf_counter() - began
            found[0].wait_s += took_s
            found[0].start_s += took_s

    def _set_epoch(self, _note: Any, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        self._epochs[args[0]] = self._epochs.get(args[0], 0) + 1
        self._count_epochs()


def _is_numbers(value: Any) -> bool:
    """Return whether a tensor of a batch may be targets of a regression, or were converted."""
    return is_plain(value) and value.dim() <= 2 and value.dtype is not torch.bool


def _note_padding(sampler: Any, seen: LoaderSeen) -> None:
    """Note the examples that a DistributedSampler repeats so that all ranks get as many."""
    try:
        num, total = len(sampler.dataset), int(sampler.total_size)
    except (TypeError, NotImplementedError, AttributeError):
        return
    seen.num_replicas = int(sampler.num_replicas)
    if type(sampler).__iter__ is DistributedSampler.__iter__ and not sampler.drop_last:
        seen.num_dataset, seen.num_repeated = num, max(0, total - num)


def _num_examples(loader: Any, sampler: Any) -> int | None:
    """Return the number of examples of a whole pass; None if it has no length."""
    for one in (sampler, loader.dataset):
        try:
            return len(one)
        except (TypeError, NotImplementedError):
            continue
    return None


def _order(sampler: Any, batches: Any, *, is_iterable: bool) -> str:
    """Return the order: sequential, random, distributed, stream or custom."""
    if is_iterable:
        return "stream"
    if isinstance(sampler, DistributedSampler):
        return "distributed"
    is_own = type(batches).__module__.startswith("torch.utils.data") or batches is None
    if not is_own:
        return "custom"
    if isinstance(sampler, SequentialSampler):
        return "sequential"
    if isinstance(sampler, RandomSampler):
        return "random"
    return "custom"


def _copied_draws(loader: Any) -> str | None:
    """Return which generator is in the same state in all workers, whenever they are started."""
    if loader.num_workers == 0:
        return None
    init = loader.worker_init_fn
    code = getattr(init, "__code__", None)
    if init is not None:
        if code is not None and code.co_argcount and _seeds_alike(code):
            return f"the generator that worker_init_fn ({code.co_name}) seeds"
        if not isinstance(code, CodeType) or _may_seed(init, code):
            return None
    dataset = loader.dataset
    for _ in range(4):
        found = _generator_of(dataset)
        if found:
            return found
        dataset = getattr(dataset, "dataset", None)
        if dataset is None:
            break
    return None


def _generator_of(dataset: Any) -> str | None:
    """Find a generator that a dataset, or one of its transforms, draws from for an example."""
    kind = type(dataset)
    names = _names_used(kind)
    is_by_worker = "get_worker_info" in names
    for name, value in vars(dataset).items() if hasattr(dataset, "__dict__") else ():
        is_kept = not is_by_worker or _is_made_if_missing(kind, name)
        if isinstance(value, _GENERATORS) and name in names and is_kept:
            return f"{kind.__name__}.{name}, one {type(value).__name__},"
        if is_by_worker:
            continue
        inner = vars(value) if hasattr(value, "__dict__") and not isinstance(value, type) else {}
        for part, held in inner.items():
            if isinstance(held, _GENERATORS) and part in _names_used(type(value)):
                return f"{kind.__name__}.{name}.{part}, one {type(held).__name__},"
    if is_by_worker:
        return None
    function = getattr(kind, "__getitem__", None)
    code = getattr(function, "__code__", None)
    for name in code.co_names if code is not None else ():
        if isinstance(getattr(function, "__globals__", {}).get(name), _GENERATORS):
            return f"{name}, a global generator of the script,"
    return None


def _is_made_if_missing(kind: type, name: str) -> bool:
    """Return whether its methods set an attribute only if it is None: existing ones are kept."""
    codes = [getattr(method, "__code__", None) for method in vars(kind).values()]
    return any(
        first.opname.startswith("LOAD_ATTR") and first.argval == name and "NONE" in then.opname
        for code in codes
        if code is not None and "id" not in code.co_names  # and not by worker id
        for first, then in itertools.pairwise(dis.get_instructions(code))
    )


def _names_used(kind: type) -> set[str]:
    """Return the names that the methods of a class use, except for its constructor."""
    names: set[str] = set()
    for cls in kind.__mro__[:-1]:
        for name, function in vars(cls).items():
            code = getattr(function, "__code__", None)
            if code is not None and name != "__init__":
                names |= set(code.co_names)
    return names


def _may_seed(init: Any, code: CodeType) -> bool:
    """Return whether a function may seed the dataset's generators, directly or by a call."""
    names = set(code.co_names) | set(code.co_freevars)
    if any("seed" in name or "dataset" in name or "worker_info" in name for name in names):
        return True
    if names & {"default_rng", "RandomState", "Random", "Generator", "rng", "generator"}:
        return True
    held = [getattr(init, "__globals__", {}).get(name) for name in names]
    return any(one is not None and not _is_torchs(one) for one in held)


def _is_torchs(value: Any) -> bool:
    return isinstance(value, ModuleType) and value.__name__.partition(".")[0] in ("torch", "os")


def _seeds_alike(code: Any) -> bool:
    """Return whether a function seeds something without its argument or torch's own seed."""
    names = set(code.co_names)
    if not names & {"seed", "manual_seed", "default_rng", "RandomState"}:
        return False
    if names & {"initial_seed", "get_worker_info", "urandom", "time", "getpid"}:
        return False
    argument = code.co_varnames[0]
    loads = [i for i in dis.get_instructions(code) if i.opname.startswith("LOAD_")]
    return not any(
        argument == i.argval or (isinstance(i.argval, tuple) and argument in i.argval)
        for i in loads
    )
