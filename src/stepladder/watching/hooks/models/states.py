"""Watch state dicts: whether loaded or saved weights are still those that were taken."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.watching.hooks.tensors import is_plain
from stepladder.watching.seen.models import OwnStateSeen, StateSeen
from stepladder.watching.watcher import Watcher

_MAX_MARKED: Final = 16  # tensors of a state dict by which it is recognised
_MAX_TAKEN: Final = 64  # state dicts that are stored before deleted ones are removed
_MAX_SEEN: Final = 200
_MAX_OWN: Final = 32  # lines that load a module's own weights


class _Taken:
    """A state dict that a module has returned.

    Attributes:
        tensors: some of its tensors; copies of the dict have the same ones, copies of weights not.
        step, num_loads: steps, and loads of other weights, by then.
    """

    def __init__(
        self, module: nn.Module, tensors: list[Tensor], step: int, num_loads: int, where: str | None
    ) -> None:
        self.module = weakref.ref(module)
        self.tensors = [weakref.ref(tensor) for tensor in tensors]
        self.versions = [tensor._version for tensor in tensors]
        self.step = step
        self.num_loads = num_loads
        self.where = where

    @property
    def is_alive(self) -> bool:
        """Return whether the script still has one of its tensors."""
        return any(ref() is not None for ref in self.tensors)

    def is_in(self, tensors: Mapping[int, Tensor]) -> bool:
        """Return whether some tensors, by id, include one of its own that has changed since."""
        pairs = zip(self.tensors, self.versions, strict=True)
        held = ((ref(), version) for ref, version in pairs)
        return any(
            one is not None and tensors.get(id(one)) is one and one._version > version
            for one, version in held
        )


class StateWatch:
    """Wraps `state_dict` and `load_state_dict` of modules, and `torch.save`.

    A state dict shares the memory of the model's weights. If it is kept without a copy, later steps
    change it as well.
    """

    def __init__(self) -> None:
        self._watcher: Watcher
        self._taken: list[_Taken] = []
        self._num_loads: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._own: dict[str | None, OwnStateSeen] = {}

    def install(self, watcher: Watcher) -> None:
        """Install the wrappers."""
        self._watcher = watcher
        patches = watcher.patches
        patches.wrap(nn.Module, "state_dict", after=self._noted, unless="destination")
        patches.wrap(nn.Module, "load_state_dict", before=self._loading)
        patches.wrap(torch, "save", before=self._saving)

    def settle(self) -> None:
        """Store the lines that load a module's own weights."""
        self._watcher.seen.own_states += self._own.values()
        self._own = {}

    def _noted(
        self, _note: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        if len(args) != 1 or not isinstance(result, Mapping):
            return
        if kwargs.get("keep_vars"):
            return  # the weights themselves, which are the same objects in each call
        tensors = [value for value in result.values() if is_plain(value) and value.numel()]
        tensors = [value for value in tensors if not value.is_inference()]
        some = tensors[:: max(1, len(tensors) // _MAX_MARKED)][:_MAX_MARKED]
        if len(self._taken) >= _MAX_TAKEN:
            self._taken = [one for one in self._taken if one.is_alive][-_MAX_TAKEN // 2 :]
        if some:
            num_loads = self._num_loads.get(args[0], 0)
            where = self._watcher.own.here()
            self._taken.append(_Taken(args[0], some, self._watcher.step, num_loads, where))

    def _loading(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        module, given = args[0], args[1] if len(args) > 1 else kwargs.get("state_dict")
        if not isinstance(given, Mapping) or not given:
            return
        pairs = pairs_of(module, given)
        if not pairs or kwargs.get("assign"):
            return
        if not are_shared(pairs):
            self._num_loads[module] = self._num_loads.get(module, 0) + 1
            return
        loads = self._num_loads.get(module, 0)
        for one in self._of([value for _, value in pairs]):
            is_later = self._watcher.step > one.step or loads > one.num_loads
            if one.module() is module and is_later:
                self._note(one, len(pairs), is_loaded=True)
                return
        self._note_own(module)

    def _saving(self, args: tuple[Any, ...], _kwargs: Any) -> None:
        for tensors in _states_in(args[0] if args else None):
            for one in self._of(tensors):
                if one.step > 0 and self._watcher.step > one.step:
                    self._note(one, len(tensors), is_loaded=False)
                    return

    def _of(self, tensors: list[Tensor]) -> Iterator[_Taken]:
        """Yield the state dicts that these tensors are from, if they have changed since."""
        by_id = {id(tensor): tensor for tensor in tensors}
        return (one for one in reversed(self._taken) if one.is_in(by_id))

    def _note_own(self, module: nn.Module) -> None:
        """Count the steps after which a line loads what a module has already."""
        step, where = self._watcher.step, self._watcher.own.here()
        if step == 0 or (where not in self._own and len(self._own) >= _MAX_OWN):
            return
        seen = self._own.setdefault(where, OwnStateSeen(where=where, model=type(module).__name__))
        if step != seen.last_step:
            seen.num_times, seen.last_step = seen.num_times + 1, step

    def _note(self, one: _Taken, num_tensors: int, *, is_loaded: bool) -> None:
        watcher = self._watcher
        if len(watcher.seen.stale_states) < _MAX_SEEN:
            watcher.seen.stale_states.append(
                StateSeen(
                    where=watcher.own.here(),
                    taken_at=one.where,
                    taken_step=one.step,
                    step=watcher.step,
                    num_tensors=num_tensors,
                    is_loaded=is_loaded,
                )
            )


def pairs_of(module: nn.Module, given: Mapping[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """Return the weights and buffers of a module that are given, each with what is given for it."""
    own = dict(chain(module.named_parameters(), module.named_buffers()))
    pairs = [(own[name], value) for name, value in given.items() if name in own]
    return [(a, b) for a, b in pairs if is_plain(a) and is_plain(b) and a.numel()]


def are_shared(pairs: list[tuple[Tensor, Tensor]]) -> bool:
    """Return whether all that is given is the module's own memory; False for nothing."""
    return bool(pairs) and all(a.data_ptr() == b.data_ptr() for a, b in pairs)


def _states_in(value: Any, depth: int = 2) -> Iterator[list[Tensor]]:
    """Yield the tensors of each state dict in a value that is saved."""
    if not isinstance(value, Mapping):
        return
    tensors = [item for item in value.values() if is_plain(item)]
    if tensors:
        yield tensors
    for item in value.values() if depth else ():
        yield from _states_in(item, depth - 1)
