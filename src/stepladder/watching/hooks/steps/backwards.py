"""Watch backward: the loss, its terms, and whether its graph is freed."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from stepladder.watching.hooks.costs.masked import masked_scores
from stepladder.watching.hooks.costs.retained import RetainedWatch
from stepladder.watching.hooks.graph import broadcast_difference, num_nodes, terms
from stepladder.watching.hooks.losses.divergence import gaussian_divergence, summed_divergence
from stepladder.watching.hooks.losses.early_means import averaged_probability, norm_by_pixel
from stepladder.watching.hooks.losses.losses import LossWatch
from stepladder.watching.hooks.losses.pair_weights import pair_weights
from stepladder.watching.hooks.losses.reductions import summed_term
from stepladder.watching.hooks.losses.unused_terms import UnusedTermWatch
from stepladder.watching.hooks.models.cuts import CutWatch
from stepladder.watching.hooks.names import Names, Root
from stepladder.watching.hooks.patches import DONE
from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
from stepladder.watching.hooks.tensors import is_finite, is_plain, part
from stepladder.watching.seen.models import ModelSeen
from stepladder.watching.seen.steps import BackwardSeen
from stepladder.watching.step_times import BACKWARD
from stepladder.watching.watcher import Watcher

_MAX_LOOKS: Final = 6  # inspected calls per step
_MAX_CALLS: Final = 200  # and in total
_SETTLED: Final = 3  # steps until every optimizer is known
_OLD: Final = 5  # steps after which the graph of a loss should be freed
_ALL_GRAPHS: Final = 32  # steps whose graphs are all followed
_GRAPHS_EVERY: Final = 8  # every 8th of the later steps
_ALL_WEIGHTS_EVERY: Final = 50  # steps between searches for weights added to a model
_MAX_DROPPED: Final = 500
_MAX_MOVED: Final = 8  # weights, and values of each, that are compared for movement
_MAX_OFFSETS: Final = 4000
_MAX_GRADS: Final = 4096  # gradients that are compared with those of the last look
_MIN_LEFT: Final = 2  # steps at which weights were in no optimizer
_KEY: Final = "stepladder.watch"


class _Token:
    """Lives as long as the graph that it is attached to."""

    __slots__ = ("__weakref__",)


Window = tuple[weakref.ref[Tensor], int]  # a large tensor, and the offset of a slice of it


@dataclass(slots=True)
class Waiting:
    """A call of an outermost module, until the next backward shows if it is learned from.

    Attributes:
        graph: lives as long as the graph of its output; None if it has none, or is not in training
            mode.
        window: the tensor that its batch is a slice of, and the offset; None if it is not a slice.
    """

    root: Root
    is_training: bool
    has_graph: bool
    where: str | None
    graph: weakref.ref[_Token] | None
    window: Window | None

    @property
    def is_dropped(self) -> bool:
        """Return whether its graph was freed without a backward."""
        return self.graph is not None and self.graph() is None


def follow_graph(node: Any) -> weakref.ref[_Token]:
    """Return a reference that dies together with the graph behind a node."""
    metadata: dict[str, _Token] = node.metadata  # lives as long as the node
    return weakref.ref(metadata.setdefault(_KEY, _Token()))


class BackwardWatch:
    """Wraps torch.autograd.backward, which Tensor.backward calls as well."""

    def __init__(
        self, names: Names, optimizers: OptimizerWatch, losses: LossWatch, cuts: CutWatch
    ) -> None:
        self._names = names
        self._cuts = cuts
        self._losses = losses
        self._optimizers = optimizers
        self._watcher: Watcher
        self._depth = 0
        self._looks = 0
        self._are_saved_otherwise = False  # tensors for backward, such as by checkpointing
        self._tokens: deque[tuple[int, weakref.ref[_Token]]] = deque(maxlen=256)
        self._outputs: deque[tuple[int, weakref.ref[_Token]]] = deque(maxlen=256)
        self._scaled: tuple[weakref.ref[Any], Any, Any] | None = None
        self.waiting: list[Waiting] = []
        self._learnt: list[Root] = []
        self._marks: list[tuple[int, float]] | None = None
        self._values: dict[int, tuple[Any, str]] = {}
        self._pending: dict[Root, tuple[int, tuple[str, ...]]] = {}
        self._unheld: tuple[int, list[Root]] | None = None
        self._retained = RetainedWatch()
        self._unused = UnusedTermWatch(optimizers)
        self._has_gradient_graphs = False
        self._grads: dict[int, tuple[weakref.ref[Any], int]] = {}

    def install(self, watcher: Watcher) -> None:
        """Wrap backward and torch.autograd.grad."""
        self._watcher = watcher
        self._retained.install(watcher)
        self._unused.install(watcher)
        watcher.on_close.append(self._next)
        watcher.patches.wrap(
            torch.autograd, "backward", before=self._open, after=self._close, failed=self._failed
        )
        watcher.patches.wrap(torch.autograd, "grad", before=self._differentiate)
        watcher.patches.wrap(saved_tensors_hooks, "__enter__", before=self._save_otherwise)

    def _save_otherwise(self, _args: Any, _kwargs: Any) -> None:
        self._are_saved_otherwise = True  # reading them may compute them, or copy them, again

    def settle(self) -> None:
        """Count the calls after the last backward whose graphs were freed."""
        self._confirm()
        for one in self.waiting:
            if one.is_dropped:
                _count_dropped(one.root.seen, self._watcher.step, one.where)
        self.waiting = []

    def _differentiate(self, _args: Any, kwargs: dict[str, Any]) -> None:
        self._has_gradient_graphs = self._has_gradient_graphs or bool(kwargs.get("create_graph"))
        if kwargs.get("create_graph") or kwargs.get("retain_graph"):
            for one in self.waiting:
                one.graph = None  # used, and there may be another backward
            return
        if self._watcher.seen.num_backwards == 0:  # the script learns with torch.autograd.grad
            for one in self.waiting:
                _note_window(one)
        self.waiting = []

    def note_scaled(self, result: Any, original: Any) -> None:
        """Remember the output of a GradScaler for a loss."""
        if isinstance(result, Tensor) and isinstance(original, Tensor):
            self._scaled = (weakref.ref(result), original.detach(), original.grad_fn)

    def _next(self) -> None:
        self._looks = 0
        self._count_graphs()

    def _open(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._depth += 1
        if self._depth > 1:  # from within backward: activation checkpointing
            self._watcher.rest.forbid()
            return None
        watcher = self._watcher
        if self._unused.is_due:
            self._unused.judge()
        roots = args[0] if args else kwargs.get("tensors")
        root = roots if isinstance(roots, Tensor) else (roots[0] if roots else None)
        loss = root if isinstance(root, Tensor) and root.numel() == 1 else None
        if watcher.rest.is_on:
            if loss is not None:
                self._read(loss)
                if watcher.step % _GRAPHS_EVERY == 0 and loss.grad_fn is not None:
                    self._tokens.append((watcher.step, follow_graph(loss.grad_fn)))
            self._count(1)
            self._depth = 0
            return DONE
        self._optimizers.gradients_open(is_backward=True)
        if loss is not None:
            self._look(loss)
        if isinstance(root, Tensor):
            self._cuts.look(root, (one.root for one in self.waiting))
            if watcher.is_close:
                self._retained.look(root, args, kwargs, follows_model=bool(self.waiting))
        self._judge_forwards()
        watcher.phases.close_forward()
        event = watcher.phases.event() if watcher.is_close else None
        return perf_counter(), event

    def _failed(self, note: Any, _args: Any, _kwargs: Any, _error: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if note is DONE:
            self._count(-1)

    def _close(self, note: Any, _args: Any, _kwargs: Any, _result: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if note is None:
            return
        watcher = self._watcher
        began, event = note
        watcher.phases.add(BACKWARD, perf_counter() - began)
        watcher.phases.between(BACKWARD, event)
        self._optimizers.gradients_close(is_backward=True)
        self._count(1)
        if watcher.seen.backward_at is None:
            watcher.seen.backward_at = watcher.own.here()
        if watcher.is_close and watcher.step >= _SETTLED:
            self._find_left_out()
            self._optimizers.find_waiting()

    def _count(self, num: int) -> None:
        watcher = self._watcher
        watcher.backwards += num
        watcher.seen.num_backwards += num
        if watcher.current is not None:
            watcher.current.num_backwards += num

    def _read(self, loss: Tensor) -> float | Tensor:
        """Store a loss for the step that follows."""
        value: float | Tensor = loss.item() if loss.is_cpu else loss.detach()
        self._optimizers.pending.append(value)
        if isinstance(value, float) and not math.isfinite(value):
            self._find_not_finite()
        return value

    def _look(self, root: Tensor) -> None:
        watcher = self._watcher
        plain, scaled = root, self._scaled
        node: Any = None
        if scaled is not None:
            self._scaled = None
            if scaled[0]() is root:
                plain, node = scaled[1], scaled[2]
        value = self._read(plain)
        is_followed = self._is_followed()
        if not is_followed and not watcher.is_close:
            return
        node = root.grad_fn if plain is root else node
        if node is None:
            return
        if is_followed:
            self._tokens.append((watcher.step, follow_graph(node)))
        if watcher.is_close and watcher.step >= _SETTLED and not watcher.seen.costs.num_nodes:
            watcher.seen.costs.num_nodes = num_nodes(node)
            if not self._are_saved_otherwise:
                watcher.seen.costs.masked = masked_scores(node)
        calls = watcher.seen.backward_calls
        if watcher.is_close and self._looks < _MAX_LOOKS and len(calls) < _MAX_CALLS:
            self._looks += 1
            sizes = self._sizes()
            calls.append(
                BackwardSeen(
                    step=watcher.step,
                    where=watcher.own.here(),
                    terms=tuple(terms(node)),
                    value=value if isinstance(value, float) else None,
                    broadcast=broadcast_difference(node),
                    num_new_batches=watcher.new_batches,
                    num_inputs=len(watcher.inputs),
                    sizes=sizes,
                    divergence=summed_divergence(node),
                    gaussian=gaussian_divergence(node),
                    summed=summed_term(node, sizes[0] if sizes else None),
                    pair_weights=pair_weights(node),
                    averaged=averaged_probability(node),
                    pixel_norm=norm_by_pixel(node) if self._has_gradient_graphs else None,
                )
            )
            self._losses.look_at_own(node)
            self._inspect(node)

    def _inspect(self, node: Any) -> None:
        for of_graph in self._watcher.on_graph:
            of_graph(node)
        for listener in self._watcher.on_backward:
            listener()
        self._names.find_constant_factors(node)

    def _sizes(self) -> tuple[int, ...]:
        given = self._watcher.input_refs[0]() if self._watcher.input_refs else None
        return () if given is None else tuple(int(size) for size in given.shape[:2])

    def _is_followed(self) -> bool:
        step, has_rested = self._watcher.step, self._watcher.rest.num_steps > 0
        return step < _ALL_GRAPHS or step % _GRAPHS_EVERY == 0 or has_rested

    def _find_not_finite(self) -> None:
        """Check the model's input for NaN and infinity at the first non-finite loss."""
        seen = self._watcher.seen
        if seen.loss_not_finite_at is not None:
            return
        seen.loss_not_finite_at = self._watcher.step
        for ref in self._watcher.input_refs:
            value = ref()
            if value is not None and value.is_floating_point() and not is_finite(value):
                seen.not_finite = "the model's input"
                seen.not_finite_step = self._watcher.step
                seen.not_finite_at = self._watcher.own.here()

    def _judge_forwards(self) -> None:
        """Classify the calls of models since the last backward: which ones were learned from."""
        waiting, self.waiting = self.waiting, []
        step = self._watcher.step
        if self._is_followed():
            followed = ((step, one.graph) for one in waiting[-2:] if one.graph is not None)
            self._outputs.extend(followed)
        if len(waiting) == 1 and waiting[0].has_graph and not waiting[0].is_dropped:
            _count_mode(waiting[0].root.seen, waiting[0].is_training, step)
            _note_window(waiting[0])
            self._learnt = [waiting[0].root]
            self._tell({id(waiting[0].root): waiting[0].is_training})
            return
        self._learnt = [o.root for o in waiting if o.has_graph and not o.is_dropped]
        last = {id(o.root): o.is_training for o in waiting if o.has_graph and not o.is_dropped}
        self._tell(last)
        for root in self._learnt:
            num = sum(one is root for one in self._learnt)
            root.seen.calls_of_a_step = max(root.seen.calls_of_a_step, num)
        for one in waiting:
            seen, learnt_in = one.root.seen, last.get(id(one.root))
            if one.is_dropped:
                _count_dropped(seen, step, one.where)
            elif one.has_graph and learnt_in is one.is_training:
                _count_mode(seen, one.is_training, step)
                _note_window(one)
            elif one.has_graph and learnt_in is True and not one.is_training:
                seen.num_idle_graphs += 1
                seen.idle_graph_at = seen.idle_graph_at or one.where
            elif not one.has_graph and one.is_training:
                seen.num_train_without_grad += 1
                seen.without_grad_at = seen.without_grad_at or one.where

    def _tell(self, learnt: dict[int, bool]) -> None:
        for listener in self._watcher.on_learnt:
            listener(learnt)

    def _find_left_out(self) -> None:
        """Find weights that have a gradient but are in no optimizer.

        They count once an optimizer has stepped afterwards: gradients may have other uses.
        """
        self._confirm()
        held = self._optimizers.held
        for root in self._names.roots:
            module = root.ref()
            if module is None or not held or root not in self._learnt:
                continue  # gradients of another step, such as of a model that is only stored
            root.seen.is_optimised = not root.ids.isdisjoint(held)
            if root.ids <= held and self._watcher.step % _ALL_WEIGHTS_EVERY and not root.num_left:
                continue  # it had no others when it was last inspected
            left = {
                id(param): name
                for name, param in module.named_parameters()
                if param.requires_grad and id(param) not in held and self._has_new_gradient(param)
            }
            root.ids |= left.keys()
            moved = self._moved([p for p in module.parameters() if id(p) in left][:_MAX_MOVED])
            names = () if moved else tuple(left.values())[:200]
            self._pending[root] = (self._watcher.step, names)
        is_other = held and all(root.ids.isdisjoint(held) for root in self._learnt)
        if is_other:
            marks, self._marks = self._marks, self._optimizers.gradient_marks()
            if marks == self._marks:  # no weight of any optimizer was learned
                self._unheld = (self._watcher.step, list(self._learnt))

    def _has_new_gradient(self, param: Any) -> bool:
        """Return whether a gradient is not just left from an earlier stage of the script."""
        grad = param.grad
        if grad is None:
            return False
        known, version = self._grads.get(id(param)), int(grad._version)
        is_old = known is not None and known[1] == version and known[0]() is grad
        if len(self._grads) < _MAX_GRADS or known is not None:
            self._grads[id(param)] = (weakref.ref(grad), version)
        return not is_old

    def _confirm(self) -> None:
        step = self._watcher.step
        for root, (at, names) in self._pending.items():
            if at < step:
                root.num_left = root.num_left + 1 if names else 0
                root.seen.not_in_optimizer = names if root.num_left >= _MIN_LEFT else ()
        self._pending = {root: one for root, one in self._pending.items() if one[0] >= step}
        if self._unheld is not None and self._unheld[0] < step:
            for root in self._unheld[1]:
                root.seen.num_unheld += bool(root.seen.not_in_optimizer)
            self._unheld = None

    def _moved(self, weights: list[Any]) -> bool:
        """Return whether weights moved since the last time, not by an optimizer in `held`."""
        moved = False
        for weight in weights:
            if is_plain(weight):
                ref, before = self._values.get(id(weight), (None, ""))
                now = repr(part(weight, _MAX_MOVED).tolist())  # as text, NaN equals itself
                moved = moved or (ref is not None and ref() is weight and now != before)
                self._values[id(weight)] = (weakref.ref(weight), now)
        return moved

    def _count_graphs(self) -> None:
        step, seen = self._watcher.step, self._watcher.seen
        seen.num_graphs_alive = max(seen.num_graphs_alive, _num_alive(self._tokens, step))
        seen.num_outputs_alive = max(seen.num_outputs_alive, _num_alive(self._outputs, step))


def _num_alive(tokens: Iterable[tuple[int, weakref.ref[_Token]]], step: int) -> int:
    found = {id(ref()) for at, ref in tokens if at < step - _OLD and ref() is not None}
    return len(found)


def _count_dropped(seen: ModelSeen, step: int, where: str | None) -> None:
    if seen.dropped and seen.dropped[-1][0] == step:
        seen.dropped[-1] = (step, seen.dropped[-1][1] + 1)
    elif len(seen.dropped) < _MAX_DROPPED:
        seen.dropped.append((step, 1))
    seen.dropped_at = seen.dropped_at or where


def _note_window(one: Waiting) -> None:
    root = one.root
    if one.window is None or len(root.seen.window_offsets) >= _MAX_OFFSETS:
        return
    base, offset = one.window
    if root.window_base is None or root.window_base() is None:
        root.window_base = base
        root.seen.window_offsets.clear()  # those were slices of temporary tensors
    if root.window_base() is base():
        root.seen.window_offsets.append(offset)


def _count_mode(seen: Any, is_training: bool, step: int) -> None:
    if is_training:
        seen.num_train_mode += 1
        seen.left_train_mode_at = None
    else:
        seen.num_eval_mode += 1
        if seen.num_train_mode and seen.left_train_mode_at is None:
            seen.left_train_mode_at = step
