"""Time calls of modules in some steps: repeated, frozen, one per row, and recurrent cells."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.modules.rnn import RNNCellBase

from stepladder.watching.hooks.costs.rows import RowCalls
from stepladder.watching.hooks.names import Names
from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
from stepladder.watching.hooks.tensors import is_plain, part, tensors_in
from stepladder.watching.seen.costs import CalledSeen, CallsSeen
from stepladder.watching.watcher import Watcher

_FIRST: Final = 5  # the first step in which modules are timed
_LENGTH: Final = 3  # in a row, so that a call can be compared with those of the step before
_EVERY: Final = 50  # then again
_MAX_STEPS: Final = 12
_MAX_CALLS: Final = 5000  # of a step; if there are more, modules are not timed again
_MANY_CALLS: Final = 150  # of all steps; after these, only `_FEW_STEPS` are timed
_FEW_STEPS: Final = 6
_MAX_KNOWN: Final = 512  # modules
_NUM_VALUES: Final = 64  # of a tensor, which identify it
_MIN_DISTINCT: Final = 8
_MAX_SEEN: Final = 64
_NUM_WEIGHTS: Final = 3


@dataclass(slots=True)
class _Known:
    """A module, and what can be said of its weights."""

    ref: weakref.ref[nn.Module]
    has_weights: bool
    is_frozen: bool
    is_unheld: bool
    has_modes: bool
    has_norms: bool


@dataclass(slots=True)
class _Call:
    """A call that has begun."""

    module: nn.Module
    known: _Known | None
    given: Tensor | None
    is_grad: bool
    is_frozen: bool
    is_unheld: bool
    began: float
    is_row: bool = False


@dataclass(slots=True)
class _Past:
    """A call of this step or the one before it."""

    ref: weakref.ref[Tensor]
    version: int
    shape: tuple[int, ...]
    key: tuple[float, ...] | None
    is_grad: bool
    answer: tuple[float, ...] | None
    step: int


class CallWatch:
    """Hooks on all modules in three steps of fifty: six steps, twelve if modules are few."""

    def __init__(self, names: Names, optimizers: OptimizerWatch) -> None:
        self._names = names
        self._optimizers = optimizers
        self._watcher: Watcher
        self._seen: CallsSeen
        self._handles: list[Any] = []
        self._stack: list[_Call] = []
        self._known: dict[int, _Known] = {}
        self._held: set[int] = set()
        self._past: dict[int, list[_Past]] = {}
        self._touched: set[tuple[int, int]] = set()
        self._weights: dict[int, list[tuple[weakref.ref[Any], Tensor]]] = {}
        self._rows = RowCalls()
        self._places: dict[int, str | None] = {}
        self._num_calls = self._num_all = 0
        self._num_steps = 0
        self._began = 0.0

    def install(self, watcher: Watcher) -> None:
        """Decide after each step whether modules are timed in the next one."""
        self._watcher = watcher
        self._seen = watcher.seen.costs.calls
        watcher.on_step.append(self._next)
        watcher.patches.on_undo(self._shut)

    def settle(self) -> None:
        """Drop frozen parts whose weights have changed, such as a moving average."""
        for key, weights in self._weights.items():
            has_moved = any(
                (weight := ref()) is not None and not _is_still(weight, before)
                for ref, before in weights
            )
            if has_moved:
                self._seen.frozen.pop(key, None)
                self._seen.frozen_training.pop(key, None)

    def _next(self) -> None:
        watcher = self._watcher
        step = watcher.step
        if self._handles:
            self._seen.num_steps += 1
            self._num_all += self._num_calls
            self._seen.span_s += perf_counter() - self._began
            self._end_step()
        is_due = step >= _FIRST and (step - _FIRST) % _EVERY < _LENGTH
        max_steps = _FEW_STEPS if self._num_all > _MANY_CALLS else _MAX_STEPS
        is_due = is_due and self._num_steps < max_steps and self._num_calls < _MAX_CALLS
        if is_due and not watcher.seen.is_compiled:
            self._open()
        elif self._handles:
            self._shut()
        self._began = perf_counter()

    def _open(self) -> None:
        self._num_steps += 1
        self._num_calls = 0
        held = self._optimizers.held
        if held != self._held:
            self._known.clear()  # another stage of the script may train other parts
        self._held = held
        self._stack.clear()
        self._rows.end()
        if not self._handles:
            self._past.clear()
            self._handles = [
                register_module_forward_pre_hook(self._before),
                register_module_forward_hook(self._after, always_call=True),
            ]

    def _shut(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._stack.clear()
        self._past.clear()

    def _end_step(self) -> None:
        for key, (num, seconds) in self._rows.end().items():
            known = self._known.get(key)
            module = known.ref() if known is not None else None
            if module is not None:
                self._note(self._seen.rows, module, seconds, num)
        self._touched.clear()
        step = self._watcher.step
        for key, past in self._past.items():
            self._past[key] = [one for one in past if one.step >= step - 1]

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        watcher = self._watcher
        if watcher.switch.is_on and not torch.compiler.is_compiling():
            watcher.switch.run(self._enter, module, args)

    def _after(self, module: nn.Module, _args: Any, output: Any) -> None:
        watcher = self._watcher
        if watcher.switch.is_on and self._stack and not torch.compiler.is_compiling():
            watcher.switch.run(self._leave, module, output)

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._num_calls += 1
        if self._num_calls > _MAX_CALLS:
            return
        known = self._known_of(module)
        outer = self._stack[-1] if self._stack else None
        given = next(iter(tensors_in(args, 2)), None)
        is_frozen = known is not None and known.is_frozen
        is_unheld = known is not None and known.is_unheld
        is_row = self._is_row(module, known, args, outer)
        self._stack.append(
            _Call(
                module,
                known,
                given,
                torch.is_grad_enabled(),
                is_frozen or (outer is not None and outer.is_frozen),
                is_unheld or (outer is not None and outer.is_unheld),
                perf_counter(),
                is_row,
            )
        )

    def _is_row(
        self,
        module: nn.Module,
        known: _Known | None,
        args: tuple[Any, ...],
        outer: _Call | None,
    ) -> bool:
        """Return whether a call, or one around it, receives one row after another."""
        if outer is not None and outer.is_row:
            return True
        if (
            known is None
            or not known.has_weights
            or not torch.is_grad_enabled()
            or not module.training
        ):
            return False
        is_row = self._rows.enter(
            module, args, self._watcher.backwards, is_possible=not known.has_norms
        )
        if is_row and id(module) not in self._places and len(self._places) < _MAX_SEEN:
            self._places[id(module)] = self._watcher.own.here()
        return is_row

    def _leave(self, module: nn.Module, output: Any) -> None:
        now = perf_counter()
        if not any(one.module is module for one in self._stack):
            return  # of a step with too many calls
        while self._stack[-1].module is not module:
            self._stack.pop()
        call = self._stack.pop()
        known, given, took_s = call.known, call.given, now - call.began
        outer = self._stack[-1] if self._stack else None
        if known is not None and known.has_weights and not (outer is not None and outer.is_row):
            self._rows.leave(module, output, call.began, now)
        if known is None or given is None or output is None or self._watcher.phases.is_validating:
            return
        if outer is None:
            self._seen.learned_s += took_s * call.is_grad
            if known.has_weights and not given.is_inference():  # those have no version
                self._compare(call, output, took_s)
        self._sort(call, known, given, outer, took_s)

    def _sort(
        self, call: _Call, known: _Known, given: Tensor, outer: _Call | None, took_s: float
    ) -> None:
        """Note the time of frozen parts, of parts that no optimizer holds, and of cells."""
        seen, module = self._seen, call.module
        if known.is_frozen and not (outer is not None and outer.is_frozen):
            if not given.requires_grad and _is_data(given):
                is_live = known.has_modes and module.training
                self._note(seen.frozen_training if is_live else seen.frozen, module, took_s)
                self._keep_weights(module)
        elif known.is_unheld and call.is_grad and not (outer is not None and outer.is_unheld):
            self._note(seen.unheld, module, took_s)
        if isinstance(module, RNNCellBase):
            self._note(seen.cells, module, took_s)

    def _known_of(self, module: nn.Module) -> _Known | None:
        known = self._known.get(id(module))
        if known is not None and known.ref() is module:
            return known
        if len(self._known) >= _MAX_KNOWN and known is None:
            return None
        weights = list(module.parameters())
        ids = {id(p) for p in weights}
        learning = [p for p in weights if p.requires_grad]
        known = _Known(
            ref=weakref.ref(module),
            has_weights=bool(weights),
            is_frozen=bool(weights) and not learning,
            is_unheld=bool(learning) and ids.isdisjoint(self._held),
            has_modes=any(
                isinstance(m, (_BatchNorm, _DropoutNd)) and (getattr(m, "p", 1.0) or 0.0) > 0
                for m in module.modules()
            ),
            has_norms=any(isinstance(m, _BatchNorm) for m in module.modules()),
        )
        self._known[id(module)] = known
        return known

    def _compare(self, call: _Call, output: Any, took_s: float) -> None:
        """Note a call whose input the module has already received in this step or the last."""
        given, module = call.given, call.module
        assert given is not None
        first = next(iter(tensors_in(output, 2)), None)
        now = _Past(
            ref=weakref.ref(given),
            version=given._version,
            shape=tuple(given.shape),
            key=_key(given),
            is_grad=call.is_grad,
            answer=_values(first) if first is not None and _is_read(first) else None,
            step=self._watcher.step,
        )
        past = self._past.setdefault(id(module), [])
        for old in past:
            if not _is_same(old, now, given):
                continue
            if old.is_grad != now.is_grad or (old.answer is not None and old.answer == now.answer):
                self._note(self._seen.repeated, module, took_s)
                break
        if len(past) < _MAX_SEEN:
            past.append(now)

    def _note(
        self, into: dict[int, CalledSeen], module: nn.Module, took_s: float, num: int = 1
    ) -> None:
        key = id(module)
        one = into.get(key)
        if one is None:
            if len(into) >= _MAX_SEEN:
                return
            kind = type(module).__name__
            name = self._name_of(module) or kind
            where = self._places.get(key) if num > 1 else self._watcher.own.here()
            one = into[key] = CalledSeen(name=name, kind=kind, where=where)
        if (id(into), key) not in self._touched:
            self._touched.add((id(into), key))
            one.num_steps += 1
        one.num_calls += num
        one.seconds += took_s

    def _name_of(self, module: nn.Module) -> str:
        for root in self._names.roots:
            outer = root.ref()
            if outer is None or id(module) not in root.modules:
                continue
            for name, inner in outer.named_modules():
                if inner is module:
                    return str(name)
        return ""

    def _keep_weights(self, module: nn.Module) -> None:
        """Keep some values of a frozen part's weights, to see at the end whether they moved."""
        if id(module) in self._weights or len(self._weights) >= _MAX_SEEN:
            return
        weights = [p for p in module.parameters() if is_plain(p) and p.numel()]
        if weights and weights[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return  # a CUDA graph would repeat what is computed here
        some = weights[:: max(1, len(weights) // _NUM_WEIGHTS)][:_NUM_WEIGHTS]
        self._weights[id(module)] = [(weakref.ref(p), part(p, _NUM_VALUES).clone()) for p in some]


def _is_read(value: Tensor) -> bool:
    return is_plain(value) and value.is_cpu and value.numel() > 0


def _is_data(value: Tensor) -> bool:
    """Return whether it may be data: it has no graph and is not a single value."""
    return value.grad_fn is None and value.dim() > 1


def _is_still(weight: Tensor, before: Tensor) -> bool:
    """Return whether some values of a weight are those that it had before."""
    now = part(weight, _NUM_VALUES)
    return now.device == before.device and torch.equal(now, before)


def _values(value: Tensor) -> tuple[float, ...]:
    return tuple(part(value, _NUM_VALUES).double().tolist())


def _key(given: Tensor) -> tuple[float, ...] | None:
    """Return values that identify a tensor; None if there are too few distinct ones."""
    if not _is_read(given):
        return None
    values = _values(given)
    return values if len(set(values)) >= _MIN_DISTINCT else None


def _is_same(old: _Past, new: _Past, given: Tensor) -> bool:
    """Return whether two calls received the same values."""
    if old.shape != new.shape:
        return False
    if old.ref() is given:
        return old.version == new.version
    return old.key is not None and old.key == new.key
