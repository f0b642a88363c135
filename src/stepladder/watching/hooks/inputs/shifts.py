"""Measure the inputs of models that learn, in training and in evaluations, to compare them."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.watching.hooks.hashes import some_values
from stepladder.watching.hooks.names import Root
from stepladder.watching.hooks.tensors import Spread, is_plain, tensors_in
from stepladder.watching.seen.inputs import EvaluatedInputsSeen, ShiftSeen
from stepladder.watching.watcher import Watcher

_FIRST: Final = 8  # calls in training that are kept, beside the last ones
_LAST: Final = 8
_MAX_TRAINING: Final = 64  # calls in training that are measured
_MAX_CALLS: Final = 4  # of an evaluation
_MAX_GROUPS: Final = 8  # evaluations of a model
_MAX_MODELS: Final = 8
_MAX_ROWS: Final = 128  # of a call
_MIN_VALUES: Final = 8  # of an example: not coordinates, or the argument of a curve
_Measured = list[tuple[int, Tensor]]  # numbers of examples, and statistics


class _Group:
    """An evaluation: its lines, and whether its examples are held out."""

    def __init__(self, lines: tuple[tuple[str, int], ...], loader: int | None) -> None:
        self.lines = lines
        self.loader = loader
        self.measured: _Measured = []


class _Model:
    """What was measured of one model."""

    def __init__(self, built: str) -> None:
        self.built = built
        self.shape: tuple[int, ...] = ()
        self.num_training = 0
        self.training: _Measured = []
        self.groups: dict[Any, _Group] = {}


class ShiftWatch:
    """Reads some values of the first input of the outermost models."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._models: dict[int, _Model] = {}

    def install(self, watcher: Watcher) -> None:
        """Subscribe to calls of models."""
        self._watcher = watcher
        watcher.on_call.append(self._called)

    def settle(self) -> None:
        """Read what was measured, which may be on a device."""
        for model in self._models.values():
            seen = ShiftSeen(built=model.built, is_picture=len(model.shape) == 3)
            seen.num_rows, seen.spreads = _read(model.training)
            for group in model.groups.values():
                if not is_held_out(self._watcher, group.lines, group.loader):
                    continue
                num_rows, spreads = _read(group.measured)
                seen.evaluated.append(
                    EvaluatedInputsSeen(
                        where=self._watcher.own.innermost(group.lines[::-1]),
                        num_rows=num_rows,
                        spreads=spreads,
                    )
                )
            self._watcher.seen.shifts.append(seen)
        self._models.clear()

    def _called(
        self, root: Root, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        is_learning = module.training and torch.is_grad_enabled()
        if is_learning and not self._watcher.is_close:
            return
        model = self._models.get(id(root))
        if model is None:
            if not is_learning or len(self._models) >= _MAX_MODELS:
                return
            model = self._models[id(root)] = _Model(root.seen.built)
        if is_learning:
            self._add_training(model, args, kwargs)
        elif self._watcher.step:
            self._add_evaluation(model, args, kwargs)

    def _add_training(self, model: _Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if model.num_training >= _MAX_TRAINING:
            return
        given = _input_of(args, kwargs)
        if given is None:
            return
        model.shape = tuple(given.shape[1:])
        model.num_training += 1
        if len(model.training) >= _FIRST + _LAST:
            del model.training[_FIRST]
        model.training.append((len(given), _statistics(given)))

    def _add_evaluation(self, model: _Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        watcher = self._watcher
        current = watcher.current
        if current is not None and (current.is_whole or current.num_backwards):
            current = None
        lines: tuple[tuple[str, int], ...] = ()
        if current is None:
            if len(model.groups) >= _MAX_GROUPS:
                return
            lines = watcher.own.lines()
        key: Any = lines if current is None else current.loader
        group = model.groups.get(key)
        if group is None:
            if len(model.groups) >= _MAX_GROUPS:
                return
            lines = lines or watcher.own.lines()
            group = _Group(lines, None if current is None else current.loader)
            model.groups[key] = group
        if len(group.measured) >= _MAX_CALLS:
            return
        given = _input_of(args, kwargs)
        if given is not None and given.dim() == len(model.shape) + 1:
            group.measured.append((len(given), _statistics(given)))


def is_held_out(watcher: Watcher, lines: tuple[tuple[str, int], ...], loader: int | None) -> bool:
    """Return whether examples are those of a loader without training, or named so in lines."""
    if loader is None:
        return watcher.own.named_data.is_held_out(lines)
    loaders = watcher.seen.loaders
    its = loaders[loader]
    of_same = [one for one in loaders if one.dataset_id == its.dataset_id]
    return bool(its.validation) and not any(one.training for one in of_same)


def _input_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the first input, if it is a batch of examples with several numbers each."""
    first = next(tensors_in((args, kwargs), 3), None)
    if first is None or not is_plain(first) or first.requires_grad or first.dim() < 2:
        return None
    if not first.is_floating_point() or not first.numel() or first[0].numel() < _MIN_VALUES:
        return None
    if first.is_cuda and torch.cuda.is_current_stream_capturing():
        return None  # a CUDA graph would repeat what is computed here
    return first


def _statistics(given: Tensor) -> Tensor:
    """Return mean, standard deviation, and the range of some values of some examples."""
    rows = given.detach()[:: -(-len(given) // _MAX_ROWS)]
    numbers = some_values(rows).float()
    low, high = numbers.aminmax()
    return torch.stack([numbers.mean(), numbers.std(correction=0), low, high])


def _read(measured: _Measured) -> tuple[int, list[Spread]]:
    spreads = []
    for _, statistics in measured:
        mean, std, low, high = statistics.tolist()
        if torch.isfinite(statistics).all():
            spreads.append(Spread(mean=mean, std=std, low=low, high=high, is_finite=True))
    return sum(num for num, _ in measured), spreads
