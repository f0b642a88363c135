"""Notes weights whose gradients are always cleared before a step of their optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Final

from stepladder.watching.seen.weights import CauseSeen

_MIN_TIMES: Final = 2  # inspected steps
_MAX_LINES: Final = 64


class UnusedGradients:
    """The weights of one optimizer that get gradients, but have none when it steps.

    A backward after the step, or before `zero_grad()`, computes gradients that no step uses.
    """

    def __init__(self) -> None:
        self._reached: dict[int, str | None] = {}
        self._num_times: dict[int, int] = {}
        self._before_first: set[str | None] = set()
        self._zeroed: dict[int, tuple[weakref.ref[Any], int]] = {}

    def note_zeroed(self, params: Iterable[Any]) -> None:
        """Note the gradients that `zero_grad(set_to_none=False)` has just left."""
        grads = ((id(param), grad) for param in params if (grad := param.grad) is not None)
        self._zeroed |= {key: (weakref.ref(grad), grad._version) for key, grad in grads}

    def is_zeroed(self, param: Any) -> bool:
        """Return whether no backward has reached a weight since its gradient was set to zero."""
        zeroed, grad = self._zeroed.get(id(param)), param.grad
        if zeroed is None or grad is None:
            return False
        held, version = zeroed
        return grad is held() and bool(param.grad._version == version)

    def after_backward(self, reached: Iterable[int], where: str | None, *, is_first: bool) -> None:
        """Note which weights have a gradient after a backward.

        Args:
            reached: ids of those that had none at any step, and now have one.
            where: the line that called it.
            is_first: the optimizer has not stepped yet.
        """
        if is_first and len(self._before_first) < _MAX_LINES:
            self._before_first.add(where)
        self._reached |= dict.fromkeys(reached, where)

    def before_step(self, missing: Iterable[int], cleared_at: str | None) -> dict[int, CauseSeen]:
        """Return why weights have no gradient at a step, by id, if it was the same reason twice.

        Args:
            missing: ids of those that still had none at any step.
            cleared_at: the line that cleared gradients last.
        """
        found: dict[int, CauseSeen] = {}
        for key in missing:
            if key not in self._reached:
                continue
            self._num_times[key] = self._num_times.get(key, 0) + 1
            if self._num_times[key] >= _MIN_TIMES:
                where = self._reached[key]
                is_late = where is not None and where not in self._before_first
                kind = "late" if is_late else "cleared"
                found[key] = CauseSeen(kind=kind, where=where, cleared_at=cleared_at)
        self._reached = {}
        return found
