"""What is held of an optimiser while a script runs: its weights, before and after its steps."""

from __future__ import annotations

import weakref
from math import isfinite
from statistics import median
from typing import Any, Final

import torch
from torch.optim.optimizer import Optimizer

from stepladder.watching.hooks.clearing import ClearingWatch
from stepladder.watching.hooks.tensors import is_plain, part
from stepladder.watching.seen_steps import OptimizerSeen

_MAX_MATRICES: Final = 12
_MAX_SLOPES: Final = 4  # of these, compared with their gradients
_MATRIX_ELEMENTS: Final = 1024
_MAX_CHECKED: Final = 2000


class Live:
    """What is held of one optimiser while the script runs."""

    def __init__(self, optimizer: Optimizer, seen: OptimizerSeen) -> None:
        self.ref = weakref.ref(optimizer)
        self.seen = seen
        self.params = [weakref.ref(p) for group in optimizer.param_groups for p in group["params"]]
        self.ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.clearing = ClearingWatch()
        self.never: dict[int, str] | None = None
        self.before: list[tuple[Any, Any, Any]] = []
        self.late: list[tuple[int, Any, Any, Any]] = []
        self.losses: list[tuple[int, Any]] = []
        self.cleared_late_at: str | None = None
        self.was_cleared = False
        self.is_late = False
        self.began = 0.0
        self.event: Any = None

    def keep_weights(self, optimizer: Optimizer) -> None:
        """Note some numbers of the weights before a step moves them."""
        seen, params = self.seen, learning(optimizer)
        seen.rates.append((seen.num_steps, float(optimizer.param_groups[0].get("lr", 0.0) or 0.0)))
        matrices = [p for p in params if p.dim() >= 2 and p.grad is not None]
        stride = max(1, len(matrices) // _MAX_MATRICES)
        some = [p for p in matrices[::stride] if is_plain(p)]
        self.before = [
            (
                weakref.ref(p),
                part(p, _MATRIX_ELEMENTS).clone(),
                None if self.is_late or idx >= _MAX_SLOPES else _slope(p),
            )
            for idx, p in enumerate(some)
        ]

    def compare(self) -> None:
        """Measure how far the step moved some of the weights."""
        moved, sizes, cosines = [], [], []
        for ref, old, grad in self.before:
            param = ref()
            if param is None:
                continue
            change = (part(param, _MATRIX_ELEMENTS) - old).float()
            moved.append(change.norm())
            sizes.append(old.float().norm())
            if grad is not None:
                slope = grad.float()
                cosines.append(change.dot(slope) / (change.norm() * slope.norm()))
        self.before = []
        if moved:
            cosine = torch.stack(cosines) if cosines else None
            late = (self.seen.num_steps, torch.stack(moved), torch.stack(sizes), cosine)
            self.late.append(late)

    def settle(self) -> None:
        """Read update ratios, losses and the names of weights without gradients."""
        seen = self.seen
        for step, moved, sizes, cosines in self.late:
            known = [] if cosines is None else [c for c in cosines.tolist() if isfinite(c)]
            if known:
                seen.climbs.append((step, median(known)))
            pairs = zip(moved.tolist(), sizes.tolist(), strict=True)
            ratios = sorted(m / s for m, s in pairs if s > 0)
            if ratios:
                seen.ratios.append((step, ratios[len(ratios) // 2]))
        self.late.clear()
        for step, values in self.losses:
            numbers = [float(value) for value in values]
            seen.losses.append((step, sum(numbers) / len(numbers)))
        self.losses.clear()
        seen.without_grad = tuple((self.never or {}).values())


def _slope(param: Any) -> Any:
    """Give the gradient's numbers at the places where `part` reads the weight; None: it cannot."""
    grad = param.grad
    if not is_plain(grad) or grad.stride() != param.stride():
        return None
    return part(grad, _MATRIX_ELEMENTS).clone()


def learning(optimizer: Optimizer) -> list[Any]:
    """Give the weights of an optimiser that may learn, the first 2,000 of them."""
    params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    return params[:_MAX_CHECKED]
