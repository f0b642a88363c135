"""Find gradients that the script itself changes between backward and the step."""

from __future__ import annotations

import weakref
from typing import Any, Final

import torch

from stepladder.watching.hooks.tensors import is_plain, part
from stepladder.watching.seen.steps import OptimizerSeen

_FEW: Final = 64  # numbers of a gradient
_MAX_COMPARED: Final = 16  # steps


class RewrittenWatch:
    """Compares one gradient at inspected steps with what torch has left in it.

    A script may divide gradients by a number of examples that it only knows after the last
    backward.
    """

    def __init__(self) -> None:
        self._param: weakref.ref[Any] | None = None
        self._values: torch.Tensor | None = None

    def note(self, param: Any, seen: OptimizerSeen) -> None:
        """Keep numbers of a gradient after torch itself has changed it."""
        self._values = None
        if seen.num_compared >= _MAX_COMPARED or param is None or not is_plain(param.grad):
            return
        self._param = weakref.ref(param)
        self._values = part(param.grad, _FEW).clone()

    def before_step(self, seen: OptimizerSeen) -> None:
        """Count a step, and whether its gradient was changed in between."""
        values, self._values = self._values, None
        param: Any = self._param() if self._param is not None else None
        if values is None or param is None or not is_plain(param.grad) or not bool(values.any()):
            return
        seen.num_compared += 1
        seen.num_rewritten += not torch.equal(part(param.grad, _FEW), values)
