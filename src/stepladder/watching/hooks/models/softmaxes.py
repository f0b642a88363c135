"""Watch softmax over a dimension of one value, of which the result is always 1."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from stepladder.watching.seen.models import SoftmaxSeen
from stepladder.watching.watcher import Watcher

_MAX_PLACES: Final = 32
_WRAPPED: Final = ((F, "softmax"), (torch, "softmax"), (Tensor, "softmax"))


class SoftmaxWatch:
    """Wraps softmax in inspected steps, and notes lines whose results have only ones.

    Only results (n, 1) and (n, t, 1) with t above 1 count: other dimensions of one may have more
    values in another batch, such as a sequence of one token.
    """

    def __init__(self) -> None:
        self._watcher: Watcher
        self._places: dict[str, SoftmaxSeen] = {}
        self._steps: dict[str, set[int]] = {}

    def install(self, watcher: Watcher) -> None:
        """Wrap the functions."""
        self._watcher = watcher
        for owner, name in _WRAPPED:
            watcher.patches.wrap(owner, name, after=self._computed, is_close_only=True)

    def settle(self) -> None:
        """Store the lines whose results were always ones."""
        self._watcher.seen.softmaxes = [
            one for one in self._places.values() if one.num_steps and not one.num_others
        ]

    def _computed(
        self, _note: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if not isinstance(result, Tensor) or not isinstance(dim, int):
            return
        if result.grad_fn is None or dim not in (-1, result.dim() - 1):
            return
        where = self._watcher.own.here()
        if where is None or (where not in self._places and len(self._places) >= _MAX_PLACES):
            return
        shape = tuple(result.shape)
        one = self._places.setdefault(where, SoftmaxSeen(where=where, shape=shape))
        if shape[-1] == 1 and len(shape) in (2, 3) and shape[-2] > 1:
            steps = self._steps.setdefault(where, set())
            steps.add(self._watcher.step)
            one.num_steps = len(steps)
        else:
            one.num_others += 1
