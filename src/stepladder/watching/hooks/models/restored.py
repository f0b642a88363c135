"""Watch whether training that resumes from a checkpoint restores the optimizer that it contains."""

from __future__ import annotations

import ast
import linecache
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.watching.hooks.steps.held_optimizer import HeldOptimizer
from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
from stepladder.watching.script.resuming import POSITIONS, Use, use_of
from stepladder.watching.seen.models import IgnoredPlanSeen, IgnoredStateSeen
from stepladder.watching.watcher import Watcher

_MAX_READ: Final = 8
_MAX_LINES: Final = 1500  # of a file
_MARKED: Final = 8  # tensors by which the weights of a checkpoint are recognised
_POSITION: Final = "last_epoch"  # of a scheduler
_SAME: Final = 1e-9  # learning rates


@dataclass
class _Read:
    """A checkpoint with the state of an optimizer, which the script does not read.

    Attributes:
        num_params: weights of that optimizer.
        kept: names of what it keeps for each weight, such as momentum_buffer.
        first_rate, rate: its learning rate at first, and when it was saved.
        tensors: some tensors of the checkpoint.
        module: the one that its weights were loaded into.
        optimizer: one that has begun to step with this module's weights and no state.
    """

    where: str | None
    use: Use
    entry: str
    schedule: str | None
    num_params: int
    kept: frozenset[str]
    first_rate: float
    rate: float
    tensors: list[weakref.ref[Tensor]]
    module: weakref.ref[nn.Module] | None = None
    loaded_at: str | None = None
    optimizer: weakref.ref[Any] | None = None
    stepped_at: str | None = None
    rate_now: float = 0.0


class RestoreWatch:
    """Wraps `torch.load` and `load_state_dict`, and checks the first step afterwards."""

    def __init__(self, optimizers: OptimizerWatch) -> None:
        self._optimizers = optimizers
        self._watcher: Watcher
        self._read: list[_Read] = []
        self._plans: dict[int, IgnoredPlanSeen] = {}

    def install(self, watcher: Watcher) -> None:
        """Install the wrappers."""
        self._watcher = watcher
        watcher.patches.wrap(torch, "load", after=self._opened)
        watcher.patches.wrap(nn.Module, "load_state_dict", before=self._loading)
        watcher.patches.wrap(torch.optim.Optimizer, "load_state_dict", before=self._restoring)
        self._optimizers.on_stepping.append(self._stepping)
        watcher.on_step.append(self._stepped)

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def _opened(self, _note: Any, _args: Any, _kwargs: Any, result: Any) -> None:
        frame = self._watcher.own.frame()
        is_whole = isinstance(result, Mapping) and self._watcher.own.is_own_call()
        if frame is None or not is_whole or len(self._read) >= _MAX_READ:
            return
        if not any(type(result.get(key)) is int and result[key] > 0 for key in POSITIONS):
            return
        entries = [key for key, one in result.items() if isinstance(key, str) and _is_state(one)]
        if len(entries) != 1:
            return
        use = _use_in(frame.f_code.co_filename, frame.f_lineno)
        if use is None or not use.is_resumed:
            return
        if entries[0] in use.read:
            self._note_schedule(frame.f_code.co_filename, result, use, id(result[entries[0]]))
            return
        self._read.append(self._read_of(result, entries[0], use))

    def _restoring(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Report a schedule that is left out where the optimizer is restored."""
        given = args[1] if len(args) > 1 else kwargs.get("state_dict")
        found = self._plans.pop(id(given), None)
        if found is not None:
            self._watcher.seen.ignored_plans.append(found)

    def _note_schedule(self, file: str, result: Mapping[str, Any], use: Use, state: int) -> None:
        """Note the state of a scheduler that the script never reads, though it resumes."""
        name = next((key for key in result if _is_plan(result[key]) and key not in use.read), None)
        is_given = any(f"{_POSITION}=" in line for line in linecache.getlines(file))
        if name is not None and not is_given:
            self._plans[state] = IgnoredPlanSeen(
                where=self._watcher.own.here(),
                name=use.name,
                schedule=name,
                num_taken=int(result[name][_POSITION]),
                step=self._watcher.step,
            )

    def _read_of(self, result: Mapping[str, Any], entry: str, use: Use) -> _Read:
        state = result[entry]
        groups, kept = state["param_groups"], next(iter(state["state"].values()))
        tensors = [
            value
            for key, one in result.items()
            if key != entry and isinstance(one, Mapping)
            for value in list(one.values())[:_MARKED]
            if isinstance(value, Tensor)
        ]
        plans = (key for key, one in result.items() if _is_plan(one))
        return _Read(
            where=self._watcher.own.here(),
            use=use,
            entry=entry,
            schedule=next((key for key in plans if key not in use.read), None),
            num_params=sum(len(group["params"]) for group in groups),
            kept=frozenset(key for key, one in kept.items() if _is_kept(one)),
            first_rate=float(groups[0].get("initial_lr", groups[0]["lr"])),
            rate=float(groups[0]["lr"]),
            tensors=[weakref.ref(one) for one in tensors],
        )

    def _loading(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        waiting = [one for one in self._read if one.module is None]
        given = args[1] if len(args) > 1 else kwargs.get("state_dict")
        if not waiting or not isinstance(given, Mapping):
            return
        some = {id(value) for value in list(given.values())[:_MARKED]}
        for one in waiting:
            if any(id(tensor) in some for ref in one.tensors if (tensor := ref()) is not None):
                one.module = weakref.ref(args[0])
                one.loaded_at = self._watcher.own.here()

    def _stepping(self, live: HeldOptimizer) -> None:
        """Note an optimizer that steps with weights from a checkpoint, but without any state."""
        for one in self._read:
            module = one.module() if one.module is not None else None
            optimizer = live.ref()
            if module is None or optimizer is None or one.optimizer is not None:
                continue
            ids = {id(param) for param in module.parameters()}
            if not ids or live.ids.isdisjoint(ids):
                continue
            one.optimizer = weakref.ref(optimizer)
            groups = optimizer.param_groups
            one.rate_now = float(groups[0].get("lr", 0.0))
            one.stepped_at = self._watcher.own.here()
            first_rate = float(groups[0].get("initial_lr", one.rate_now))
            is_same_plan = abs(first_rate - one.first_rate) <= _SAME * one.first_rate
            num = sum(len(group["params"]) for group in groups)
            if optimizer.state or num != one.num_params or not is_same_plan or not ids >= live.ids:
                one.module = None
                one.tensors = []

    def _stepped(self) -> None:
        """Report an optimizer that now keeps what the one in the checkpoint has kept."""
        for one in [one for one in self._read if one.optimizer is not None and one.tensors]:
            optimizer = one.optimizer() if one.optimizer is not None else None
            state: Any = next(iter(optimizer.state.values()), None) if optimizer else None
            one.tensors = []
            if not isinstance(state, Mapping):
                continue
            if one.kept and {key for key, value in state.items() if _is_kept(value)} == one.kept:
                self._watcher.seen.ignored_states.append(
                    IgnoredStateSeen(
                        where=one.loaded_at,
                        read_at=one.where,
                        name=one.use.name,
                        taken=tuple(sorted(one.use.taken)),
                        optimizer=one.entry,
                        schedule=one.schedule,
                        kind=type(optimizer).__name__,
                        kept=tuple(sorted(one.kept)),
                        rate=one.rate,
                        rate_now=one.rate_now,
                    )
                )


def _is_plan(value: Any) -> bool:
    """Return whether it is the state of a scheduler."""
    return isinstance(value, Mapping) and type(value.get(_POSITION)) is int


def _is_state(value: Any) -> bool:
    """Return whether it is the state of an optimizer that keeps tensors for each weight."""
    if not isinstance(value, Mapping) or not {"state", "param_groups"} <= set(value):
        return False
    state, groups = value["state"], value["param_groups"]
    if not isinstance(state, Mapping) or not state or not groups or "lr" not in groups[0]:
        return False
    first = next(iter(state.values()))
    is_number = isinstance(groups[0]["lr"], float)
    return is_number and isinstance(first, Mapping) and any(map(_is_kept, first.values()))


def _is_kept(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _use_in(file: str, line: int) -> Use | None:
    lines = linecache.getlines(file)
    if not 0 < len(lines) <= _MAX_LINES:
        return None
    try:
        return use_of(ast.parse("".join(lines)), line)
    except (SyntaxError, ValueError, RecursionError):  # a magic command of a notebook
        return None
