"""Follow, for the probe, what a script does with every gradient from one step to the next."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from stepladder.watching.hooks.tensors import part
from stepladder.watching.watcher import Watcher

_FIRST: Final = 3  # windows that are all inspected
_EVERY: Final = 50  # steps between inspected windows, afterwards
_MAX_WEIGHTS: Final = 2000
_MAX_ELEMENTS: Final = 1024  # of each gradient, evenly spread: reading all would take long
_MAX_OPTIMIZERS: Final = 4


class Fate(StrEnum):
    """What happened to a gradient that a step used, until the next step.

    REMOVED: it was set to None. ZEROED: it was filled with zeros. CHANGED: it was modified, which
    may be intended. KEPT: backward added to it unchanged.
    """

    REMOVED = "removed"
    ZEROED = "zeroed"
    CHANGED = "changed"
    KEPT = "kept"


@dataclass
class _Tracked:
    """One gradient between two steps; `norm` is its norm when it was last read."""

    param: weakref.ref[Any]
    norm: float
    fate: Fate = Fate.KEPT
    has_moved: bool = False

    def look(self, *, may_change: bool) -> None:
        """Compare it with its last norm; what was cleared stays cleared."""
        if self.fate in (Fate.REMOVED, Fate.ZEROED):
            return
        param = self.param()
        norm = None if param is None else norm_of(param.grad, _MAX_ELEMENTS)
        if norm is None:
            self.fate = Fate.REMOVED
        elif norm == 0:
            self.fate = Fate.ZEROED
        elif norm != self.norm and not may_change:
            self.fate = Fate.CHANGED

    def read_again(self) -> None:
        """Read its norm again after backward has changed it."""
        if self.fate in (Fate.REMOVED, Fate.ZEROED):
            self.has_moved = True
            return
        param = self.param()
        norm = None if param is None else norm_of(param.grad, _MAX_ELEMENTS)
        if norm is not None:
            self.has_moved = self.has_moved or norm != self.norm
            self.norm = norm


@dataclass
class Habit:
    """What happens to gradients between the steps of one optimizer.

    Attributes:
        kind: its class.
        stepped_at: the script's line that steps it.
        num_windows: inspected pairs of steps with a backward in between.
        fates: by the id of a weight, the weight and how often each fate occurred.
        calls: the calls of zero_grad in these windows: what was called, and the line.
        num_backwards: numbers of backward calls between steps, and how often each occurred.
        num_late: windows in which gradients were cleared after their last backward.
    """

    kind: str
    stepped_at: str | None = None
    num_windows: int = 0
    fates: dict[int, tuple[weakref.ref[Any], Counter[Fate]]] = field(default_factory=dict)
    calls: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    num_backwards: Counter[int] = field(default_factory=Counter)
    num_late: int = 0


class _Window:
    """The time from one step of an optimizer to its next."""

    def __init__(self, optimizer: Optimizer, habit: Habit) -> None:
        self.habit = habit
        self.num_backwards = 0
        self.is_late = False
        self.stepped_at: str | None = None
        self.has_ended = False
        self.calls: list[tuple[str, str | None]] = []
        params = [p for group in optimizer.param_groups for p in group["params"]]
        norms = [(p, norm_of(p.grad, _MAX_ELEMENTS)) for p in params[:_MAX_WEIGHTS]]
        self.tracked = [
            _Tracked(weakref.ref(p), norm) for p, norm in norms if norm and isfinite(norm)
        ]

    def look(self, *, may_change: bool) -> None:
        for one in self.tracked:
            one.look(may_change=may_change)

    def read_again(self) -> None:
        for one in self.tracked:
            one.read_again()


class Habits:
    """Reads a sample of every gradient in a few steps; only if a probe was requested.

    A gradient was not cleared between two steps if each backward in between found it unchanged,
    with a bit-identical norm of what is read. Every weight is followed individually, including
    large and sparse gradients, from the second step on.

    Attributes:
        all: what was seen, by optimizer.
        optimizers: those that stepped last, which a script's function may have released.
    """

    def __init__(self) -> None:
        self.all: list[Habit] = []
        self.optimizers: dict[int, Optimizer] = {}
        self._watcher: Watcher
        self._habits: dict[int, tuple[weakref.ref[Optimizer], Habit]] = {}
        self._windows: dict[int, _Window] = {}
        self._depth = 0

    def install(self, watcher: Watcher) -> None:
        """Wrap backward and zero_grad once more, and hook into the steps."""
        self._watcher = watcher
        patches, switch = watcher.patches, watcher.switch
        patches.wrap(
            torch.autograd, "backward", before=self._open, after=self._close, failed=self._close
        )
        patches.wrap(Optimizer, "zero_grad", after=self._called("optimizer.zero_grad()"))
        patches.wrap(nn.Module, "zero_grad", after=self._called("model.zero_grad()"))
        pre = register_optimizer_step_pre_hook(lambda one, *_: switch.run(self._before, one))
        post = register_optimizer_step_post_hook(
            lambda one, *_: switch.run(self._after, one) if switch.is_on else None
        )
        patches.on_undo(pre.remove)
        patches.on_undo(post.remove)

    def _open(self, _args: Any, _kwargs: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            for window in self._windows.values():
                window.look(may_change=False)

    def _close(self, _note: Any, _args: Any, _kwargs: Any, _result: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            for window in self._windows.values():
                window.num_backwards += 1
                window.read_again()

    def _called(self, name: str) -> Any:
        def after(_note: Any, _args: Any, _kwargs: Any, _result: Any) -> None:
            where = self._watcher.own.here() if self._windows else None
            for window in self._windows.values():
                window.calls.append((name, where))

        return after

    def _before(self, optimizer: Optimizer) -> None:
        """Inspect the gradients that are left at the step; clipping may have changed them."""
        window = self._windows.get(id(optimizer))
        if window is None:
            return
        window.has_ended, window.stepped_at = True, self._watcher.own.here()
        if window.num_backwards:
            before = [one.fate for one in window.tracked]
            window.look(may_change=True)
            window.is_late = before != [one.fate for one in window.tracked]

    def _after(self, optimizer: Optimizer) -> None:
        window = self._windows.pop(id(optimizer), None)
        if window is not None:
            _add(window)
        self.optimizers[id(optimizer)] = optimizer
        if len(self.optimizers) > _MAX_OPTIMIZERS:
            self.optimizers.pop(next(iter(self.optimizers)))
        ref, habit = self._habits.get(id(optimizer), (None, None))
        if habit is None or ref is None or ref() is not optimizer:
            habit = Habit(type(optimizer).__name__)
            self._habits[id(optimizer)] = (weakref.ref(optimizer), habit)
            self.all.append(habit)
        watcher, is_first = self._watcher, habit.num_windows < _FIRST
        is_due = is_first or (watcher.step % _EVERY == 0 and watcher.switch.may_spend())
        if watcher.is_close and is_due:
            self._windows[id(optimizer)] = _Window(optimizer, habit)

    def settle(self) -> None:
        """Count windows that ended with the script's last step, which may have ended the script."""
        for window in self._windows.values():
            if window.has_ended:
                _add(window)
        self._windows.clear()


def _add(window: _Window) -> None:
    """Count the result of a window; a gradient that nothing happened to is ignored."""
    told = [one for one in window.tracked if one.has_moved or one.fate is not Fate.KEPT]
    if not told or not window.num_backwards:
        return
    habit = window.habit
    habit.stepped_at = habit.stepped_at or window.stepped_at
    habit.num_windows += 1
    habit.num_late += window.is_late
    habit.num_backwards[window.num_backwards] += 1
    habit.calls.update(set(window.calls))
    for one in told:
        param = one.param()
        if param is not None:
            _, fates = habit.fates.setdefault(id(param), (one.param, Counter()))
            fates[one.fate] += 1


def norm_of(grad: Any, most: int | None = None) -> float | None:
    """Return the norm of a gradient, dense or sparse; None if it cannot be read.

    Args:
        most: number of its elements to read; None: all.
    """
    if type(grad) is not Tensor or grad.device.type == "meta" or grad.is_quantized:
        return None
    if grad.layout is torch.sparse_coo:
        grad = grad._values()  # not coalesced: that would mark the script's own gradient
    elif grad.layout is not torch.strided:
        return None
    numbers = grad.detach() if most is None else part(grad, most)
    width = torch.float32 if grad.dtype in (torch.float16, torch.bfloat16) else None
    return float(torch.linalg.vector_norm(numbers, dtype=width))
