"""Watches dropout that a model calls as a function: whether it drops in evaluation mode too."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F

from stepladder.watch.names import Names
from stepladder.watch.watcher import Watcher

_DROPOUTS: Final = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)
_NUM_OF_LAYERS: Final = 4  # arguments that torch's own layers call them with


class DropoutWatch:
    """Wrappers of dropout functions, which act only while a model is in evaluation mode.

    Torch's dropout layers call the same functions: theirs are not counted, since whoever puts a
    layer into training mode alone means it.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._watcher: Watcher

    def install(self, watcher: Watcher) -> None:
        """Wrap them."""
        self._watcher = watcher
        for name in _DROPOUTS:
            watcher.patches.wrap(F, name, before=self._dropout, is_evaluation_only=True)
        watcher.patches.wrap(
            F, "scaled_dot_product_attention", before=self._attention, is_evaluation_only=True
        )

    def settle(self) -> None:
        """Nothing is left to read."""

    def _dropout(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        drops = args[2] if len(args) > 2 else kwargs.get("training", True)
        share = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        if drops and share and len(args) < _NUM_OF_LAYERS:
            self._count()

    def _attention(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args[4] if len(args) > 4 else kwargs.get("dropout_p"):
            self._count()

    def _count(self) -> None:
        module = self._watcher.evaluated()
        root = None if module is None else self._names.root_of(module)
        if root is None or torch.is_grad_enabled() or self._watcher.step == 0:
            return
        root.seen.num_live_dropout += 1
        root.seen.live_dropout_at = root.seen.live_dropout_at or self._watcher.own.here()
