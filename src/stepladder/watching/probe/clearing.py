"""Test on a copy, after the script's last step, whether gradients are cleared between steps."""

from __future__ import annotations

import copy
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.checks.evidence.growth import NUM_CALLS
from stepladder.records.watch import Clearing
from stepladder.watching.hooks.tensors import tensors_in
from stepladder.watching.probe.habits import Fate, Habit, norm_of
from stepladder.watching.step_times import has_gpu

_MAX_BACKWARDS: Final = 4  # per call; more of them would not change the result
_MAX_NAMES: Final = 200
_BUDGET_S: Final = 20.0


@dataclass(frozen=True, kw_only=True)
class KeptCall:
    """A call of an outermost module in training mode, with any loss."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def loss_of(self, model: nn.Module) -> Tensor:
        """Call a copy of the module, and return a weighted mean of its outputs as the loss.

        The weights are fixed and vary: squares would carry no information for outputs of norm 1.
        """
        output = model(*self.args, **self.kwargs)
        record = callable(getattr(output, "values", None)) and not isinstance(output, Tensor)
        found = tensors_in(list(output.values()) if record else output)
        parts = [_weighted_mean(one) for one in found if one.requires_grad]
        if not parts:
            raise ValueError("the model returns no tensor with a gradient")
        return torch.stack(parts).sum()


@dataclass(frozen=True, kw_only=True)
class KeptBatch(KeptCall):
    """What one training step consisted of.

    Attributes:
        loss: name of the function of torch.nn.functional that was called on the module's output.
        options: its other arguments.
    """

    loss: str
    target: Tensor
    options: dict[str, Any]

    @property
    def num_examples(self) -> int:
        """Return the size of the batch."""
        return int(self.target.shape[0]) if self.target.dim() else 1

    def loss_of(self, model: nn.Module) -> Tensor:
        """Call a copy of the module, and the script's loss on its output."""
        output = model(*self.args, **self.kwargs)
        value: Tensor = getattr(F, self.loss)(output, self.target, **self.options)
        return value


def _weighted_mean(value: Tensor) -> Tensor:
    flat = value.float().flatten()
    places = torch.arange(flat.numel(), dtype=torch.float32, device=flat.device)
    return (flat * places.cos()).mean()


def mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to each tensor in a value, including in tuples and dictionaries."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) is tuple:
        return tuple(mapped(change, item) for item in value)
    if type(value) is dict:
        return {key: mapped(change, item) for key, item in value.items()}
    return value


def probe_clearing(
    calls: Sequence[KeptCall], habits: Sequence[Habit], why_not: str | None
) -> Clearing | None:
    """Repeat on a copy how the script clears gradients: frozen weights, one batch, same draws.

    Args:
        calls: recorded calls of training steps; the last ones are tried first.
        habits: what happened to gradients between the script's steps.
        why_not: why nothing can be replayed; None if it can.

    Returns:
        What was seen, and the five norms or why they are missing; None if no optimizer took two
        steps with a backward in between.
    """
    habits = [habit for habit in habits if habit.fates]
    if not habits:
        return None
    began = perf_counter()
    # The one with the most gradients never cleared, or else the one inspected most.
    habit = max(habits, key=lambda one: (len(_with(one, Fate.KEPT)), one.num_windows))
    batch = next((b for b in reversed(calls) if _held(b, habit)), None)
    found = _seen(habit, {} if batch is None else _held(batch, habit))
    if why_not is not None or batch is None:
        return replace(found, why_not=why_not or "no call of its model in training mode was seen")
    plan = _plan(habit, _held(batch, habit))
    if plan is None:
        text = "the script itself modifies the gradients between steps"
        return replace(found, why_not=text)
    try:
        norms = _norms(plan, batch)
    except Exception as error:  # anything that a script's own model raises is reported
        told = str(error).partition("\n")[0]
        return replace(found, why_not=f"{type(error).__name__}: {told}")
    loss = batch.loss if isinstance(batch, KeptBatch) else None
    return replace(found, norms=norms, loss=loss, took_s=perf_counter() - began)


def _held(batch: KeptCall, habit: Habit) -> dict[int, str]:
    """Return the names, by id, of the weights of a batch's module that an optimizer steps."""
    return {
        id(param): _plain(name)
        for name, param in batch.module.named_parameters()
        if id(param) in habit.fates and habit.fates[id(param)][0]() is param
    }


def _seen(habit: Habit, names: Mapping[int, str]) -> Clearing:
    """Summarise what was seen of one optimizer."""
    kept = _with(habit, Fate.KEPT)
    counts = [fates[Fate.KEPT] for _, fates in kept.values()]
    is_cleared = len(kept) < len(habit.fates)
    called = habit.calls.most_common(1) if is_cleared else []
    how, where = called[0][0] if called else (None, None)
    return Clearing(
        optimizer=habit.kind,
        stepped_at=habit.stepped_at,
        how=how,
        where=where,
        num_looked=habit.num_windows,
        num_uncleared=max(counts, default=0),
        num_weights=len(habit.fates),
        uncleared=tuple(names.get(key, "a weight of another module") for key in kept)[:_MAX_NAMES],
        num_backwards=habit.num_backwards.most_common(1)[0][0],
    )


def _usual(fates: Counter[Fate]) -> Fate:
    """Return what happened to a weight's gradient in more than half of the windows."""
    fate, times = max(fates.items(), key=lambda item: item[1])
    return fate if 2 * times > fates.total() else Fate.CHANGED


def _with(habit: Habit, fate: Fate) -> dict[int, Any]:
    return {key: pair for key, pair in habit.fates.items() if _usual(pair[1]) is fate}


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What to repeat: what happens to the gradient of each weight, and when."""

    fates: dict[str, Fate]
    num_backwards: int
    is_late: bool


def _plan(habit: Habit, names: Mapping[int, str]) -> _Plan | None:
    """Return what to repeat; None if what happened to gradients cannot be repeated."""
    fates = {name: _usual(habit.fates[key][1]) for key, name in names.items()}
    if all(fate is Fate.CHANGED for fate in fates.values()):
        return None
    usual = habit.num_backwards.most_common(1)[0][0]
    return _Plan(
        fates=fates,
        num_backwards=min(usual, _MAX_BACKWARDS),
        is_late=2 * habit.num_late > habit.num_windows,
    )


def _norms(plan: _Plan, batch: KeptCall) -> tuple[float, ...]:
    """Run one batch five times, and return the gradient's norm where the step would be.

    If some gradients are not cleared, the norm is of these alone.
    """
    # The uncompiled module: compiling again would take long.
    model: nn.Module = copy.deepcopy(getattr(batch.module, "_orig_mod", batch.module))
    model.train()
    weights = {_plain(name): weight for name, weight in model.named_parameters()}
    cleared = {n: f for n, f in plan.fates.items() if f in (Fate.REMOVED, Fate.ZEROED)}
    kept = [name for name, fate in plan.fates.items() if fate is Fate.KEPT]
    measured = kept or list(cleared)
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    norms: list[float] = []
    began = perf_counter()
    with same_draws() as draw_again:
        for _ in range(NUM_CALLS):
            if norms and NUM_CALLS * (perf_counter() - began) / len(norms) > _BUDGET_S:
                raise TimeoutError(f"{NUM_CALLS} calls would take more than {_BUDGET_S:.0f} s")
            _put_back(model, buffers)
            if not plan.is_late:
                _clear(weights, cleared)
            for _ in range(plan.num_backwards):
                draw_again()
                args, kwargs = mapped(
                    Tensor.clone, (batch.args, batch.kwargs)
                )  # it may change them
                own = replace(batch, args=args, kwargs=kwargs)
                own.loss_of(model).backward()  # type: ignore[no-untyped-call]
            if plan.is_late:
                _clear(weights, cleared)
            norms.append(_norm(weights, measured))
    return tuple(norms)


def _plain(name: str) -> str:
    return name.removeprefix("_orig_mod.")


def _clear(weights: Mapping[str, nn.Parameter], cleared: Mapping[str, Fate]) -> None:
    for name, fate in cleared.items():
        grad = weights[name].grad
        if fate is Fate.REMOVED:
            weights[name].grad = None
        elif grad is not None:
            grad.zero_()


def _norm(weights: Mapping[str, nn.Parameter], names: Sequence[str]) -> float:
    norms = [norm_of(weights[name].grad) or 0.0 for name in names]
    return float(sum(norm**2 for norm in norms) ** 0.5)


def _put_back(model: nn.Module, buffers: dict[str, Tensor]) -> None:
    """Restore statistics to their values before a call."""
    with torch.no_grad():
        for name, value in model.named_buffers():
            if name in buffers and buffers[name].shape == value.shape:
                value.copy_(buffers[name])


@contextmanager
def same_draws() -> Iterator[Callable[[], None]]:
    """Yield a function that restores the random states; they are also restored at the end."""
    numpy: Any = sys.modules.get("numpy")
    cpu, own = torch.get_rng_state(), random.getstate()
    gpus = torch.cuda.get_rng_state_all() if has_gpu() else []
    arrays = None if numpy is None else numpy.random.get_state()

    def put_back() -> None:
        torch.set_rng_state(cpu)
        random.setstate(own)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)
        if numpy is not None:
            numpy.random.set_state(arrays)

    try:
        yield put_back
    finally:
        put_back()
