"""Replay steps on a copy, after the script's last one: the probe."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.records.watch import Replay
from stepladder.watching.advice import AS_IS, MIN_GAIN
from stepladder.watching.probe.clearing import (
    KeptBatch,
    KeptCall,
    mapped,
    probe_clearing,
    same_draws,
)
from stepladder.watching.probe.habits import Habits
from stepladder.watching.step_times import has_gpu
from stepladder.watching.watcher import Watcher

NUM_KEPT: Final = 8  # batches: a single one would hide lengths and shapes that vary
_MAX_MODULES: Final = 4
_BUDGET_S: Final = 20.0
_MIN_REPEATS: Final = 3
_MAX_REPEATS: Final = 9
_NUM_WARM_UPS: Final = 2
_MIN_RUN_S: Final = 0.02  # per timing: shorter ones are dominated by other processes
_MAX_PASSES: Final = 20  # over the batches, to reach that
_TRIMMED_FROM: Final = 7  # rounds from which the lowest and the highest are left out
_MOST: Final = {"mixed_precision": 32.0, "larger_batch": 2.0}
"""Upper bounds on the speed-up of a step's computation: tensor cores and AMX multiply up to 32
times as many 16-bit numbers as other units do 32-bit ones; twice the batch halves the fixed cost
of a pass. For a memory layout there is no known bound."""
_BEYOND: Final = 1.25  # times that bound: beyond, rounds measure the machine rather than steps
_MAX_APART: Final = 2.0  # highest over lowest gain of the rounds, for a conclusive result


class Kept:
    """Stores the last batches of a training, and replays them when it is over.

    A batch is stored if the loss was called directly on the outermost module's output: it can then
    be replayed without knowing the script.

    Attributes:
        optimizers: returns the script's optimizers.
        habits: what happens to gradients between steps.
    """

    def __init__(self) -> None:
        self.optimizers: Callable[[], list[Any]] = list
        self.habits = Habits()
        self._watcher: Watcher | None = None
        self._module: nn.Module | None = None
        self._input: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._output: Any = None
        self._batches: deque[KeptBatch] = deque(maxlen=NUM_KEPT)
        self._calls: dict[int, KeptCall] = {}
        self._num_other = 0

    def install(self, watcher: Watcher) -> None:
        """Follow gradients from step to step as well."""
        self._watcher = watcher
        self.habits.install(watcher)

    def settle(self) -> None:
        """Count the last step of the script."""
        self.habits.settle()

    def note_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember the input of the outermost module."""
        if module.training:
            self._module, self._input, self._output = module, (args, kwargs), None

    def note_output(self, module: nn.Module, output: Any) -> None:
        """Remember its output."""
        if module is not self._module or self._input is None:
            return
        args, kwargs = mapped(Tensor.detach, self._input)
        self._calls.pop(id(module), None)
        self._calls[id(module)] = KeptCall(module=module, args=args, kwargs=kwargs)
        if len(self._calls) > _MAX_MODULES:
            self._calls.pop(next(iter(self._calls)))
        if isinstance(output, Tensor):
            self._output = output

    def note_loss(
        self,
        kind: str,
        scores: Tensor,
        target: Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Store a batch if the loss is called on exactly that output."""
        module = self._module
        is_whole = self._input is not None and self._output is not None
        if module is None or not is_whole or scores is not self._output:
            self._num_other += 1
            return
        options = {k: v for k, v in kwargs.items() if k not in ("input", "target")}
        inputs, named = self._input or ((), {})
        self._input = self._output = None
        if len(args) <= 2:
            self._batches.append(
                KeptBatch(
                    module=module,
                    args=mapped(Tensor.detach, inputs),
                    kwargs=mapped(Tensor.detach, named),
                    loss=kind,
                    target=target.detach(),
                    options=options,
                )
            )

    def replay(self) -> tuple[Replay, ...]:
        """Test how gradients are cleared, then time steps unchanged and with other settings.

        Both use copies; each takes at most 20 seconds, or a few steps. Random states are restored
        afterwards.
        """
        why_not = _why_no_copy()
        if self._watcher is not None:
            kept = [*self._calls.values(), *self._batches]
            self._watcher.seen.clearing = probe_clearing(kept, self.habits.all, why_not)
        why_not = why_not or self._why_not() or self._why_no_optimizer()
        if why_not is not None:
            return (Replay(name=AS_IS, why_not=why_not),)
        with same_draws():
            try:
                return self._timed()
            except Exception as error:
                return (Replay(name=AS_IS, why_not=f"{type(error).__name__}: {error}"),)

    def _why_not(self) -> str | None:
        if not self._batches:
            if self._num_other:
                return "the loss is not called directly on the model's output"
            return "no training step with a loss of torch.nn.functional was seen"
        return None

    def _why_no_optimizer(self) -> str | None:
        if self._module is None or all(b.module is not self._module for b in self._batches):
            return "the loss of the module that was called last is unknown"
        own = {id(p) for p in self._module.parameters()}
        fitting = [o for o in self._stepping() if _ids(o) & own]
        if len(fitting) != 1:
            return f"{len(fitting)} optimizers hold the model's weights; only one can be replayed"
        return None

    def _stepping(self) -> list[Any]:
        """Return the script's optimizers, including those it has released since."""
        found = {id(o): o for o in self.optimizers()} | self.habits.optimizers
        return list(found.values())

    def _timed(self) -> tuple[Replay, ...]:
        assert self._module is not None
        own = {id(p) for p in self._module.parameters()}
        optimizer = next(o for o in self._stepping() if _ids(o) & own)
        own_batches = [b for b in self._batches if b.module is self._module]
        batches = [b for b in own_batches if b.num_examples == own_batches[-1].num_examples]
        lanes: list[_Lane] = []
        refused: list[Replay] = []
        for name, make in _LANES:
            lane = make(name, *_copied(self._module, optimizer), batches)
            if isinstance(lane, Replay):
                refused.append(lane)
                continue
            try:
                for _ in range(_NUM_WARM_UPS):  # also shows whether it works at all
                    warm_s = lane.run()
            except Exception as error:
                refused.append(Replay(name=name, why_not=f"{type(error).__name__}: {error}"))
                continue
            if not lanes:
                each_s = warm_s * sum(batch.num_examples for batch in batches)
                num_passes = min(_MAX_PASSES, max(1, math.ceil(_MIN_RUN_S / max(each_s, 1e-9))))
            lanes.append(replace(lane, num_passes=num_passes))
        _race(lanes)
        base = next((lane.example_s for lane in lanes if lane.name == AS_IS), None)
        return (*(lane.result(base) for lane in lanes), *refused)


def _race(lanes: list[_Lane]) -> None:
    """Time all lanes in rounds of alternating order, so that none is always first or last."""
    began = perf_counter()
    order = list(lanes)
    while lanes and len(lanes[-1].example_s) < _MAX_REPEATS:
        spent_s = perf_counter() - began
        is_enough = len(lanes[-1].example_s) >= _MIN_REPEATS
        if spent_s > (_BUDGET_S if is_enough else 2 * _BUDGET_S):
            break
        for lane in order:
            lane.example_s.append(lane.run())
        order.reverse()


@dataclass
class _Lane:
    """One way of running steps."""

    name: str
    model: nn.Module
    optimizer: Any
    batches: list[KeptBatch]
    context: Callable[[], AbstractContextManager[Any]]
    num_passes: int = 1
    example_s: list[float] = field(default_factory=list)

    def run(self) -> float:
        """Run a step on every batch, in each pass, and return the seconds per example."""
        _wait()
        began = perf_counter()
        for _ in range(self.num_passes):
            for batch in self.batches:
                self.optimizer.zero_grad()
                with self.context():
                    loss = batch.loss_of(self.model)
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
        _wait()
        num = self.num_passes * sum(batch.num_examples for batch in self.batches)
        return (perf_counter() - began) / num

    def result(self, base: list[float] | None) -> Replay:
        """Return its time, and its gain over unchanged steps in the same rounds."""
        if not self.example_s:
            return Replay(name=self.name, why_not="there was no time left")
        found = Replay(
            name=self.name,
            example_s=median(self.example_s),
            spread=max(self.example_s) / min(self.example_s),
            num_repeats=len(self.example_s),
        )
        if base is None or self.name == AS_IS:
            return found
        gain, why_not = gain_of(self.name, base, self.example_s)
        if why_not is not None:
            return replace(found, example_s=None, why_not=why_not)
        return replace(found, gain=gain)


def gain_of(
    name: str, before_s: list[float], after_s: list[float]
) -> tuple[float | None, str | None]:
    """Return by what factor a change speeds up a step's computation, from rounds that timed both.

    Returns:
        The median over rounds, limited to what the change can give, and None; or None and why the
        result is inconclusive: the rounds disagree.
    """
    gains = sorted(before / after for before, after in zip(before_s, after_s, strict=True))
    inner = gains[1:-1] if len(gains) >= _TRIMMED_FROM else gains
    low, high = inner[0], inner[-1]
    most = _MOST.get(name, math.inf)
    is_either = low <= 1 and high >= MIN_GAIN
    if is_either or low > _BEYOND * most or high > _MAX_APART * low:
        rounds = f"in {len(gains)} rounds, the speed-up was between {low:.2f} and {high:.2f} times"
        bound = f" (at most {most:.0f} is possible)" if high > most else ""
        return None, f"inconclusive: {rounds}{bound}"
    return min(median(gains), most), None


def _as_is(name: str, model: nn.Module, optimizer: Any, batches: list[KeptBatch]) -> _Lane:
    return _Lane(name, model, optimizer, batches, nullcontext)


def _mixed(name: str, model: nn.Module, optimizer: Any, batches: list[KeptBatch]) -> _Lane:
    device = batches[0].target.device.type
    return _Lane(name, model, optimizer, batches, lambda: torch.autocast(device, torch.bfloat16))


def _channels_last(
    name: str, model: nn.Module, optimizer: Any, batches: list[KeptBatch]
) -> _Lane | Replay:
    if not any(isinstance(m, nn.Conv2d) for m in model.modules()):
        return Replay(name=name, why_not="the model has no Conv2d layer")
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    laid = [replace(b, args=mapped(_laid, b.args), kwargs=mapped(_laid, b.kwargs)) for b in batches]
    return _Lane(name, model, optimizer, laid, nullcontext)


def _larger(
    name: str, model: nn.Module, optimizer: Any, batches: list[KeptBatch]
) -> _Lane | Replay:
    pairs = list(zip(batches[::2], batches[1::2], strict=False))
    if not pairs:
        return Replay(name=name, why_not="fewer than two batches of the same size were stored")
    joined = [
        replace(
            a,
            args=_joined(a.args, b.args),
            kwargs=_joined(a.kwargs, b.kwargs),
            target=torch.cat([a.target, b.target]),
        )
        for a, b in pairs
    ]
    return _Lane(name, model, optimizer, joined, nullcontext)


_LANES: Final[tuple[tuple[str, Callable[..., _Lane | Replay]], ...]] = (
    (AS_IS, _as_is),
    ("mixed_precision", _mixed),
    ("channels_last", _channels_last),
    ("larger_batch", _larger),
)


def _copied(module: nn.Module, optimizer: Any) -> tuple[nn.Module, Any]:
    """Copy both at once, so that the copy's optimizer holds the copy's weights."""
    model, copied = copy.deepcopy((module, optimizer))
    vars(copied).pop("step", None)  # a scheduler's wrapper, which steps the original
    model.train()
    return model, copied


def _ids(optimizer: Any) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _laid(value: Tensor) -> Tensor:
    if value.dim() != 4:
        return value
    return value.contiguous(memory_format=torch.channels_last)


def _joined(first: Any, second: Any) -> Any:
    """Concatenate two batches."""
    if isinstance(first, Tensor) and first.dim():
        return torch.cat([first, second])
    if type(first) is tuple:
        return tuple(_joined(a, b) for a, b in zip(first, second, strict=True))
    if type(first) is dict:
        return {key: _joined(first[key], second[key]) for key in first}
    return first


def _why_no_copy() -> str | None:
    """Return why a copy cannot run steps; None if it can."""
    library: Any = torch.distributed
    is_alone = not (library.is_available() and library.is_initialized())
    if is_alone or library.get_world_size() == 1:
        return None
    return "several processes train together, and a copy would wait for the others"


def _wait() -> None:
    if has_gpu():
        torch.cuda.synchronize()
