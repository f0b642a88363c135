"""Watch torch's losses with pairs and triplets: their targets, and who is near whom at first."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from stepladder.watching.hooks.losses.loss_values import is_mined
from stepladder.watching.hooks.tensors import is_plain, part
from stepladder.watching.seen.losses import MarginSeen
from stepladder.watching.watcher import Watcher

_PAIRS: Final = {  # the position of the target
    "cosine_embedding_loss": 2,
    "margin_ranking_loss": 2,
    "hinge_embedding_loss": 1,
    "soft_margin_loss": 1,
}
_TRIPLETS: Final = ("triplet_margin_loss", "triplet_margin_with_distance_loss")
_MAX_LOOKS: Final = 4  # inspected calls per step
_FIRST: Final = 4  # steps in which nothing was learned yet
_MAX_TARGETS: Final = 4096
_MAX_ROWS: Final = 256


class MarginWatch:
    """Wraps F.triplet_margin_loss and similar functions, which the loss layers call as well."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._seen: dict[tuple[str, str | None], MarginSeen] = {}
        self._looks = 0

    def install(self, watcher: Watcher) -> None:
        """Wrap the functions."""
        self._watcher = watcher
        watcher.on_close.append(self._next)
        for kind, at in _PAIRS.items():
            watcher.patches.wrap(F, kind, before=self._pairs(kind, at), is_close_only=True)
        for kind in _TRIPLETS:
            watcher.patches.wrap(F, kind, before=self._triplets(kind), is_close_only=True)

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def _next(self) -> None:
        self._looks = 0

    def _of(self, kind: str) -> MarginSeen | None:
        """Return what is known of this call; None if it is not inspected."""
        if self._looks >= _MAX_LOOKS or not torch.is_grad_enabled():
            return None
        self._looks += 1
        where = self._watcher.own.here()
        if (kind, where) not in self._seen:
            self._seen[kind, where] = MarginSeen(kind=kind, where=where)
            self._watcher.seen.margins.append(self._seen[kind, where])
        return self._seen[kind, where]

    def _pairs(self, kind: str, at: int) -> Any:
        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            target: Any = args[at] if len(args) > at else kwargs.get("target")
            seen = self._of(kind) if is_plain(target) and target.numel() else None
            if seen is None:
                return
            labels = part(target, _MAX_TARGETS)
            counts = torch.stack([(labels == value).sum() for value in (0, 1, -1)]).tolist()
            seen.num_zero += int(counts[0])
            seen.num_one += int(counts[1])
            seen.num_minus += int(counts[2])
            seen.num_targets += labels.numel()
            if self._watcher.step < _FIRST and kind.endswith("embedding_loss"):
                _note_pairs(seen, kind, args, kwargs, target)

        return before

    def _triplets(self, kind: str) -> Any:
        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            names = ("anchor", "positive", "negative")
            some: list[Any] = [
                args[i] if len(args) > i else kwargs.get(name) for i, name in enumerate(names)
            ]
            if not all(is_plain(one) and one.dim() == 2 for one in some):
                return
            shapes = {tuple(one.shape) for one in some}
            seen = self._of(kind) if len(shapes) == 1 else None
            if seen is None:
                return
            seen.is_mined = seen.is_mined or any(is_mined(one) for one in some)
            anchor, positive, negative = (one.detach()[:_MAX_ROWS].float() for one in some)
            near, far = (anchor - positive).norm(dim=1), (anchor - negative).norm(dim=1)
            if self._watcher.step >= _FIRST:
                _note_late(seen, near, far, kwargs, args, step=self._watcher.step)
                return
            seen.near.add(near)
            seen.far.add(far)
            seen.gap.add(near - far)
            seen.num_farther += int((near > far).sum())

        return before


def _note_pairs(
    seen: MarginSeen, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], target: Tensor
) -> None:
    """Note the distances of pairs that are labelled as alike, and of the others."""
    if kind == "cosine_embedding_loss":
        first: Any = args[0] if args else kwargs.get("input1")
        second: Any = args[1] if len(args) > 1 else kwargs.get("input2")
        if not is_plain(first) or not is_plain(second) or first.dim() != 2:
            return
        if first.shape != second.shape or target.shape != first.shape[:1]:
            return
        seen.is_mined = seen.is_mined or is_mined(first) or is_mined(second)
        a, b = first.detach()[:_MAX_ROWS].float(), second.detach()[:_MAX_ROWS].float()
        distance = 1 - (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1)).clamp_min(1e-12)
    else:
        given: Any = args[0] if args else kwargs.get("input")
        if not is_plain(given) or given.shape != target.shape or given.numel() > 4 * _MAX_TARGETS:
            return
        distance = given.detach().flatten()[:_MAX_ROWS].float()
    labels = target.detach().flatten()[:_MAX_ROWS]
    seen.near.add(distance[labels == 1])
    seen.far.add(distance[labels == -1])


def _note_late(
    seen: MarginSeen,
    near: Tensor,
    far: Tensor,
    kwargs: dict[str, Any],
    args: tuple[Any, ...],
    *,
    step: int,
) -> None:
    """Note the distances of triplets of a later step."""
    margin = kwargs.get("margin", args[3] if len(args) > 3 else 1.0)
    if isinstance(margin, (int, float)) and margin > 0:
        gap = near - far
        seen.margin, seen.last_step = float(margin), step
        seen.late_gap.add(gap)
        seen.late_near.add(near)
        seen.late_loss.add((gap + margin).clamp_min(0))
