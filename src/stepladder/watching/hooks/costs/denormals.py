"""Watch for denormal floats, with which many processors compute a hundred times more slowly."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
from stepladder.watching.hooks.tensors import is_plain, part, tensors_in
from stepladder.watching.seen.costs import DenormalsSeen
from stepladder.watching.watcher import Watcher

_FIRST: Final = (4, 24, 44)  # from which on the next inspected step is read
_GROWTH: Final = 1.3  # then each time the number of steps has grown by this factor
_MAX_TENSORS: Final = 12  # of each kind, in each of these steps
_MIN_NUMEL: Final = 256  # smaller ones are fast anyway
_SAMPLE: Final = 512
_TIMED: Final = 32_768  # values of a product that is timed: a single thread computes it
_MAX_TIMED: Final = 12  # tensors of each kind
_EXPONENT: Final = 0x7F800000  # of a float32; denormal if it is 0 and the rest is not
_FRACTION: Final = 0x007FFFFF
_MIN_SHARE: Final = 1e-3
_REPEATS: Final = 3


def share_of_denormals(values: Tensor) -> float:
    """Return the share of denormal numbers among float32 values; their bits are compared."""
    bits = values.numpy().view(np.int32)  # for few values, faster than torch
    is_denormal = ((bits & _EXPONENT) == 0) & ((bits & _FRACTION) != 0)
    return float(is_denormal.mean())


def times_of(values: Tensor) -> tuple[float, float]:
    """Time a product of values, and of the same ones without denormal numbers, in seconds."""
    without = values.clone()
    without[without.view(torch.int32) & _EXPONENT == 0] = 0.0
    out = torch.empty_like(values)
    pairs = [(_time(values, out), _time(without, out)) for _ in range(_REPEATS)]
    return min(slow for slow, _ in pairs), min(fast for _, fast in pairs)


def _time(values: Tensor, out: Tensor) -> float:
    began = perf_counter()
    torch.mul(values, 0.75, out=out)
    return perf_counter() - began


class DenormalWatch:
    """Samples what layers receive and return, gradients and the optimizer's state, in few steps."""

    def __init__(self, optimizers: OptimizerWatch) -> None:
        self._optimizers = optimizers
        self._watcher: Watcher
        self._handle: Any = None
        self._num_left = 0
        self._num_looks = 0
        self._due = _FIRST[0]
        self._computed = self._updated = DenormalsSeen()

    def install(self, watcher: Watcher) -> None:
        """Decide after each step whether the next one is inspected."""
        self._watcher = watcher
        watcher.on_step.append(self._next)
        watcher.patches.on_undo(self._shut)

    def _next(self) -> None:
        watcher = self._watcher
        if self._handle is not None:
            self._look_at_weights()
            self._keep_slowest()
        self._shut()
        if watcher.step >= self._due and watcher.is_close and not watcher.seen.is_compiled:
            self._num_looks += 1
            is_early = self._num_looks < len(_FIRST)
            self._due = _FIRST[self._num_looks] if is_early else int(_GROWTH * watcher.step) + 1
            self._num_left = _MAX_TENSORS
            self._computed = DenormalsSeen(step=watcher.step)
            self._updated = DenormalsSeen(step=watcher.step)
            self._handle = register_module_forward_hook(self._after)

    def _keep_slowest(self) -> None:
        costs = self._watcher.seen.costs
        costs.computed = max(costs.computed, self._computed, key=lambda seen: seen.slower)
        costs.updated = max(costs.updated, self._updated, key=lambda seen: seen.slower)

    def _shut(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _after(self, _module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        switch = self._watcher.switch
        if self._num_left > 0 and switch.is_on and not torch.compiler.is_compiling():
            switch.run(self._look_at_layer, args, output)

    def _look_at_layer(self, args: tuple[Any, ...], output: Any) -> None:
        if torch.is_grad_enabled():
            for value in (*tensors_in(args, 1), *tensors_in(output, 1)):
                self._num_left -= 1
                if self._num_left >= 0:
                    self._note(value, self._computed)

    def _look_at_weights(self) -> None:
        """Inspect gradients and the state of optimizers."""
        num = 0
        for optimizer in self._optimizers.live_optimizers():
            for group in optimizer.param_groups:
                for param in group["params"][: _MAX_TENSORS - num]:
                    num += 1
                    self._note(param.grad, self._updated)
                    for value in optimizer.state.get(param, {}).values():
                        self._note(value, self._updated)

    def _note(self, value: Any, seen: DenormalsSeen) -> None:
        if not is_plain(value) or not value.is_cpu or value.dtype is not torch.float32:
            return
        if value.numel() < _MIN_NUMEL:
            return
        num, share = value.numel(), share_of_denormals(part(value, _SAMPLE).contiguous())
        if share < _MIN_SHARE:
            seen.num += num
        elif seen.num_tensors < _MAX_TIMED:
            some = part(value, _TIMED)[:_TIMED].contiguous()
            slow_s, fast_s = times_of(some)
            seen.num += num
            seen.num_tensors += 1
            seen.num_denormal += round(share * num)
            seen.num_timed += num
            seen.slow_s += slow_s * num / len(some)
            seen.fast_s += fast_s * num / len(some)
