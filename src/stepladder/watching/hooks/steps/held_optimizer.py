"""State of one optimizer while a script runs: its weights before and after its steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from math import isfinite
from statistics import median
from typing import Any, Final

import torch
from torch.optim.optimizer import Optimizer

from stepladder.watching.hooks.steps.accumulated import Trail
from stepladder.watching.hooks.steps.rewritten import RewrittenWatch
from stepladder.watching.hooks.steps.rounding import Rounding
from stepladder.watching.hooks.steps.unused import UnusedGradients
from stepladder.watching.hooks.steps.zero_gradients import ZeroGradients
from stepladder.watching.hooks.tensors import is_plain, part
from stepladder.watching.seen.steps import OptimizerSeen
from stepladder.watching.seen.weights import CauseSeen, WithoutSeen

_MAX_MATRICES: Final = 12
_MAX_SLOPES: Final = 4  # of these that are compared with their gradients
_MATRIX_ELEMENTS: Final = 1024
_MAX_CHECKED: Final = 2000
_MAX_STATES: Final = 8  # weights whose state is inspected
_PROVE_AFTER: Final = 2  # steps that look uncleared before the values are compared
_MAX_PROOF: Final = 65_536  # elements


class ClearingWatch:
    """Follows the gradient of one weight of an optimizer from one step to the next.

    A gradient was not cleared if both steps have the same tensor object and all its changes in
    between (torch counts them) were made by backward, clipping or unscaling. Changes that torch
    does not count, such as `p.grad.data.zero_()`, are found by comparing the values.
    """

    def __init__(self) -> None:
        self._param: weakref.ref[Any] | None = None
        self._grad: weakref.ref[Any] | None = None
        self._version = -1
        self._is_intact = False
        self._num_backwards = 0
        self._numbers: torch.Tensor | None = None
        self._num_suspect = 0
        self._num_proven = 0
        self._is_proving = False
        self._is_new = True

    def after_step(self, optimizer: Optimizer | None) -> None:
        """Remember the gradient that this step used; None if the next steps are not followed."""
        if optimizer is None:
            self._grad, self._numbers, self._is_intact, self._is_new = None, None, False, True
            return
        param = self._param() if self._param is not None else None
        if param is None:
            param = _small(optimizer)
            if param is None:
                return
            self._param = weakref.ref(param)
        self._is_new = False
        grad = param.grad
        self._is_intact = grad is not None
        self._num_backwards = 0
        if grad is None:
            self._grad, self._numbers, self._num_suspect = None, None, 0
            return
        self._grad, self._version = weakref.ref(grad), grad._version
        self._is_proving = self._num_suspect >= _PROVE_AFTER and self._num_proven < 2
        self._keep(grad)

    def open(self) -> None:
        """Check the gradient before torch itself changes it."""
        if self._is_intact:
            self._check()

    @property
    def weight(self) -> Any:
        """Return the weight whose gradient is followed; None before the first step."""
        return self._param() if self._param is not None else None

    def used_up(self) -> Any:
        """Return the gradient that a step has used, if nothing has changed it since, or None."""
        return self._current() if self._is_intact and not self._num_backwards else None

    def close(self, *, is_backward: bool) -> None:
        """Register a change of the gradient by torch, which is not clearing."""
        if not self._is_intact:
            return
        grad = self._current()
        if grad is None:
            self._is_intact = False
            return
        self._num_backwards += is_backward and grad._version > self._version
        self._version = grad._version
        self._keep(grad)

    def before_step(self, seen: OptimizerSeen) -> None:
        """Decide whether the gradients of this step still contain those of the previous one."""
        if self._grad is None:
            if self._param is not None and not self._is_new:
                seen.num_cleared += 1
            return
        if self._is_intact:
            self._check()
        if self._is_intact and self._num_backwards:
            seen.num_uncleared += 1
            self._num_suspect += 1
            self._num_proven += self._is_proving
            seen.is_uncleared_proven = seen.is_uncleared_proven or self._num_proven >= 2
        elif not self._is_intact:
            seen.num_cleared += 1
            self._num_suspect = 0

    def _current(self) -> Any:
        param = self._param() if self._param is not None else None
        grad = None if param is None else param.grad
        held = self._grad() if self._grad is not None else None
        return grad if grad is not None and grad is held else None

    def _check(self) -> None:
        grad = self._current()
        if grad is None or grad._version != self._version:
            self._is_intact = False
        elif self._is_proving and self._numbers is not None:
            is_same = torch.equal(grad.detach(), self._numbers)
            self._is_intact = is_same and bool(self._numbers.any())

    def _keep(self, grad: Any) -> None:
        self._numbers = grad.detach().clone() if self._is_proving else None


def _small(optimizer: Optimizer) -> Any:
    """Return the weight whose gradient is fastest to compare."""
    found = None
    for group in optimizer.param_groups:
        for param in group["params"]:
            if not is_plain(param.grad) or param.grad.is_sparse:
                continue
            if found is None or param.numel() < found.numel():
                found = param
    return found if found is not None and found.numel() <= _MAX_PROOF else None


class HeldOptimizer:
    """State of one optimizer while the script runs."""

    def __init__(self, optimizer: Optimizer, seen: OptimizerSeen) -> None:
        self.ref = weakref.ref(optimizer)
        self.seen = seen
        self.params = [weakref.ref(p) for group in optimizer.param_groups for p in group["params"]]
        self.ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.clearing = ClearingWatch()
        self.rewritten = RewrittenWatch()
        self.unused = UnusedGradients()
        self.trail = Trail()
        self.rounding = Rounding()
        self.zeros = ZeroGradients()
        self.tail: Any = None
        self.never: dict[int, str] | None = None
        self.causes: dict[int, CauseSeen] = {}
        self.before: list[tuple[Any, Any, Any]] = []
        self.late: list[tuple[int, Any, Any, Any]] = []
        self.losses: list[tuple[int, Any]] = []
        self.cleared_late_at: str | None = None
        self.was_cleared = False
        self.is_late = False
        self.is_rebuilt = False
        self.num_since_built = 0
        self._has_state = False
        self._version: int | None = None
        self._trainable: frozenset[int] = frozenset()
        self.began = 0.0
        self.event: Any = None

    def describe_weights(self, params: list[Any]) -> None:
        """Note which weights the optimizer holds, and which of them are trainable by now."""
        self.params, self.ids = [weakref.ref(p) for p in params], {id(p) for p in params}
        self._trainable = frozenset(id(p) for p in params if p.requires_grad)

    def is_replaced_by(self, optimizer: Optimizer, where: str | None) -> bool:
        """Return whether the same line has just created this optimizer for the same weights."""
        seen = self.seen
        if where is None or seen.built_at != where or seen.kind != type(optimizer).__name__:
            return False
        if not self.num_since_built or any(ref() is None for ref in self.params[:1]):
            return False
        params = (p for group in optimizer.param_groups for p in group["params"])
        return self._trainable == {id(p) for p in params if p.requires_grad}

    def rebuild(self, optimizer: Optimizer) -> None:
        """Follow the optimizer that replaces this one."""
        self.ref = weakref.ref(optimizer)
        self.is_rebuilt = True

    def note_rebuilt(self, optimizer: Optimizer) -> None:
        """Note, at the first step of a replacement, whether it lacks the state of the replaced one.

        Nothing is lost if the replaced one had no state, if it was loaded, or if the weights were
        changed in between: then training starts again.
        """
        lost, num = self.seen.lost_after, self.num_since_built
        if self._has_state and not optimizer.state and self._version == self._current_version():
            lost[num] = lost.get(num, 0) + 1
        self.is_rebuilt, self.num_since_built = False, 0

    def count_step(self, optimizer: Optimizer) -> None:
        """Count a step; after the first, note whether the optimizer has a state."""
        groups = optimizer.param_groups
        rate = groups[0].get("lr") if groups else None
        if type(rate) is float:
            self.seen.schedule.note(self.seen.num_steps, rate)
        self.seen.num_steps += 1
        self.num_since_built += 1
        if self.num_since_built == 1:
            self._has_state = _has_state(optimizer)
        self._version = self._current_version()

    def _current_version(self) -> int | None:
        """Return how often torch has changed the first weight; None if there is no such weight."""
        param = self.params[0]() if self.params else None
        return None if param is None or param.is_inference() else int(param._version)

    def keep_weights(self, optimizer: Optimizer) -> None:
        """Store some values of the weights before a step changes them."""
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
        if self.before and not self.is_late:
            self.rounding.before(optimizer)

    def compare(self) -> None:
        """Measure how far the step moved some of the weights."""
        self.rounding.after(self.seen.num_steps)
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
        seen.rounding = self.rounding.settle()
        seen.without_grad = tuple((self.never or {}).values())
        zeros = self.zeros
        seen.zero_grad, seen.num_zero_looks = zeros.names, zeros.num_looks
        seen.num_zero_weights = zeros.num_zero
        seen.causes = self._by_cause()

    @property
    def is_empty(self) -> bool:
        """Return whether it stepped, but never with a gradient that nobody had cleared."""
        seen = self.seen
        return 0 < seen.num_looked == seen.num_empty and not seen.num_cleared_late

    def note_unused(self, here: Callable[[], str | None]) -> None:
        """Note, after a backward, which of the weights without a gradient at any step have one.

        Args:
            here: returns the line of the backward.
        """
        missing, is_first = self.missing(), self.seen.num_steps == 0
        if not missing and not is_first:
            return
        some = (p for p in self._among(missing) if p.grad is not None)
        reached = [id(p) for p in some if not self.unused.is_zeroed(p)]
        self.unused.after_backward(reached, here(), is_first=is_first)

    def note_cleared(self, by: Any) -> None:
        """Note, after `zero_grad()`, the gradients that are now zero.

        Args:
            by: the optimizer or module.
        """
        ids = {id(p) for p in by.parameters()} if isinstance(by, torch.nn.Module) else self.ids
        self.unused.note_zeroed(self._among(ids & (self.never or {}).keys()))

    def still_zero(self) -> set[int]:
        """Return the ids of weights whose gradient was set to zero, and that nothing reached since.

        These are some of those that had no gradient at any step.
        """
        return {id(p) for p in self._among(self.never or {}) if self.unused.is_zeroed(p)}

    def _among(self, ids: Collection[int]) -> list[Any]:
        """Return its weights that have one of these ids."""
        if not ids:
            return []
        params = (ref() for ref in self.params[:_MAX_CHECKED])
        return [param for param in params if param is not None and id(param) in ids]

    def missing(self) -> dict[int, tuple[int, ...]]:
        """Return the shapes of the weights that never had a gradient, by id."""
        if not self.never and not self.is_empty:
            return {}
        params = (param for ref in self.params[:_MAX_CHECKED] if (param := ref()) is not None)
        never = self.never or {}
        return {id(p): tuple(p.shape) for p in params if self.is_empty or id(p) in never}

    def _by_cause(self) -> tuple[WithoutSeen, ...]:
        missing = self.ids if self.is_empty else self.never or {}  # the weights may be deleted
        by_cause: dict[CauseSeen, list[str]] = {}
        for key, cause in self.causes.items():
            if key in missing:
                by_cause.setdefault(cause, []).append((self.never or {}).get(key, ""))
        return tuple(WithoutSeen(cause=one, names=tuple(by)) for one, by in by_cause.items())


def _slope(param: Any) -> Any:
    """Return the values of the gradient where `part` reads the weight; None if impossible."""
    grad = param.grad
    if not is_plain(grad) or grad.stride() != param.stride():
        return None
    return part(grad, _MATRIX_ELEMENTS).clone()


def _has_state(optimizer: Optimizer) -> bool:
    """Return whether an optimizer keeps tensors from one step to the next."""
    some = list(islice(optimizer.state.values(), _MAX_STATES))
    return any(
        isinstance(value, torch.Tensor) and value.numel() > 1
        for state in some
        if isinstance(state, Mapping)
        for value in state.values()
    )


def learning(optimizer: Optimizer) -> list[Any]:
    """Return the trainable weights of an optimizer, at most the first 2,000."""
    params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    return params[:_MAX_CHECKED]
