"""Follow the gradients of each backward to a step, or to where they are cleared."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.watching.hooks.tensors import is_plain, leaves_of, part
from stepladder.watching.seen.steps import WindowSeen

_FEW: Final = 64  # values of a weight and of its gradient that are compared
_MAX_WINDOWS: Final = 1000
_MAX_NODES: Final = 40


def is_made_to_have_gradient(value: Tensor) -> bool:
    """Return whether an input depends on a leaf that is no weight, as in an adversarial attack.

    Backward is then called for the gradient of that leaf, and those of the weights may be unused.
    """
    if not value.requires_grad:
        return False
    leaves = leaves_of(value, _MAX_NODES)
    return any(not isinstance(leaf, nn.Parameter) for leaf in leaves)


@dataclass
class _Noted:
    """A gradient as it was at some time.

    Attributes:
        values: some of its numbers; None unless they are compared.
        weight: some numbers of the weight at that time.
    """

    grad: weakref.ref[Any]
    version: int
    values: Tensor | None = None
    weight: Tensor | None = None
    weight_version: int = -1


class Trail:
    """The gradient of one weight of an optimizer, from its step to the next one.

    Comparing the tensor object and torch's count of its changes shows what was cleared. Once
    something seems lost, values are compared as well: a script may take gradients for a purpose of
    its own, and moves weights or writes gradients then.

    Attributes:
        held: numbers of the backwards that its gradient contains.
        num_backwards, num_lost: since the step.
        has_tail: a pass over a loader began since then, on gradients of the previous one.
    """

    def __init__(self) -> None:
        self.held: list[int] = []
        self.num_backwards = 0
        self.num_lost = 0
        self.has_tail = False
        self._param: weakref.ref[Any] | None = None
        self._noted: _Noted | None = None
        self._at_open: tuple[weakref.ref[Any] | None, int] = (None, -1)
        self._is_begun = False
        self._is_own = False
        self._is_suspect = False
        self._was_suspect = False
        self._is_accumulating = False

    def begin(self, param: Any) -> None:
        """Follow the gradient of a weight from here; None: do not."""
        self._is_begun = param is not None
        if param is not None:
            self._param = weakref.ref(param)
        self._noted = None
        self._is_own, self._was_suspect = False, self._is_suspect
        self.held, self.num_backwards, self.num_lost, self.has_tail = [], 0, 0, False

    def open(self) -> bool:
        """Note the gradient before a backward; return whether what it held was cleared."""
        param = self._weight()
        if param is None:
            return False
        was_cleared = bool(self.held) and self._was_cleared(param)
        grad = param.grad
        self._at_open = (None, -1) if grad is None else (weakref.ref(grad), grad._version)
        return was_cleared

    def close(self, number: int, *, is_close: bool) -> bool:
        """Note the gradient after a backward; return whether it has reached this weight."""
        param = self._weight()
        if param is None:
            return False
        grad, (before, version) = param.grad, self._at_open
        is_same = before is not None and before() is grad
        if grad is None or (is_same and grad._version == version):
            return False
        self.held.append(number)
        self.num_backwards += 1
        self._note(param, grad, is_close=is_close)
        return True

    def renew(self) -> None:
        """Note the gradient after torch itself has changed it, as clipping does."""
        param = self._weight()
        if param is not None and param.grad is not None and self._noted is not None:
            self._note(param, param.grad, is_close=self._noted.values is not None)

    def end(self, step: int, num_batches: int | None) -> WindowSeen | None:
        """Return what was seen since the last step; None if it was not followed."""
        param = self._weight()
        if param is None:
            return None
        self._is_accumulating = self.num_backwards >= 2
        if self._is_accumulating and self.held:
            self._compare(param)
        return WindowSeen(
            step=step,
            num_backwards=self.num_backwards,
            num_lost=self.num_lost,
            num_batches=num_batches,
            is_checked=self._was_suspect,
            is_own=self._is_own,
            has_tail=self.has_tail,
        )

    def lose(self, num: int) -> None:
        """Count backwards whose gradients were cleared before any step."""
        self.num_lost += num
        self._is_suspect = self._is_suspect or num > 0

    def _weight(self) -> Any:
        return self._param() if self._is_begun and self._param is not None else None

    def _note(self, param: Any, grad: Any, *, is_close: bool) -> None:
        is_read = self._is_suspect or (self._is_accumulating and is_close and grad.is_cpu)
        self._noted = _Noted(
            weakref.ref(grad),
            grad._version,
            part(grad, _FEW).clone() if is_read and is_plain(grad) else None,
            part(param, _FEW).clone() if self._is_suspect and is_plain(param) else None,
            param._version,
        )

    def _was_cleared(self, param: Any) -> bool:
        """Return whether the gradient is gone or zero, while the weight is as it was."""
        grad: Any = param.grad
        noted = self._noted
        if noted is None:
            return False
        if grad is not None and self._is_intact(grad, noted):
            return False
        if grad is not None and (not is_plain(grad) or bool(part(grad, _FEW).any())):
            self._is_own = True  # the script has changed it
            return False
        has_moved = param._version != noted.weight_version
        if not has_moved and noted.weight is not None:
            has_moved = not torch.equal(part(param, _FEW), noted.weight)
        self._is_own = self._is_own or has_moved
        return True

    def _is_intact(self, grad: Any, noted: _Noted) -> bool:
        held: Any = noted.grad()
        if held is not grad or grad._version != noted.version:
            return False
        if noted.values is None or not bool(noted.values.any()):
            return True
        return bool(part(grad, _FEW).any())  # zeroed through `.data`, which torch does not count

    def _compare(self, param: Any) -> None:
        """Check that the step uses the gradients of the last backward."""
        grad: Any = param.grad
        noted = self._noted
        held: Any = None if noted is None else noted.grad()
        if grad is None or noted is None or held is not grad:
            self._is_own = True
        elif noted.values is not None:
            is_same = torch.equal(part(grad, _FEW), noted.values)
            self._is_own = self._is_own or grad._version != noted.version or not is_same
        else:
            self._is_own = self._is_own or grad._version != noted.version


@dataclass
class _Tail:
    """Gradients that no step has used when a pass over a loader begins."""

    param: weakref.ref[Any]
    grad: weakref.ref[Any]
    version: int
    num: int

    def was_cleared(self) -> bool:
        """Return whether they are gone or zero."""
        param = self.param()
        grad: Any = None if param is None else param.grad
        if grad is None:
            return param is not None
        held: Any = self.grad()
        if grad is held and grad._version == self.version:
            return False
        return is_plain(grad) and not bool(part(grad, _FEW).any())


def tail_of(params: Iterable[weakref.ref[Any]], num: int) -> _Tail | None:
    """Note the gradients of an optimizer as a pass over a loader begins.

    Args:
        num: backwards since the last step.
    """
    for ref in params:
        param = ref()
        if param is not None and is_plain(param.grad):
            return _Tail(ref, weakref.ref(param.grad), param.grad._version, num)
    return None


class Accumulation:
    """Counts the backwards whose gradients no step has used, over all optimizers.

    A backward may reach the weights of several optimizers, such as the discriminator's through the
    loss of a generator. It is lost only if no optimizer steps with its gradients.

    Attributes:
        seems_lost: gradients of a backward were cleared before any step.
    """

    def __init__(self) -> None:
        self.seems_lost = False
        self._number = 0
        self._holders: dict[int, int] = {}
        self._used: set[int] = set()

    def open(self, trails: Iterable[Trail]) -> None:
        """Look for gradients that were cleared since the previous backward."""
        for trail in trails:
            if trail.open():
                self._drop(trail)

    def close(self, trails: Iterable[Trail], *, is_close: bool) -> None:
        """Note which weights a backward has reached."""
        self._number += 1
        num = sum(trail.close(self._number, is_close=is_close) for trail in trails)
        if num:
            self._holders[self._number] = num

    def step(
        self,
        trail: Trail,
        windows: list[WindowSeen],
        *,
        step: int,
        num_batches: int | None,
        is_own: bool,
    ) -> None:
        """Note that an optimizer steps with the gradients that it has.

        Args:
            is_own: the script takes gradients for a purpose of its own.
        """
        window = trail.end(step, num_batches)
        if window is not None and len(windows) < _MAX_WINDOWS:
            window.is_own = window.is_own or is_own
            windows.append(window)
        self.use(trail)

    def use(self, trail: Trail) -> None:
        """Note that the gradients were used, or skipped on purpose."""
        self._used.update(trail.held)
        self._release(trail)

    def _drop(self, trail: Trail) -> None:
        lost = [n for n in trail.held if n not in self._used and self._holders.get(n, 0) <= 1]
        trail.lose(len(lost))
        self.seems_lost = self.seems_lost or bool(lost)
        self._release(trail)

    def _release(self, trail: Trail) -> None:
        for number in trail.held:
            left = self._holders.pop(number, 1) - 1
            if left > 0:
                self._holders[number] = left
            else:
                self._used.discard(number)
        trail.held = []
