"""Find where a graph was cut, if backward does not reach weights of an optimizer that steps."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from multiprocessing.process import BaseProcess
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from stepladder.watching.hooks.models.missing import causes_of
from stepladder.watching.hooks.names import Names, Root
from stepladder.watching.hooks.patches import Patches
from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
from stepladder.watching.hooks.tensors import leaves_of, tensors_in
from stepladder.watching.seen.steps import CutSeen, StartSeen
from stepladder.watching.watcher import Watcher

_MODES: Any = torch.overrides
_MAX_TRACED: Final = 3  # steps whose operations are followed
_MAX_PARTLY: Final = 2  # of these, steps at which some weights had gradients
_MAX_NODES: Final = 5000
_MAX_WALKS: Final = 32  # graphs per step that are searched for weights
_FAST_WITHOUT: Final = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
_LEAVING: Final = {"item", "tolist", "numpy", "__float__", "__int__", "__array__"}
_ENTERING: Final = {"tensor", "as_tensor", "from_numpy", "scalar_tensor", "full"}
_IGNORED: Final = {".grad", "backward()", "requires_grad_()"}
_SPELLED: Final = {"__float__": "float()", "__int__": "int()", "__array__": "numpy()"}


class _Trace(TorchFunctionMode):
    """Follows what was computed from tensors whose graph has ended; results are not changed.

    Attributes:
        sought: ids of weights that never had a gradient.
        touched: those of them that some operation received.
        cut_from: by id of these weights, the operations that cut the graph behind them.
        joined: operations whose results have entered a graph, such as that of the loss.
        called: ids of the modules that were called.
        no_grad_at: the line that has switched gradients off.
    """

    def __init__(self, watcher: Watcher, sought: set[int]) -> None:
        super().__init__()
        self._watcher = watcher
        self.sought = sought
        self.touched: set[int] = set()
        self.cut_from: dict[int, list[CutSeen]] = {}
        self.joined: set[CutSeen] = set()
        self.called: set[int] = set()
        self.no_grad_at: str | None = None
        self._num_walks = 0
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

    def note_call(self, module: nn.Module, _args: Any) -> None:
        """Note that a module was called."""
        self.called.add(id(module))

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
        self.touched.update(key for one in given if (key := id(one)) in self.sought)
        has_graph = any(one.requires_grad for one in given)
        marks = [known for one in given if (known := self._mark_of(one)) is not None]
        cut = marks[0] if marks else None
        plain = str(getattr(func, "__name__", ""))
        if cut is None and not given and plain in _ENTERING and args:
            cut = next((known for known, left in self._left if _is_same(left, args[0])), None)
        if cut is None and not has_graph:
            return
        results = list(tensors_in(result, 2))
        if marks and any(one.grad_fn is not None for one in results):
            self.joined.update(marks)
        ended = [
            one
            for one in results
            if (not one.requires_grad or one.grad_fn is None)
            and not any(one is other for other in given)
        ]
        is_leaving = plain in _LEAVING
        if not ended and not is_leaving:
            return
        if cut is None or (has_graph and any(o.grad_fn is not None for o in given)):
            cut = self._cut_by(name)
        if has_graph:
            self._note_sources(given, cut)
        for one in ended:
            self._marks[id(one)] = (weakref.ref(one), cut)
        if is_leaving:
            self._left.append((cut, result))

    def _cut_by(self, name: str) -> CutSeen:
        here = self._watcher.own.here()
        if torch.is_grad_enabled():
            return CutSeen(operation=name, where=here)
        return CutSeen(operation="torch.no_grad()", where=self.no_grad_at or here)

    def _note_sources(self, given: list[Tensor], cut: CutSeen) -> None:
        """Note which of the weights are behind the inputs of an operation that cuts the graph."""
        for one in given if self.sought else ():
            if not one.requires_grad or self._num_walks >= _MAX_WALKS:
                continue
            self._num_walks += one.grad_fn is not None
            for leaf in leaves_of(one, _MAX_NODES):
                if id(leaf) in self.sought:
                    known = self.cut_from.setdefault(id(leaf), [])
                    known += [] if cut in known else [cut]


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
    """Notes where backward starts, and what becomes of weights that never had a gradient."""

    def __init__(self, names: Names, optimizers: OptimizerWatch) -> None:
        self._names = names
        self._optimizers = optimizers
        self._watcher: Watcher
        self._trace: _Trace | None = None
        self._patches: Patches | None = None
        self._hook: Any = None
        self._is_partly = False
        self._num_traced = 0
        self._num_partly = 0

    def install(self, watcher: Watcher) -> None:
        """Listen for steps."""
        self._watcher = watcher
        watcher.on_step.append(self._next)
        watcher.patches.wrap(BaseProcess, "start", before=self._leave)  # nothing for its copy
        watcher.patches.on_undo(self._end)

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def look(self, root: Tensor, called: Iterable[Root]) -> None:
        """Note where a backward starts, if this step is followed.

        Args:
            called: the models that were called since the last backward.
        """
        trace = self._trace
        if trace is None or not trace.is_on or self._is_partly:
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
        if self._trace is not None and self._trace.is_on:
            self._note_causes(self._trace)
        self._end()
        watcher = self._watcher
        if self._num_traced >= _MAX_TRACED or watcher.seen.is_compiled:
            return
        # Others' modes end in the order in which they began: ours is never put on top of them.
        if _MODES._len_torch_function_stack():
            return
        empty = self._optimizers.ids_without_gradients()
        self._is_partly = not empty
        if self._is_partly and self._num_partly >= _MAX_PARTLY:
            return
        sought = empty | self._optimizers.ids_never()
        if not sought or (self._is_partly and self._has_fast_path()):
            return
        self._num_traced += not self._is_partly
        self._num_partly += self._is_partly
        self._begin(_Trace(watcher, sought))

    def _has_fast_path(self) -> bool:
        """Return whether a module computes, and rounds, in another way if operations are followed.

        That is so for attention in evaluation mode.
        """
        models = (root.ref() for root in self._names.roots)
        modules = (one for model in models if model is not None for one in model.modules())
        return any(isinstance(one, _FAST_WITHOUT) and not one.training for one in modules)

    def _begin(self, trace: Any) -> None:
        self._trace = trace
        self._hook = register_module_forward_pre_hook(trace.note_call)
        if self._patches is None:
            self._patches = Patches(self._watcher.switch)
            self._patches.wrap(torch.no_grad, "__enter__", before=self._switched_off)
            self._patches.wrap(torch.set_grad_enabled, "__init__", before=self._switched_off)
        else:
            self._patches.take_up()
        self._watcher.switch.counts_for = 1  # no other step is like this one
        trace.__enter__()

    def _switched_off(self, _args: Any, _kwargs: Any) -> None:
        if self._trace is not None and torch.is_grad_enabled():
            self._trace.no_grad_at = self._watcher.own.here()

    def _note_causes(self, trace: _Trace) -> None:
        """Note, at the end of a step, what it shows of weights without a gradient."""
        cuts = {
            key: next((cut for cut in cuts if cut in trace.joined), None)
            for key, cuts in trace.cut_from.items()
        }
        models = [model for root in self._names.roots if (model := root.ref()) is not None]
        for live in self._optimizers.with_missing():
            found = causes_of(
                {key: shape for key, shape in live.missing().items() if key in trace.sought},
                cuts={key: cut for key, cut in cuts.items() if cut is not None},
                used=trace.touched,
                called=trace.called,
                models=models,
                held=self._optimizers.held,
            )
            live.causes = {**found, **live.causes}

    def _leave(self, _args: Any, _kwargs: Any) -> None:
        self._end()

    def _end(self) -> None:
        """Stop following operations; while another mode is on top of ours, only pass them on."""
        if self._hook is not None and self._patches is not None:
            self._hook.remove()
            self._hook = None
            self._patches.lay_down()
        if self._trace is None:
            return
        self._trace.is_on = False
        if _MODES._get_current_function_mode() is self._trace:
            self._trace.__exit__(None, None, None)
            self._trace = None
