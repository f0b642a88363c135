"""Watch which examples models learn from, and whether these are evaluated later."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from time import thread_time
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from stepladder.watching.hooks.hashes import bits_per_example, hashes_of, per_example
from stepladder.watching.hooks.names import Root
from stepladder.watching.hooks.tensors import tensors_in
from stepladder.watching.seen.loaders import PassSeen
from stepladder.watching.seen.models import EvaluatedSeen, ModelSeen
from stepladder.watching.watcher import Watcher

MAX_LEARNT: Final = 65_536  # hashes of a model; beyond, only some hashes are kept
_MAX_GROUPS: Final = 64
_MAX_WAITING: Final = 512  # calls until the next backward
_MAX_DEFERRED: Final = 2048  # calls whose hashes are on a device
_FIRST_S: Final = 0.012  # time for hashes of the first steps
_PER_STEP_S: Final = 10e-6  # and of each step
_OF_TRAINING: Final = 0.7  # of this time, at most: the rest is for evaluations
_MAX_MEASURED: Final = 4  # calls of each model whose values are counted
_MAX_EVALUATED: Final = 32_768  # hashes of a group
_MAX_OF_GROUPS: Final = 131_072  # hashes of all groups
_MAX_OF_A_LOADER: Final = 8192  # examples that are counted
_OFTEN: Final = 0.34  # times in a step: part of it
_NEW: Final = 0.02  # of the examples of a call may be known by chance


class _Call:
    """A call of a model, until the next backward shows whether it learned from it.

    Attributes:
        current: the pass over a loader that it belongs to; None if it does not belong to one.
        lines: the script's lines that led to an evaluation, innermost first.
        width: values of an example.
    """

    __slots__ = ("current", "hashes", "is_grad", "is_training", "lines", "root", "step", "width")

    def __init__(self, root: Root, hashes: Tensor, step: int, current: PassSeen | None) -> None:
        self.root = root
        self.hashes = hashes
        self.step = step
        self.current = current
        self.is_grad = torch.is_grad_enabled()
        self.is_training = True
        self.lines: tuple[tuple[str, int], ...] = ()
        self.width = 0


class _Group:
    """The examples of one evaluation, at its last time: of a loader, or at a line.

    Attributes:
        time: the pass over the loader, or the step.
        num_rows, num_new: examples, and those in calls without examples that were learned from.
        num_calls: calls of the model.
        num_times, first, is_fixed: how often it was evaluated, the sum of the hashes of the first
            call, and whether that is always the same.
        hashes, known: all examples, and those that the model had learned from before.
    """

    def __init__(self, lines: tuple[tuple[str, int], ...], loader: int | None) -> None:
        self.lines = lines
        self.loader = loader
        self.time: int | None = None
        self.num_times = 0
        self.first: int | None = None
        self.is_fixed = True
        self.begin(0)

    def begin(self, time: int) -> None:
        """Forget the previous time."""
        self.time = time
        self.num_rows = self.num_new = self.num_calls = 0
        self.hashes: set[int] = set()
        self.known: set[int] = set()

    def add(self, hashes: list[int], learnt: set[int], num_rows: int) -> None:
        """Add the examples of a call."""
        known = learnt.intersection(hashes)
        if self.num_calls == 0:
            before, self.first = self.first, sum(hashes)
            self.is_fixed = self.is_fixed and before in (None, self.first)
            self.num_times += 1
        self.num_calls += 1
        self.num_rows += num_rows
        self.num_new += num_rows if len(known) <= _NEW * len(hashes) else 0
        if len(self.hashes) < _MAX_EVALUATED:
            self.hashes.update(hashes)
            self.known |= known


class _Learnt:
    """The hashes of the examples that a model has learned from, since it began again.

    It does with a new optimizer, and if it learns after other weights were loaded into it.

    Attributes:
        modulus: only hashes that it divides are kept; it doubles whenever there are too many.
        num_rows: examples that were learned from, of those that are kept.
        num_batches: batches that were learned from.
        batches: sums of the hashes of the first different batches.
    """

    def __init__(self) -> None:
        self.hashes: set[int] = set()
        self.modulus = 1
        self.num_rows = 0
        self.num_batches = 0
        self.batches: set[int] = set()
        self.groups: dict[Any, _Group] = {}

    def kept(self, hashes: list[int]) -> list[int]:
        """Return the hashes that are kept."""
        return hashes if self.modulus == 1 else [h for h in hashes if h % self.modulus == 0]

    def add(self, hashes: list[int]) -> None:
        """Add the examples of a batch."""
        kept = self.kept(hashes)
        self.hashes.update(kept)
        self.num_rows += len(kept)
        self.num_batches += 1
        if len(self.batches) < 2:
            self.batches.add(sum(hashes))
        while len(self.hashes) > MAX_LEARNT:
            self.modulus *= 2
            self.hashes = {h for h in self.hashes if h % self.modulus == 0}

    def evaluate(self, call: _Call, hashes: list[int]) -> None:
        """Compare the examples of an evaluation with those learned from until then."""
        if not self.hashes:
            return
        current = call.current
        key = call.lines if current is None else current.loader
        group = self.groups.get(key)
        if group is None:
            num = sum(len(one.hashes) for one in self.groups.values())
            if len(self.groups) >= _MAX_GROUPS or num >= _MAX_OF_GROUPS:
                return
            group = self.groups[key] = _Group(
                call.lines, None if current is None else current.loader
            )
        time = call.step if current is None else id(current)
        if group.time != time:
            group.begin(time)
        group.add(self.kept(hashes), self.hashes, len(hashes))


class ExampleWatch:
    """Hashes the inputs of the outermost models, in the steps that are followed."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._waiting: list[_Call] = []
        self._deferred: list[tuple[_Learnt, _Call, bool]] = []
        self._learnt: dict[int, tuple[Root, _Learnt]] = {}
        self._past: list[tuple[ModelSeen, _Learnt]] = []
        self._measured: dict[int, int] = {}
        self._reloaded: set[int] = set()
        self._last: Any = None
        self._spent_s = 0.0
        self._of_loader: dict[int, set[int]] = {}

    def install(self, watcher: Watcher) -> None:
        """Subscribe to calls of models and to what is learned from them."""
        self._watcher = watcher
        watcher.on_call.append(self._called)
        watcher.on_learnt.append(self._judge)
        watcher.on_loaded.append(self._loaded)
        watcher.patches.wrap(Optimizer, "__init__", after=self._begun_again)

    def settle(self) -> None:
        """Judge the calls after the last backward, and read hashes from devices."""
        self._judge({})
        deferred, self._deferred = self._deferred, []
        for learnt, call, is_learnt in deferred:
            self._add(learnt, call, is_learnt=is_learnt)
        for seen, learnt in self._past:
            self._note(seen, learnt)
        for root, learnt in self._learnt.values():
            self._note(root.seen, learnt)
        self._learnt, self._past = {}, []

    def _begun_again(self, _n: Any, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        """Forget what a model has learned from when it gets a new optimizer, as in another fold."""
        if not self._watcher.step:
            return
        self._judge({})
        ids = {id(p) for group in args[0].param_groups for p in group["params"]}
        for key, (root, _) in list(self._learnt.items()):
            if not root.ids.isdisjoint(ids):
                self._forget(key)

    def _loaded(self, module: nn.Module) -> None:
        """Note that a model gets other weights, as in another fold if it learns after that."""
        first = next(module.parameters(), None)
        if not any(id(first) in root.ids for root, _ in self._learnt.values()):
            return
        self._judge({})
        ids = {id(p) for p in module.parameters()}
        self._reloaded |= {key for key, (root, _) in self._learnt.items() if root.ids <= ids}

    def _forget(self, key: int) -> None:
        """Begin again with what a model has learned from."""
        root, learnt = self._learnt.pop(key)
        if self._deferred:  # their hashes are still on a device
            self._past = [*self._past[-3:], (root.seen, learnt)]
        else:
            self._note(root.seen, learnt)

    def _called(
        self, root: Root, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not torch.is_grad_enabled() and module.training:
            return  # part of a step, such as the targets of a value function
        watcher = self._watcher
        limit_s = _FIRST_S + _PER_STEP_S * watcher.step
        if module.training:
            limit_s *= _OF_TRAINING
        if self._spent_s > limit_s or len(self._waiting) >= _MAX_WAITING:
            return
        began = thread_time()
        try:
            self._hash(root, module, args, kwargs)
        finally:
            spent_s = thread_time() - began
            self._spent_s += spent_s
            watcher.switch.apart_s += spent_s * watcher.switch.counts_for

    def _hash(
        self, root: Root, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        watcher = self._watcher
        if not module.training and not watcher.step:
            return  # before training
        rows = per_example(list(tensors_in((args, kwargs), 3))[:6])
        if not rows or any(one.requires_grad for one in rows):
            return
        if rows[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return  # a CUDA graph would repeat what is computed here
        if module.training and self._is_last(rows[0]):
            return  # the whole set in each step, which is known already
        num_measured = self._measured.get(id(root), 0)
        if num_measured < _MAX_MEASURED and rows[0].is_cpu:
            self._measured[id(root)] = num_measured + 1
            bits, is_continuous = bits_per_example(rows)
            root.seen.bits = max(bits, root.seen.bits)
            root.seen.is_continuous = is_continuous
        current = watcher.current
        if current is not None and current.is_whole:
            current = None  # it has ended
        if not module.training and current is not None and current.num_backwards:
            current = None  # an evaluation within a pass of training
        call = _Call(root, hashes_of(rows), watcher.step, current)
        call.is_training = module.training
        call.width = sum(one.numel() for one in rows) // len(rows[0])
        if not module.training:
            call.lines = watcher.own.lines()
        self._waiting.append(call)

    def _is_last(self, first: Tensor) -> bool:
        """Return whether it is the same unchanged tensor as in the previous call."""
        if first.is_inference():
            return False
        mark = (first.data_ptr(), first._version, first.shape)
        last, self._last = self._last, (weakref.ref(first), mark)
        return last is not None and last[1] == mark and last[0]() is first

    def _judge(self, learnt: Mapping[int, bool]) -> None:
        """Sort the calls since the last backward.

        Args:
            learnt: by id of a `Root`, the mode in which it was learned from.
        """
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            is_learnt = call.is_grad and learnt.get(id(call.root)) is call.is_training
            if call.is_training and not is_learnt:
                continue
            if is_learnt and id(call.root) in self._reloaded:
                self._reloaded.discard(id(call.root))
                if id(call.root) in self._learnt:
                    self._forget(id(call.root))
            _, found = self._learnt.setdefault(id(call.root), (call.root, _Learnt()))
            if call.hashes.is_cpu:
                self._add(found, call, is_learnt=is_learnt)
            elif len(self._deferred) < _MAX_DEFERRED:
                self._deferred.append((found, call, is_learnt))

    def _add(self, learnt: _Learnt, call: _Call, *, is_learnt: bool) -> None:
        hashes: list[int] = call.hashes.tolist()
        if not is_learnt:
            learnt.evaluate(call, hashes)
            return
        learnt.add(hashes)
        if call.current is None:
            return
        of_loader = self._of_loader.setdefault(call.current.loader, set())
        if len(of_loader) < _MAX_OF_A_LOADER:
            of_loader.update(hashes)
            seen = self._watcher.seen.loaders[call.current.loader]
            seen.num_learnt += len(hashes)
            seen.least_width = min(call.width, seen.least_width or call.width)
            seen.num_learnt_distinct = len(of_loader)

    def _note(self, seen: ModelSeen, learnt: _Learnt) -> None:
        """Store what was seen since a model began again as plain data."""
        seen.num_learnt = max(seen.num_learnt, len(learnt.hashes))
        for group in learnt.groups.values():
            if len(seen.evaluated) >= _MAX_GROUPS or not group.hashes:
                continue
            if not group.is_fixed and group.num_times > _OFTEN * learnt.num_batches:
                continue  # other examples in each step, such as the next states of an environment
            own = self._watcher.own
            of_loader = None
            if group.loader is not None:
                of_loader = self._watcher.seen.loaders[group.loader].line
            seen.evaluated.append(
                EvaluatedSeen(
                    where=own.innermost(group.lines[::-1]),
                    is_of_loader=group.loader is not None,
                    is_named=own.named_data.is_held_out(group.lines, of_loader),
                    num_rows=group.num_rows,
                    num_calls=group.num_calls,
                    num_new=group.num_new,
                    num_distinct=len(group.hashes),
                    num_known=len(group.known),
                    num_learnt=len(learnt.hashes),
                    num_learnt_rows=learnt.num_rows,
                    is_whole_batch=len(learnt.batches) == 1,
                )
            )
