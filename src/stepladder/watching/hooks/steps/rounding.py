"""Watch weights with few bits: whether the updates of an optimizer are lost when rounded."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from stepladder.watching.hooks.tensors import is_plain, part
from stepladder.watching.seen.weights import RoundingSeen

_DTYPES: Final = (torch.bfloat16, torch.float16)
_MAX_MATRICES: Final = 8
_VALUES: Final = 1024  # of each
_RISEN: Final = 2.0  # times the learning rate: what was seen before does not count
_LEAST: Final = 2.0**-24  # of a value: smaller updates are lost in float32 as well


@dataclass
class _Followed:
    """Some values of a weight since it was first inspected.

    Attributes:
        first: the values at that time.
        had_update: values that had a gradient at some inspected step.
        has_moved: values that changed at some inspected step.
        last: the values after the last of these steps.
        before: the values before the current step, and which of them have a gradient.
    """

    ref: weakref.ref[Any]
    first: Tensor
    had_update: Tensor
    has_moved: Tensor
    last: Tensor
    before: tuple[Tensor, Tensor] | None = None


class Rounding:
    """Follows some matrices of one of torch's optimizers, which round to the nearest number.

    Other optimizers may round at random, or keep precise copies of the weights.
    """

    def __init__(self) -> None:
        self._followed: dict[int, _Followed] = {}
        self._seen: RoundingSeen | None = None
        self._rate = 0.0

    def before(self, optimizer: Optimizer) -> None:
        """Store values of weights and of their gradients before a step."""
        found = list(_few_bits(optimizer))
        self._rate = max((rate for _, rate, _ in found), default=0.0)
        if self._seen is not None and self._rate > _RISEN * self._seen.rate:  # a warm-up
            self._seen, self._followed = None, {}
        for param, _, scale in found:
            one = self._followed.get(id(param))
            if one is None or one.ref() is not param:
                if len(self._followed) >= _MAX_MATRICES:
                    continue
                now = part(param, _VALUES).clone()
                nothing = torch.zeros_like(now, dtype=torch.bool)
                one = _Followed(weakref.ref(param), now, nothing, nothing.clone(), now)
                self._followed[id(param)] = one
            values, slope = part(param, _VALUES), part(param.grad, _VALUES)
            update = slope.float().abs() * scale
            has_update = (update > values.float().abs() * _LEAST) & (values != 0)
            one.before = values.clone(), has_update

    def after(self, step: int) -> None:
        """Compare the values after the step."""
        is_compared = False
        for one in self._followed.values():
            param, noted, one.before = one.ref(), one.before, None
            if param is None or noted is None:
                continue
            values, has_update = noted
            one.had_update |= has_update
            one.last = part(param, _VALUES).clone()
            one.has_moved |= one.last != values
            is_compared = True
        if not is_compared:
            return
        if self._seen is None:
            dtype = str(next(iter(self._followed.values())).first.dtype)
            self._seen = RoundingSeen(dtype=dtype.removeprefix("torch."), first_step=step)
        self._seen.num_looks += 1
        self._seen.last_step = step
        self._seen.rate = max(self._seen.rate, self._rate)

    def settle(self) -> RoundingSeen | None:
        """Count the values that never changed although they had a gradient."""
        if self._seen is None:
            return None
        num_values = num_still = 0
        for one in self._followed.values():
            still = one.had_update & ~one.has_moved & (one.last == one.first)
            num_values += int(one.had_update.sum())
            num_still += int(still.sum())
        self._seen.num_values, self._seen.num_still = num_values, num_still
        return self._seen


def _few_bits(optimizer: Optimizer) -> Iterator[tuple[Any, float, float]]:
    """Yield matrices with few bits that are about to be updated.

    Yields:
        The matrix, its learning rate, and how far a gradient of 1 moves a weight at least.
    """
    kind: Any = type(optimizer)
    if not str(getattr(kind.step, "__module__", "")).startswith("torch.optim"):
        return
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if not isinstance(rate, (int, float)) or not rate:
            continue
        scale = float(rate) if kind is torch.optim.SGD else inf  # others divide by its size
        for param in group["params"]:
            if param.dtype not in _DTYPES or param.dim() < 2 or not param.requires_grad:
                continue
            grad = param.grad
            if is_plain(param) and is_plain(grad) and grad.stride() == param.stride():
                yield param, float(rate), scale
