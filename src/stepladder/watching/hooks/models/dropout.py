"""Watch dropout and BatchNorm that are active although their model is in evaluation mode."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from stepladder.watching.hooks.names import Names, Root
from stepladder.watching.hooks.patches import Patches
from stepladder.watching.seen.models import UnreachedSeen
from stepladder.watching.watcher import Watcher

_DROPOUTS: Final = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)
_ATTENTION: Final = "scaled_dot_product_attention"
_NORM: Final = "batch_norm"
_NAMES: Final = (*_DROPOUTS, _ATTENTION)
_MODE: Final = 2  # the position of `training` in the arguments
_MODE_OF_NORM: Final = 5
_LAYERS: Final[tuple[Any, ...]] = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    _BatchNorm,
)
_FORWARDS: Final = frozenset(layer.forward.__code__ for layer in _LAYERS)
_MAX_FRAMES: Final = 6  # between a layer and the function that it calls
_MAX_NORM_CALLS: Final = 16  # of models, in which BatchNorm is watched as well
_MAX_GRAD_CALLS: Final = 32  # after which calls with gradients enabled are left out


class DropoutWatch:
    """Wraps dropout functions while a model in evaluation mode is called.

    Only calls without an explicit mode are counted, and attention, which has no mode: an explicit
    `training=True` is intended. It is not if a layer passes its own mode, and the layer is in no
    model: `eval()` has not reached it. A layer of the model may be in training mode on purpose.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._watcher: Watcher
        self._patches: Patches | None = None
        self._originals: list[Any] = []
        self._is_on = False
        self._num_calls = 0
        self._last: weakref.ref[nn.Module] | None = None  # the last layer that is in no model

    def install(self, watcher: Watcher) -> None:
        """Subscribe to calls in evaluation mode."""
        self._watcher = watcher
        watcher.on_evaluation.append(self._turn)
        watcher.patches.on_undo(lambda: self._turn(False))

    def _turn(self, is_on: bool) -> None:
        if self._is_on and self._patches is not None:
            self._is_on = False
            self._patches.lay_down()
        if not is_on:
            return
        self._num_calls += self._watcher.step > 0
        is_over = self._num_calls > _MAX_GRAD_CALLS or self._watcher.seen.is_compiled
        if torch.is_grad_enabled() and is_over:
            return
        names = (*_NAMES, _NORM) if self._num_calls <= _MAX_NORM_CALLS else _NAMES
        now = [getattr(F, name, None) for name in names]
        if self._patches is None or now != self._originals:  # the script may have replaced them
            self._originals, self._patches = now, Patches(self._watcher.switch)
            for name in _DROPOUTS:
                self._patches.wrap(F, name, before=self._dropout)
            self._patches.wrap(F, _ATTENTION, before=self._attention)
            if _NORM in names:
                self._patches.wrap(F, _NORM, before=self._norm)
        else:
            self._patches.take_up()
        self._is_on = True

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def _dropout(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (args[1] if len(args) > 1 else kwargs.get("p", 0.5)):
            return
        if len(args) <= _MODE and "training" not in kwargs:
            self._count()
        elif args[_MODE] if len(args) > _MODE else kwargs["training"]:
            self._find_unreached()

    def _attention(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args[4] if len(args) > 4 else kwargs.get("dropout_p"):
            self._count()

    def _norm(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        if len(args) > _MODE_OF_NORM and args[_MODE_OF_NORM]:
            self._find_unreached()

    def _root(self) -> Root | None:
        """Return the model that is being evaluated, after the first step."""
        module = self._watcher.evaluated()
        if module is None or module.training or self._watcher.step == 0:
            return None
        return self._names.root_of(module)

    def _count(self) -> None:
        root = None if torch.is_grad_enabled() else self._root()
        if root is not None:
            root.seen.num_live_dropout += 1
            root.seen.live_dropout_at = root.seen.live_dropout_at or self._watcher.own.here()

    def _find_unreached(self) -> None:
        """Count the call of a layer in training mode that belongs to no model."""
        root, layer = self._root(), _calling_layer()
        if root is None or layer is None or not layer.training:
            return
        if id(layer) in root.modules:
            return
        if any(one is layer for model in self._names.layers() for one in model.modules()):
            return  # of another model, or added later
        if root.seen.unreached is None:
            kind = type(layer).__name__
            p = getattr(layer, "p", None)
            root.seen.unreached = UnreachedSeen(
                layer=kind if p is None else f"{kind}(p={p:g})",
                is_norm=isinstance(layer, _BatchNorm),
                where=self._watcher.own.here(),
            )
        elif self._last is not None and self._last() is None:
            root.seen.unreached.num_created += 1
        root.seen.unreached.num_calls += 1
        self._last = weakref.ref(layer)


def _calling_layer() -> nn.Module | None:
    """Return the layer of torch that has called the function that is watched; or None."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        if frame.f_code in _FORWARDS:
            layer = frame.f_locals.get("self")
            return layer if isinstance(layer, nn.Module) else None
        frame = frame.f_back
    return None
