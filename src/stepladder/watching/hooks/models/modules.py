"""Watch modules: the outermost on every call, all of them on one step in fifty."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.loss import _Loss
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from stepladder.watching.hooks.models.carried import note_carried, note_returned
from stepladder.watching.hooks.names import Names, Root
from stepladder.watching.hooks.steps.accumulated import is_made_to_have_gradient
from stepladder.watching.hooks.steps.backwards import BackwardWatch, Waiting, Window, follow_graph
from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
from stepladder.watching.hooks.tensors import (
    is_finite,
    is_plain,
    num_copies,
    part,
    spread,
    tensors_in,
)
from stepladder.watching.probe.probe import Kept
from stepladder.watching.seen.models import InputSeen
from stepladder.watching.step_times import FORWARD
from stepladder.watching.watcher import MODULES_EVERY, Watcher

_WITH_WEIGHTS: Final = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase)
_NORMS: Final = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)
_SCRIPTING: Final = (
    (importlib.import_module("torch.jit._recursive"), "create_script_module"),
    (torch._C, "_jit_script_compile"),
)
_FEW_VALUES: Final = 8
_MAX_WAITING: Final = 4096
_MIN_FEATURES: Final = 16
_CURRENT: list[ModuleWatch] = []
_MAX_KEYS: Final = 500
_MAX_SOUGHT: Final = 64  # models in evaluation mode that are waited for
_MAX_SOUGHT_AGAIN: Final = 3
_MAX_ONCE: Final = 64  # calls of models until then
_MAX_INPUTS: Final = 64


def given_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Tensor]:
    """Return the first tensors of a call; for a single tensor, its own arguments."""
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
        return args
    return list(tensors_in((args, kwargs), 2))[:4]


def by_channel(pictures: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return means and standard deviations of the first channels of some images."""
    some = pictures.detach()[:16, :, ::4, ::4].float()
    means, stds = some.mean((0, 2, 3)), some.std((0, 2, 3), correction=0)
    return tuple(means.tolist())[:8], tuple(stds.tolist())[:8]


def given_for(
    value: Tensor, given: Sequence[weakref.ref[Tensor]]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measure the input of a model, if its first layer receives something else."""
    for ref in given:
        first = ref()
        if first is None or first.shape != value.shape or not is_plain(first):
            continue
        if first.is_floating_point() and first.data_ptr() != value.data_ptr():
            return by_channel(first)
    return (), ()


def window_of(root: Root, first: Tensor) -> Window | None:
    """Return the large tensor that a batch is a slice of: the order without a loader."""
    seen, base = root.seen, first._base
    if seen.given_pixels is None and first.dim() == 4:
        seen.given_pixels = int(first.shape[2] * first.shape[3])
    if base is None or base.shape[1:] != first.shape[1:]:
        return None
    return weakref.ref(base), int(first.storage_offset())


def note_input(inputs: set[tuple[float, ...]], first: Tensor) -> None:
    """Note some values of a batch, to distinguish it from the others of its step."""
    if is_plain(first) and len(inputs) < _MAX_INPUTS:
        inputs.add(tuple(part(first.detach(), _MAX_INPUTS).flatten().tolist()))


def note_batch(root: Root, first: Tensor, step: int) -> None:
    """Note some values of a batch's first examples, to recognise it later."""
    keys = root.seen.batch_keys
    if step in keys or len(keys) >= _MAX_KEYS or first.dim() < 2 or not first.is_floating_point():
        return
    if is_plain(first) and first.shape[0] > 1 and first.numel():
        rows = first.detach()[:8].flatten(1)
        some = rows[:, :: max(1, rows.shape[1] // 3)][:, :3]
        keys[step] = tuple(some.flatten().tolist())


def first_of(output: Any) -> Tensor | None:
    """Return the first tensor of a model's output, also of a record such as a ModelOutput."""
    is_record = isinstance(output, Mapping)
    return next(tensors_in(list(output.values()) if is_record else output), None)


def root_before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Pre-hook of outermost modules; a module-level function, so that models can be copied."""
    for watch in _CURRENT:
        watch.enter(module, args, kwargs)


def root_after(module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
    """Hook of outermost modules, a module-level function for the same reason."""
    for watch in _CURRENT:
        watch.leave(module, output)


class ModuleWatch:
    """Hooks on modules."""

    def __init__(
        self,
        names: Names,
        optimizers: OptimizerWatch,
        backwards: BackwardWatch,
        *,
        kept: Kept | None = None,
    ) -> None:
        self._names = names
        self._optimizers = optimizers
        self._backwards = backwards
        self._watcher: Watcher
        self._stack: list[int] = []
        self._handles: list[Any] = []
        self._hooks: dict[int, list[Any]] = {}
        self._inside: list[tuple[int, Any, Window | None]] = []
        self._has_first = False
        self._norms_first = False
        self._is_once = False
        self._sought: list[weakref.ref[nn.Module]] = []
        self._num_once = 0
        self._kept = kept

    def install(self, watcher: Watcher) -> None:
        """Inspect all modules until the first step, and find the outermost ones."""
        self._watcher = watcher
        watcher.on_step.append(self._next)
        watcher.on_close.append(self._names.follow_constants)
        watcher.on_pass.append(self._open_once)
        watcher.patches.wrap(torch, "compile", before=self._compiling, after=self._compiled)
        watcher.patches.wrap(
            torch, "save", before=self._unhook, after=self._rehook, failed=self._rehook
        )
        # Scripting reads sources and the names in its caller's frame, so it is wrapped below that.
        for owner, name in _SCRIPTING:
            watcher.patches.wrap(
                owner, name, before=self._scripting, after=self._scripted, failed=self._scripted
            )
        watcher.patches.wrap(nn.Module, "eval", after=self._seek)
        watcher.patches.wrap(nn.Module, "load_state_dict", after=self._seek_loaded)
        watcher.patches.on_undo(self._stop)
        _CURRENT.append(self)
        self._open()

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def _stop(self) -> None:
        self._shut()
        for handles in self._hooks.values():
            for handle in handles:
                handle.remove()
        self._hooks.clear()
        if self in _CURRENT:
            _CURRENT.remove(self)

    def _next(self) -> None:
        if self._handles:
            self._shut()
        self._inside.clear()
        is_due = self._watcher.step % MODULES_EVERY == 0 and self._watcher.switch.may_spend()
        if is_due and not self._watcher.seen.is_compiled:
            self._open()

    def _open(self) -> None:
        self._has_first = self._norms_first = False
        self._stack.clear()
        self._handles = [
            register_module_forward_pre_hook(self._any_before),
            register_module_forward_hook(self._any_after, always_call=True),
        ]

    def _open_once(self) -> None:
        """Inspect modules in the next call: a model may be validated first."""
        if not self._handles and not self._watcher.seen.is_compiled:
            self._open()
            self._is_once, self._num_once = True, 0

    def _seek(self, _note: Any, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        """Inspect modules until a model that was not called before is, such as an average."""
        module, roots = args[0], self._names.roots
        if not self._watcher.step or any(id(module) in root.modules for root in roots):
            return
        num = sum(ref() is module for ref in self._sought)
        if num < _MAX_SOUGHT_AGAIN and len(self._sought) < _MAX_SOUGHT:
            self._sought.append(weakref.ref(module))
            self._open_once()

    def _seek_loaded(self, note: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> None:
        """Inspect modules until one that was loaded only in part is called."""
        if getattr(result, "missing_keys", None):
            self._seek(note, args, kwargs, result)

    def _is_seeking(self) -> bool:
        self._num_once += 1
        sought = (ref() for ref in self._sought)
        unknown = (one for one in sought if one is not None and self._names.root_of(one) is None)
        return self._num_once < _MAX_ONCE and next(unknown, None) is not None

    def _shut(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._stack.clear()
        self._is_once = False

    def _compiling(self, _args: Any, _kwargs: Any) -> None:
        self._watcher.seen.is_compiled = True
        self._shut()

    def _compiled(self, _note: Any, _args: Any, _kwargs: Any, result: Any) -> None:
        if isinstance(result, nn.Module) and self._names.root_of(result) is None:
            self._hook(self._names.add(result, self._watcher))

    def _hook(self, root: Root) -> None:
        module = root.ref()
        if module is None or isinstance(module, torch.jit.ScriptModule):
            return
        self._hooks[id(module)] = [
            module.register_forward_pre_hook(root_before, with_kwargs=True),
            module.register_forward_hook(root_after, always_call=True),
        ]

    def _unhook(self, _args: Any, _kwargs: Any) -> None:
        for handles in self._hooks.values():
            for handle in handles:
                handle.remove()
        self._hooks.clear()

    def _rehook(self, *_: Any) -> None:
        for root in self._names.roots:
            self._hook(root)

    def _scripting(self, _args: Any, _kwargs: Any) -> None:
        self._unhook(_args, _kwargs)
        self._watcher.patches.lay_down()

    def _scripted(self, *_: Any) -> None:
        self._watcher.patches.take_up()
        self._rehook()

    def _any_before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        watcher = self._watcher
        if watcher.switch.is_on and not torch.compiler.is_compiling():
            watcher.switch.run(self._look, module, args)

    def _any_after(self, module: nn.Module, _args: Any, _output: Any) -> None:
        if self._stack and self._stack[-1] == id(module):
            self._stack.pop()
        if self._is_once and not self._stack and not self._is_seeking():
            self._shut()

    def _look(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        is_outermost = not self._stack
        self._stack.append(id(module))
        self._watcher.seen.modules_were_seen = True
        if is_outermost and not isinstance(module, _Loss):
            root = self._names.root_of(module)
            if root is None and next(module.parameters(), None) is not None:
                root = self._names.add(module, self._watcher)
                root.seen.called_at = self._watcher.own.here()
                self._hook(root)
                self._enter(module, args, {})
        elif not is_outermost:
            self._find_unregistered(module)
        for listener in self._watcher.on_layer:
            listener(module, is_outermost)
        if torch.is_grad_enabled() and self._watcher.is_close and args:
            self._look_at_input(module, args[0])

    def _find_unregistered(self, module: nn.Module) -> None:
        """Find a layer that a model calls but does not list."""
        root = next((r for r in self._names.roots if id(r.ref()) == self._stack[0]), None)
        if root is None or id(module) in root.modules or not torch.is_grad_enabled():
            return
        own = list(module.parameters(recurse=False))
        if not any(p.requires_grad for p in own) or self._optimizers.holds({id(p) for p in own}):
            return
        outer = root.ref()
        if outer is not None and any(m is module for m in outer.modules()):
            return
        name = f"{type(module).__name__} {tuple(own[0].shape)}"
        found = self._watcher.seen.unregistered
        if self._watcher.step > 0 or self._optimizers.held:
            found[name] = found.get(name, 0) + 1

    def _look_at_input(self, module: nn.Module, value: Any) -> None:
        if isinstance(module, _BatchNorm) and module.training and isinstance(value, Tensor):
            counts = self._watcher.seen.norm_counts.setdefault(type(module).__name__, [])
            if value.dim() > 1 and len(counts) < 64:
                counts.append(int(value.shape[0]))
        if isinstance(module, nn.AdaptiveAvgPool2d) and isinstance(value, Tensor):
            self._note_pooled(module, value)
        if isinstance(module, _NORMS) and not self._has_first:
            self._norms_first = True
        if self._has_first or not isinstance(module, _WITH_WEIGHTS):
            return
        self._has_first = True
        is_measured = is_plain(value) and value.is_floating_point() and value.numel() > 0
        if not is_measured or self._norms_first or value.requires_grad:
            return
        self._measure(module, value)

    def _note_pooled(self, module: nn.AdaptiveAvgPool2d, value: Tensor) -> None:
        root = next((r for r in self._names.roots if id(r.ref()) == self._stack[0]), None)
        if root is not None and module.output_size in (1, (1, 1)) and value.dim() == 4:
            root.seen.pooled_pixels = int(value.shape[2] * value.shape[3])

    def _measure(self, module: nn.Module, value: Tensor) -> None:
        found = spread(value)
        seen = self._watcher.seen
        if not found.is_finite or not is_finite(value):
            seen.not_finite = f"the input of the first {type(module).__name__}"
            seen.not_finite_step = self._watcher.step
            seen.not_finite_at = self._watcher.own.here()
        means: tuple[float, ...] = ()
        stds: tuple[float, ...] = ()
        worst = 0.0
        given: tuple[tuple[float, ...], tuple[float, ...]] = (), ()
        if value.dim() == 4:
            means, stds = by_channel(value)
            given = given_for(value, self._watcher.input_refs)
        elif value.dim() == 2 and value.shape[0] > 1:
            some = value.detach()[:256, :1024].float()
            worst = float((some.mean(0).abs() + some.std(0, correction=0)).max())
        copies = constant = looked = 0
        if value.dim() >= 2 and value[0].numel() >= _MIN_FEATURES and value.shape[0] > 1:
            copies, constant, looked = num_copies(value)
            if len(set(part(value, 1024).tolist())) <= _FEW_VALUES:
                copies = 0  # ones and zeros, as of a board game: equal ones are not copies
        seen.inputs.append(
            InputSeen(
                step=self._watcher.step,
                layer=type(module).__name__,
                spread=found,
                shape=tuple(value.shape),
                channel_means=means,
                channel_stds=stds,
                num_copies=copies,
                num_constant=constant,
                num_examples=looked,
                worst_feature=worst,
                given_means=given[0],
                given_stds=given[1],
            )
        )

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Register the call of an outermost module."""
        watcher = self._watcher
        if not watcher.switch.is_on or torch.compiler.is_compiling():
            return
        if watcher.switch.is_elsewhere() or self._names.root_of(module) is None:
            return  # in another thread, or of a copy of a model together with its hooks
        if not watcher.rest.lets_pass(module):
            watcher.switch.run(self._enter, module, args, kwargs)
        elif watcher.rest.is_outermost:
            watcher.input_refs = [weakref.ref(tensor) for tensor in given_to(args, kwargs)]

    def leave(self, module: nn.Module, output: Any) -> None:
        """Register the output of an outermost module."""
        watcher = self._watcher
        if not watcher.switch.is_on or torch.compiler.is_compiling():
            return
        if isinstance(output, Tensor):
            watcher.output_shape = output.shape
        for listener in watcher.on_output:
            watcher.switch.run(listener, output)
        if not watcher.rest.is_on:
            watcher.switch.run(self._leave, module, output)
        elif self._names.root_of(module) is not None:
            watcher.rest.let_go()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        root = self._names.root_of(module)
        if root is None:
            return
        if self._inside:
            self._inside.append((id(module), None, None))
            return
        watcher = self._watcher
        event = watcher.phases.event() if watcher.is_close else None
        self._inside.append((id(module), event, None))
        if not module.training:
            watcher.evaluated = root.ref
            self._tell(True)
        self._time(root, module)
        for listener in watcher.on_call:
            listener(root, module, args, kwargs)
        if torch.is_grad_enabled():
            self._note_given(root, module, args, kwargs)
            if len(args) + len(kwargs) > 1:
                note_carried(root, args, kwargs)
        elif module.training:
            _note_again(root, args, kwargs, watcher.step)

    def _note_given(
        self, root: Root, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        watcher, (_, event, _) = self._watcher, self._inside[-1]
        given = given_to(args, kwargs)
        if given:
            self._watcher.input_refs = [weakref.ref(t) for t in given]
            self._inside[-1] = (id(module), event, window_of(root, given[0]))
            is_doubted = self._optimizers.accumulation.seems_lost
            if is_doubted and is_made_to_have_gradient(given[0]):
                watcher.wants_input_gradient = True
            if watcher.switch.is_close:
                note_input(watcher.inputs, given[0])
            if given is args and watcher.switch.is_close and not watcher.new_batches:
                note_batch(root, given[0], watcher.step)
        if self._kept is not None:
            self._kept.note_input(module, args, kwargs)

    def _leave(self, module: nn.Module, output: Any) -> None:
        entered = self._left(module)
        root = self._names.root_of(module)
        if entered is None or root is None or output is None:
            return  # within another one, or without output: it may have raised
        event, window = entered
        if self._kept is not None:
            self._kept.note_output(module, output)
        watcher = self._watcher
        is_grad = torch.is_grad_enabled()
        first = output if isinstance(output, Tensor) else first_of(output)
        if is_grad and first is not output:
            note_returned(root, output)
        node = first.grad_fn if is_grad and first is not None else None
        has_graph = is_grad and first is not None and first.requires_grad
        is_training, one = module.training, watcher.current
        if not is_training:
            watcher.phases.still_validation()
        if root.seen.called_at is None:
            root.seen.called_at = watcher.own.here()
        if one is not None:
            one.count(is_training=is_training, has_graph=has_graph)
        if event is not None:
            watcher.phases.between(FORWARD, event)
        if len(self._backwards.waiting) < _MAX_WAITING:
            self._wait(root, node if is_training else None, window, has_graph=has_graph)

    def _left(self, module: nn.Module) -> tuple[Any, Window | None] | None:
        """Return the notes from entering an outermost module; None if it is within another."""
        while self._inside and self._inside[-1][0] != id(module):
            self._inside.pop()
        if not self._inside:
            return None
        _, event, window = self._inside.pop()
        if self._inside:
            return None
        if not module.training:
            self._tell(False)
        return event, window

    def _wait(self, root: Root, node: Any, window: Window | None, *, has_graph: bool) -> None:
        """Store a call until backward shows whether it is learned from."""
        module, is_close = root.ref(), self._watcher.is_close
        is_sought = bool(root.seen.dropped) and root.seen.dropped_at is None
        where = self._watcher.own.here() if is_close or is_sought else None
        graph = follow_graph(node) if node is not None else None
        is_training = module is not None and module.training
        self._backwards.waiting.append(Waiting(root, is_training, has_graph, where, graph, window))

    def _tell(self, is_evaluation: bool) -> None:
        for listener in self._watcher.on_evaluation:
            listener(is_evaluation)

    def _time(self, root: Root, module: nn.Module) -> None:
        """Begin forward; or validation, if a trained model is called in evaluation mode."""
        phases, one = self._watcher.phases, self._watcher.current
        if module.training:
            if torch.is_grad_enabled():
                phases.open_forward()
            return
        is_in_pass = one is not None and not one.is_whole and one.num_backwards == 0
        if is_in_pass:
            return
        root.is_held = root.is_held or self._optimizers.holds(root.ids)
        if root.is_held:
            phases.open_validation()


def _note_again(root: Root, args: tuple[Any, ...], kwargs: dict[str, Any], step: int) -> None:
    """Count calls without gradients on the last input again, as for several draws of dropout."""
    given = given_to(args, kwargs)
    if given:
        last, at = root.last_given
        root.seen.num_again += at == step and last() is given[0]
        root.last_given = weakref.ref(given[0]), step
