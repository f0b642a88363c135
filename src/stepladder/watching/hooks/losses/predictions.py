"""Watch which class of a model's output is the largest, where there is only one."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from stepladder.watching.seen.losses import PredictionSeen
from stepladder.watching.watcher import Watcher

_MAX_LINES: Final = 16


class PredictionWatch:
    """Wraps argmax, and max over a dimension."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._seen: dict[tuple[str, str | None], PredictionSeen] = {}

    def install(self, watcher: Watcher) -> None:
        """Wrap the functions."""
        self._watcher = watcher
        for kind in ("argmax", "max"):
            before = self._looks_at(kind)
            for owner in (Tensor, torch):
                watcher.patches.wrap(owner, kind, before=before)

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def _looks_at(self, kind: str) -> Any:
        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            scores: Any = args[0] if args else kwargs.get("input")
            shape = self._watcher.output_shape
            if len(shape) != 2 or shape[1] != 1 or shape[0] < 2 or not isinstance(scores, Tensor):
                return
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            is_class = isinstance(dim, int) and dim in (1, -1)
            if not is_class or scores.shape != shape or not scores.is_floating_point():
                return
            where = self._watcher.own.here()
            seen = self._seen.get((kind, where))
            if seen is None:
                if len(self._seen) >= _MAX_LINES:
                    return
                seen = self._seen[kind, where] = PredictionSeen(kind=kind, where=where)
                self._watcher.seen.predictions.append(seen)
            seen.num_calls += 1
            seen.num_rows += shape[0]

        return before
