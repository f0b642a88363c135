"""Watch torch's loss functions and embeddings: shapes always, values on some steps."""

from __future__ import annotations

import weakref
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from stepladder.watching.hooks.graph import activation_before, picked
from stepladder.watching.hooks.losses import loss_values
from stepladder.watching.hooks.losses.across import softmax_across
from stepladder.watching.hooks.losses.averages import AverageWatch
from stepladder.watching.hooks.losses.constant_terms import ConstantTermWatch
from stepladder.watching.hooks.losses.loss_values import DISTANCES
from stepladder.watching.hooks.losses.padded import Ends, note_padded, token_ends
from stepladder.watching.hooks.names import Names
from stepladder.watching.hooks.patches import DONE
from stepladder.watching.hooks.tensors import is_finite, is_plain, part, spread
from stepladder.watching.probe.probe import Kept
from stepladder.watching.seen.losses import OWN_LOSS, OWN_SQUARE, LossSeen
from stepladder.watching.watcher import Watcher

_KINDS: Final = (
    "cross_entropy",
    "nll_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
)
_BY_CLASS: Final = frozenset({"cross_entropy", "nll_loss"})
_MAX_LOOKS: Final = 4  # inspected calls per step
_ALWAYS: Final = 3  # the first calls of each kind
_MAX_LABELS: Final = 4096
_EXACT: Final = 1e-2  # tolerance of a sum of probabilities, also in 16 bits
_LABELS_OF_A_BATCH: Final = 8
_DEFAULT_IGNORED: Final = -100
_OF_NODES: Final = {
    "NllLoss": "cross_entropy",
    "NllLoss2D": "cross_entropy",
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
}


class LossWatch:
    """Wraps F.cross_entropy and similar functions, which the loss layers call as well.

    Attributes:
        averages: receives the values of losses.
        constants: receives their arguments, where gradients are enabled.
    """

    def __init__(self, names: Names, *, kept: Kept | None = None) -> None:
        self.averages = AverageWatch()
        self.constants = ConstantTermWatch(names)
        self._kept = kept
        self._watcher: Watcher
        self._seen: dict[tuple[str, str | None], LossSeen] = {}
        self._counts: dict[tuple[str, bool], int] = {}
        self._looks = 0
        self._token_looks = 0
        self._token_ends: list[Ends] = []

    def install(self, watcher: Watcher) -> None:
        """Wrap the functions."""
        self._watcher = watcher
        watcher.on_close.append(self._next)
        for kind in _KINDS:
            watcher.patches.wrap(
                F,
                kind,
                before=self._open(kind),
                after=self._closed(kind),
                failed=self._label_error(kind),
            )
        watcher.patches.wrap(F, "embedding", before=self._tokens, failed=self._token_error)

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def look_at_own(self, node: Any) -> None:
        """Inspect the labels, the softmax and weights of a loss that the script computes itself."""
        for kind, by_label, labels in loss_values.weighted_labels(node):
            loss_values.note_weighted(self._weighted(kind, labels), kind, by_label, labels)
        for found_range, target in loss_values.differences(node):
            seen = self._of(OWN_SQUARE)
            seen.num_looked += 1
            loss_values.note_difference(seen, found_range, target)
        across = softmax_across(node)
        if across is not None:
            seen = self._of(OWN_LOSS)
            seen.num_looked += 1
            seen.activation, seen.input_shape = across, across.shape
        found = picked(node) if self._looks < _MAX_LOOKS else None
        if found is None or across is not None:
            return
        self._looks += 1
        seen = self._of(OWN_LOSS)
        seen.num_looked += 1
        seen.activation, seen.num_classes = found.activation, int(found.activation.shape[-1])
        seen.input_shape = tuple(found.activation.shape)
        seen.has_int_target = True
        self._labels(seen, found.labels)

    def _weighted(self, kind: str, labels: Tensor) -> LossSeen:
        seen = self._of(f"the weighted {_OF_NODES[kind]}")
        if kind != "BinaryCrossEntropyWithLogits":
            self._labels(seen, labels)
        return seen

    def _next(self) -> None:
        self._looks = self._token_looks = 0
        self._token_ends = []

    def _open(self, kind: str) -> Any:
        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
            is_due = self._watcher.is_close and self._looks < _MAX_LOOKS
            key = (kind, torch.is_grad_enabled())
            count = self._counts.get(key, 0)
            and_then = None if self.averages.is_open else DONE
            if not is_due and count >= _ALWAYS and self._kept is None:
                return and_then
            scores, target = _two(args, kwargs)
            if not isinstance(scores, Tensor) or not isinstance(target, Tensor):
                return and_then
            if self._kept is not None and torch.is_grad_enabled():
                self._kept.note_loss(kind, scores, target, args, kwargs)
            self._counts[key] = count + 1
            if is_due or count < _ALWAYS:
                self._looks += 1
                self._look(kind, scores, target, args, kwargs)
            return and_then

        return before

    def _closed(self, kind: str) -> Any:
        def after(_note: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            if self.averages.is_open:
                self.averages.add(kind, args, kwargs, result)

        return after

    def _of(self, kind: str) -> LossSeen:
        where = self._watcher.own.here()
        if (kind, where) not in self._seen:
            self._seen[kind, where] = LossSeen(kind=kind, where=where)
            self._watcher.seen.losses.append(self._seen[kind, where])
        return self._seen[kind, where]

    def _look(
        self,
        kind: str,
        scores: Tensor,
        target: Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        seen = self._of(kind)
        seen.num_looked += 1
        seen.has_grad = seen.has_grad or scores.requires_grad or target.requires_grad
        seen.input_shape = tuple(scores.shape)
        seen.reduction = str(kwargs.get("reduction", "mean"))
        seen.has_int_target = not target.is_floating_point()
        if scores.grad_fn is not None and seen.activation is None:
            seen.activation = activation_before(scores.grad_fn)
        if kind in _BY_CLASS:
            seen.num_classes = int(scores.shape[1] if scores.dim() > 1 else scores.shape[0])
            seen.num_single += seen.num_classes == 1 and scores.dim() > 1 and len(scores) > 1
            seen.ignore_index = int(kwargs.get("ignore_index", _DEFAULT_IGNORED))
        elif kind != "kl_div" and scores.shape != target.shape:
            seen.broadcast = seen.broadcast or _broadcast(scores, target)
        if not is_plain(scores) or not is_plain(target) or not scores.numel():
            return
        if torch.is_grad_enabled():
            self.constants.note(kind, scores, target, kwargs)
        self._numbers(seen, scores, target)
        if seen.has_grad:
            self._values(seen, scores, target, args, kwargs)

    def _values(
        self,
        seen: LossSeen,
        scores: Tensor,
        target: Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        given = self._watcher.input_refs[0]() if self._watcher.input_refs else None
        if seen.kind in DISTANCES:
            loss_values.note_reach(seen, scores, target)
        elif seen.kind == "kl_div":
            loss_values.note_divergence(seen, scores, target, args, kwargs)
        else:
            loss_values.note_weights(seen, target, args, kwargs)
        if seen.has_int_target:
            loss_values.note_cut(seen, target, self._watcher.batch_refs)
        elif seen.kind in DISTANCES:
            loss_values.note_whole(seen, target, self._watcher.batch_refs)
        if seen.kind == "cross_entropy" and not seen.has_int_target:
            loss_values.note_rows(seen, target, given)
        elif seen.kind in _BY_CLASS and seen.has_int_target and seen.reduction != "none":
            note_padded(seen, target, given, self._token_ends)

    def _numbers(self, seen: LossSeen, scores: Tensor, target: Tensor) -> None:
        self._watcher.input_refs = [*self._watcher.input_refs[-7:], weakref.ref(target)]
        for listener in self._watcher.on_loss:
            listener(target, scores)
        is_by_class = seen.kind in _BY_CLASS or seen.kind in DISTANCES
        if is_by_class and seen.has_int_target:
            self._labels(seen, target)
            for of_classes in self._watcher.on_classes if seen.kind in _BY_CLASS else ():
                of_classes(seen, target, scores)
        elif target.is_floating_point() and target.numel():
            found = spread(target)
            seen.target_low = min(found.low, seen.target_low or found.low)
            seen.target_high = max(found.high, seen.target_high or found.high)
            if not found.is_finite and not is_finite(target):
                self._watcher.seen.not_finite = "the target"
                self._watcher.seen.not_finite_at = seen.where
                self._watcher.seen.not_finite_step = self._watcher.step
        if seen.kind == "cross_entropy" and scores.dim() > 1 and scores.shape[1] > 1:
            some = scores.detach()[:64].float()
            adds_up = bool((some.sum(1) - 1).abs().max() < _EXACT) and bool(some.min() >= 0)
            seen.is_probability = adds_up and seen.is_probability is not False
        if (seen.kind == "nll_loss" or seen.is_soft) and scores.dim() > 1:
            total = scores.detach()[:64].float().logsumexp(1)
            tolerance = 1e-2 if scores.dtype is torch.float32 else 1e-1
            is_log = bool((total.abs() < tolerance).all())
            seen.is_log_probability = is_log and seen.is_log_probability is not False
        elif seen.kind in ("kl_div", "binary_cross_entropy_with_logits"):
            found = spread(scores)
            seen.input_low = min(found.low, seen.input_low or found.low)
            seen.input_high = max(found.high, seen.input_high or found.high)

    def _labels(self, seen: LossSeen, target: Tensor) -> None:
        labels = part(target, _MAX_LABELS)
        library: Any = torch
        values, counts = library.unique(labels, return_counts=True)
        found = dict(zip(values.tolist(), counts.tolist(), strict=True))
        found.pop(seen.ignore_index, None)
        seen.num_labels += sum(found.values())
        for label, count in found.items():
            seen.label_counts[label] = seen.label_counts.get(label, 0) + count
        seen.classes |= set(found)
        is_batch = torch.is_grad_enabled() and target.dim() == 1 and seen.kind not in DISTANCES
        if is_batch and target.numel() >= _LABELS_OF_A_BATCH:
            seen.step_classes.setdefault(self._watcher.step, set()).update(found)

    def _label_error(self, kind: str) -> Any:
        def failed(_note: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _error: Any) -> None:
            scores, target = _two(args, kwargs)
            if kind not in _BY_CLASS or not isinstance(target, Tensor) or not target.numel():
                return
            if target.is_floating_point() or not isinstance(scores, Tensor) or scores.dim() < 1:
                return
            seen = self._of(kind)
            num = int(scores.shape[1] if scores.dim() > 1 else scores.shape[0])
            ignored = kwargs.get("ignore_index", _DEFAULT_IGNORED)
            kept = target[target != ignored]
            if kept.numel() and (int(kept.min()) < 0 or int(kept.max()) >= num):
                seen.bad_range = (int(kept.min()), int(kept.max()), num)

        return failed

    def _tokens(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Find the padding id, which fills the ends of rows."""
        if not self._watcher.is_close or self._token_looks >= 2 or len(args) < 2:
            return
        self._token_looks += 1
        ids, table = args[0], args[1]
        if not is_plain(ids) or ids.dim() != 2 or ids.shape[1] < 3 or not is_plain(table):
            return
        self._token_ends += token_ends(ids)
        for listener in self._watcher.on_tokens:
            listener(ids)
        named = args[2] if len(args) > 2 else kwargs.get("padding_idx")
        if named is not None:
            self._watcher.seen.padding = (int(named), int(table.shape[0]))
            return
        ends = ids[:64, -3:]
        pad = int(ends[:, -1].mode().values)
        rows = (ends == pad).all(1).float().mean()
        is_padding = float(rows) > 0.25 and float((ids[:64, 0] == pad).float().mean()) < 0.1
        if is_padding:
            self._watcher.seen.padding = (pad, int(table.shape[0]))

    def _token_error(self, _note: Any, args: tuple[Any, ...], _kwargs: Any, _error: Any) -> None:
        if len(args) < 2 or not isinstance(args[0], Tensor) or not args[0].numel():
            return
        ids, table = args[0], args[1]
        if ids.is_floating_point() or not isinstance(table, Tensor):
            return
        worst = int(ids.max()) if int(ids.min()) >= 0 else int(ids.min())
        if not 0 <= worst < table.shape[0]:
            self._watcher.seen.bad_tokens = (worst, int(table.shape[0]))
            self._watcher.seen.bad_tokens_at = self._watcher.own.here()


def _two(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    scores = args[0] if args else kwargs.get("input")
    target = args[1] if len(args) > 1 else kwargs.get("target")
    return scores, target


def _broadcast(scores: Tensor, target: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return both shapes if broadcasting makes the result larger than either.

    Tensors with the same number of dimensions are ignored: all pairs are intended there.
    """
    if scores.dim() == target.dim():
        return None
    try:
        library: Any = torch
        whole = library.broadcast_shapes(scores.shape, target.shape)
    except RuntimeError:
        return None
    size = 1
    for one in whole:
        size *= one
    if size <= max(scores.numel(), target.numel()):
        return None
    return tuple(scores.shape), tuple(target.shape)
