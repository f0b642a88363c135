"""Watch gradient clipping: the norms before it, and whether a step uses what it leaves."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.watching.hooks.steps.held_optimizer import HeldOptimizer, learning
from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
from stepladder.watching.hooks.tensors import is_plain, part
from stepladder.watching.seen.steps import ClippingSeen
from stepladder.watching.watcher import Watcher

_MAX_NORMS: Final = 20_000
_MAX_GRADIENTS: Final = 12
_MAX_OF_A_GRADIENT: Final = 1024
_MAX_WEIGHTS: Final = 8  # of each optimizer whose gradients may be missing


class _Order:
    """Follows one clipping until the next backward or step.

    A clipping is late if it changes the very gradient that a step has used since the last backward,
    and early if there is no gradient. Neither counts before the next backward: it proves that no
    step came in between, and that the late gradient was cleared.
    """

    def __init__(self) -> None:
        self._used: list[tuple[HeldOptimizer, Any, int]] = []
        self._is_empty = False
        self._pending: tuple[ClippingSeen, HeldOptimizer | None, Tensor | None] | None = None

    def open(self, lives: list[HeldOptimizer], *, has_backward: bool) -> None:
        """Note the gradients that steps have used, before they are clipped."""
        self._used, self._pending = [], None
        for live in lives:
            grad = live.clearing.used_up()
            if grad is not None:
                self._used.append((live, grad, grad._version))
        self._is_empty = bool(lives) and not has_backward and not self._used and _is_empty(lives)

    def close(self, one: ClippingSeen, norm: Tensor | None, *, has_backward: bool) -> None:
        """Decide, after clipping, what must happen next if it was late or early."""
        late = next((live for live, grad, old in self._used if grad._version > old), None)
        is_empty, self._used = self._is_empty, []
        if late is not None:
            self._pending = (one, late, None)
        elif is_empty:
            self._pending = (one, None, norm)
        elif has_backward:
            one.num_in_time += 1

    def stepping(self, live: HeldOptimizer) -> None:
        """Note that a step begins, of any optimizer; a closure computes gradients again."""
        if self._pending is not None and not live.is_late:
            self._pending[0].num_in_time += 1
            self._pending = None

    def backward(self) -> None:
        """Note that backward begins."""
        if self._pending is None:
            return
        one, late, norm = self._pending
        self._pending = None
        if late is None:
            one.num_early += norm is None or not bool(norm)
            return
        weight = late.clearing.weight
        grad = None if weight is None else weight.grad
        one.num_late += weight is not None and (grad is None or not bool(grad.any()))


def _is_empty(lives: list[HeldOptimizer]) -> bool:
    """Return whether gradients are missing or 0, of the first weights of each optimizer."""
    some = [ref() for live in lives for ref in live.params[:_MAX_WEIGHTS]]
    grads = [p.grad for p in some if p is not None and p.grad is not None]
    return not any(not is_plain(grad) or bool(grad.any()) for grad in grads)


class ClippingWatch:
    """Wraps torch's gradient clipping."""

    def __init__(self, optimizers: OptimizerWatch) -> None:
        self._optimizers = optimizers
        self._watcher: Watcher
        self._norms: dict[str | None, list[Any]] = {}
        self._clips: dict[str | None, ClippingSeen] = {}
        self._order = _Order()

    def install(self, watcher: Watcher) -> None:
        """Install the wrappers."""
        self._watcher = watcher
        utils = nn.utils
        for owner in (utils, utils.clip_grad):
            watcher.patches.wrap(owner, "clip_grad_norm_", before=self._open, after=self._clipped)
            watcher.patches.wrap(
                owner, "clip_grad_value_", before=self._by_value, after=self._clipped_by_value
            )
        self._optimizers.on_stepping.append(self._order.stepping)
        self._optimizers.on_backward.append(self._order.backward)

    def settle(self) -> None:
        """Read the norms before clipping."""
        for where, norms in self._norms.items():
            self._clips[where].norms += [float(norm) for norm in norms]
            norms.clear()

    @property
    def _is_following(self) -> bool:
        return self._watcher.is_following and not self._watcher.rest.is_on

    def _open(self, _args: Any = None, _kwargs: Any = None) -> None:
        self._optimizers.gradients_open()
        if self._is_following:
            has_backward = self._watcher.backwards > 0
            self._order.open(self._optimizers.stepped(), has_backward=has_backward)

    def _clipped(self, _n: Any, args: tuple[Any, ...], kwargs: dict[str, Any], norm: Any) -> None:
        watcher = self._watcher
        where = watcher.own.here()
        limit = args[1] if len(args) > 1 else kwargs.get("max_norm")
        if watcher.is_scaled:
            watcher.seen.precision.num_clipped_scaled += 1
            watcher.seen.precision.clipped_scaled_at = where
        if isinstance(limit, (int, float)) and isinstance(norm, Tensor):
            one = self._clip(where, float(limit))
            if len(self._norms[where]) < _MAX_NORMS:
                self._norms[where].append(norm.detach())
            self._follow(one, norm.detach())
        self._optimizers.gradients_close(is_backward=False)

    def _by_value(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Measure, on some steps, the share of the gradient beyond the limit."""
        self._open()
        limit = args[1] if len(args) > 1 else kwargs.get("clip_value")
        if not self._watcher.is_close or not isinstance(limit, (int, float)):
            return
        # Read from the optimizers: the argument may be a generator that can be used only once.
        held = [p for o in self._optimizers.live_optimizers() for p in learning(o)]
        grads = [p.grad for p in held if is_plain(p.grad)]
        some = [part(grad, _MAX_OF_A_GRADIENT).abs() for grad in grads[:_MAX_GRADIENTS]]
        if some:
            one = self._clip(self._watcher.own.here(), float(limit))
            one.shares.append(float((torch.cat(some) > limit).float().mean()))

    def _clipped_by_value(
        self, _n: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _result: Any
    ) -> None:
        limit = args[1] if len(args) > 1 else kwargs.get("clip_value")
        if isinstance(limit, (int, float)) and self._is_following:
            self._follow(self._clip(self._watcher.own.here(), float(limit)), None)
        self._optimizers.gradients_close(is_backward=False)

    def _follow(self, one: ClippingSeen, norm: Tensor | None) -> None:
        if self._is_following:
            self._order.close(one, norm, has_backward=self._watcher.backwards > 0)

    def _clip(self, where: str | None, limit: float) -> ClippingSeen:
        if where not in self._clips:
            is_own = self._watcher.own.is_own_call()
            self._clips[where] = ClippingSeen(where=where, limit=limit, is_own=is_own)
            self._norms[where] = []
            self._watcher.seen.clippings.append(self._clips[where])
        return self._clips[where]
