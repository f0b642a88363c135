"""Watch optimizers: what they hold, what moves, whether gradients are cleared."""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from stepladder.watching.hooks.names import Names
from stepladder.watching.hooks.steps.accumulated import Accumulation, tail_of
from stepladder.watching.hooks.steps.held_optimizer import HeldOptimizer, learning
from stepladder.watching.hooks.tensors import is_plain, part
from stepladder.watching.seen.steps import OptimizerSeen
from stepladder.watching.step_times import OPTIMIZER
from stepladder.watching.watcher import Watcher

_MAX_LOSSES: Final = 20_000
_MAX_SHAPES: Final = 64  # weights of an optimizer whose shapes are kept
_MAX_WAITING: Final = 8
_SHORT_LIFE: Final = 2  # steps
_MIN_PARTLY: Final = 2  # inspected steps before the cause of a missing gradient is sought


class EnoughSteps(SystemExit):
    """Ends a script after the requested number of steps; its clean-up runs, its exit code is 0."""

    is_enough = True


class OptimizerWatch:
    """Hooks into the step of every optimizer, and wraps what clears gradients."""

    def __init__(self, names: Names, max_steps: int | None = None) -> None:
        self._names = names
        self._max_steps = max_steps
        self._live: dict[int, HeldOptimizer] = {}
        self._past: list[HeldOptimizer] = []  # whose optimizers are gone
        self._replaced: weakref.WeakKeyDictionary[Optimizer, OptimizerSeen] = (
            weakref.WeakKeyDictionary()
        )
        self._main: int | HeldOptimizer | None = None
        self._num_main = 0
        self._since: dict[int, int] = {}  # steps since the main one's last, by optimizer
        self._pid = os.getpid()
        self._watcher: Watcher
        self._stepping: HeldOptimizer | None = None
        self._last: weakref.ref[HeldOptimizer] | None = None
        self.accumulation = Accumulation()
        self._has_tails = False
        self.pending: list[Any] = []
        self.on_stepping: list[Callable[[HeldOptimizer], None]] = []
        self.on_backward: list[Callable[[], None]] = []

    def install(self, watcher: Watcher) -> None:
        """Hook into all optimizers, including existing ones."""
        self._watcher = watcher
        watcher.on_any_pass.append(self._note_tails)
        watcher.patches.wrap(Optimizer, "__init__", after=self._built)
        for owner in (Optimizer, torch.nn.Module):
            watcher.patches.wrap(owner, "zero_grad", after=self._cleared, is_close_only=True)
        for kind in _subclasses(Optimizer):
            if "zero_grad" in vars(kind):
                watcher.patches.wrap(kind, "zero_grad", after=self._cleared, is_close_only=True)
        watcher.patches.wrap(Optimizer, "add_param_group", after=self._grown)
        switch = watcher.switch

        def before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            switch.follow()
            if not watcher.rest.is_on or self._is_first(optimizer):
                switch.run(self._before, optimizer, args, kwargs)

        pre = register_optimizer_step_pre_hook(before)
        post = register_optimizer_step_post_hook(self._stepped)
        watcher.patches.on_undo(pre.remove)
        watcher.patches.on_undo(post.remove)

    def _is_first(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer steps for the first time; if so, follow the next steps."""
        live = self._known(optimizer)
        is_first = live is None or live.seen.num_steps == 0
        if is_first:
            self._watcher.rest.stir()
        return is_first or (live is not None and live.is_rebuilt)

    def _known(self, optimizer: Any) -> HeldOptimizer | None:
        live = self._live.get(id(optimizer))
        return live if live is not None and live.ref() is optimizer else None

    def _live_of(self, optimizer: Optimizer) -> HeldOptimizer:
        live = self._known(optimizer)
        if live is None:
            if optimizer in self._replaced:  # it was only set aside, with its state
                self._replaced.pop(optimizer).is_resumed = True
            seen = OptimizerSeen(kind=type(optimizer).__name__)
            live = HeldOptimizer(optimizer, seen)
            self._keep(optimizer, live)
            self._watcher.seen.optimizers.append(seen)
            self._describe(optimizer, live)
        return live

    def _keep(self, optimizer: Optimizer, live: HeldOptimizer) -> None:
        """Store what is known of an optimizer by its id, which may be that of a deleted one."""
        gone = self._live.get(id(optimizer))
        if gone is not None and gone is not live:
            self._past.append(gone)
        self._live[id(optimizer)] = live

    def _describe(self, optimizer: Optimizer, live: HeldOptimizer) -> None:
        seen = live.seen
        groups = optimizer.param_groups
        params = [p for group in groups for p in group["params"]]
        live.describe_weights(params)
        seen.num_params = sum(p.requires_grad for p in params)
        if len(params) <= _MAX_SHAPES:
            seen.shapes = tuple(tuple(p.shape) for p in params)
        seen.twice = self._names_of_twice(params) if len(live.ids) < len(params) else ()
        seen.maximises = any(group.get("maximize", False) for group in groups)
        if "fused" in groups[0]:
            seen.is_fused = bool(groups[0]["fused"])
        seen.owns_modules = any(isinstance(p, torch.nn.Parameter) for p in params)
        decayed = [p for g in groups if g.get("weight_decay", 0) for p in g["params"]]
        seen.decay = max((float(g.get("weight_decay", 0) or 0) for g in groups), default=0.0)
        free = [g["params"] for g in groups if not g.get("weight_decay", 0)] if decayed else []
        vectors = [sum(p.dim() == 1 for p in group) for group in free]
        seen.num_spared = sum(v for v, g in zip(vectors, free, strict=True) if 2 * v > len(g))
        seen.decayed = tuple(self._names.of(p) for p in decayed if p.dim() <= 1)
        seen.decays_by_l2 = seen.kind in ("Adam", "Adamax", "NAdam", "RAdam") and bool(decayed)
        if any(g.get("decoupled_weight_decay") for g in groups):
            seen.decays_by_l2 = False

    def _names_of_twice(self, params: list[Any]) -> tuple[str, ...]:
        counts = Counter(id(p) for p in params)
        once = {id(p): p for p in params}
        return tuple(self._names.of(once[key]) for key, num in counts.items() if num > 1)

    def _find_shared(self, live: HeldOptimizer) -> None:
        """Note the weights that the previous optimizer has stepped on the same gradients."""
        last = self._last() if self._last is not None else None
        if self._watcher.backwards or last is None or last is live or last.ids.isdisjoint(live.ids):
            return
        both = [p for ref in live.params if (p := ref()) is not None and id(p) in last.ids]
        names = tuple(self._names.of(p) for p in both if p.grad is not None)
        live.seen.num_shared += bool(names)
        live.seen.shared = names or live.seen.shared

    def _built(self, _note: Any, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        optimizer, where = args[0], self._watcher.own.here()
        if self._replaces(optimizer, where):
            return
        self._watcher.rest.stir()
        live = self._live_of(optimizer)
        live.seen.built_at = live.seen.built_at or where

    def _replaces(self, optimizer: Optimizer, where: str | None) -> bool:
        """Return whether this one replaces another; if so, both are seen as one optimizer."""
        if self._known(optimizer) is not None:
            return False
        replaced = (o for o in self._live.values() if o.is_replaced_by(optimizer, where))
        live = next(replaced, None)
        if live is None:
            return False
        if live.num_since_built > _SHORT_LIFE:  # otherwise it is created all the time
            self._watcher.rest.stir()
        old = live.ref()
        if old is not None:
            self._replaced[old] = live.seen
        self._live = {key: one for key, one in self._live.items() if one is not live}
        live.rebuild(optimizer)
        self._keep(optimizer, live)
        return True

    def _grown(self, _note: Any, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        optimizer: Optimizer = args[0]
        live = self._live.get(id(optimizer))
        if live is not None and live.ref() is optimizer:  # otherwise it is being constructed
            self._watcher.rest.stir()
            self._describe(optimizer, live)

    def _cleared(self, _note: Any, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        if not self._watcher.backwards:
            return
        cleared = args[0]
        where = self._watcher.own.here()
        for live in self._live.values():
            if live.ref() is cleared or not isinstance(cleared, Optimizer):
                live.was_cleared, live.cleared_late_at = True, where
                live.note_cleared(cleared)

    def gradients_open(self, *, is_backward: bool = False) -> None:
        """Note gradients before torch itself changes them."""
        if self._has_tails and is_backward:
            self._count_tails()
        if not self._watcher.is_following:
            return
        for live in self._live.values():
            live.clearing.open()
        for listener in self.on_backward if is_backward else ():
            listener()
        if is_backward:
            self.accumulation.open(live.trail for live in self._live.values())

    def gradients_close(self, *, is_backward: bool) -> None:
        """Note gradients after torch itself has changed them."""
        if self._stepping is not None and is_backward:
            self._stepping.seen.has_closure = True
        is_following = self._watcher.is_following
        for live in self._live.values() if is_following or self._watcher.is_close else ():
            if is_following:
                live.clearing.close(is_backward=is_backward)
            if is_backward:
                live.was_cleared = False
            elif is_following:
                live.trail.renew()
            if self._watcher.is_close:
                live.rewritten.note(live.clearing.weight, live.seen)
                if is_backward:
                    live.note_unused(self._watcher.own.here)
        if is_backward and is_following:
            trails = (live.trail for live in self._live.values())
            self.accumulation.close(trails, is_close=self._watcher.is_close)

    def skipped(self, optimizer: Any) -> None:
        """Note that a GradScaler has skipped a step."""
        live = self._live.get(id(optimizer))
        if live is not None and live.ref() is optimizer:
            self.accumulation.use(live.trail)
            live.trail.begin(live.clearing.weight)
            live.tail = None

    def _note_tails(self) -> None:
        """Note gradients that no step has used, as a pass over a loader begins."""
        num = self._watcher.backwards
        for live in self._live.values() if num else ():
            live.trail.has_tail = True
            if live.tail is None:
                live.tail = tail_of(live.params[:_MAX_WAITING], num)
                self._has_tails = self._has_tails or live.tail is not None

    def _count_tails(self) -> None:
        """Count the gradients that were cleared since a pass over a loader began."""
        self._has_tails = False
        for live in self._live.values():
            tail, live.tail = live.tail, None
            if tail is not None and len(live.seen.tails) < _MAX_LOSSES and tail.was_cleared():
                live.seen.tails.append(tail.num)

    def holds(self, ids: set[int]) -> bool:
        """Return whether an optimizer holds one of these weights."""
        return any(not live.ids.isdisjoint(ids) for live in self._live.values())

    @property
    def held(self) -> set[int]:
        """Return the ids of all weights that optimizers hold."""
        return set().union(*(live.ids for live in self._live.values() if live.ref() is not None))

    def ids_without_gradients(self) -> set[int]:
        """Return the ids of the weights of optimizers that never had a gradient at a step."""
        empty = (
            live.ids for live in self._live.values() if live.ref() is not None and live.is_empty
        )
        return set().union(*empty)

    def ids_never(self) -> set[int]:
        """Return the ids of the weights that had no gradient at steps at which others had one."""
        partly = (
            live.never
            for live in self._live.values()
            if live.never
            and live.ref() is not None
            and live.seen.num_looked - live.seen.num_empty >= _MIN_PARTLY
        )
        return set().union(*partly)

    def has_learned(self) -> bool:
        """Return whether an optimizer has stepped with gradients."""
        return any(live.seen.num_looked > live.seen.num_empty for live in self._live.values())

    def with_missing(self) -> list[HeldOptimizer]:
        """Return the optimizers with weights that never had a gradient."""
        return [live for live in self._live.values() if live.never or live.is_empty]

    def steps_of(self, optimizer: Any) -> int:
        """Return the number of steps of an optimizer."""
        live = self._known(optimizer)
        return live.seen.num_steps if live is not None else 0

    def seen_of(self, optimizer: Any) -> OptimizerSeen | None:
        """Return what was seen of an optimizer, together with those that it replaces."""
        live = self._known(optimizer)
        return live.seen if live is not None else None

    def gradient_marks(self) -> list[tuple[int, float]]:
        """Return addresses and sums of some gradients, to distinguish them from later ones."""
        some = [ref() for live in self._live.values() for ref in live.params[:_MAX_WAITING]]
        grads = [p.grad for p in some if p is not None and p.grad is not None]
        return [(g.data_ptr(), float(part(g, 64).sum())) for g in grads if is_plain(g)]

    def find_waiting(self) -> None:
        """Count the optimizers that never stepped and alone hold weights with a gradient."""
        waiting = [live for live in self._live.values() if live.seen.num_steps == 0]
        if not waiting:
            return
        moved = [live.ids for live in self._live.values() if live.seen.num_steps]
        for live in waiting:
            params = [ref() for ref in live.params[:_MAX_WAITING]]
            has_gradient = any(p is not None and p.grad is not None for p in params)
            is_alone = all(live.ids.isdisjoint(ids) for ids in moved)
            live.seen.num_waiting += live.ref() is not None and has_gradient and is_alone

    def stepped(self) -> list[HeldOptimizer]:
        """Return what is known of the optimizers that have stepped and still exist."""
        live = self._live.values()
        return [one for one in live if one.seen.num_steps and one.ref() is not None]

    def live_optimizers(self) -> list[Optimizer]:
        """Return the optimizers that have stepped and still exist."""
        found = [live.ref() for live in self._live.values() if live.seen.num_steps]
        return [optimizer for optimizer in found if optimizer is not None]

    def weights(self, *, with_unused: bool) -> list[Any]:
        """Return the weights that are trained, in the order of the optimizers.

        Args:
            with_unused: those of optimizers that have not stepped as well.
        """
        optimizers = [
            live.ref() for live in self._live.values() if with_unused or live.seen.num_steps
        ]
        found = [p for one in optimizers if one is not None for p in learning(one)]
        return list({id(p): p for p in found}.values())

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        live = self._live_of(optimizer)
        seen = live.seen
        if live.is_rebuilt:
            live.note_rebuilt(optimizer)
            if self._watcher.rest.is_on:
                return
        # A closure computes the gradients within the step: then they are inspected after it.
        live.is_late = callable(args[1] if len(args) > 1 else kwargs.get("closure"))
        if not live.is_late and self._watcher.is_following:
            live.clearing.before_step(seen)
            self._end_window(live)
        if not live.is_late and self._watcher.is_close:
            live.rewritten.before_step(seen)
        self._stepping = live
        for stepping in self.on_stepping:
            stepping(live)
        seen.num_outside_scaler += self._watcher.is_scaled
        if seen.num_steps == 0:
            seen.stepped_at = self._watcher.own.here()
            self._describe(optimizer, live)
            for listener in self._watcher.on_first_step:
                listener()
        if self._watcher.is_close:
            if not live.is_late:
                self._look_at_gradients(optimizer, live)
                self._find_shared(live)
            live.keep_weights(optimizer)
            live.event = self._watcher.phases.event()
        live.began = perf_counter()

    def _look_at_gradients(self, optimizer: Optimizer, live: HeldOptimizer) -> None:
        seen, params = live.seen, learning(optimizer)
        without = {id(p): p for p in params if p.grad is None}
        if self._watcher.backwards:
            live.zeros.look(params, self._names.of)
        if self._watcher.backwards or seen.num_looked == 0:
            seen.num_looked += 1
            is_empty = len(without) == len(params) > 0
            if not is_empty and live.was_cleared:
                some = [p.grad for p in params if is_plain(p.grad)][:4]
                is_empty = not any(bool(part(g, 4096).any()) for g in some)
            seen.num_empty += is_empty
            if is_empty and live.was_cleared:
                seen.num_cleared_late += 1
                seen.cleared_late_at = live.cleared_late_at
            if not is_empty:
                old = live.never
                if old is None:
                    old = {key: self._names.of(param) for key, param in without.items()}
                without_any = without.keys() | live.still_zero()
                live.never = {key: name for key, name in old.items() if key in without_any}
                self._note_trained({id(p) for p in params} - without_any, live)
            found = live.unused.before_step(live.missing(), live.cleared_late_at)
            live.causes = {**live.causes, **found}

    def _note_trained(self, trained: set[int], by: HeldOptimizer) -> None:
        """Remove weights with a gradient from those that earlier optimizers miss."""
        for live in (*self._past, *self._live.values()):
            if live is not by and live.never and live.seen.num_steps:
                live.never = {k: name for k, name in live.never.items() if k not in trained}

    def _look_late(self, optimizer: Optimizer, live: HeldOptimizer) -> None:
        if self._watcher.is_following:
            live.clearing.before_step(live.seen)
            self._end_window(live)
        if self._watcher.is_close:
            self._look_at_gradients(optimizer, live)

    def _end_window(self, live: HeldOptimizer) -> None:
        if live.trail.num_lost:
            live.seen.cleared_late_at = live.seen.cleared_late_at or live.cleared_late_at
        watcher, num = self._watcher, self._watcher.new_batches
        is_known = watcher.is_close or num >= live.trail.num_backwards
        self.accumulation.step(
            live.trail,
            live.seen.windows,
            step=live.seen.num_steps,
            num_batches=max(num, len(watcher.inputs)) if is_known else None,
            is_own=watcher.wants_input_gradient,
        )

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        watcher = self._watcher
        is_main = self._is_main(optimizer)
        self._num_main += is_main
        if watcher.switch.is_on:
            watcher.switch.run(self._after, optimizer, is_main)
        is_enough = self._max_steps is not None and self._num_main >= self._max_steps
        if is_enough and os.getpid() == self._pid:
            watcher.seen.was_cut = True
            raise EnoughSteps(0)

    def _is_main(self, optimizer: Optimizer) -> bool:
        """Return whether a step counts: the first optimizer's, until another's two in a row.

        One that holds weights of a deleted one counts from its first step.
        """
        live = self._known(optimizer)
        one = id(optimizer) if live is None else live  # the same if it is created again
        main = self._main
        is_main = main is None or one == main
        if not is_main and isinstance(main, HeldOptimizer) and live is not None:
            is_main = main.ref() is None and not main.ids.isdisjoint(live.ids)
        if not is_main:
            key = id(one)
            self._since[key] = self._since.get(key, 0) + 1
            is_main = self._since[key] == 2
        if is_main:
            self._main, self._since = one, {}
        return is_main

    def _after(self, optimizer: Optimizer, is_main: bool) -> None:
        watcher = self._watcher
        live = self._live_of(optimizer) if watcher.rest.is_on else self._look_after(optimizer)
        seen = live.seen
        if self.pending and len(live.losses) < _MAX_LOSSES:
            live.losses.append((seen.num_steps, self.pending))
        self.pending = []
        live.count_step(optimizer)
        if seen.num_steps == 1:
            seen.first_step = watcher.step
        seen.last_step = watcher.step
        if watcher.backwards:
            seen.backwards[watcher.backwards] = seen.backwards.get(watcher.backwards, 0) + 1
        self._last = weakref.ref(live)
        if watcher.current is not None:
            watcher.current.num_steps += 1
        watcher.backwards = watcher.new_batches = 0
        if is_main:
            watcher.next_step()

    def _look_after(self, optimizer: Optimizer) -> HeldOptimizer:
        """Inspect the result of a step that is followed."""
        now = perf_counter()
        watcher, live = self._watcher, self._stepping
        if live is None or live.ref() is not optimizer:
            live = self._live_of(optimizer)
        self._stepping = None
        if live.began:
            watcher.phases.add(OPTIMIZER, now - live.began)
        watcher.phases.between(OPTIMIZER, live.event)
        live.event = None
        if live.before:
            live.compare()
        if live.is_late:
            self._look_late(optimizer, live)
        watcher.inputs.clear()
        watcher.wants_input_gradient = False
        live.clearing.after_step(optimizer if watcher.is_following else None)
        live.trail.begin(live.clearing.weight if watcher.is_following else None)
        live.tail = None
        live.was_cleared = False
        return live

    def settle(self) -> None:
        """Read update ratios, losses and the names of weights without gradients."""
        for live in (*self._past, *self._live.values()):
            live.settle()


def _subclasses(kind: type) -> list[type]:
    found: list[type] = []
    children: list[type] = kind.__subclasses__()
    for child in children:
        found += [child, *_subclasses(child)]
    return found
