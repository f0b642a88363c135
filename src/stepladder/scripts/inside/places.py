"""Notes where a script makes its optimizers and loaders, and what they are like."""

from __future__ import annotations

import multiprocessing
import os
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, dataloader, default_collate

from stepladder.machine import available_memory_bytes
from stepladder.records.script import FirstPart, MadeLoader, MadeOptimizer, Place
from stepladder.scripts.inside.decoded import first_part_of
from stepladder.scripts.inside.deterministic import read_twice
from stepladder.scripts.inside.in_memory import can_be_read_apart, has_rows
from stepladder.scripts.inside.later_changes import (
    KnownNames,
    asks_for_worker,
    later_change,
    names_of,
    reads_several,
)
from stepladder.scripts.inside.state import read_files
from stepladder.scripts.inside.tables import Embedding, embeddings_of
from stepladder.scripts.settings import MAX_MEMORY_FRAC
from stepladder.watching.hooks.patches import Patches
from stepladder.watching.script.own_code import OwnCode

_MAX_FRAMES: Final = 40
OF_WORKERS: Final = (  # arguments of a loader that need worker processes
    "prefetch_factor",
    "multiprocessing_context",
    "timeout",
    "persistent_workers",
)
_HERE: Final = __name__.rpartition(".")[0]


def call_place(own: OwnCode) -> tuple[Place | None, FrameType | None]:
    """Return the innermost call in the script's own files that led here, and its frame."""
    frame: FrameType | None = sys._getframe(1)
    is_direct = True
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None, None
        if frame.f_globals.get("__name__", "").startswith(_HERE):
            frame = frame.f_back
            continue
        if own.is_own(frame.f_code.co_filename):
            return _place_of(frame, is_direct=is_direct), frame
        is_direct = False
        frame = frame.f_back
    return None, None


def _place_of(frame: FrameType, *, is_direct: bool) -> Place | None:
    positions = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    line, end_line, column, end_column = positions
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return Place(
        file=os.path.realpath(frame.f_code.co_filename),
        line=line,
        column=column,
        end_line=end_line,
        end_column=end_column,
        is_direct=is_direct,
    )


def named_model(frame: FrameType | None, params: Iterable[Tensor]) -> tuple[str, nn.Module] | None:
    """Return the variable, or attribute of self, whose module has these weights, and the module.

    Of several, it is the one with the fewest weights beside them.
    """
    wanted = {id(param) for param in params}
    if frame is None or not wanted:
        return None
    found: list[tuple[int, str, nn.Module]] = []
    scopes = [frame.f_locals, frame.f_globals]
    for scope in scopes:
        for name, value in list(scope.items()):
            if isinstance(value, nn.Module):
                found.append((_num_beside(value, wanted), name, value))
        if (owner := scope.get("self")) is not None and hasattr(owner, "__dict__"):
            parts = {**vars(owner), **getattr(owner, "_modules", {})}
            for name, value in list(parts.items()):
                if isinstance(value, nn.Module) and name.isidentifier():
                    found.append((_num_beside(value, wanted), f"self.{name}", value))
        if any(num >= 0 for num, _, _ in found):
            break
    fitting = [one for one in found if one[0] >= 0 and one[1].replace(".", "").isidentifier()]
    if not fitting:
        return None
    _, name, model = min(fitting, key=lambda one: one[0])
    return name, model


def _num_beside(model: nn.Module, wanted: set[int]) -> int:
    """Return how many weights a model has beside these; -1 if it lacks one of them."""
    own = {id(param) for param in model.parameters()}
    return len(own - wanted) if wanted <= own else -1


def params_of(groups: Any) -> list[Tensor]:
    """Return the weights that an optimizer was given: a list, named ones, or groups."""
    found: list[Tensor] = []
    for entry in groups:
        if isinstance(entry, dict):
            inner = entry.get("params", ())
            found += params_of([inner] if isinstance(inner, Tensor) else list(inner))
        elif isinstance(entry, tuple) and len(entry) == 2:
            found.append(entry[1])
        elif isinstance(entry, Tensor):
            found.append(entry)
    return found


class Places:
    """What a script has made, in order.

    Attributes:
        models: identities of the models that the optimizers train.
        embeddings: large ones of these models, by the identity of their weights.
    """

    def __init__(self, own: OwnCode) -> None:
        self.own = own
        self.optimizers: list[MadeOptimizer] = []
        self.loaders: list[MadeLoader] = []
        self.models: set[int] = set()
        self.embeddings: dict[int, Embedding] = {}
        self._params: list[weakref.ref[Tensor]] = []
        self._loaders: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._names: dict[int, KnownNames] = {}  # of their datasets
        self._last: int | None = None

    def note_optimizer(
        self,
        optimizer: Any,
        place: Place | None,
        named: tuple[str, nn.Module] | None,
    ) -> None:
        """Add an optimizer."""
        params = [one for group in optimizer.param_groups for one in group["params"]]
        model = named[1] if named is not None else None
        self._params += [weakref.ref(param) for param in params]
        if named is not None:
            self.models.add(id(named[1]))
            self.embeddings |= embeddings_of(*named)
        convs = [one for one in model.modules() if isinstance(one, nn.Conv2d)] if model else []
        is_fused = None
        if "fused" in optimizer.defaults:
            is_fused = bool(optimizer.defaults["fused"])
        made = MadeOptimizer(
            kind=type(optimizer).__name__,
            place=place,
            model=named[0] if named is not None else None,
            is_fused=is_fused,
            why_not_fused=_why_not_fused(optimizer, params),
            num_conv2d=len(convs),
            is_channels_last=bool(convs)
            and all(one.weight.is_contiguous(memory_format=torch.channels_last) for one in convs)
            and not all(one.weight.is_contiguous() for one in convs),
            num_params=sum(param.numel() for param in params),
            is_compiled=_is_compiled(model),
            checkpoints_by=checkpoints_by(model),
            has_anomaly_mode=torch.is_anomaly_enabled(),
        )
        self.optimizers.append(made)

    def note_loader(
        self,
        loader: Any,
        place: Place | None,
        given: Mapping[str, Any],
        frame: FrameType | None = None,
    ) -> None:
        """Add a loader that was made with some arguments, in a frame."""
        is_stream = isinstance(loader.dataset, IterableDataset)
        made = MadeLoader(
            place=place,
            num_workers=int(loader.num_workers),
            keeps_workers=bool(loader.persistent_workers),
            is_pinned=bool(loader.pin_memory),
            is_stream=is_stream,
            num_examples=None if is_stream else _length(loader.dataset),
            has_rows=not is_stream and _batches_by_default(loader),
            worker_options=tuple(name for name in OF_WORKERS if given.get(name) is not None),
        )
        self._names[len(self.loaders)] = names_of(loader.dataset, frame)
        self._loaders[id(loader)] = (weakref.ref(loader), len(self.loaders))
        self.loaders.append(made)

    def params(self) -> list[Tensor]:
        """Return the weights of all optimizers that still exist."""
        found = (ref() for ref in self._params)
        return [param for param in found if param is not None]

    def given(self, loader: Any) -> None:
        """Note that a loader has returned a batch."""
        found = self._loaders.get(id(loader))
        self._last = found[1] if found is not None and found[0]() is loader else None

    def stepped(self) -> None:
        """Count a step for the loader that returned the last batch."""
        if self._last is not None:
            made = self.loaders[self._last]
            self.loaders[self._last] = replace(made, num_steps=made.num_steps + 1)

    def read_examples(self) -> None:
        """Read a few examples of each loader that exists twice, in this process."""
        found = [loader for ref, _ in self._loaders.values() if (loader := ref()) is not None]
        datasets = [loader.dataset for loader in found]
        most = MAX_MEMORY_FRAC * (available_memory_bytes() or 0)
        files = read_files()
        for ref, idx in self._loaders.values():
            loader, made = ref(), self.loaders[idx]
            if loader is None or made.is_stream or not made.num_examples:
                continue
            read = read_twice(loader.dataset, made.num_examples)
            why_not = self._why_not_kept(loader.dataset, idx)
            if why_not is not None:
                read = replace(read, why_not=why_not, varies=False)
            is_of_rows = made.has_rows and has_rows(read.examples)
            part: FirstPart | str | None = read.why_not
            if read.varies and loader.num_workers and not _forks(loader):
                part = "its worker processes are not forked"
            elif read.varies:
                part = first_part_of(loader.dataset, datasets, self.own, most)
                if loader.num_workers and read_files() - files:
                    part = "reading opens files, which worker processes would share"
            self.loaders[idx] = replace(
                made,
                example_bytes=read.num_bytes,
                example_s=read.seconds,
                why_not_kept=read.why_not,
                has_rows=is_of_rows,
                can_be_read_apart=is_of_rows and can_be_read_apart(loader.dataset),
                first_part=part if isinstance(part, FirstPart) else None,
                why_no_part=None if isinstance(part, FirstPart) else part,
            )

    def _why_not_kept(self, dataset: Any, idx: int) -> str | None:
        """Return why the code around a loader's dataset does not let its examples be kept."""
        names = self._names.get(idx, KnownNames())
        changed = later_change(dataset, names, self.own, self.loaders[idx].place)
        if changed is not None:
            return f"{changed} changes the dataset"
        if reads_several(dataset):
            return "the dataset reads all examples of a batch at once (__getitems__)"
        if asks_for_worker(dataset, self.own):
            return "the dataset asks which worker process it is in"
        return None


def _batches_by_default(loader: Any) -> bool:
    """Return whether torch makes the batches, of indices that it draws itself."""
    kinds = (type(loader.batch_sampler), type(loader.sampler))
    is_torchs = all(kind.__module__.startswith("torch.utils.data") for kind in kinds)
    is_alone = loader.batch_size == 1  # whose examples may have several sizes
    return is_torchs and loader.collate_fn is default_collate and not is_alone


def _forks(loader: Any) -> bool:
    """Return whether a loader's worker processes share what this one has read."""
    chosen = loader.multiprocessing_context
    return bool((chosen or multiprocessing).get_start_method() == "fork")


def _why_not_fused(optimizer: Any, params: Sequence[Tensor]) -> str | None:
    defaults = optimizer.defaults
    for option in ("foreach", "capturable", "differentiable"):
        if defaults.get(option):
            return f"the script asks for {option}={defaults[option]}"
    if any(not param.is_floating_point() or param.is_complex() for param in params):
        return "not all weights are floating-point numbers"
    if any(param.is_sparse for param in params):
        return "some weights are sparse"
    return None


def _is_compiled(model: nn.Module | None) -> bool:
    return model is not None and (
        type(model).__name__ == "OptimizedModule"
        or getattr(model, "_compiled_call_impl", None) is not None
    )


def checkpoints_by(model: nn.Module | None) -> str | None:
    """Return the method that makes a model recompute activations in backward; None: none does."""
    if getattr(model, "supports_gradient_checkpointing", True):
        names = ("gradient_checkpointing_enable", "set_grad_checkpointing")
        return next((name for name in names if hasattr(model, name)), None)
    return None


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def install_places(places: Places, patches: Patches) -> None:
    """Follow which loader returns each batch."""

    def given(_note: Any, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        places.given(getattr(args[0], "_stepladder_loader", lambda: None)())

    def begun(_note: Any, args: tuple[Any, ...], _kwargs: Any, iterator: Any) -> None:
        iterator._stepladder_loader = weakref.ref(args[0])

    patches.wrap(DataLoader, "__iter__", after=begun)
    patches.wrap(dataloader._BaseDataLoaderIter, "__next__", after=given)
