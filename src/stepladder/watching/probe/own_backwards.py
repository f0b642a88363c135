"""Test, after the script's last step, whether its own backward functions use what they receive."""

from __future__ import annotations

import functools
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function

from stepladder.watching.hooks.tensors import is_plain, tensors_in
from stepladder.watching.probe.clearing import mapped, same_draws
from stepladder.watching.probe.independence import is_distributed, silent
from stepladder.watching.seen.losses import OwnBackwardSeen
from stepladder.watching.watcher import Watcher

_MAX_FUNCTIONS: Final = 16
_MAX_VALUES: Final = 1 << 20  # of all tensors of a call that is kept
_MIN_OUTPUTS: Final = 2


class OwnBackwards:
    """Keeps the arguments of one call of each `autograd.Function` that the script defines."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._kept: dict[type, tuple[Any, ...] | None] = {}
        self._where: dict[type, str | None] = {}

    def install(self, watcher: Watcher) -> None:
        """Wrap `Function.apply`, which all of them inherit."""
        self._watcher = watcher
        original = vars(Function)["apply"]
        apply, switch, kept = original.__func__, watcher.switch, self._kept

        @functools.wraps(apply)
        def wrapper(cls: Any, *args: Any, **kwargs: Any) -> Any:
            is_new = switch.is_on and cls not in kept and len(kept) < _MAX_FUNCTIONS
            if is_new and not torch.compiler.is_compiling() and torch.is_grad_enabled():
                switch.run(self._keep, cls, args, kwargs)
            return apply(cls, *args, **kwargs)

        function: Any = Function
        function.apply = classmethod(wrapper)
        watcher.patches.on_undo(lambda: setattr(function, "apply", original))

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def _keep(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        backward: Any = getattr(function, "backward", None)
        code = getattr(backward, "__code__", None)
        given = list(tensors_in(args, 2))
        if code is None or not self._watcher.own.is_own(code.co_filename) or kwargs:
            self._kept[function] = None  # a library's
            return
        if not any(one.requires_grad for one in given):
            return
        is_small = sum(one.numel() for one in given) <= _MAX_VALUES
        if not is_small or not all(is_plain(one) for one in given):
            self._kept[function] = None
            return
        name = self._watcher.own.shown(code.co_filename)
        self._where[function] = f"{name}:{code.co_firstlineno}"
        self._kept[function] = mapped(_copied, args)

    def replay(self) -> None:
        """Call each on copies, and its backward with several gradients.

        Nothing is printed, and random states are restored.
        """
        kept = {one: args for one, args in self._kept.items() if args is not None}
        self._kept = {}
        if is_distributed():
            return
        for function, args in kept.items():
            seen = OwnBackwardSeen(name=function.__name__, where=self._where[function])
            self._watcher.seen.own_backwards.append(seen)
            try:
                with same_draws() as draw_again, silent(), torch.enable_grad():
                    _compare(function, args, seen, draw_again)
            except Exception as error:  # whatever a script's function raises at another time
                seen.why_not = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _compare(function: Any, args: tuple[Any, ...], seen: OwnBackwardSeen, draw_again: Any) -> None:
    """Compare the gradients that backward returns for one, its negative, twice it, and zero."""
    generator = torch.Generator().manual_seed(0)
    incoming: Tensor | None = None
    returned: list[Tensor] = []
    for factor in (1.0, -1.0, 2.0, 0.0):
        draw_again()
        inputs = mapped(_copied, args)
        leaves = [one for one in tensors_in(inputs, 2) if one.requires_grad]
        passed = mapped(lambda one: one.view_as(one) if one.requires_grad else one, inputs)
        output = function.apply(*passed)
        if not isinstance(output, Tensor) or output.numel() < _MIN_OUTPUTS:
            seen.why_not = "it does not return one tensor with several values"
            return
        if incoming is None:
            drawn = torch.randn(output.shape, generator=generator)
            incoming = drawn.to(device=output.device, dtype=output.dtype)
        grads = torch.autograd.grad(output, leaves, factor * incoming, allow_unused=True)
        flat = [grad.detach().double().flatten() for grad in grads if grad is not None]
        returned.append(torch.cat(flat) if flat else torch.zeros(0))
    if any(one.shape != returned[0].shape for one in returned[1:]):
        seen.why_not = "its gradients have several shapes"
        return
    seen.num_values = returned[0].numel()
    is_same = all(torch.equal(one, returned[0]) for one in returned[1:])
    is_finite = bool(torch.isfinite(returned[0]).all())
    seen.is_constant = is_same and is_finite and bool(returned[0].any())
