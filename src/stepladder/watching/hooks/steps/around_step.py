"""Watch what surrounds the step: schedules, precision, clipping, files and seeds."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import Optimizer

from stepladder.watching.hooks.steps.backwards import BackwardWatch
from stepladder.watching.hooks.steps.clipping import ClippingWatch
from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
from stepladder.watching.seen.models import SavedSeen
from stepladder.watching.seen.steps import OptimizerSeen, ScheduleSeen
from stepladder.watching.step_times import CHECKPOINT
from stepladder.watching.watcher import Watcher

_MAX_SAVED: Final = 200
_MAX_METRICS: Final = 1000
_WITHOUT_POSITION: Final = ("ExponentialLR", "MultiplicativeLR")  # continue from the current rate


class ScheduleWatch:
    """Wraps torch's learning-rate schedulers."""

    def __init__(self, optimizers: OptimizerWatch) -> None:
        self._watcher: Watcher
        self._optimizers = optimizers
        self._live: dict[int, _HeldSchedule] = {}

    def install(self, watcher: Watcher) -> None:
        """Wrap the construction and step of every scheduler."""
        self._watcher = watcher
        kinds = [v for v in vars(lr_scheduler).values() if isinstance(v, type)]
        for kind in dict.fromkeys(kinds):
            if not issubclass(kind, lr_scheduler.LRScheduler):
                continue
            if "step" in vars(kind):
                watcher.patches.wrap(kind, "step", after=self._stepped)

    def settle(self) -> None:
        """Read how often each has stepped."""
        for live in self._live.values():
            scheduler, seen = live.ref(), live.seen
            if scheduler is not None:
                _note(scheduler, seen)
            if seen.num_stepped == 0:
                seen.is_optional = self._watcher.own.is_assigned_and_called(seen.built_at, "step")

    def _stepped(
        self, _before: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _result: Any
    ) -> None:
        scheduler = args[0]
        live = self._live.get(id(scheduler))
        if live is None or live.ref() is not scheduler:
            live = self._begin(scheduler, self._watcher.own.here())
        if getattr(scheduler, "_is_initial", False):
            return  # the step in its constructor, or in that of a scheduler that contains it
        seen = live.seen
        live.num_steps += 1
        if seen.stepped_at is None:
            seen.stepped_at = self._watcher.own.here()
            optimizer = getattr(scheduler, "optimizer", None)
            has_stepped = self._watcher.step > 0 or getattr(optimizer, "_opt_called", False)
            seen.is_early = not has_stepped
            seen.metric_code = self._watcher.own.code_of(seen.stepped_at)
        done = self._optimizers.steps_of(getattr(scheduler, "optimizer", None))
        live.num_idle = live.num_idle + 1 if 0 < done == live.done else 0
        seen.num_idle += live.num_idle > 0
        seen.longest_idle = max(seen.longest_idle, live.num_idle)
        live.done = done
        _note(scheduler, seen)
        if seen.kind == "ReduceLROnPlateau" and len(seen.metrics) < _MAX_METRICS:
            metric = args[1] if len(args) > 1 else kwargs.get("metrics")
            seen.is_for_max = getattr(scheduler, "mode", "min") == "max"
            if isinstance(metric, (int, float)):
                seen.metrics.append(float(metric))
            elif isinstance(metric, Tensor) and metric.is_cpu and metric.numel() == 1:
                seen.metrics.append(float(metric.detach()))
        rate = _rate(scheduler)
        if rate is not None and (seen.least_rate is None or rate < seen.least_rate):
            seen.least_rate = rate

    def _begin(self, scheduler: Any, where: str | None) -> _HeldSchedule:
        """Follow a scheduler; as the same one as before if it replaces that of the same line."""
        optimizer = getattr(scheduler, "optimizer", None)
        seen, held_by = _describe(scheduler), self._optimizers.seen_of(optimizer)
        live = _HeldSchedule(
            scheduler, seen, held_by, weakref.ref(optimizer) if optimizer else None
        )
        for key, old in self._live.items() if where is not None else ():
            is_same = old.seen.built_at == where and old.seen.kind == seen.kind
            if is_same and old.num_steps and held_by is not None and old.held_by is held_by:
                _note_replaced(old, live)
                live.seen = old.seen
                del self._live[key]
                break
        else:
            seen.built_at = where
            self._watcher.seen.schedules.append(seen)
        self._live[id(scheduler)] = live
        return live


class _HeldSchedule:
    """State of one scheduler while the script runs.

    Attributes:
        held_by: its optimizer, together with those that this one replaces.
        num_steps: its steps, without the one in its constructor.
        done, num_idle: steps of its optimizer by its last step, and idle ones in a row.
        is_resumed: it was created with the position of an earlier one.
    """

    def __init__(
        self,
        scheduler: Any,
        seen: ScheduleSeen,
        held_by: OptimizerSeen | None,
        optimizer: weakref.ref[Any] | None,
    ) -> None:
        self.ref = weakref.ref(scheduler)
        self.seen = seen
        self.held_by = held_by
        self.optimizer = optimizer
        self.num_steps = 0
        self.done, self.num_idle = -1, 0
        self.is_resumed = int(getattr(scheduler, "last_epoch", 0)) > 0 and bool(
            getattr(scheduler, "_is_initial", False)
        )


def _note_replaced(old: _HeldSchedule, new: _HeldSchedule) -> None:
    """Note whether a scheduler was replaced before it had followed much of its schedule."""
    seen, life = old.seen, old.num_steps
    seen.num_rebuilt += 1
    seen.longest_life = max(seen.longest_life, life)
    is_same_optimizer = (
        old.optimizer is not None
        and new.optimizer is not None
        and old.optimizer() is new.optimizer()
    )
    has_no_position = seen.kind in _WITHOUT_POSITION and is_same_optimizer
    least = (seen.period or 2) if seen.horizon is None else seen.horizon / 2
    seen.num_cut += life < least and not has_no_position and not new.is_resumed


def _describe(scheduler: Any) -> ScheduleSeen:
    kind = type(scheduler).__name__
    seen = ScheduleSeen(kind=kind, base_rate=_rate(scheduler))
    total = getattr(scheduler, "T_max", None) or getattr(scheduler, "total_steps", None)
    if total is None and kind in ("LinearLR", "ConstantLR", "PolynomialLR"):
        total = getattr(scheduler, "total_iters", None)
    total = _last_of(scheduler) if total is None else total
    seen.horizon = int(total) if isinstance(total, (int, float)) else None
    period = getattr(scheduler, "step_size", None)
    if kind == "MultiStepLR":
        period = max(scheduler.milestones, default=None)
    seen.period = int(period) if isinstance(period, int) else None
    gamma = getattr(scheduler, "gamma", None)
    seen.gamma = float(gamma) if isinstance(gamma, (int, float)) else None
    seen.counts = tuple(_counts_of(getattr(scheduler, "lr_lambdas", ())))
    highest = getattr(scheduler, "max_lrs", None)  # of CyclicLR; OneCycleLR stores it in the group
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", None) or [{}]
    peak = highest[0] if highest else groups[0].get("max_lr")
    seen.peak_rate = float(peak) if isinstance(peak, (int, float)) else None
    base = getattr(scheduler, "base_lrs", None)
    if base:
        seen.base_rate = float(max(base))
    return seen


def _last_of(scheduler: Any) -> int | None:
    """Return the step at which the last of several schedulers in a row ends."""
    inner, starts = getattr(scheduler, "_schedulers", None), getattr(scheduler, "_milestones", None)
    if not inner or not starts:
        return None
    last = getattr(inner[-1], "T_max", None) or getattr(inner[-1], "total_iters", None)
    return int(starts[-1] + last) if isinstance(last, (int, float)) else None


def _counts_of(functions: Iterable[Any]) -> Iterator[int]:
    """Yield the whole numbers that functions of a step compute with."""
    for function in functions:
        for value in _values_of(function):
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 1:
                yield int(value)


def _values_of(function: Any) -> Iterator[Any]:
    """Yield the constants, variables and arguments of a function, without calling it."""
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        return
    code = getattr(function, "__code__", None)
    if code is None:
        return
    yield from code.co_consts
    yield from (function.__globals__.get(name) for name in code.co_names)
    yield from function.__defaults__ or ()
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not assigned yet
            yield cell.cell_contents


def _note(scheduler: Any, seen: ScheduleSeen) -> None:
    seen.num_stepped = max(seen.num_stepped, int(getattr(scheduler, "last_epoch", 0)))


def _rate(scheduler: Any) -> float | None:
    optimizer = getattr(scheduler, "optimizer", None)
    groups = getattr(optimizer, "param_groups", None)
    return float(groups[0]["lr"]) if groups else None


class PrecisionWatch:
    """Wraps autocast, GradScaler and gradient clipping."""

    def __init__(self, optimizers: OptimizerWatch, backwards: BackwardWatch) -> None:
        self._optimizers = optimizers
        self._backwards = backwards
        self._clipping = ClippingWatch(optimizers)
        self._watcher: Watcher
        self._steps_before = 0

    def install(self, watcher: Watcher) -> None:
        """Install the wrappers."""
        self._watcher = watcher
        patches = watcher.patches
        patches.wrap(torch.amp.autocast_mode.autocast, "__enter__", before=self._autocast)
        scaler = torch.amp.grad_scaler.GradScaler
        patches.wrap(scaler, "scale", after=self._scaled)
        patches.wrap(scaler, "unscale_", before=self._open, after=self._unscaled)
        patches.wrap(scaler, "step", before=self._scaler_step, after=self._scaler_stepped)
        patches.wrap(scaler, "update", before=self._update)
        self._clipping.install(watcher)

    def settle(self) -> None:
        """Read the norms before clipping."""
        self._clipping.settle()

    def _autocast(self, args: tuple[Any, ...], _kwargs: Any) -> None:
        context = args[0]
        is_half = getattr(context, "fast_dtype", None) is torch.float16
        if is_half and getattr(context, "_enabled", True) and torch.is_grad_enabled():
            seen = self._watcher.seen.precision
            seen.num_half += 1
            seen.half_at = seen.half_at or self._watcher.own.here()

    def _scaled(self, _n: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if not args[0].is_enabled():
            return
        self._watcher.rest.stir()  # losses are read before they are scaled
        self._watcher.seen.precision.num_scaled += 1
        self._watcher.is_scaled = True
        self._backwards.note_scaled(result, args[1] if len(args) > 1 else kwargs.get("outputs"))

    def _open(self, _args: Any, _kwargs: Any) -> None:
        self._optimizers.gradients_open()

    def _close(self, *_: Any) -> None:
        self._optimizers.gradients_close(is_backward=False)

    def _unscaled(self, _note: Any, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        self._optimizers.gradients_close(is_backward=False)
        if args[0].is_enabled():
            self._watcher.is_scaled = False

    def _scaler_step(self, args: tuple[Any, ...], _kwargs: Any) -> None:
        if args[0].is_enabled():
            self._watcher.seen.precision.scaler_steps += 1
            self._watcher.is_scaled = False
            self._steps_before = sum(o.num_steps for o in self._watcher.seen.optimizers)

    def _scaler_stepped(self, _note: Any, args: tuple[Any, ...], _kwargs: Any, _r: Any) -> None:
        steps = sum(o.num_steps for o in self._watcher.seen.optimizers)
        if args[0].is_enabled() and steps == self._steps_before:
            self._watcher.seen.precision.num_skipped += 1
            self._optimizers.skipped(args[1] if len(args) > 1 else _kwargs.get("optimizer"))

    def _update(self, args: tuple[Any, ...], _kwargs: Any) -> None:
        if args[0].is_enabled():
            self._watcher.seen.precision.num_updates += 1


class FileWatch:
    """Wraps torch.save, torch.load and the seed functions."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._first_seed = 0

    def install(self, watcher: Watcher) -> None:
        """Install the wrappers, and note torch's initial seed."""
        self._watcher = watcher
        self._first_seed = torch.initial_seed()
        watcher.patches.wrap(torch, "save", before=self._saving, after=self._saved)
        watcher.patches.wrap(BaseProcess, "start", before=self._started)
        watcher.patches.wrap(torch, "manual_seed", before=self._seeded)
        watcher.patches.wrap(torch.random, "manual_seed", before=self._seeded)

    def settle(self) -> None:
        """Check whether a seed was set at all."""
        self._watcher.seen.has_seed = torch.initial_seed() != self._first_seed or bool(
            self._watcher.seen.has_seed
        )

    def _seeded(self, args: tuple[Any, ...], _kwargs: Any) -> None:
        seen = self._watcher.seen
        seen.has_seed = True
        if self._watcher.step and args and isinstance(args[0], int):
            key = (self._watcher.own.here(), args[0])
            seen.reseeded[key] = seen.reseeded.get(key, 0) + 1

    def _started(self, *_: Any) -> None:
        self._watcher.seen.num_processes += 1

    def _saving(self, args: tuple[Any, ...], _kwargs: Any) -> float:
        saved = self._watcher.seen.saved
        if args and len(saved) < _MAX_SAVED:
            seen = SavedSeen(where=self._watcher.own.here(), step=self._watcher.step)
            _contents(args[0], seen)
            saved.append(seen)
        return perf_counter()

    def _saved(self, began: Any, *_: Any) -> None:
        self._watcher.phases.add(CHECKPOINT, perf_counter() - began)


def _contents(value: Any, seen: SavedSeen, depth: int = 2) -> None:
    """Infer from its keys what a saved value contains."""
    if isinstance(value, nn.Module) or _is_model_state(value):
        seen.has_model = True
        return
    if isinstance(value, Optimizer) or (
        isinstance(value, Mapping) and {"state", "param_groups"} <= set(value)
    ):
        seen.has_optimizer = True
        return
    if isinstance(value, (list, tuple)):
        for item in value[:8]:
            _contents(item, seen, depth)
    if not isinstance(value, Mapping):
        return
    seen.is_empty = seen.is_empty or (not value and hasattr(value, "_metadata"))
    keys = {str(key) for key in value}
    if "last_epoch" in keys or "_step_count" in keys:
        seen.has_schedule = True
        return
    if {"scale", "growth_factor"} <= keys:
        seen.has_scaler = True
        return
    if depth == 2:
        seen.keys = tuple(sorted(keys))[:30]
    positions = ("epoch", "step", "iter", "iteration", "global_step", "epochs", "steps")
    seen.has_position = seen.has_position or any(name in keys for name in positions)
    for item in value.values() if depth else ():
        _contents(item, seen, depth - 1)


def _is_model_state(value: Any) -> bool:
    if not isinstance(value, Mapping) or not value:
        return False
    names = [str(key) for key in value]
    tensors = [item for item in value.values() if isinstance(item, Tensor)]
    return len(tensors) == len(names) and any(name.endswith(("weight", "bias")) for name in names)
