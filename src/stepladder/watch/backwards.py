"""Watches backward: the loss, what it is made of, whether its graph is let go."""

from __future__ import annotations

import math
import weakref
from collections import deque
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor

from stepladder.watch.graph import broadcast_difference, terms
from stepladder.watch.losses import LossWatch
from stepladder.watch.names import Names
from stepladder.watch.optimizers import OptimizerWatch
from stepladder.watch.phases import BACKWARD
from stepladder.watch.seen import BackwardSeen
from stepladder.watch.tensors import is_finite
from stepladder.watch.watcher import Watcher

_MAX_LOOKS: Final = 6  # calls that are looked at in one step
_MAX_CALLS: Final = 200  # and in all
_SETTLED: Final = 3  # steps until every optimiser is known
_OLD: Final = 5  # steps after which a loss's graph should be gone
_ALL_GRAPHS: Final = 64  # steps whose graphs are all followed
_GRAPHS_EVERY: Final = 8  # of the later ones, one in so many
_KEY: Final = "stepladder.watch"


class _Token:
    """Lives as long as the graph that it hangs on."""

    __slots__ = ("__weakref__",)


class BackwardWatch:
    """A wrapper of torch.autograd.backward, through which Tensor.backward goes as well."""

    def __init__(self, names: Names, optimizers: OptimizerWatch, losses: LossWatch) -> None:
        self._names = names
        self._losses = losses
        self._optimizers = optimizers
        self._watcher: Watcher
        self._depth = 0
        self._looks = 0
        self._tokens: deque[tuple[int, weakref.ref[_Token]]] = deque(maxlen=256)
        self._scaled: tuple[weakref.ref[Any], Any, Any] | None = None
        self.waiting: list[tuple[Any, bool, bool, str | None]] = []

    def install(self, watcher: Watcher) -> None:
        """Wrap backward and clipping, which changes gradients too."""
        self._watcher = watcher
        watcher.on_close.append(self._next)
        watcher.patches.wrap(
            torch.autograd, "backward", before=self._open, after=self._close, failed=self._failed
        )

    def settle(self) -> None:
        """Nothing is left to read."""

    def note_scaled(self, result: Any, original: Any) -> None:
        """Remember what a GradScaler made of a loss."""
        if isinstance(result, Tensor) and isinstance(original, Tensor):
            self._scaled = (weakref.ref(result), original.detach(), original.grad_fn)

    def _next(self) -> None:
        self._looks = 0
        self._count_graphs()

    def _open(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._depth += 1
        if self._depth > 1:  # from within backward: a checkpoint is run again
            return None
        watcher = self._watcher
        self._optimizers.gradients_open()
        roots = args[0] if args else kwargs.get("tensors")
        root = roots if isinstance(roots, Tensor) else (roots[0] if roots else None)
        if isinstance(root, Tensor) and root.numel() == 1:
            self._look(root)
        self._judge_forwards()
        watcher.phases.close_forward()
        event = watcher.phases.event() if watcher.is_close else None
        return perf_counter(), event

    def _failed(self, _note: Any, _args: Any, _kwargs: Any, _error: Any) -> None:
        self._depth = max(0, self._depth - 1)

    def _close(self, note: Any, _args: Any, _kwargs: Any, _result: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if note is None:
            return
        watcher = self._watcher
        began, event = note
        watcher.phases.add(BACKWARD, perf_counter() - began)
        watcher.phases.between(BACKWARD, event)
        self._optimizers.gradients_close(is_backward=True)
        watcher.backwards += 1
        watcher.seen.num_backwards += 1
        if watcher.seen.backward_at is None:
            watcher.seen.backward_at = watcher.own.here()
        if watcher.current is not None:
            watcher.current.num_backwards += 1
        if watcher.is_close and watcher.step >= _SETTLED:
            self._find_left_out()
            self._optimizers.find_waiting()

    def _look(self, root: Tensor) -> None:
        watcher = self._watcher
        plain, scaled = root, self._scaled
        node: Any = None
        if scaled is not None:
            self._scaled = None
            if scaled[0]() is root:
                plain, node = scaled[1], scaled[2]
        value: Any = plain.item() if plain.is_cpu else plain.detach()
        self._optimizers.pending.append(value)
        if plain.is_cpu and not math.isfinite(value):
            self._find_not_finite()
        is_followed = watcher.step < _ALL_GRAPHS or watcher.step % _GRAPHS_EVERY == 0
        if not is_followed and not watcher.is_close:
            return
        node = root.grad_fn if plain is root else node
        if node is None:
            return
        if is_followed:
            token = _Token()
            metadata: Any = node.metadata  # a dict that lives as long as the node
            metadata[_KEY] = token
            self._tokens.append((watcher.step, weakref.ref(token)))
        calls = watcher.seen.backward_calls
        if watcher.is_close and self._looks < _MAX_LOOKS and len(calls) < _MAX_CALLS:
            self._looks += 1
            calls.append(
                BackwardSeen(
                    step=watcher.step,
                    where=watcher.own.here(),
                    terms=tuple(terms(node)),
                    value=value if isinstance(value, float) else None,
                    broadcast=broadcast_difference(node),
                    num_new_batches=watcher.new_batches,
                )
            )
            self._losses.look_at_own(node)

    def _find_not_finite(self) -> None:
        """Look for numbers that are none in what the model was given for the first bad loss."""
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
        """Sort the calls of models since the last backward: which were learnt from."""
        waiting, self.waiting = self.waiting, []
        if len(waiting) == 1 and waiting[0][2]:
            _count_mode(waiting[0][0].seen, waiting[0][1], self._watcher.step)
            return
        last: dict[int, bool] = {}
        for root, is_training, has_graph, _ in waiting:
            if has_graph:
                last[id(root)] = is_training
        for root, is_training, has_graph, where in waiting:
            seen, learnt_in = root.seen, last.get(id(root))
            if has_graph and learnt_in is is_training:
                _count_mode(seen, is_training, self._watcher.step)
            elif has_graph and learnt_in is True and not is_training:
                seen.num_idle_graphs += 1
                seen.idle_graph_at = seen.idle_graph_at or where
            elif not has_graph and is_training:
                seen.num_train_without_grad += 1
                seen.without_grad_at = seen.without_grad_at or where

    def _find_left_out(self) -> None:
        """List weights that have a gradient and that no optimiser holds."""
        held = self._optimizers.held
        for root in self._names.roots:
            module = root.ref()
            if module is None or not held:
                continue
            root.seen.is_optimised = not root.ids.isdisjoint(held)
            left = [
                name
                for name, param in module.named_parameters()
                if param.requires_grad and param.grad is not None and id(param) not in held
            ]
            root.seen.not_in_optimizer = tuple(left[:200])

    def _count_graphs(self) -> None:
        step, seen = self._watcher.step, self._watcher.seen
        old = [ref for at, ref in self._tokens if at < step - _OLD]
        alive = sum(ref() is not None for ref in old)
        if alive > seen.num_graphs_alive:
            seen.num_graphs_alive, seen.num_graphs_told = alive, len(old)


def _count_mode(seen: Any, is_training: bool, step: int) -> None:
    if is_training:
        seen.num_train_mode += 1
        seen.left_train_mode_at = None
    else:
        seen.num_eval_mode += 1
        if seen.num_train_mode and seen.left_train_mode_at is None:
            seen.left_train_mode_at = step
