"""Watch losses of all labels in each step, and evaluations of a part of these that is held out."""

from __future__ import annotations

import weakref
from typing import Any, Final

import torch
from torch import Tensor

from stepladder.watching.hooks.graph import kind_of, walk
from stepladder.watching.hooks.patches import Patches
from stepladder.watching.hooks.tensors import checksum, is_plain
from stepladder.watching.seen.loaders import WholeLabelsSeen
from stepladder.watching.watcher import Watcher

_LOSSES: Final = frozenset({
    "NllLoss", "BinaryCrossEntropyWithLogits", "BinaryCrossEntropy", "MseLoss", "SmoothL1Loss",
    "HuberLoss",
})  # fmt: skip
_BY_CLASS: Final = "NllLoss"
_MIN_LABELS: Final = 32
_MIN_SAME: Final = 2  # inspected steps with the same labels
_MAX_OTHERS: Final = 40  # inspected steps with labels that differ from those before
_MAX_WINDOWS: Final = 32  # times that the wrappers are put in place
_MAX_STEPS: Final = 12  # of these, for steps of the training
_MAX_INDEXED: Final = 400  # calls in between
_MAX_COMPARED: Final = 64  # tensors whose values are compared with the labels
_MAX_RESULTS: Final = 4


class WholeLabelWatch:
    """Wraps indexing and `==` of tensors in some evaluations, if a loss always has the same labels.

    A part of these labels, or of their comparison with predictions, is held out if the variables of
    the lines that select it are named so. The labels are recognised by their values.
    """

    def __init__(self) -> None:
        self._watcher: Watcher
        self._patches: Patches | None = None
        self._is_on = False
        self._left = 0  # steps until the wrappers are removed
        self._num_windows = self._num_steps = self._num_indexed = self._num_compared = 0
        self._trained: tuple[int, float] | None = None  # number of labels, and their checksum
        self._trained_at: str | None = None
        self._num_same = self._num_others = 0
        self._results: list[weakref.ref[Tensor]] = []

    def install(self, watcher: Watcher) -> None:
        """Listen for losses, evaluations and steps."""
        self._watcher = watcher
        watcher.on_graph.append(self._learn)
        watcher.on_evaluation.append(self._evaluated)
        watcher.on_step.append(self._stepped)
        watcher.on_close.append(self._step)
        watcher.patches.on_undo(self._shut)

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def _learn(self, root: Any) -> None:
        """Note the labels of the only loss, and whether they are those of the step before."""
        if self._num_others >= _MAX_OTHERS:
            self._trained = None
            return
        losses = [node for node in walk(root) if kind_of(node) in _LOSSES]
        labels = _labels_of(losses[0]) if len(losses) == 1 else None
        found = None if labels is None else (len(labels), checksum(labels))
        is_same = found == self._trained
        self._num_same = self._num_same + 1 if is_same else 1
        self._num_others += not is_same
        self._trained = found
        self._trained_at = self._watcher.own.here()

    def _evaluated(self, is_entered: bool) -> None:
        if is_entered:
            self._open(until=1)

    def _step(self) -> None:
        if self._num_steps < _MAX_STEPS:
            self._num_steps += self._num_same >= _MIN_SAME
            self._open(until=2)  # an evaluation may come after the next step

    def _stepped(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._shut()

    def _open(self, *, until: int) -> None:
        if self._trained is None or self._num_same < _MIN_SAME:
            return
        self._left = max(self._left, until)
        seen = self._watcher.seen
        is_done = self._num_windows >= _MAX_WINDOWS or seen.whole_labels or seen.is_compiled
        if self._is_on or is_done:
            return
        self._num_windows += 1
        self._num_indexed = 0
        if self._patches is None:
            self._patches = Patches(self._watcher.switch)
            self._patches.wrap(Tensor, "__getitem__", before=self._index)
            for name in ("__eq__", "eq"):
                self._patches.wrap(Tensor, name, after=self._compared)
        else:
            self._patches.take_up()
        self._is_on = True

    def _shut(self) -> None:
        self._results = []
        if self._is_on and self._patches is not None:
            self._is_on = False
            self._patches.lay_down()

    def _compared(
        self, _note: Any, args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any
    ) -> None:
        """Remember which predictions are equal to the labels, until some of these are selected."""
        is_result = isinstance(result, Tensor) and self._trained is not None
        if is_result and len(self._results) < _MAX_RESULTS and any(map(self._is_trained, args)):
            self._results.append(weakref.ref(result))

    def _is_trained(self, value: Any) -> bool:
        """Return whether a tensor has the labels of the loss."""
        if self._trained is None or not is_plain(value) or self._num_compared >= _MAX_COMPARED:
            return False
        if value.dim() == 0 or len(value) != self._trained[0] or value.dtype is torch.bool:
            return False
        self._num_compared += 1
        return checksum(value) == self._trained[1]

    def _index(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        """Note a part of the labels that is selected by a mask or by indices."""
        self._num_indexed += 1
        if not self._is_on or self._num_indexed > _MAX_INDEXED:
            self._shut()
            return
        if len(args) != 2 or not is_plain(args[0]) or not is_plain(args[1]):
            return
        value, chosen = args
        trained = self._trained
        if trained is None or value.dim() == 0 or len(value) != trained[0] or chosen.dim() != 1:
            return
        is_mask = chosen.dtype is torch.bool and len(chosen) == trained[0]
        if not is_mask and (chosen.dtype is not torch.int64 or len(chosen) >= trained[0]):
            return
        own = self._watcher.own
        if not own.named_data.is_held_out(own.lines()):
            return
        is_result = any(one() is value for one in self._results)
        if not is_result and not self._is_trained(value):
            return
        num = int(chosen.count_nonzero()) if is_mask else len(torch.unique(chosen))
        if 0 < num < trained[0]:
            seen = WholeLabelsSeen(
                where=own.here(),
                trained_at=self._trained_at,
                num_trained=trained[0],
                num_held_out=num,
            )
            self._watcher.seen.whole_labels.append(seen)
            self._shut()


def _labels_of(node: Any) -> Tensor | None:
    """Return the labels, one per example, of a loss that is a mean or sum over all of them.

    Targets with several numbers per example may be its features, as in an autoencoder.
    """
    kind = kind_of(node)
    if getattr(node, "_saved_reduction", 0) == 0:
        return None
    if kind != _BY_CLASS and getattr(node, "_saved_weight", None) is not None:
        return None  # which may be a mask
    labels: Any = getattr(node, "_saved_target", None)
    if not is_plain(labels) or labels.dim() not in (1, 2) or len(labels) < _MIN_LABELS:
        return None
    if labels.numel() != len(labels):
        return None
    ignored = getattr(node, "_saved_ignore_index", None)
    if kind == _BY_CLASS and isinstance(ignored, int):
        signed = ignored - 2**64 if ignored >= 2**63 else ignored
        if bool((labels == signed).any()):
            return None
    flat = labels.reshape(-1)
    steps = flat[1:] - flat[:-1] if labels.dtype is not torch.bool else flat[1:]
    is_numbered = bool((steps > 0).all())  # 0, 1, 2 …, as in a contrastive loss
    return None if is_numbered or bool((flat == flat[0]).all()) else labels
