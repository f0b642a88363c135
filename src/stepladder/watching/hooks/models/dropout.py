"""Watch functional dropout: whether it is active in evaluation mode."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F

from stepladder.watching.hooks.names import Names
from stepladder.watching.hooks.patches import Patches
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
_NAMES: Final = (*_DROPOUTS, _ATTENTION)
_MODE: Final = 2  # the position of `training` in the arguments


class DropoutWatch:
    """Wraps dropout functions while a model in evaluation mode is called.

    Only calls without an explicit mode are counted, and attention, which has no mode: an explicit
    `training=True` is intended.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._watcher: Watcher
        self._patches: Patches | None = None
        self._originals: list[Any] = []
        self._is_on = False

    def install(self, watcher: Watcher) -> None:
        """Subscribe to calls in evaluation mode."""
        self._watcher = watcher
        watcher.on_evaluation.append(self._turn)
        watcher.patches.on_undo(lambda: self._turn(False))

    def _turn(self, is_on: bool) -> None:
        if self._is_on and self._patches is not None:
            self._is_on = False
            self._patches.lay_down()
        if not is_on or torch.is_grad_enabled():
            return
        now = [getattr(F, name, None) for name in _NAMES]
        if self._patches is None or now != self._originals:  # the script may have replaced them
            self._originals, self._patches = now, Patches(self._watcher.switch)
            for name in _DROPOUTS:
                self._patches.wrap(F, name, before=self._dropout)
            self._patches.wrap(F, _ATTENTION, before=self._attention)
        else:
            self._patches.take_up()
        self._is_on = True

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def _dropout(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_told = len(args) > _MODE or "training" in kwargs
        if not is_told and (args[1] if len(args) > 1 else kwargs.get("p", 0.5)):
            self._count()

    def _attention(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args[4] if len(args) > 4 else kwargs.get("dropout_p"):
            self._count()

    def _count(self) -> None:
        module = self._watcher.evaluated()
        root = None if module is None or module.training else self._names.root_of(module)
        if root is None or self._watcher.step == 0:
            return
        root.seen.num_live_dropout += 1
        root.seen.live_dropout_at = root.seen.live_dropout_at or self._watcher.own.here()
