"""Watch the BatchNorm statistics of layers whose weights are frozen."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from stepladder.watching.hooks.names import Names
from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
from stepladder.watching.hooks.tensors import is_plain, part
from stepladder.watching.seen.weights import FrozenNormSeen
from stepladder.watching.watcher import Watcher

_MAX_CHAINS: Final = 32
_MAX_BEFORE: Final = 64
_VALUES: Final = 64
_FEW_BATCHES: Final = 4


@dataclass
class _Base:
    """A layer when it was first seen to be frozen."""

    step: int
    mean: Tensor
    var: Tensor
    weight: Tensor
    is_fresh: bool


@dataclass
class _Chain:
    """The first BatchNorm layer of a call in training mode, and the layers before it.

    Attributes:
        is_fresh: its statistics were those before any batch when it was found.
        num_closes: inspected steps since then.
        num_looks: of these, those at which all of these layers were frozen, without the first.
        mean, weight: its means and weights at the last of these.
        layers: the model that has it, the part with all frozen layers, and how many these are.
    """

    norm: weakref.ref[Any]
    before: list[weakref.ref[nn.Module]]
    where: str | None
    is_fresh: bool
    num_closes: int = 0
    num_looks: int = 0
    base: _Base | None = None
    mean: Tensor | None = None
    weight: Tensor | None = None
    last_step: int = 0
    layers: tuple[str, str, int] = ("", "", 0)


class FrozenNormWatch:
    """Follows the first BatchNorm layer of each model; those behind trained weights should move."""

    def __init__(self, names: Names, optimizers: OptimizerWatch) -> None:
        self._names = names
        self._optimizers = optimizers
        self._watcher: Watcher
        self._chains: dict[int, _Chain] = {}
        self._before: list[weakref.ref[nn.Module]] = []
        self._has_norm = False
        self._has_grad = True

    def install(self, watcher: Watcher) -> None:
        """Subscribe to calls of layers, in steps in which these are followed, and to steps."""
        self._watcher = watcher
        watcher.on_layer.append(self._called)
        watcher.on_close.append(self._look)

    def settle(self) -> None:
        """Find the layers whose statistics have moved."""
        seen = self._watcher.seen
        seen.frozen_norms = [
            one for chain in self._chains.values() if (one := _moved(chain)) is not None
        ]

    def _called(self, module: nn.Module, is_outermost: bool) -> None:
        has_grad = torch.is_grad_enabled()
        if is_outermost or has_grad != self._has_grad:
            self._before, self._has_norm, self._has_grad = [], False, has_grad
        if not any(p is not None for p in module._parameters.values()):
            return
        if isinstance(module, _BatchNorm) and not self._has_norm and module.training:
            self._has_norm = True
            known = self._chains.get(id(module))
            is_known = known is not None and known.norm() is module
            if known is not None and is_known:
                known.before, known.where = list(self._before), self._watcher.own.here()
            elif _moves(module) and len(self._chains) < _MAX_CHAINS:
                mean, var = _statistics(module)
                self._chains[id(module)] = _Chain(
                    weakref.ref(module),
                    list(self._before),
                    self._watcher.own.here(),
                    is_fresh=not bool(mean.any()) and bool((var == 1).all()),
                )
        if len(self._before) < _MAX_BEFORE:
            self._before.append(weakref.ref(module))

    def _look(self) -> None:
        held: set[int] | None = None
        for chain in self._chains.values():
            norm = chain.norm()
            if norm is None or not norm.training:
                continue
            held = self._optimizers.held if held is None else held
            if not self._is_frozen(chain, norm, held) or not self._optimizers.has_learned():
                chain.base, chain.num_looks = None, 0
            elif chain.base is None:
                mean, var = _statistics(norm)
                is_fresh = chain.is_fresh and chain.num_closes == 0 and _has_seen_few(norm)
                weight = part(norm.weight, _VALUES).clone()
                chain.base = _Base(self._watcher.step, mean, var, weight, is_fresh)
            else:
                chain.num_looks += 1
                chain.mean, chain.last_step = _statistics(norm)[0], self._watcher.step
                chain.weight = part(norm.weight, _VALUES).clone()
                if chain.num_looks == 1:
                    chain.layers = self._layers(norm, held)
            chain.num_closes += 1

    def _is_frozen(self, chain: _Chain, norm: Any, held: set[int]) -> bool:
        """Return whether no optimizer trains a layer or those before it."""
        before = [ref() for ref in chain.before]
        if any(one is None for one in before) or not _moves(norm):
            return False  # layers were replaced
        modules = [norm, *(one for one in before if one is not None)]
        return not any(_is_trained(module, held) for module in modules)

    def _layers(self, norm: Any, held: set[int]) -> tuple[str, str, int]:
        """Return the model with a frozen layer, the part that has all such layers, and how many."""
        for root in self._names.roots:
            model = root.ref()
            if model is None or id(norm) not in root.modules:
                continue
            frozen = [
                name
                for name, one in model.named_modules()
                if isinstance(one, _BatchNorm) and one.training and _moves(one)
                if not _is_trained(one, held)
            ]
            return root.seen.built, _common([name.split(".")[:-1] for name in frozen]), len(frozen)
        return "", "", 0


def _moved(chain: _Chain) -> FrozenNormSeen | None:
    """Compare the statistics at the last inspected step with those at the first."""
    base, mean, weight = chain.base, chain.mean, chain.weight
    model, name, num_layers = chain.layers
    if base is None or mean is None or weight is None or not num_layers:
        return None
    if torch.equal(mean, base.mean) or not torch.equal(weight, base.weight):
        return None  # or moved in another way, such as by an average of trained weights
    scale = (base.var.float() + 1e-5).sqrt()
    return FrozenNormSeen(
        model=model,
        name=name,
        where=chain.where,
        num_layers=num_layers,
        num_looks=chain.num_looks,
        first_step=base.step,
        last_step=chain.last_step,
        was_fresh=base.is_fresh,
        shift=float(((mean - base.mean).float().abs() / scale).median()),
    )


def _common(paths: list[list[str]]) -> str:
    """Return the part of a model that contains all of these."""
    parts = [level[0] for level in zip(*paths, strict=False) if len(set(level)) == 1]
    is_common = len(set(map(tuple, paths))) == 1 or parts == (paths or [[]])[0][: len(parts)]
    return ".".join(parts) if is_common else ""


def _is_trained(module: nn.Module, held: set[int]) -> bool:
    params = (p for p in module._parameters.values() if p is not None)
    return any(p.requires_grad and id(p) in held for p in params)


def _has_seen_few(norm: Any) -> bool:
    """Return whether its statistics are of a few batches, as at the beginning of training."""
    num = norm.num_batches_tracked
    return num is None or int(num) <= _FEW_BATCHES


def _moves(norm: Any) -> bool:
    """Return whether a layer updates its statistics and has weights of its own."""
    has_statistics = is_plain(norm.running_mean) and is_plain(norm.running_var)
    return has_statistics and norm.momentum != 0 and isinstance(norm.weight, nn.Parameter)


def _statistics(norm: Any) -> tuple[Tensor, Tensor]:
    return part(norm.running_mean, _VALUES).clone(), part(norm.running_var, _VALUES).clone()
