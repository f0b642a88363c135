"""Find where a graph was cut, if backward reaches no weight of an optimizer that steps."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from stepladder.watching.hooks.names import Root
from stepladder.watching.hooks.optimizers import OptimizerWatch
from stepladder.watching.hooks.tensors import leaves_of, tensors_in
from stepladder.watching.seen import CutSeen, StartSeen
from stepladder.watching.watcher import Watcher

_MODES: Any = torch.overrides
_MAX_TRACED: Final = 3  # steps whose operations are followed
_MAX_NODES: Final = 5000
_LEAVING: Final = {"item", "tolist", "numpy", "__float__", "__int__", "__array__"}
_ENTERING: Final = {"tensor", "as_tensor", "from_numpy", "scalar_tensor", "full"}
_IGNORED: Final = {".grad", "backward()", "requires_grad_()"}
_SPELLED: Final = {"__float__": "float()", "__int__": "int()", "__array__": "numpy()"}


class _Trace(TorchFunctionMode):
    """Follows what was computed from tensors whose graph has ended; results are not changed."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher
        self._marks: dict[int, tuple[weakref.ref[Tensor], CutSeen]] = {}
        self._left: list[tuple[CutSeen, Any]] = []
        self.is_on = True

    def __torch_function__(
        self, func: Any, _types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and note whether its output has no graph although an input has one."""
        result = func(*args, **(kwargs or {}))
        if self.is_on and self._watcher.switch.is_on:
            self._watcher.switch.run(self._note, func, args, kwargs or {}, result)
        return result

    def cut_of(self, leaf: Tensor) -> CutSeen | None:
        """Return the operation at which the graph of a leaf has ended; None if that is unknown."""
        known = self._mark_of(leaf)
        if known is None:  # another tensor with the same memory, as of Variable
            known = next(
                (
                    cut
                    for ref, cut in self._marks.values()
                    if (one := ref()) is not None
                    and one.numel() == leaf.numel()
                    and one.data_ptr() == leaf.data_ptr()
                ),
                None,
            )
        if known is None and len(only := {cut for cut, _ in self._left}) == 1:
            (known,) = only
        return known

    def _mark_of(self, value: Tensor) -> CutSeen | None:
        ref, cut = self._marks.get(id(value), (None, None))
        return cut if ref is not None and ref() is value else None

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        name = _name_of(func)
        if name in _IGNORED:
            return
        given = list(tensors_in((args, list(kwargs.values())), 3))
        has_graph = any(one.requires_grad for one in given)
        cut = next((known for one in given if (known := self._mark_of(one)) is not None), None)
        plain = str(getattr(func, "__name__", ""))
        if cut is None and not given and plain in _ENTERING and args:
            cut = next((known for known, left in self._left if _is_same(left, args[0])), None)
        if cut is None and not has_graph:
            return
        ended = [
            one
            for one in tensors_in(result, 2)
            if (not one.requires_grad or one.grad_fn is None)
            and not any(one is other for other in given)
        ]
        is_leaving = plain in _LEAVING
        if not ended and not is_leaving:
            return
        if cut is None or (has_graph and any(o.grad_fn is not None for o in given)):
            what = name if torch.is_grad_enabled() else "torch.no_grad()"
            cut = CutSeen(operation=what, where=self._watcher.own.here())
        for one in ended:
            self._marks[id(one)] = (weakref.ref(one), cut)
        if is_leaving:
            self._left.append((cut, result))


def _name_of(func: Any) -> str:
    """Return the name of an operation as code has it, such as `argmax()` or `.data`."""
    name = str(getattr(func, "__name__", func))
    if name in ("__get__", "__set__"):
        return f".{getattr(getattr(func, '__self__', None), '__name__', '')}"
    return _SPELLED.get(name, f"{name}()")


def _is_same(left: Any, given: Any) -> bool:
    """Return whether a value that left torch is what a tensor is made of."""
    if left is given:
        return True
    if isinstance(left, np.ndarray) or isinstance(given, np.ndarray):
        return False
    return type(left) is type(given) and bool(left == given)


class CutWatch:
    """Notes where backward starts, once an optimizer has stepped without any gradient."""

    def __init__(self, optimizers: OptimizerWatch) -> None:
        self._optimizers = optimizers
        self._watcher: Watcher
        self._trace: _Trace | None = None
        self._num_traced = 0

    def install(self, watcher: Watcher) -> None:
        """Listen for steps."""
        self._watcher = watcher
        watcher.on_step.append(self._next)
        watcher.patches.on_undo(self._end)

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def look(self, root: Tensor, called: Iterable[Root]) -> None:
        """Note where a backward starts, if this step is followed.

        Args:
            called: the models that were called since the last backward.
        """
        trace = self._trace
        if trace is None or not trace.is_on:
            return
        leaves = list(leaves_of(root, _MAX_NODES))
        weights = [one for one in leaves if isinstance(one, nn.Parameter)]
        cut = None
        if not weights:
            cut = next((known for leaf in leaves if (known := trace.cut_of(leaf))), None)
        empty = self._optimizers.ids_without_gradients()
        self._watcher.seen.starts.append(
            StartSeen(
                where=self._watcher.own.here(),
                is_leaf=root.grad_fn is None,
                num_weights=len(weights),
                is_called=any(not model.ids.isdisjoint(empty) for model in called),
                cut=cut,
            )
        )
        if self._num_traced >= _MAX_TRACED:
            trace.is_on = False

    def _next(self) -> None:
        self._end()
        watcher = self._watcher
        if self._num_traced >= _MAX_TRACED or watcher.seen.is_compiled:
            return
        # Others' modes end in the order in which they began: ours is never put on top of them.
        if not self._optimizers.ids_without_gradients() or _MODES._len_torch_function_stack():
            return
        self._num_traced += 1
        trace: Any = _Trace(watcher)
        trace.__enter__()
        self._trace = trace

    def _end(self) -> None:
        """Stop following operations; while another mode is on top of ours, only pass them on."""
        if self._trace is None:
            return
        self._trace.is_on = False
        if _MODES._get_current_function_mode() is self._trace:
            self._trace.__exit__(None, None, None)
            self._trace = None
