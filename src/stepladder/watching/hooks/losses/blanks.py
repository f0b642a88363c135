"""Watch labels of CTC losses that are the blank."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from stepladder.watching.hooks.tensors import is_plain
from stepladder.watching.seen.losses import BlankSeen
from stepladder.watching.watcher import Watcher

_MAX_LABELS: Final = 65_536


class BlankWatch:
    """Wraps `ctc_loss` in inspected steps."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._places: dict[str | None, BlankSeen] = {}

    def install(self, watcher: Watcher) -> None:
        """Wrap the function."""
        self._watcher = watcher
        watcher.patches.wrap(F, "ctc_loss", before=self._called, is_close_only=True)

    def settle(self) -> None:
        """Store the lines."""
        self._watcher.seen.blanks = list(self._places.values())

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = ("log_probs", "targets", "input_lengths", "target_lengths", "blank")
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        targets: Any = given.get("targets")
        blank = given.get("blank", 0)
        if not is_plain(targets) or not isinstance(blank, int) or targets.numel() > _MAX_LABELS:
            return
        labels = _of_lengths(targets, given.get("target_lengths"))
        if labels is None or not labels.numel():
            return
        where = self._watcher.own.here()
        one = self._places.setdefault(where, BlankSeen(where=where, blank=blank))
        one.num_labels += labels.numel()
        one.num_blank += int((labels == blank).sum())
        one.num_calls += 1


def _of_lengths(targets: Tensor, lengths: Any) -> Tensor | None:
    """Return all labels, without the padding of rows; None if that is not known."""
    if targets.dim() == 1:
        return targets
    if targets.dim() != 2 or lengths is None:
        return None
    ends = torch.as_tensor(lengths, device=targets.device).reshape(-1, 1)
    if len(ends) != len(targets):
        return None
    return targets[torch.arange(targets.shape[1], device=targets.device) < ends]
